"""What a trace says in seconds: busy, exposed communication, overlap, idle and bubble, per rank and stream.

A participant of a collective communicates from its arrival on, as its kernel does; sends and receives communicate while
they transfer, since a receive that is posted early and waits is what pipelines call a bubble. Everything is the length
of a union of intervals. Times are multiples of 2⁻⁴⁰ s, so lengths are exact and compute + exposed + idle = step holds
to the bit. Definitions, with a picture, are in docs/reading.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simpar.interval_sets import Intervals, fold, length, minus, seconds_of, union
from simpar.pipeline.order import Action, Kind, overlap
from simpar.program import NONE, OpClass, Phase, Program, Role, computes
from simpar.program import transfers as is_transfer
from simpar.program.op import PHASES
from simpar.trace import RankTimes, Times, Trace

Mask = NDArray[np.bool_]
SENDS: Final = 'sends'
RECEIVES: Final = 'receives'
"""What all streams that only send, or only receive, are called together."""


_Place = tuple[int, int]
"""(rank, slot)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamMetrics:
    """One stream of one rank, or all its streams of sends or of receives: seconds that add up to the window.

    Arguments:
        busy: ops run ([start, end]).
        waiting: a head has arrived and waits for its peers ([arrive, start]) while no other runs.
        idle: the rest.
        ops: how many ops ran.
    """

    stream: str
    busy: float
    waiting: float
    idle: float
    ops: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMetrics:
    """One rank: ``compute`` + ``exposed`` + ``idle`` = the window.

    Arguments:
        rank: the (first) rank; ``ranks``, how many behave like it.
        compute: seconds in which any stream computes.
        communication: seconds in which it communicates: takes part in a collective, the wait for its peers included
            ([arrive, end]), or sends or receives ([start, end]).
        exposed: seconds in which it communicates and computes nothing.
        idle: seconds in which it does neither.
        bubble: seconds in which it neither computes nor transfers: ``idle`` and the exposed waits in collectives.
        host: seconds of ``idle`` in which the next computation was not issued yet, though all that it needs had ended:
            its host was late, or it stood in a work queue.
        phases: seconds of computing by phase.
        exposed_by: seconds exposed by communicator, sends and receives of a partition together; where two
            communicate at once, both count them.
        streams: one for each stream of the rank's role; those of sends together, and those of receives.
    """

    rank: int
    ranks: int
    compute: float
    communication: float
    exposed: float
    idle: float
    bubble: float
    host: float
    phases: dict[str, float]
    exposed_by: dict[str, float]
    streams: tuple[StreamMetrics, ...]

    @property
    def overlap(self) -> float:
        """1 − exposed / communication, the share of its communication under which it computes; NaN without any."""
        return 1 - self.exposed / self.communication if self.communication else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """Metrics of a window of ``step`` seconds; the properties are means over all ranks."""

    step: float
    ranks: Sequence[RankMetrics]

    def mean(self, seconds: Callable[[RankMetrics], float]) -> float:
        """The mean over ranks, each distinct rank counted as often as it occurs."""
        return sum(seconds(rank) * rank.ranks for rank in self.ranks) / sum(rank.ranks for rank in self.ranks)

    @property
    def compute(self) -> float:
        """Seconds of computing."""
        return self.mean(lambda rank: rank.compute)

    @property
    def communication(self) -> float:
        """Seconds of communication."""
        return self.mean(lambda rank: rank.communication)

    @property
    def exposed(self) -> float:
        """Seconds of exposed communication."""
        return self.mean(lambda rank: rank.exposed)

    @property
    def idle(self) -> float:
        """Seconds idle."""
        return self.mean(lambda rank: rank.idle)

    @property
    def bubble(self) -> float:
        """Seconds in which a rank neither computes nor transfers."""
        return self.mean(lambda rank: rank.bubble)

    @property
    def overlap(self) -> float:
        """1 − exposed / communication, both summed over the ranks; NaN without communication."""
        return 1 - self.exposed / self.communication if self.communication else math.nan

    @property
    def host(self) -> float:
        """Seconds idle in which the next computation was not issued yet."""
        return self.mean(lambda rank: rank.host)

    def rank(self, rank: int) -> RankMetrics:
        """The metrics of a rank that stands for others, by its number."""
        return next(metrics for metrics in self.ranks if metrics.rank == rank)


@dataclass(frozen=True, eq=False, repr=False)
class Metrics:
    """Metrics of a trace over three windows, each worked out when it is first asked for.

    Ops of the last step that ran before its window, under the end of the step before, are counted at the window's end,
    where in the steady state those of the next step run. Not modelled: a last step that is not yet like its follower.
    """

    trace: Trace

    def __repr__(self) -> str:
        return f'Metrics(of {self.trace!r})'

    @cached_property
    def steady(self) -> StepMetrics:
        """Of the last step, [end(k−1), end(k)]."""
        return self.of(self.trace.steps - 1)

    def of(self, step: int) -> StepMetrics:
        """Of a step by its number, as of the steady one."""
        # The first step has no step before; its window begins with the program.
        ends: list[float] = [0.0, *self.trace.step_ends.tolist()]
        return _step(self.trace, _Window(slice(step, step + 1), ends[step], ends[step + 1]))

    @cached_property
    def cold(self) -> StepMetrics:
        """Of the first step."""
        return self.of(0)

    @cached_property
    def whole(self) -> StepMetrics:
        """Of all steps, which is what readers of the exported trace see."""
        return _step(self.trace, _Window(slice(None), 0.0, float(self.trace.step_ends[-1])))


def metrics(trace: Trace) -> Metrics:
    """Metrics of a trace."""
    return Metrics(trace)


def is_communication(op: OpClass) -> bool:
    """Whether an op uses links rather than the device's arithmetic."""
    return op.kind != 'compute'


def communicator(op: OpClass, stream: str) -> str:
    """A communicator as readers name it: its partition; for collectives also its stream where that is named otherwise.

    Sends and receives have a stream for each direction, which together are one communicator to readers.
    """
    return op.partition if is_transfer(op) or op.partition == stream else f'{op.partition} on {stream}'


def named_streams(program: Program, role: Role) -> dict[str, list[int]]:
    """The streams of a role as readers name them: one by one, but together all that only send, and only receive."""
    named: dict[str, list[int]] = {}
    for index, name in enumerate(role.streams):
        ops = np.unique(role.op_class[role.stream == index])
        kinds = {program.op_classes[op].kind for op in ops.tolist()}
        # Pipelines have many streams that only send or receive; one by one they would fill the screen.
        joint = {frozenset({'send'}): SENDS, frozenset({'recv'}): RECEIVES}.get(frozenset(kinds), name)
        named.setdefault(joint, []).append(index)
    return named


class _Window(NamedTuple):
    """Which steps' ops are looked at, and between which times."""

    steps: slice
    begin: float
    end: float


def _phase_number(op: OpClass) -> int:
    return PHASES.index(op.phase)


@dataclass(frozen=True, slots=True, eq=False)
class _Ops:
    """The ops of a representative rank in a window: columns over steps × slots.

    Arguments:
        since: when an op communicates if it does: collectives from their arrival on, sends and receives from their
            start.
        communicates: shape [slots].
    """

    program: Program
    role: Role
    communicates: Mask
    arrive: Times
    start: Times
    end: Times
    since: Times
    window: _Window

    def between(self, since: Times, until: Times, mask: Mask) -> Intervals:
        """The intervals [since, until] of the slots in the mask, perhaps without empty ones, which cover nothing."""
        # By number, which takes a third of the time that a mask takes over two dims.
        slots = np.flatnonzero(mask)
        intervals = np.empty((len(since) * len(slots), 2))
        intervals[:, 0], intervals[:, 1] = (times.take(slots, axis=1).ravel() for times in (since, until))
        return fold(intervals, self.window.begin, self.window.end)

    def communicating(self, mask: Mask) -> Intervals:
        """When ops of the mask communicate."""
        return self.between(self.since, self.end, mask)


def _step(trace: Trace, window: _Window) -> StepMetrics:
    """Metrics over some steps' ops in a window: of each representative rank, and how many it stands for."""
    counts = np.bincount(trace.representative_of_rank, minlength=len(trace.representatives)).tolist()
    ranks = tuple(
        _rank(_ops(trace, times, window), times.rank, count)
        for times, count in zip(trace.representatives, counts, strict=True)
        if count
    )
    return StepMetrics(step=window.end - window.begin, ranks=ranks)


def _ops(trace: Trace, rank_times: RankTimes, window: _Window) -> _Ops:
    """Return the ops of a representative rank in a window."""
    program, role = trace.program, trace.role(rank_times)
    transfers = program.op_column(is_transfer, np.bool_)
    communicates = ~program.op_column(computes, np.bool_)[role.op_class]
    arrive, start, end = (times[window.steps] for times in rank_times.columns)
    # A collective's kernel occupies its stream while it waits; a posted receive occupies nothing.
    since = np.where(transfers[role.op_class], start, arrive) if transfers.any() else arrive
    return _Ops(program, role, communicates, arrive, start, end, since, window)


def _rank(ops: _Ops, rank: int, ranks: int) -> RankMetrics:
    """What a representative rank spends a window on; it stands for ``ranks`` ranks."""
    window = ops.window
    # Unions, not sums: two streams that compute at once count once. They are made once: what is joined is short.
    computing = union(ops.between(ops.start, ops.end, ~ops.communicates))
    communication = union(ops.communicating(ops.communicates))
    transferring = ops.between(ops.start, ops.end, ops.communicates)
    step, compute = window.end - window.begin, seconds_of(computing)
    # One union for both, so that compute + exposed + idle equals the step to the bit.
    both = union(np.concatenate((computing, communication)))
    occupied = seconds_of(both)
    return RankMetrics(
        rank=rank,
        ranks=ranks,
        compute=compute,
        communication=seconds_of(communication),
        exposed=occupied - compute,
        idle=step - occupied,
        bubble=step - length(np.concatenate((computing, transferring))),
        host=seconds_of(minus(_unissued(ops), both)),
        phases=_phases(ops),
        exposed_by=_exposed_by(ops, computing, compute),
        streams=tuple(_stream(ops, *named) for named in named_streams(ops.program, ops.role).items()),
    )


def _unissued(ops: _Ops) -> Intervals:
    """When a computation had not arrived, though all had ended that it needs and that stood before it on its stream.

    Not modelled: needs of the step before, which end where a window begins.
    """
    order, need = ops.role.by_stream(), ops.role.need
    ready = np.full_like(ops.end, ops.window.begin)
    behind = np.flatnonzero(np.diff(order.row, prepend=-1) == 0)
    ready[:, order.item[behind]] = ops.end[:, order.item[behind - 1]]
    some = np.flatnonzero(need.count)
    if len(some):
        latest = np.maximum.reduceat(ops.end[:, need.item], need.start[:-1][some], axis=1)
        ready[:, some] = np.maximum(ready[:, some], latest)
    return union(ops.between(ready, ops.arrive, ~ops.communicates))


def _phases(ops: _Ops) -> dict[str, float]:
    """Seconds of computing by phase, in the order of first use."""
    phase = ops.program.op_column(_phase_number, np.int64)[ops.role.op_class]
    seconds = {}
    for number in _in_order(phase):
        mask = (phase == number) & ~ops.communicates
        seconds[str(PHASES[number])] = length(ops.between(ops.start, ops.end, mask))
    # Phases that only communicate compute nothing.
    return {phase: value for phase, value in seconds.items() if value}


def _exposed_by(ops: _Ops, computing: Intervals, compute: float) -> dict[str, float]:
    """Seconds exposed by communicator, in the order of first use."""
    role, count = ops.role, len(ops.role.streams)
    # Op class and stream in one number, so that names are made once for a kind, not once a slot.
    kind = np.where(ops.communicates, role.op_class.astype(np.int64) * count + role.stream, -1)
    named: dict[str, list[int]] = {}
    for one in _in_order(kind[ops.communicates]):
        op_class, stream = divmod(one, count)
        named.setdefault(communicator(ops.program.op_classes[op_class], role.streams[stream]), []).append(one)
    return {
        name: length(np.concatenate((computing, ops.communicating(np.isin(kind, kinds))))) - compute
        for name, kinds in named.items()
    }


def _in_order(numbers: NDArray[np.int64]) -> list[int]:
    """The distinct numbers, from 0 on, in the order of their first place."""
    if not len(numbers):
        return []
    first = np.full(int(numbers.max()) + 1, len(numbers))
    # Of equal places the last one assigned stays: backwards, that is the first.
    first[numbers[::-1]] = np.arange(len(numbers))[::-1]
    values = np.flatnonzero(first < len(numbers))
    in_order: list[int] = values[np.argsort(first[values])].tolist()
    return in_order


def _stream(ops: _Ops, name: str, streams: list[int]) -> StreamMetrics:
    """Metrics of some streams as if they were one."""
    # Streams taken together may overlap, so their union counts.
    mask = np.isin(ops.role.stream, streams)
    running = union(ops.between(ops.start, ops.end, mask))
    occupied = length(np.concatenate((running, ops.between(ops.arrive, ops.end, mask))))
    busy = length(running)
    return StreamMetrics(
        stream=name,
        busy=busy,
        waiting=occupied - busy,
        idle=ops.window.end - ops.window.begin - occupied,
        ops=int(mask.sum()) * len(ops.end),
    )


@dataclass(slots=True, eq=False)
class Meetings:
    """Finds what meets by its order on the communicator, as the machines do; see docs/semantics.md."""

    program: Program
    _members: dict[tuple[str, int], tuple[int, ...]] = field(default_factory=dict)

    def of(self, rank: int, slot: int) -> list[_Place]:
        """The ranks and slots that an op meets, itself included."""
        turns = self.program.turns[int(self.program.role_of_rank[rank])]
        # A compute op meets nobody.
        if turns.kind[slot] == NONE:
            return [(rank, slot)]
        kind, turn = turns.kinds[int(turns.kind[slot])], int(turns.turn[slot])
        members = self.members(kind.partition, rank)
        facing = kind.facing(len(members))
        # A collective faces itself on all members; a send faces a receive on its peer alone.
        others = members if facing == kind else (members[(members.index(rank) + kind.peer) % len(members)],)
        met = [
            (other, self.program.turns[int(self.program.role_of_rank[other])].of_kind[facing][turn]) for other in others
        ]
        return met if facing == kind else [(rank, slot), *met]

    def members(self, partition: str, rank: int) -> tuple[int, ...]:
        """The ranks of a rank's group."""
        key = (partition, rank)
        if key not in self._members:
            self._members[key] = self.program.partitions[partition].members(rank)
        return self._members[key]


_KINDS: Final[dict[Phase, Kind]] = {'F': 'F', 'I': 'I', 'W': 'W'}


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """An action and the slots of the compute ops that do it, in issue order."""

    action: Action
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionSpan:
    """An action from the start of its first compute op to the end of its last, in seconds; ``slots``, those ops."""

    action: Action
    slots: tuple[int, ...]
    begin: float
    end: float


_Slots = dict[tuple[int, Kind, int], list[int]]
"""Compute slots by stage, what they do and micro-batch."""


def stages_of(program: Program, role: Role) -> tuple[int, ...]:
    """The stages whose ops a role does."""
    ops = {index: program.op_classes[index] for index in set(role.op_class.tolist())}
    return tuple(sorted({op.stage for op in ops.values() if _of_a_micro_batch(program, op)}))


def is_pipeline(program: Program) -> bool:
    """Whether a program has more than one stage."""
    return any(op.stage for op in program.op_classes)


def actions_of(program: Program, role: Role) -> list[Work]:
    """The actions F, B, I, W and OVERLAP_F_B of a role, in issue order.

    Where a stage has a single op of phase I or of W, a W right behind its I looks like a B and is called so, unless
    others of the role are apart. Overlapped actions of which neither has a collective to wait for are one after the
    other, and told so. Sums of gradients over ranks and updates are no actions.
    """
    found = _works(program, role)
    # A program does not say whether a backward was split; only the order of its ops tells.
    split = _split(found)
    full: _Slots = {}
    for (stage, part, micro_batch), slots in found.items():
        # I and W of a backward that was not split are one action, B.
        kind: Kind = part if part == 'F' or (stage, micro_batch) in split else 'B'
        full.setdefault((stage, kind, micro_batch), []).extend(slots)
    works = (Work(action=Action(*key), slots=tuple(sorted(slots))) for key, slots in full.items())
    return _overlapped(sorted(works, key=lambda work: work.slots[0]))


def action_spans(trace: Trace, rank: int, step: int = -1) -> list[ActionSpan]:
    """List when a rank did its actions in one step; spans do not overlap.

    Where the copies of a forward and of the backward right behind it interleave, the forward is told to end where the
    backward begins.
    """
    rank_times = trace.times_of(rank)
    works = actions_of(trace.program, trace.role(rank_times))
    begins = [float(rank_times.start_KS[step, work.slots[0]]) for work in works]
    # Interleaved copies would make actions overlap; rows of a picture cannot.
    limits = [*begins[1:], inf]
    return [
        ActionSpan(
            action=work.action,
            slots=work.slots,
            begin=begin,
            end=min(limit, float(rank_times.end_KS[step, list(work.slots)].max())),
        )
        for work, begin, limit in zip(works, begins, limits, strict=True)
    ]


def _of_a_micro_batch(program: Program, op: OpClass) -> bool:
    return op.kind == 'compute' and op.phase in _KINDS and program.sliced(op)


def _works(program: Program, role: Role) -> _Slots:
    counted = [_of_a_micro_batch(program, op) for op in program.op_classes]
    works: _Slots = {}
    for slot, (index, micro_batch) in enumerate(zip(role.op_class.tolist(), role.micro_batch.tolist(), strict=True)):
        if counted[index]:
            op = program.op_classes[index]
            works.setdefault((op.stage, _KINDS[op.part], micro_batch), []).append(slot)
    return works


def _split(works: _Slots) -> set[tuple[int, int]]:
    """The (stage, micro-batch) whose backward is done in two parts, I and W."""
    order = sorted(slot for slots in works.values() for slot in slots)
    place = {slot: number for number, slot in enumerate(order)}
    apart, unclear, full = (set[tuple[int, int]]() for _ in range(3))
    for (stage, phase, micro_batch), weights in works.items():
        inputs = works.get((stage, 'I', micro_batch))
        # Each backward is looked at once, by its W.
        if phase != 'W':
            continue
        if inputs is None:
            unclear.add((stage, micro_batch))
        # W began before I was done: they alternate, layer by layer, which is a full backward.
        elif inputs[-1] > weights[0]:
            full.add((stage, micro_batch))
        else:
            # Directly behind one another; with one op each, order alone cannot tell a split backward from a full one.
            beside = place[weights[0]] == place[inputs[-1]] + 1
            by_chance = beside and min(len(inputs), len(weights)) == 1
            (unclear if by_chance else apart).add((stage, micro_batch))
    stages_full, stages_apart = ({stage for stage, _ in some} for some in (full, apart))
    # What is unclear is read as its stage's other backwards, or as the role's where the stage has none.
    return apart | {one for one in unclear if one[0] in stages_apart or (apart and one[0] not in stages_full)}


def _overlapped(works: list[Work]) -> list[Work]:
    """Actions of different micro-batches or stages whose slots alternate become one OVERLAP_F_B."""
    done: list[Work] = []
    for work in works:
        # The earlier action was not done when this one began: their ops alternate.
        if done and done[-1].slots[-1] > work.slots[0] and _together(done[-1].action, work.action):
            before = done.pop()
            # OVERLAP_F_B names the forward first, whichever began first.
            forward, backward = sorted((before.action, work.action), key=lambda one: one.kind != 'F')
            joint = overlap(forward, backward)
            done.append(Work(action=joint, slots=tuple(sorted((*before.slots, *work.slots)))))
        else:
            done.append(work)
    return done


def _together(one: Action, other: Action) -> bool:
    same = (one.stage, one.micro_batch) == (other.stage, other.micro_batch)
    return not same and not one.sub_actions and {one.kind, other.kind} in ({'F', 'B'}, {'F', 'I'})


def by_stages(program: Program) -> dict[tuple[int, ...], list[Role]]:
    """Pipeline ranks: roles by the stages that they do, in the order of the program."""
    by_stage: dict[tuple[int, ...], list[Role]] = {}
    for role in program.roles:
        by_stage.setdefault(stages_of(program, role), []).append(role)
    return by_stage
