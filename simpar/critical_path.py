"""The critical path of a step: from the op that ends last back through what made each op start, in segments and words.

The segments cover the window without gap or overlap. A segment is an op that ran, the host (which had not issued the op
yet, and so has held things up since the window began: it issues without pause), or, in a measured trace, an overhead:
time in which an op could have arrived and had not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from simpar.cost.costs import Costs
from simpar.metrics import communicator, is_communication
from simpar.program import OpClass, Role
from simpar.trace import Trace

SegmentKind = Literal['compute', 'communication', 'host', 'overhead']
_WHERE = {'F': 'in the forward', 'I': 'in the backward', 'W': 'in the backward', 'U': 'in the update'}
_NAMED = 3
"""How many compute op classes the words name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Seconds of the critical path: ``begin`` to ``end``, on a rank; ``op`` is None for host and overhead."""

    kind: SegmentKind
    rank: int
    begin: float
    end: float
    op: OpClass | None = None
    slot: int = -1
    stream: str = ''
    stretched: float = 0.0

    @property
    def seconds(self) -> float:
        """How long."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPath:
    """Segments in order of time, from ``begin`` to ``end`` of a step.

    Arguments: ``stretched``, seconds by which ops on the path lasted longer than alone (0 where costs were not given).
    """

    begin: float
    end: float
    segments: tuple[Segment, ...]
    stretched: float
    ranks: int

    @property
    def shares(self) -> dict[str, float]:
        """What the path consists of, as share of the step; the largest first, ties by name."""
        seconds: dict[str, float] = {}
        for segment in self.segments:
            what = _what(segment)
            seconds[what] = seconds.get(what, 0.0) + segment.seconds
        whole = self.end - self.begin
        return dict(sorted(((k, v / whole) for k, v in seconds.items()), key=lambda item: (-item[1], item[0])))

    @property
    def words(self) -> str:
        """The path in one or two sentences."""
        if not self.segments:
            return 'Nothing takes time in this step.'
        return f'{_main_sentence(self)}{_stretched_sentence(self)}'


def critical_path(trace: Trace, costs: Costs | None = None, step: int = -1) -> CriticalPath:
    """The critical path of a step of a trace.

    Arguments: ``costs``, what the trace was simulated with, to tell how far ops were stretched; ``step``, an index.
    Ties are broken by the lowest lane and, among what an op waited for, by the latest issued.
    """
    index = range(trace.steps)[step]
    ends = [0.0, *trace.step_ends.tolist()]
    segments = tuple(reversed(_Walk(trace, costs, index, ends[index], ends[index + 1]).segments()))
    return CriticalPath(
        begin=ends[index],
        end=ends[index + 1],
        segments=segments,
        stretched=sum(segment.stretched for segment in segments),
        ranks=len(trace.lanes),
    )


class _Place(NamedTuple):
    """A slot of a step on a lane."""

    lane: int
    step: int
    slot: int


@dataclass(slots=True)
class _LaneView:
    """What the walk asks about a lane, as lists."""

    role: Role
    arrive: list[list[float]]
    start: list[list[float]]
    end: list[list[float]]
    needs: list[tuple[int, ...]]
    carried: list[tuple[int, ...]]
    before: list[int]
    tail: dict[int, int]


@dataclass(slots=True)
class _Walk:
    """One walk backwards in time."""

    trace: Trace
    costs: Costs | None
    step: int
    begin: float
    end: float
    views: dict[int, _LaneView] = field(default_factory=dict)
    sequences: dict[int, dict[tuple[str, str], list[int]]] = field(default_factory=dict)

    def segments(self) -> list[Segment]:
        """The segments, the latest first."""
        found: list[Segment] = []
        time, place = self.end, self._last()
        while time > self.begin:
            segment, place = self._run(place, time)
            time = self._put(found, segment, time)
            segment, place = self._cause(place, time)
            time = self._put(found, segment, time)
        return found

    def _put(self, found: list[Segment], segment: Segment, time: float) -> float:
        """Keep a segment if it takes time; the time at which the path goes on."""
        if segment.begin >= time:
            return time
        found.append(segment)
        return segment.begin

    def _last(self) -> _Place:
        """The op that ends last."""
        lane = int(np.argmax([lane.end_KS[self.step].max() for lane in self.trace.lanes]))
        return _Place(lane, self.step, int(np.argmax(self.trace.lanes[lane].end_KS[self.step])))

    def _run(self, place: _Place, time: float) -> tuple[Segment, _Place]:
        """The segment of a running op, and the participant that made it start: the last to arrive."""
        view = self._view(place.lane)
        op = self._op(place)
        begin = max(self.begin, view.start[place.step][place.slot])
        segment = Segment(
            kind='communication' if is_communication(op) else 'compute',
            rank=self.trace.lanes[place.lane].rank,
            begin=begin,
            end=time,
            op=op,
            slot=place.slot,
            stream=view.role.streams[int(view.role.stream[place.slot])],
            stretched=self._stretched(place, op, begin, time),
        )
        return segment, max(self._participants(place, op), key=lambda p: (self._arrive(p), p == place, -p.lane))

    def _cause(self, place: _Place, time: float) -> tuple[Segment, _Place]:
        """The segment in which an op had not arrived although nothing ran before it, and the op before it."""
        latest = max(self._before(place), key=lambda p: (self._end(p), p.step, p.slot), default=None)
        simulated = self.trace.origin == 'simulated'
        since = self._end(latest) if latest else self.begin
        if simulated and self._arrive(place) > since:
            since = self.begin
        segment = Segment(
            kind='host' if simulated else 'overhead',
            rank=self.trace.lanes[place.lane].rank,
            begin=max(self.begin, since),
            end=time,
        )
        return segment, latest or place

    def _before(self, place: _Place) -> list[_Place]:
        """What had to end before an op could arrive."""
        lane, step, slot = place
        view = self._view(lane)
        places = [_Place(lane, step, need) for need in view.needs[slot]]
        if view.before[slot] >= 0:
            places.append(_Place(lane, step, view.before[slot]))
        if step:
            places += [_Place(lane, step - 1, need) for need in view.carried[slot]]
            if view.before[slot] < 0:
                places.append(_Place(lane, step - 1, view.tail[int(view.role.stream[slot])]))
        return places

    def _participants(self, place: _Place, op: OpClass) -> list[_Place]:
        """The same collective on the lanes of its group, found by its order on the communicator."""
        if op.kind != 'collective':
            return [place]
        role = self._view(place.lane).role
        key = (op.partition, role.streams[int(role.stream[place.slot])])
        order = self._sequence(place.lane)[key].index(place.slot)
        members = self.trace.program.partitions[op.partition].members(self.trace.lanes[place.lane].rank)
        lanes = dict.fromkeys(int(self.trace.lane_of_rank[rank]) for rank in members)
        return [_Place(lane, place.step, self._sequence(lane)[key][order]) for lane in lanes]

    def _sequence(self, lane: int) -> dict[tuple[str, str], list[int]]:
        """The collectives of a lane by communicator, in order."""
        if lane not in self.sequences:
            role = self._view(lane).role
            found: dict[tuple[str, str], list[int]] = {}
            for slot, (index, stream) in enumerate(zip(role.op_class.tolist(), role.stream.tolist(), strict=True)):
                op = self.trace.program.op_classes[index]
                if op.kind == 'collective':
                    found.setdefault((op.partition, role.streams[stream]), []).append(slot)
            self.sequences[lane] = found
        return self.sequences[lane]

    def _stretched(self, place: _Place, op: OpClass, begin: float, end: float) -> float:
        """Seconds of a segment beyond the op's isolated seconds."""
        if self.costs is None:
            return 0.0
        rank = self.trace.lanes[place.lane].rank
        index = int(self._view(place.lane).role.op_class[place.slot])
        if is_communication(op):
            group = self.trace.program.partitions[op.partition].place(rank)[0]
            cost = self.costs.communication[index][group]
            isolated = cost.alpha + cost.transfer
        else:
            isolated = float(self.costs.compute[index] / self.costs.rank_speed[rank])
        return max(0.0, end - begin - isolated)

    def _op(self, place: _Place) -> OpClass:
        return self.trace.program.op(self._view(place.lane).role, place.slot)

    def _arrive(self, place: _Place) -> float:
        return self._view(place.lane).arrive[place.step][place.slot]

    def _end(self, place: _Place) -> float:
        return self._view(place.lane).end[place.step][place.slot]

    def _view(self, index: int) -> _LaneView:
        if index not in self.views:
            lane = self.trace.lanes[index]
            role = self.trace.role(lane)
            before, tail = _stream_order(role)
            times = (lane.arrive_KS.tolist(), lane.start_KS.tolist(), lane.end_KS.tolist())
            self.views[index] = _LaneView(role, *times, role.needs(), role.carried(), before, tail)
        return self.views[index]


def _stream_order(role: Role) -> tuple[list[int], dict[int, int]]:
    """For each slot the one before it on its stream, or -1; and the last slot of each stream."""
    tail: dict[int, int] = {}
    before = []
    for slot, stream in enumerate(role.stream.tolist()):
        before.append(tail.get(stream, -1))
        tail[stream] = slot
    return before, tail


def _what(segment: Segment) -> str:
    """What the words call a segment's time."""
    if segment.op is None:
        return 'waiting for the host' if segment.kind == 'host' else 'waiting for no op (overhead)'
    if segment.kind == 'compute':
        return 'compute'
    name = communicator(segment.op, segment.stream)
    return f'{name} {segment.op.operator} {_WHERE[segment.op.phase]}'


def _main_sentence(path: CriticalPath) -> str:
    parts = []
    rest = 0.0
    for what, share in path.shares.items():
        if share < 0.005:
            rest += share
        else:
            parts.append(f'{_percent(share)} {what}{_compute_details(path) if what == "compute" else ""}')
    if rest >= 0.005:
        parts.append(f'{_percent(rest)} other')
    return f'Critical path: {", ".join(parts)}{_on_rank(path)}.'


def _compute_details(path: CriticalPath) -> str:
    """The op classes that weigh most, layers taken together."""
    seconds: dict[str, float] = {}
    for segment in path.segments:
        if segment.op and segment.kind == 'compute':
            name = re.sub(r'\blayer\d+', 'layer*', segment.op.name)
            seconds[name] = seconds.get(name, 0.0) + segment.seconds
    ranked = sorted(seconds.items(), key=lambda item: (-item[1], item[0]))
    whole = path.end - path.begin
    named = [f'{name} {_percent(value / whole)}' for name, value in ranked[:_NAMED] if value >= 0.005 * whole]
    more = [f'{len(ranked) - len(named)} more'] if len(ranked) > len(named) else []
    return f' ({", ".join(named + more)})' if named else ''


def _on_rank(path: CriticalPath) -> str:
    """Which rank the path runs on, where ranks differ."""
    ranks = {segment.rank for segment in path.segments if segment.kind == 'compute'}
    return f', all compute on rank {min(ranks)}' if path.ranks > 1 and len(ranks) == 1 else ''


def _stretched_sentence(path: CriticalPath) -> str:
    share = path.stretched / (path.end - path.begin)
    if share < 0.005:
        return ''
    return f' {_percent(share)} of the step is work on this path stretched by what ran beside it.'


def _percent(share: float) -> str:
    return f'{share * 100:.0f} %'
