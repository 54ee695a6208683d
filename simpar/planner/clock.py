"""Clock: the least period of an order, given least seconds of its actions; what its ranks hold, and wait for."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simpar import pipeline, program
from simpar.kernels import Array, kernel
from simpar.pipeline.messages import KINDS, NONE, Arrays, arrays_of


@kernel
def period(
    rank: Array,
    start: Array,
    item: Array,
    seconds: Array,
    behind: Array,
    together: bool,
    steps: int,
    free: Array,
    ready: Array,
) -> float:
    """Seconds of the last of so many steps; ``free`` by rank and ``ready`` by task are written over.

    Arguments: ``behind``, seconds of each rank behind its tasks; ``together``, whether ranks end a step together.
    """
    before = latest = 0.0
    for _ in range(steps):
        for task in range(len(rank)):
            come = -1.0
            for place in range(start[task], start[task + 1]):
                come = max(come, ready[item[place]])
            begin = free[rank[task]]
            free[rank[task]] = begin + seconds[task, 0]
            ready[task] = begin + seconds[task, 1]
            if come >= 0.0:
                free[rank[task]] = max(free[rank[task]], come + seconds[task, 2])
                ready[task] = max(ready[task], come + seconds[task, 3])
        before = latest
        latest = 0.0
        for one in range(len(free)):
            free[one] += behind[one]
            latest = max(latest, free[one])
        if together:
            for one in range(len(free)):
                free[one] = latest
    return latest - before


@kernel
def slowed_until(rank: Array, start: Array, item: Array, clock: Array, own: Array, until: Array) -> None:
    """Write how many actions of each rank are slowed; ``clock`` by task and rank, ``own`` by rank, all 0 before."""
    ranks = len(until)
    for task in range(len(rank)):
        mine = rank[task]
        for place in range(start[task], start[task + 1]):
            other = item[place]
            until[mine] = max(until[mine], clock[other, mine])
            for one in range(ranks):
                own[mine, one] = max(own[mine, one], clock[other, one])
        own[mine, mine] += 1
        for one in range(ranks):
            clock[task, one] = own[mine, one]


@kernel
def in_turn(
    begin: Array, needs: Array, gives: Array, rank: Array, turn: Array, start: Array, item: Array, giver: Array
) -> int:
    """Write computations in an order that can be done, and what each waits for; returns how many can.

    Argument: ``giver`` by result, in turn; −1 at first.
    """
    place = begin[:-1].copy()
    count, total, before = 0, 0, -1
    # Ranks go on as far as they can, one after the other, until none of them can.
    while count > before:
        before = count
        for own in range(len(place)):
            while place[own] < begin[own + 1]:
                task, lacks = place[own], False
                for need in needs[task]:
                    lacks = lacks or (need >= 0 and giver[need] < 0)
                if lacks:
                    break
                for need in needs[task]:
                    if need >= 0 and rank[turn[giver[need]]] != own:
                        item[total] = giver[need]
                        total += 1
                for result in gives[task]:
                    if result >= 0:
                        giver[result] = count
                turn[count] = task
                count += 1
                start[count] = total
                place[own] += 1
    return count


# Clock: the least period of an order, given least seconds of its actions; which actions surely run slowed.
#
# An action begins when its rank is free and what it needs has come. That leaves out all that may only make it later.
# So the period is no longer than the step that the engine finds.


Floats = NDArray[np.float64]
STEPS: Final = 3
"""Steps that are walked, the last is the answer: as many as a prediction has."""


Parts = tuple[tuple[str, int], ...]
"""Kind and stage of each part of a task; ``F+`` and ``B+``: a forward and its backward right behind it, done as one."""
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Work(NamedTuple):
    """What a task does.

    Arguments: ``slowed``, whether a message is surely awaited on its rank while it computes; ``issued``, whether its
    host begins to issue it no sooner than its rank is free, as behind an exchange that the host waits for; ``ended``,
    whether it has such an exchange behind it, so that nothing is computed until its messages have ended.
    """

    parts: Parts
    slowed: bool
    issued: bool
    ended: bool

    @property
    def does(self) -> tuple[str, int]:
        """Kind and stage of its first part."""
        kind, stage = self.parts[0]
        return kind[0], stage


class Lasts(NamedTuple):
    """Least seconds of a task: until it ends, and until its result is with who waits for it.

    Arguments: ``last``, ``gives``, from when its rank is free; ``behind``, ``given``, from when what it needs has come.
    """

    last: float
    gives: float
    behind: float
    given: float


class Tail(NamedTuple):
    """What ends a step: seconds of each rank behind all that it computes, and whether all ranks end it together."""

    seconds: tuple[float, ...]
    together: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Timed:
    """An order that is ready to be timed.

    Arguments:
        ranks: of the pipeline; placement, of stages.
        works: all that tasks do; work, which of them each task does, each task behind those that it waits for.
        rank: of each task.
        before: for each task those of other ranks that it waits for.
        actions: of all ranks; joined, which of them are a forward and its backward right behind it, done as one.
        ended: by kind and stage, how many actions a host waits behind.
        known: what was worked out of it, by rank.
    """

    ranks: int
    placement: tuple[int, ...]
    works: tuple[Work, ...]
    work: Ints
    rank: Ints
    before: program.Csr
    actions: Arrays
    joined: Bools
    ended: Mapping[tuple[str, int], int]
    known: dict[int, Any] = field(default_factory=dict)

    def period(self, seconds: Mapping[Work, Lasts], tail: Tail | None = None) -> float:
        """Seconds of a step. Arguments: ``seconds``, of each work; ``tail``, what ends a step; None, nothing."""
        tail = tail or Tail((0.0,) * self.ranks)
        each = np.array([seconds[work] for work in self.works], dtype=np.float64).reshape(-1, 4)[self.work]
        # From one end to the next all steps are alike where all ranks begin them together.
        steps, behind = 1 if tail.together else STEPS, np.array(tail.seconds)
        arguments = self.before.start, self.before.item, each, behind, tail.together, steps
        return float(period.compiled(self.rank, *arguments, np.zeros(self.ranks), np.zeros(len(self.work))))

    def row(self, rank: int) -> tuple[Ints, Ints, Bools]:
        """What a rank does, a forward and a backward of an overlap as two: kind, stage, and whether it is joined."""
        own = slice(*self.actions.begin[rank : rank + 2])
        # Of what overlaps the backward first: it may have given back its activations before the forward makes its own.
        kind, stage = (each[::-1, own].T.reshape(-1) for each in (self.actions.kind, self.actions.stage))
        there = kind != NONE
        return kind[there], stage[there], np.repeat(self.joined[own], 2)[there]

    @property
    def parted(self) -> bool:
        """Whether some backward is done in parts, or beside a forward."""
        return any(len(work.parts) > 1 or work.parts[0][0][0] in 'IW' for work in self.works)

    def unslowed(self) -> dict[tuple[str, int], int]:
        """How many actions of each kind and stage are not surely slowed."""
        counts: dict[tuple[str, int], int] = {}
        count = np.bincount(self.work, minlength=len(self.works)).tolist()
        for (parts, slowed, *_), times in zip(self.works, count, strict=True):
            for kind, stage in () if slowed else parts:
                counts[kind[0], stage] = counts.get((kind[0], stage), 0) + times
        return counts


def timed(order: pipeline.Order, *, awaited: bool, hosts_wait: bool = False) -> Timed:
    """An order's tasks.

    Arguments: ``awaited``: receives are posted as early as can be, and what waits for its peer slows computation;
    ``hosts_wait``: a host waits for all that it has issued behind each exchange of messages.
    """
    arrays = arrays_of(order)
    turn, before = _in_turn(arrays)
    ranks = arrays.rank
    rank = ranks[turn]
    until = np.zeros(order.ranks, dtype=np.int64)
    if awaited:
        clock = np.zeros((len(rank), order.ranks), dtype=np.int64)
        own = np.zeros((order.ranks, order.ranks), dtype=np.int64)
        slowed_until.compiled(rank, before.start, before.item, clock, own, until)
    joined = _joined(arrays, ranks)
    # The last of them may have handed on its result, and still compute.
    slowed = np.arange(len(ranks)) - arrays.begin[ranks] < until[ranks] - 1
    issued = _behind_sends(arrays, order) if hosts_wait else np.zeros(len(ranks), dtype=np.bool_)
    works, work = _works(arrays, joined, slowed, issued)
    count = np.bincount(work, minlength=len(works)).tolist()
    ended: Counter[tuple[str, int]] = Counter()
    for one, times in zip(works, count, strict=True):
        if one.ended:
            ended[one.does] += times
    return Timed(order.ranks, tuple(order.placement), works, work[turn], rank, before, arrays, joined, dict(ended))


def _in_turn(arrays: Arrays) -> tuple[Ints, program.Csr]:
    """Computations, each behind what it needs; and of each in turn those of other ranks that it waits for.

    What a rank has done itself it has done in order; only what comes from others is waited for.
    """
    needs, gives = arrays.needs(), arrays.gives()
    turn, giver = np.zeros(len(gives), dtype=np.int64), np.full(arrays.results, NONE, dtype=np.int64)
    start, item = np.zeros(len(gives) + 1, dtype=np.int32), np.zeros(needs.size, dtype=np.int32)
    count = in_turn.compiled(arrays.begin, needs, gives, arrays.rank, turn, start, item, giver)
    return turn[:count], program.Csr(start[: count + 1], item[: start[count]].copy())


def _joined(arrays: Arrays, rank: Ints) -> Bools:
    """Which are a last stage's forward with its backward right behind it, or that backward: they are done as one.

    Behind any other stage's forward its backward waits for other ranks.
    """
    kind, stage, micro_batch = arrays.kind[0], arrays.stage[0], arrays.micro_batch[0]
    alone = (arrays.kind[1] == NONE) & (stage == arrays.stages - 1)
    back = (kind == KINDS.index('B')) | (kind == KINDS.index('I'))
    same = (micro_batch[:-1] == micro_batch[1:]) & (rank[:-1] == rank[1:])
    both = alone[:-1] & alone[1:] & same & (kind[:-1] == KINDS.index('F')) & back[1:]
    joined: Bools = np.zeros(len(kind), dtype=np.bool_)
    joined[:-1] |= both
    joined[1:] |= both
    return joined


def _behind_sends(arrays: Arrays, order: pipeline.Order) -> Bools:
    """Which computations stand right behind a send: what is given to another rank is sent before all that follows.

    With several stages on a rank a backward may be in one exchange with the forward before it.
    """
    placement = np.array([*order.placement, NONE])
    own, kind = placement[arrays.stage], arrays.kind
    back = (kind == KINDS.index('B')) | (kind == KINDS.index('I'))
    to_next = (kind == KINDS.index('F')) & (arrays.stage + 1 < arrays.stages) & (placement[arrays.stage + 1] != own)
    to_last = back & (arrays.stage > 0) & (placement[arrays.stage - 1] != own)
    sends = (to_next | to_last).any(axis=0)
    pair = (kind[0][:-1] == KINDS.index('F')) & (kind[0][1:] == KINDS.index('B')) & (order.stages > order.ranks)
    behind: Bools = np.zeros(len(sends), dtype=np.bool_)
    behind[1:] = sends[:-1] & ~pair
    # The first of a rank is behind another rank's last.
    behind[arrays.begin[:-1][arrays.begin[:-1] < len(behind)]] = False
    return behind


def _works(arrays: Arrays, joined: Bools, slowed: Bools, issued: Bools) -> tuple[tuple[Work, ...], Ints]:
    """All that there is to do, each once, and which of it each computation is."""
    kinds, many = len(KINDS), arrays.stages + 1
    first = (arrays.kind[0] * 2 + joined) * many + arrays.stage[0]
    second = (arrays.kind[1] + 1) * many + arrays.stage[1] + 1
    # The first of a rank is behind no exchange of its step, so the last has none behind it.
    ended = (arrays.kind[1] == NONE) & np.append(issued[1:], False)
    code = (((first * (kinds + 1) * many + second) * 2 + slowed) * 2 + issued) * 2 + ended
    _, where, work = np.unique(code, return_index=True, return_inverse=True)
    kind, stage = arrays.kind[:, where].T.tolist(), arrays.stage[:, where].T.tolist()
    works = []
    for place, own, on in zip(where.tolist(), kind, stage, strict=True):
        parts = [(KINDS[one], at) for one, at in zip(own, on, strict=True) if one != NONE]
        if joined[place]:
            parts = [(f'{parts[0][0]}+', parts[0][1])]
        works.append(Work(tuple(parts), bool(slowed[place]), bool(issued[place]), bool(ended[place])))
    return tuple(works), work.reshape(-1)


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """When a rank begins its actions; M of them differ, and it has S stages.

    Arguments:
        kind: shape [M], of the action, as it stands in ``KINDS``.
        own: shape [M], its stage, among those of the rank.
        joined: shape [M], whether a forward and its backward are done as one.
        live: shape [S, M], how many micro-batches are between forward and backward.
        later: shape [S, M], between gradients of inputs and of weights.
        gradients: shape [S, M], whether gradients of weights are surely there: between a stage's first backward and
            its last.
        casts: shape [S, M], whether what is cast of weights is: from the first forward's end to the last gradient of
            inputs' begin.
    """

    kind: Ints
    own: Ints
    joined: Bools
    live: Ints
    later: Ints
    gradients: Bools
    casts: Bools


def moments_of(timed: Timed, rank: int) -> Moments:
    """The moments of a rank, worked out once for all plans of an order."""
    if rank not in timed.known:
        timed.known[rank] = _moments(timed, rank)
    moments: Moments = timed.known[rank]
    return moments


def _moments(timed: Timed, rank: int) -> Moments:
    kind, stages, joined = timed.row(rank)
    mine = [stage for stage, holder in enumerate(timed.placement) if holder == rank]
    own = np.searchsorted(mine, stages)
    columns = [kind, own, joined.astype(np.int64)]
    for stage in range(len(mine)):
        columns += _of_stage(*((own == stage) & (kind == number) for number in range(len(KINDS))))
    rows = np.unique(np.stack(columns), axis=1)
    of_stages = [rows[3 + each :: 4] for each in range(4)]
    return Moments(
        rows[0], rows[1], rows[2] > 0, of_stages[0], of_stages[1], of_stages[2] > 0, of_stages[3] > 0
    )  # fmt: skip


def _of_stage(forward: Bools, backward: Bools, inputs: Bools, weights: Bools) -> list[Ints]:
    """What a stage holds at each action of its rank. Arguments: which of them are its own, by kind."""
    live = _before(forward.astype(np.int64) - backward - inputs)
    later = np.maximum(_before(inputs.astype(np.int64) - weights), 0)
    gradients, casts = backward | weights, backward | inputs
    done, turned = _before(gradients.astype(np.int64)), np.cumsum(casts)
    return [
        live,
        later,
        ((done > 0) & (done < gradients.sum())).astype(np.int64),
        ((np.cumsum(forward) > 0) & (turned < casts.sum())).astype(np.int64),
    ]


def _before(change: Ints) -> Ints:
    """The sum of all changes before each action."""
    return np.cumsum(change) - change
