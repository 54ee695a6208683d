"""Clock: the least period of an order, given least seconds of its actions; which actions surely run slowed.

An action begins when its rank is free and what it needs has come. That leaves out all that may only make it later. So
the period is no longer than the step that the engine finds.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simpar.pipeline.action import Action
from simpar.pipeline.needs import gives, needs
from simpar.pipeline.order import Order
from simpar.program.csr import Csr

Floats = NDArray[np.float64]
STEPS: Final = 3
"""Steps that are walked, the last is the answer: as many as a prediction has."""


Parts = tuple[tuple[str, int], ...]
"""Kind and stage of each part of a task; ``F+`` and ``B+``: a forward and its backward right behind it, done as one."""
Ints = NDArray[np.int64]
Work = tuple[Parts, bool]
"""What a task does, and whether it is slowed: a message is surely awaited on its rank while it computes."""


class Lasts(NamedTuple):
    """Least seconds of a task: until it ends, and until its result is with who waits for it.

    Arguments: ``last``, ``gives``, from when its rank is free; ``behind``, ``given``, from when what it needs has come.
    """

    last: float
    gives: float
    behind: float
    given: float


@dataclass(frozen=True, slots=True, eq=False)
class Timed:
    """An order that is ready to be timed.

    Arguments:
        ranks: of the pipeline; placement, of stages.
        works: all that tasks do; work, which of them each task does, each task behind those that it waits for.
        rank: of each task.
        before: for each task those of other ranks that it waits for.
        rows: of each rank, kind and stage of all that it does.
        known: what was worked out of it, by rank.
    """

    ranks: int
    placement: tuple[int, ...]
    works: tuple[Work, ...]
    work: Ints
    rank: Ints
    before: Csr
    rows: tuple[tuple[tuple[str, int], ...], ...]
    known: dict[int, Any] = field(default_factory=dict)

    def period(self, seconds: Mapping[Work, Lasts]) -> float:
        """Seconds of a step.

        Arguments: ``seconds``, of each work.
        """
        each = np.array([seconds[work] for work in self.works], dtype=np.float64).reshape(-1, 4)
        free, ready = np.zeros(self.ranks), np.zeros(len(self.work))
        before = self.before
        return float(_walks().period(self.rank, before.start, before.item, each[self.work], STEPS, free, ready))

    def unslowed(self) -> dict[tuple[str, int], int]:
        """How many actions of each kind and stage are not surely slowed."""
        found: dict[tuple[str, int], int] = {}
        count = np.bincount(self.work, minlength=len(self.works)).tolist()
        for (parts, slowed), times in zip(self.works, count, strict=True):
            for kind, stage in () if slowed else parts:
                found[kind[0], stage] = found.get((kind[0], stage), 0) + times
        return found


def _walks() -> Any:
    """What walks over tasks: compiled, where numba is there."""
    if importlib.util.find_spec('numba') is None:
        return _Plain
    from simpar.planner.compiled import walk

    return walk


def timed(order: Order, *, awaited: bool) -> Timed:
    """An order's tasks.

    Arguments: ``awaited``: receives are posted as early as can be, and what waits for its peer slows computation.
    """
    rows = [[action for action in row if _computes(action)] for row in order.actions]
    ranks, waits = _in_turn(rows, order)
    rank = np.array(ranks, dtype=np.int64)
    before = Csr.counted(
        np.array([len(one) for one in waits]), np.array([one for some in waits for one in some], dtype=np.int64)
    )
    until = np.zeros(order.ranks, dtype=np.int64)
    if awaited:
        clock = np.zeros((len(rank), order.ranks), dtype=np.int64)
        own = np.zeros((order.ranks, order.ranks), dtype=np.int64)
        _walks().slowed_until(rank, before.start, before.item, clock, own, until)
    works: dict[Work, int] = {}
    place = [0] * order.ranks
    last = order.stages - 1
    parts = [[_parts(row, place, last) for place in range(len(row))] for row in rows]
    work = []
    for one in ranks:
        # The last of them may have handed on its result, and still compute.
        slowed = place[one] < int(until[one]) - 1
        work.append(works.setdefault((parts[one][place[one]], slowed), len(works)))
        place[one] += 1
    # Of what overlaps the backward first: it may have given back its activations before the forward makes its own.
    kinds = tuple(tuple(part for one in row for part in sorted(one)) for row in parts)
    placement = tuple(order.placement)
    return Timed(order.ranks, placement, tuple(works), np.array(work, dtype=np.int64), rank, before, kinds)


def _parts(row: Sequence[Action], place: int, last: int) -> Parts:
    """What a task does; ``F+`` and ``B+``, a forward and the backward right behind it, are done as one."""
    action = row[place]
    if action.sub_actions:
        return tuple((part.kind, part.stage) for part in action.parts)
    before, behind = row[place - 1 : place] if place else (), row[place + 1 : place + 2]
    # Behind any other stage's forward its backward waits for other ranks.
    joined = action.stage == last and (
        (action.kind == 'F' and any(_goes_back(action, one) for one in behind))
        or (action.kind in 'BI' and any(_goes_back(one, action) for one in before))
    )
    return ((f'{action.kind}+' if joined else action.kind, action.stage),)


def _goes_back(forward: Action, action: Action) -> bool:
    same = (forward.stage, forward.micro_batch) == (action.stage, action.micro_batch)
    return same and forward.kind == 'F' and action.kind in ('B', 'I')


def _computes(action: Action) -> bool:
    return bool(action.sub_actions) or action.kind in ('F', 'I', 'W', 'B')


def _in_turn(rows: Sequence[Sequence[Action]], order: Order) -> tuple[list[int], list[tuple[int, ...]]]:
    """The rank of each action, each behind what it needs, and those of other ranks that it waits for.

    What a rank has done itself it has done in order; only what comes from others is waited for.
    """
    giver: dict[object, int] = {}
    place, ranks = [0] * len(rows), list[int]()
    waits: list[tuple[int, ...]] = []
    waiting: dict[object, list[int]] = {}
    ready = list(range(len(rows)))
    while ready:
        rank = ready.pop()
        row = rows[rank]
        while place[rank] < len(row):
            action = row[place[rank]]
            wanted = needs(action, order)
            lack = next((need for need in wanted if need not in giver), None)
            if lack is not None:
                waiting.setdefault(lack, []).append(rank)
                break
            waits.append(tuple(one for one in [giver[need] for need in wanted] if ranks[one] != rank))
            for result in gives(action):
                giver[result] = len(ranks)
                ready += waiting.pop(result, ())
            ranks.append(rank)
            place[rank] += 1
    return ranks, waits


class _Plain:
    """The walks without numba."""

    @staticmethod
    def period(rank: Ints, start: Ints, item: Ints, seconds: Floats, steps: int, free: Floats, ready: Floats) -> float:
        """Seconds of the last of so many steps."""
        before = latest = 0.0
        now, done, bounds, waits = free.tolist(), ready.tolist(), start.tolist(), item.tolist()
        rows = list(zip(rank.tolist(), bounds, bounds[1:], seconds.tolist(), strict=False))
        for _ in range(steps):
            for task, (on, first, end, (last, gave, behind, given)) in enumerate(rows):
                begin, come = now[on], [done[other] for other in waits[first:end]]
                now[on] = max([begin + last, *[one + behind for one in come]])
                done[task] = max([begin + gave, *[one + given for one in come]])
            before, latest = latest, max(now)
        return latest - before

    @staticmethod
    def slowed_until(rank: Ints, start: Ints, item: Ints, clock: Ints, own: Ints, until: Ints) -> None:
        """Write how many of each rank's first actions compute while a receive is surely awaited.

        Receives of one way stand behind each other on a stream of their own and wait for nothing else, so one is always
        awaited until the last has come. It cannot have come before what its sender waited for was done: all that is on
        the way from an action of this rank to that sender.
        """
        bounds = start.tolist()
        for task, mine in enumerate(rank.tolist()):
            for other in item[bounds[task] : bounds[task + 1]].tolist():
                until[mine] = max(until[mine], clock[other, mine])
                np.maximum(own[mine], clock[other], out=own[mine])
            own[mine, mine] += 1
            clock[task] = own[mine]
