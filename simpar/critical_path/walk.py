"""The critical path of a step: from the op that ends last back through what made each op start, in segments.

The segments cover the window without gap or overlap. A segment is an op that ran, the host (which had not issued the op
yet, and so has held things up since the window began: it issues without pause), or, in a measured trace, an overhead:
time in which an op could have arrived and had not. Where ranks meet, in a collective or a send with its receive, the
path goes on on the rank that came last.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from simpar.cost.costs import Costs, entry_of
from simpar.critical_path.path import CriticalPath, Segment
from simpar.metrics import Meetings, is_communication, is_pipeline
from simpar.program import OpClass, Role
from simpar.trace import Trace


def critical_path(trace: Trace, costs: Costs | None = None, step: int = -1) -> CriticalPath:
    """The critical path of a step of a trace.

    Arguments:
        costs: what the trace was simulated with, to tell how far ops were stretched.
        step: an index.
    Ties are broken by the lowest representative rank and, among what an op waited for, by the latest issued.
    """
    index = range(trace.steps)[step]
    ends = [0.0, *trace.step_ends.tolist()]
    segments = tuple(reversed(_Walk(trace, costs, index, ends[index], ends[index + 1]).segments()))
    return CriticalPath(
        begin=ends[index],
        end=ends[index + 1],
        segments=segments,
        stretched=sum(segment.stretched for segment in segments),
        ranks=len(trace.representatives),
        staged=is_pipeline(trace.program),
    )


class _Place(NamedTuple):
    """A slot of a step on a representative rank; ``representative`` indexes those of the trace."""

    representative: int
    step: int
    slot: int


@dataclass(slots=True, eq=False)
class _RankView:
    """What the walk asks about a representative rank, as lists: single numbers of arrays are slow to read."""

    role: Role
    arrive: list[list[float]]
    start: list[list[float]]
    end: list[list[float]]
    needs: list[tuple[int, ...]]
    carried: list[tuple[int, ...]]
    before: list[int]
    tail: dict[int, int]


@dataclass(slots=True, eq=False)
class _Walk:
    """One walk backwards in time."""

    trace: Trace
    costs: Costs | None
    step: int
    begin: float
    end: float
    views: dict[int, _RankView] = field(default_factory=dict)
    alike: dict[tuple[int, str], bool] = field(default_factory=dict)
    meetings: Meetings = field(init=False)

    def __post_init__(self) -> None:
        self.meetings = Meetings(self.trace.program)

    def segments(self) -> list[Segment]:
        """The segments, the latest first."""
        found: list[Segment] = []
        time, place = self.end, self._last()
        # Backwards: an op that ran, then what kept it from running earlier, until the step's begin.
        while time > self.begin:
            segment, place = self._run(place, time)
            time = self._put(found, segment, time)
            segment, place = self._cause(place, time)
            time = self._put(found, segment, time)
        return found

    def _put(self, found: list[Segment], segment: Segment, time: float) -> float:
        """Keep a segment if it takes time; the time at which the path goes on."""
        # Ops of no duration cover nothing; the path goes through them.
        if segment.begin >= time:
            return time
        found.append(segment)
        return segment.begin

    def _last(self) -> _Place:
        """The op that ends last."""
        representative = int(
            np.argmax([rank_times.end_KS[self.step].max() for rank_times in self.trace.representatives])
        )
        return _Place(
            representative, self.step, int(np.argmax(self.trace.representatives[representative].end_KS[self.step]))
        )

    def _run(self, place: _Place, time: float) -> tuple[Segment, _Place]:
        """The segment of a running op, and the participant that made it start: the last to arrive."""
        view = self._view(place.representative)
        op = self._op(place)
        begin = max(self.begin, view.start[place.step][place.slot])
        segment = Segment(
            kind='communication' if is_communication(op) else 'compute',
            rank=self.trace.representatives[place.representative].rank,
            begin=begin,
            end=time,
            op=op,
            slot=place.slot,
            stream=view.role.streams[int(view.role.stream[place.slot])],
            stretched=self._stretched(place, op, begin, time),
        )
        return segment, max(
            self._participants(place, op), key=lambda p: (self._arrive(p), p == place, -p.representative)
        )

    def _cause(self, place: _Place, time: float) -> tuple[Segment, _Place]:
        """Return the segment in which an op had not arrived although nothing ran before it, and the op before it."""
        # What ended last let the op arrive; of several the one issued last, which needs or follows the others.
        latest = max(self._before(place), key=lambda p: (self._end(p), p.step, p.slot), default=None)
        simulated = self.trace.origin == 'simulated'
        since = self._end(latest) if latest else self.begin
        # A simulated op arrives when its needs and its host allow it. Later than its needs means the host, which issues
        # without pause.
        if simulated and self._arrive(place) > since:
            since = self.begin
        segment = Segment(
            kind='host' if simulated else 'overhead',
            rank=self.trace.representatives[place.representative].rank,
            begin=max(self.begin, since),
            end=time,
        )
        return segment, latest or place

    def _before(self, place: _Place) -> list[_Place]:
        """List what had to end before an op could arrive."""
        representative, step, slot = place
        view = self._view(representative)
        places = [_Place(representative, step, need) for need in view.needs[slot]]
        if view.before[slot] >= 0:
            places.append(_Place(representative, step, view.before[slot]))
        if step:
            places += [_Place(representative, step - 1, need) for need in view.carried[slot]]
            # The first op of a stream follows the stream's last op of the step before.
            if view.before[slot] < 0:
                places.append(_Place(representative, step - 1, view.tail[int(view.role.stream[slot])]))
        return places

    def _participants(self, place: _Place, op: OpClass) -> list[_Place]:
        """The ops that this one meets, itself included, each representative rank once."""
        # Ranks that one stands for arrive together, so there is no other participant to go to.
        if op.kind == 'compute' or (op.kind == 'collective' and self._alike(place.representative, op.partition)):
            return [place]
        met = self.meetings.of(self.trace.representatives[place.representative].rank, place.slot)
        found = dict.fromkeys((int(self.trace.representative_of_rank[rank]), slot) for rank, slot in met)
        return [_Place(representative, place.step, slot) for representative, slot in found]

    def _alike(self, representative: int, partition: str) -> bool:
        """Whether one representative stands for all ranks of its group, which then arrive together."""
        key = (representative, partition)
        if key not in self.alike:
            members = self.meetings.members(partition, self.trace.representatives[representative].rank)
            self.alike[key] = bool((self.trace.representative_of_rank[list(members)] == representative).all())
        return self.alike[key]

    def _stretched(self, place: _Place, op: OpClass, begin: float, end: float) -> float:
        """Seconds of a segment beyond the op's isolated seconds."""
        if self.costs is None:
            return 0.0
        # Costs of a transfer are those of its send.
        if op.kind == 'recv':
            place = next(one for one in self._participants(place, op) if one != place)
        rank = self.trace.representatives[place.representative].rank
        index = int(self._view(place.representative).role.op_class[place.slot])
        if is_communication(op):
            partition, entries = self.trace.program.partitions[op.partition], self.costs.communication[index]
            cost = entries[entry_of(len(entries), len(partition.groups_GP), *partition.place(rank))]
            isolated = cost.alpha + cost.transfer
        else:
            isolated = float(self.costs.compute[index] / self.costs.rank_speed[rank])
        # A segment may begin with the window, after its op: then less than the isolated time is left.
        return max(0.0, end - begin - isolated)

    def _op(self, place: _Place) -> OpClass:
        return self.trace.program.op(self._view(place.representative).role, place.slot)

    def _arrive(self, place: _Place) -> float:
        return self._view(place.representative).arrive[place.step][place.slot]

    def _end(self, place: _Place) -> float:
        return self._view(place.representative).end[place.step][place.slot]

    def _view(self, index: int) -> _RankView:
        if index not in self.views:
            rank_times = self.trace.representatives[index]
            role = self.trace.role(rank_times)
            before, tail = _stream_order(role)
            times = (rank_times.arrive_KS.tolist(), rank_times.start_KS.tolist(), rank_times.end_KS.tolist())
            self.views[index] = _RankView(role, *times, role.needs(), role.carried(), before, tail)
        return self.views[index]


def _stream_order(role: Role) -> tuple[list[int], dict[int, int]]:
    """For each slot the one before it on its stream, or -1; and the last slot of each stream."""
    tail: dict[int, int] = {}
    before = []
    for slot, stream in enumerate(role.stream.tolist()):
        before.append(tail.get(stream, -1))
        tail[stream] = slot
    return before, tail
