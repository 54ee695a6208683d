"""The critical path as segments, shares and a summary in sentences."""

import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simpar import metrics, program
from simpar.cost.costs import Costs, entry_of, lasts
from simpar.engine.queues import before_in_queues
from simpar.trace import Trace, stream_order

SegmentKind = Literal['compute', 'communication', 'host', 'overhead']
_WHERE: Final = {'F': 'in the forward', 'I': 'in the backward', 'W': 'in the backward', 'U': 'in the update'}
_COMPUTE: Final = 'compute of stage '
_NAMED: Final = 3
"""How many compute op classes, and how many stages, the summary names."""
_MAIN: Final = 0.6
"""Share of the compute with which a stage is told apart from the others."""
_MOST: Final = 6
"""How many parts of the step the summary tells apart."""


class Segment(NamedTuple):
    """Seconds of the critical path: ``begin`` to ``end``, on a rank; ``op`` is None for host and overhead."""

    # No dataclass: a path may have a hundred thousand segments, and a tuple is made in a fifth of the time.

    kind: SegmentKind
    rank: int
    begin: float
    end: float
    op: program.OpClass | None = None
    slot: int = -1
    stream: str = ''
    stretched: float = 0.0

    @property
    def seconds(self) -> float:
        """How long."""
        return self.end - self.begin


@dataclass(frozen=True, kw_only=True, repr=False)
class CriticalPath:
    """Segments in order of time, from ``begin`` to ``end`` of a step.

    Arguments:
        stretched: seconds by which ops on the path lasted longer than alone (0 where costs were not given).
        ranks: how many differ.
        staged: the program is a pipeline, whose compute is told by stage.
        queued: ops that waited in their work queue, each with the op that held it up.
    """

    begin: float
    end: float
    segments: tuple[Segment, ...]
    stretched: float
    ranks: int
    staged: bool = False
    queued: tuple[tuple[program.OpClass, program.OpClass], ...] = ()

    def __repr__(self) -> str:
        # All segments would be a million characters.
        return f'CriticalPath({self.summary!r}, segments={len(self.segments)})'

    @property
    def shares(self) -> dict[str, float]:
        """What the path consists of, as share of the step; the largest first, ties by name."""
        seconds: dict[str, float] = {}
        for what, _, time in self.work:
            seconds[what] = seconds.get(what, 0.0) + time
        seconds_of_step = self.end - self.begin
        return dict(
            sorted(((k, v / seconds_of_step) for k, v in seconds.items()), key=lambda item: (-item[1], item[0]))
        )

    @cached_property
    def work(self) -> list[tuple[str, program.OpClass | None, float]]:
        """What it is called, the op class and all its seconds, in the order of first use."""
        # A path passes a few op classes, many times each: names are made once for each of them.
        first: dict[tuple[str, str, str], Segment] = {}
        seconds: dict[tuple[str, str, str], float] = {}
        for segment in self.segments:
            key = (segment.kind, segment.op.name if segment.op else '', segment.stream)
            first.setdefault(key, segment)
            seconds[key] = seconds.get(key, 0.0) + segment.seconds
        return [(_what(one, staged=self.staged), one.op, seconds[key]) for key, one in first.items()]

    @property
    def summary(self) -> str:
        """The path in one to three sentences."""
        if not self.segments:
            return 'Nothing takes time in this step.'
        share = self.stretched / (self.end - self.begin)
        what = f' {_percent(share)} of the step is work on this path stretched by what ran beside it.'
        # Less would be shown as 0 %.
        return f'{_main_sentence(self)}{what if share >= 0.005 else ""}{_queued_sentence(self)}'

    # The name before this one, which scripts and notebooks still read.
    words = summary


def _what(segment: Segment, *, staged: bool) -> str:
    """What the summary calls a segment's time."""
    op = segment.op
    if op is None:
        return 'waiting for the host' if segment.kind == 'host' else 'waiting for no op (overhead)'
    if segment.kind == 'compute':
        # The update is the same on all stages, so it is told once.
        return 'update' if staged and op.phase == 'U' else f'{_COMPUTE}{op.stage}' if staged else 'compute'
    if program.transfers(op):
        return f'{op.partition} sends'
    name = f'{metrics.communicator(op, segment.stream)} {op.operator}'
    return name if staged else f'{name} {_WHERE[op.phase]}'


def _main_sentence(path: CriticalPath) -> str:
    entries = sorted(_sentence_parts(path), key=lambda item: -item[1])
    # Below half a percent a part would be shown as 0 %.
    largest = [(text, share) for text, share in entries if share >= 0.005][:_MOST]
    rest = sum(share for _, share in entries) - sum(share for _, share in largest)
    parts = [f'{_percent(share)} {text}' for text, share in largest]
    if rest >= 0.005:
        parts.append(f'{_percent(rest)} other')
    ranks = {segment.rank for segment in path.segments if segment.kind == 'compute'}
    # Where ranks differ; in a pipeline the stage says it already.
    alone = len(ranks) == 1 and path.ranks > 1 and not path.staged
    return f'Critical path: {", ".join(parts)}{f", all compute on rank {min(ranks)}" if alone else ""}.'


def _sentence_parts(path: CriticalPath) -> Iterator[tuple[str, float]]:
    """What the sentence lists and its share: one stage of a pipeline apart where it has most of the compute."""
    shares = path.shares
    stages = {what: share for what, share in shares.items() if what.startswith(_COMPUTE)}
    yield from ((_with_details(path, what), share) for what, share in shares.items() if what not in stages)
    if not stages:
        return
    first, *others = stages
    compute = sum(stages.values())
    if not others:
        yield _with_details(path, first), stages[first]
    # One stage holds the others up: that is what a reader can act on.
    elif stages[first] > _MAIN * compute:
        yield _with_details(path, first), stages[first]
        yield (
            f'compute of {"other stages" if len(others) > 1 else others[0].removeprefix("compute of ")}',
            (compute - stages[first]),
        )
    else:
        named = [f'{what.removeprefix("compute of ")} {_percent(stages[what])}' for what in [first, *others][:_NAMED]]
        more = [f'{len(stages) - len(named)} more'] if len(stages) > len(named) else []
        yield f'compute ({", ".join(named + more)}; {", ".join(_operators(path, stages))})', compute


def _with_details(path: CriticalPath, what: str) -> str:
    """With the op classes that weigh most, where it is compute."""
    named = _operators(path, {what}) if what.startswith('compute') else []
    return f'{what} ({", ".join(named)})' if named else what


def _operators(path: CriticalPath, whats: Collection[str]) -> list[str]:
    """The op classes that weigh most in some compute, layers taken together."""
    seconds: dict[str, float] = {}
    for what, op, time in path.work:
        if op and op.kind == 'compute' and what in whats:
            # Equal layers together, or no layer would weigh enough to be named.
            name = re.sub(r'\blayer\d+', 'layer*', op.name).removesuffix('.split')
            seconds[name] = seconds.get(name, 0.0) + time
    # Ties by name, so that the text is the same every time.
    ranked = sorted(seconds.items(), key=lambda item: (-item[1], item[0]))
    seconds_of_step = path.end - path.begin
    named = [
        f'{name} {_percent(value / seconds_of_step)}'
        for name, value in ranked[:_NAMED]
        if value >= 0.005 * seconds_of_step
    ]
    more = [f'{len(ranked) - len(named)} more'] if len(ranked) > len(named) else []
    return named + more if named else []


def _queued_sentence(path: CriticalPath) -> str:
    """What held up work queues; the pair that did it most often is named."""
    if not path.queued:
        return ''
    pairs = Counter((one.name, other.name) for one, other in path.queued)
    (one, other), _ = pairs.most_common(1)[0]
    ops = f'{len(path.queued)} ops wait' if len(path.queued) > 1 else '1 op waits'
    such_as = '' if len(pairs) == 1 else 'as '
    return f' On it {ops} in a work queue, {such_as}{one} behind {other}.'


def _percent(share: float) -> str:
    return f'{share * 100:.0f} %'


def critical_path(trace: Trace, costs: Costs | None = None, step: int = -1) -> CriticalPath:
    """The critical path of a step of a trace.

    Arguments:
        costs: what the trace was simulated with, to tell how far ops were stretched.
        step: an index.
    Ties are broken by the lowest representative rank and, among what an op waited for, by the latest issued.
    """
    index = range(trace.steps)[step]
    ends = [0.0, *trace.step_ends.tolist()]
    walk = _Walk(trace, costs, index, ends[index], ends[index + 1])
    segments = tuple(reversed(walk.segments()))
    return CriticalPath(
        begin=ends[index],
        end=ends[index + 1],
        segments=segments,
        stretched=sum(segment.stretched for segment in segments),
        ranks=len(trace.representatives),
        queued=tuple(reversed(walk.queued)),
        staged=metrics.is_pipeline(trace.program),
    )


_Numbers = memoryview
"""One number of an array at a time: a view of memory gives it in half of the time that the array takes."""


class _Place(NamedTuple):
    """A slot of a step on a representative rank; ``representative`` indexes those of the trace."""

    representative: int
    step: int
    slot: int


class _Class(NamedTuple):
    """What the walk asks about an op class on a representative rank.

    Arguments: ``alone``, whether it meets nobody on another representative; ``isolated``, seconds, 0 without costs.
    """

    op: program.OpClass
    kind: SegmentKind
    alone: bool
    isolated: float


class _RankView(NamedTuple):
    """What the walk asks about a representative rank; arrays, for it looks at few of the slots.

    Arguments:
        arrive, start, end: of its ops, by step and slot.
        before: of each slot the one before it on its stream, or -1; ``tail``, the last one there.
        ahead: of each slot the one before it in its work queue, or -1.
        needs, carries: of the role, where those of each slot begin, and all of them.
        classes: by the number of an op class, what is known of those that the path has passed.
    """

    role: program.Role
    rank: int
    needs: tuple[_Numbers, _Numbers]
    carries: tuple[_Numbers, _Numbers]
    classes: dict[int, _Class]
    arrive: _Numbers
    start: _Numbers
    end: _Numbers
    before: _Numbers
    tail: _Numbers
    ahead: _Numbers
    op_class: _Numbers
    stream: _Numbers


@dataclass(slots=True, eq=False)
class _Walk:
    """One walk backwards in time; ``found`` are the segments, ``queued`` what waited behind what, the latest first."""

    trace: Trace
    costs: Costs | None
    step: int
    begin: float
    end: float
    views: dict[int, _RankView] = field(default_factory=dict)
    found: list[Segment] = field(default_factory=list)
    queued: list[tuple[program.OpClass, program.OpClass]] = field(default_factory=list)
    meetings: metrics.Meetings = field(init=False)

    def __post_init__(self) -> None:
        self.meetings = metrics.Meetings(self.trace.program)

    def segments(self) -> list[Segment]:
        """The segments, the latest first."""
        time, place = self.end, self._last()
        # Backwards: an op that ran, then what kept it from running earlier, until the step's begin. Ops of no duration
        # cover nothing; the path goes through them.
        while time > self.begin:
            time, place = self._run(place, time)
            time, place = self._cause(place, time)
        return self.found

    def _last(self) -> _Place:
        """The op that ends last."""
        representative = int(
            np.argmax([rank_times.end_KS[self.step].max() for rank_times in self.trace.representatives])
        )
        return _Place(
            representative, self.step, int(np.argmax(self.trace.representatives[representative].end_KS[self.step]))
        )

    def _run(self, place: _Place, time: float) -> tuple[float, _Place]:
        """Go back through a running op: the time of its start, and the participant that came last."""
        representative, step, slot = place
        view = self._view(representative)
        op_class = self._class(view, place)
        begin = max(self.begin, view.start[step, slot])
        if begin < time:
            stretched = self._stretched(place, op_class, time - begin)
            stream = view.role.streams[view.stream[slot]]
            # By place, as a path may have a hundred thousand segments.
            self.found.append(Segment(op_class.kind, view.rank, begin, time, op_class.op, slot, stream, stretched))
            time = begin
        # A compute op meets no one, and most ops are that.
        if op_class.alone:
            return time, place
        met = self._participants(place, op_class.op)
        return time, max(met, key=lambda p: (self._arrive(p), p == place, -p.representative))

    def _cause(self, place: _Place, time: float) -> tuple[float, _Place]:
        """Go back to the op before one, and to its end, through time in which the op had not arrived."""
        view = self._view(place.representative)
        place, latest = self._held_up(view, place)
        since = latest[0] if latest else self.begin
        simulated = self.trace.origin == 'simulated'
        # A simulated op arrives when its needs and its host allow it. Later than its needs means the host, which issues
        # without pause.
        if simulated and not (self.costs and self.costs.waits) and self._arrive(place) > since:
            since = self.begin
        begin = max(self.begin, since)
        if begin < time:
            self.found.append(Segment('host' if simulated else 'overhead', view.rank, begin, time))
            time = begin
        return time, _Place(place.representative, latest[1], latest[2]) if latest else place

    def _held_up(self, view: _RankView, place: _Place) -> tuple[_Place, tuple[float, int, int] | None]:
        """What kept an op from arriving, itself or what stood before it in its work queue; and what that waited for."""
        latest = self._latest(view, place)
        if not (self.costs and self.costs.work_queues):
            return place, latest
        held, arrived = place, self._arrive(place)
        while latest is None or latest[0] < arrived:
            ahead = view.ahead[held.slot]
            if ahead < 0 or view.arrive[held.step, ahead] < arrived:
                break
            held = _Place(held.representative, held.step, ahead)
            latest = self._latest(view, held)
        if held != place:
            self.queued.append((self._class(view, place).op, self._class(view, held).op))
        return held, latest

    def _latest(self, view: _RankView, place: _Place) -> tuple[float, int, int] | None:
        """End, step and slot of what ended last before an op could arrive; None where nothing had to."""
        _, step, slot = place
        before, end = view.before[slot], view.end
        # Of several that end at once the one issued last, which needs or follows the others: tuples compare so.
        candidates = [(end[step, need], step, need) for need in _row(view.needs, slot)]
        if before >= 0:
            candidates.append((end[step, before], step, before))
        if step:
            candidates += [(end[step - 1, need], step - 1, need) for need in _row(view.carries, slot)]
            # The first op of a stream follows the stream's last op of the step before.
            if before < 0:
                tail = view.tail[slot]
                candidates.append((end[step - 1, tail], step - 1, tail))
        return max(candidates, default=None)

    def _class(self, view: _RankView, place: _Place) -> _Class:
        """The op class of a slot."""
        index = view.op_class[place.slot]
        op_class = view.classes.get(index)
        if op_class is None:
            op = self.trace.program.op_classes[index]
            # Ranks that one stands for arrive together, so there is no other participant to go to.
            alone = op.kind == 'compute' or (
                op.kind == 'collective' and self._alike(place.representative, op.partition)
            )
            kind: SegmentKind = 'communication' if metrics.is_communication(op) else 'compute'
            isolated = self._isolated(self.costs, op, index, view.rank) if self.costs else 0.0
            op_class = view.classes[index] = _Class(op, kind, alone, isolated)
        return op_class

    def _participants(self, place: _Place, op: program.OpClass) -> list[_Place]:
        """The ops that this one meets, itself included, each representative rank once."""
        met = self.meetings.of(self.trace.representatives[place.representative].rank, place.slot)
        places = dict.fromkeys((int(self.trace.representative_of_rank[rank]), slot) for rank, slot in met)
        return [_Place(representative, place.step, slot) for representative, slot in places]

    def _alike(self, representative: int, partition: str) -> bool:
        """Whether one representative stands for all ranks of its group, which then arrive together."""
        members = self.meetings.members(partition, self.trace.representatives[representative].rank)
        return bool((self.trace.representative_of_rank[list(members)] == representative).all())

    def _stretched(self, place: _Place, op_class: _Class, seconds: float) -> float:
        """How many of an op's seconds are beyond its isolated ones."""
        if self.costs is None:
            return 0.0
        # Costs of a transfer are those of its send.
        if op_class.op.kind == 'recv':
            sender = next(one for one in self._participants(place, op_class.op) if one != place)
            op_class = self._class(self._view(sender.representative), sender)
        # A segment may begin with the window, after its op: then less than the isolated time is left.
        return max(0.0, seconds - op_class.isolated)

    def _isolated(self, costs: Costs, op: program.OpClass, index: int, rank: int) -> float:
        """Isolated seconds of an op class on a rank; of a receive those of its send, whose class it is here."""
        if not metrics.is_communication(op):
            return float(costs.compute[index] / costs.rank_speed[rank])
        partition, entries = self.trace.program.partitions[op.partition], costs.communication[index]
        return sum(lasts(entries, entry_of(len(entries), len(partition.groups_GP), *partition.place(rank))))

    def _arrive(self, place: _Place) -> float:
        return self._view(place.representative).arrive[place.step, place.slot]

    def _view(self, index: int) -> _RankView:
        if index not in self.views:
            times, queues = self.trace.representatives[index], self.costs.work_queues if self.costs else 0
            role = self.trace.role(times)
            needs, carries = ((_numbers(lists.start), _numbers(lists.item)) for lists in (role.need, role.carry))
            before, tail = stream_order(role.stream)
            ahead = before_in_queues(role.stream, queues) if queues else before
            columns: list[NDArray[Any]] = [*times.columns, before, tail, ahead, role.op_class, role.stream]
            self.views[index] = _RankView(role, times.rank, needs, carries, {}, *map(_numbers, columns))
        return self.views[index]


def _row(lists: tuple[_Numbers, _Numbers], slot: int) -> list[int]:
    """The items of a slot in lists of numbers, as of ``Csr``."""
    start, item = lists
    return item[start[slot] : start[slot + 1]].tolist()


def _numbers(array: NDArray[Any]) -> _Numbers:
    # What comes out of a pickle or is sliced may not lie behind one another.
    return np.ascontiguousarray(array).data
