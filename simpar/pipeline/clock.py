"""Clock: when an order's actions begin and end, given the times of the stages; no streams, no links, no launches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from math import inf
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from simpar.errors import Problem, ScheduleError
from simpar.pipeline.messages import Result, gives, needs, walked
from simpar.pipeline.order import COMPUTE, Action, Kind, Order

Work = tuple[tuple[Kind, int], ...]
"""What a task does: kind and stage of each part. Tasks of the same work last equally long."""
Seconds = TypeVar('Seconds')


class Task(NamedTuple):
    """One action as a clock sees it.

    Arguments:
        rank: of the pipeline, that does it.
        work: its place in ``Recurrence.works``.
        gives: numbers of the results that it gives.
        needs: of each result that it needs, the number and the way: stage s of the way from s to s + 1, or back;
            the last stage where the result stays on its rank and travels no way.
    """

    rank: int
    work: int
    gives: tuple[int, ...]
    needs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Recurrence:
    """An order's computations, to be timed once or for many cases; sends and receives take their time on no rank.

    Arguments:
        works: all that tasks do, each once.
        in_turn: the tasks, each behind those before it on its rank and behind those whose results it needs.
    """

    ranks: int
    stages: int
    works: tuple[Work, ...]
    in_turn: tuple[Task, ...]

    @staticmethod
    def of(order: Order) -> Recurrence:
        """The recurrence of an order. Raises `ScheduleError` where ranks wait for each other for ever."""
        works: defaultdict[Work, int] = defaultdict(lambda: len(works))
        # Results as numbers: tuples hash slowly.
        results: defaultdict[Result, int] = defaultdict(lambda: len(results))

        def way(result: Result, rank: int) -> int:
            kind, stage, _ = result
            if order.placement[stage] == rank:
                return order.stages - 1
            return stage if kind == 'F' else stage - 1

        def task(action: Action, rank: int) -> Task:
            return Task(
                rank,
                works[tuple([(part.kind, part.stage) for part in action.parts])],
                tuple([results[result] for result in gives(action)]),
                tuple([(results[need], way(need, rank)) for need in needs(action, order)]),
            )

        rows = [
            [task(action, rank) for action in row if action.sub_actions or action.kind in COMPUTE]
            for rank, row in enumerate(order.actions)
        ]
        done, *_ = walked(rows, lambda one: [need for need, _ in one.needs], lambda one: one.gives)
        if len(done) < sum(map(len, rows)):
            raise ScheduleError(Problem('pipeline order', 'cannot be carried out: ranks wait for each other'))
        return Recurrence(order.ranks, order.stages, tuple(works), tuple(done))

    def lasts(self, F: Sequence[Seconds], I: Sequence[Seconds], W: Sequence[Seconds]) -> list[Seconds]:
        """How long each of ``works`` takes.

        Arguments: seconds of F, I and W by stage; anything that can be added.
        B takes I + W; an overlap takes the sum of its parts.
        """
        # A full backward hands its gradient on at its very end, as autograd's does; that is what splitting it gains.
        full = [i + w for i, w in zip(I, W, strict=True)]  # type: ignore[operator]
        by_kind = {'F': F, 'I': I, 'W': W, 'B': full}
        return [sum(by_kind[kind][stage] for kind, stage in work) for work in self.works]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """Seconds of the stages' work for one micro-batch.

    Arguments: ``forward``, ``input``, ``weight``: of F, I and W, shape [stages]; ``communication``: from a stage to the
    next, and of the gradient back, shape [stages − 1]; counted only where they are on different ranks.
    Raises `ScheduleError` where shapes differ, and for times that are negative or not finite.
    """

    forward: tuple[float, ...]
    input: tuple[float, ...]
    weight: tuple[float, ...]
    communication: tuple[float, ...]

    def __post_init__(self) -> None:
        lengths = [len(seconds) for seconds in (self.forward, self.input, self.weight, self.communication)]
        if lengths != [self.stages] * 3 + [max(0, self.stages - 1)] or not self.stages:
            what = f'times of {", ".join(map(str, lengths))} stages and ways between them'
            raise ScheduleError(Problem('pipeline times', what, 'give one way less than stages'))
        every = (*self.forward, *self.input, *self.weight, *self.communication)
        if not all(0 <= seconds < inf for seconds in every):
            raise ScheduleError(Problem('pipeline times', 'negative or not finite'))

    @staticmethod
    def uniform(stages: int, F: float, I: float, W: float, communication: float = 0.0) -> StageTimes:
        """The same seconds for every stage."""
        return StageTimes(
            forward=(F,) * stages,
            input=(I,) * stages,
            weight=(W,) * stages,
            communication=(communication,) * (stages - 1),
        )

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.forward)


@dataclass(frozen=True, slots=True)
class Step:
    """One of several steps, run back to back: seconds of each rank's first begin and last end, shape [ranks]."""

    begin: tuple[float, ...]
    end: tuple[float, ...]

    @property
    def longest(self) -> float:
        """Seconds from begin to end of the rank that takes longest (the zero-bubble paper's cost)."""
        return max(end - begin for begin, end in zip(self.begin, self.end, strict=True))


def step_time(order: Order, times: StageTimes, steps: int = 3) -> float:
    """Seconds of a step in the steady state: between the last end of step ``steps`` and that of the step before.

    Of many times for one order, `step_times` does the same at once.
    Raises `ScheduleError` where the times are for another number of stages, or ranks wait for each other for ever.
    """
    ran = run(Recurrence.of(order), times, steps)
    return max(ran[-1].end) - (max(ran[-2].end) if steps > 1 else 0.0)


def run(order: Recurrence, times: StageTimes, steps: int = 1) -> list[Step]:
    """Do each rank's tasks one after the other, as early as their needs allow, for some steps without a barrier.

    Raises `ScheduleError` where the times are for another number of stages.
    """
    _check_stages(times.stages, order.stages)
    lasts = order.lasts(times.forward, times.input, times.weight)
    # What stays on its rank travels the way behind the last stage, in no time.
    travel, free, done = (*times.communication, 0.0), [0.0] * order.ranks, []
    for _ in range(steps):
        begin, end = _one_step(order, lasts, travel, free, max)
        done.append(Step(tuple(begin), tuple(end)))
        free = end
    return done


def _check_stages(own: int, stages: int) -> None:
    """Raise `ScheduleError` where the times are for another number of stages than the order's."""
    if own != stages:
        raise ScheduleError(Problem('pipeline order', f'times of {own} stages, but the order has {stages}'))


def _one_step(
    order: Recurrence, lasts: Sequence[Any], travel: Sequence[Any], free: Sequence[Any], later: Callable[..., Any]
) -> tuple[list[Any], list[Any]]:
    """When each rank begins and ends, in seconds of one case or arrays of many; ``later`` of two of them."""
    begin, end = dict[int, Any](), [*free]
    times: dict[int, Any] = {}
    for task in order.in_turn:
        now = end[task.rank]
        for result, way in task.needs:
            now = later(now, times[result] + travel[way])
        begin.setdefault(task.rank, now)
        end[task.rank] = now + lasts[task.work]
        times |= dict.fromkeys(task.gives, end[task.rank])
    return [begin.get(rank, 0.0) for rank in range(order.ranks)], end


Floats = NDArray[np.float64]
BLOCK: Final = 1_024
"""Cases that are timed together, so that what is under way stays in a cache."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageTimesTable:
    """`StageTimes` of many cases: the same fields, with a row for each case.

    Arguments: ``forward``, ``input``, ``weight``: shape [cases, stages]; ``communication``: shape [cases, stages − 1].
    Raises `ScheduleError` where shapes differ, and for times that are negative or not finite.
    """

    forward: Floats
    input: Floats
    weight: Floats
    communication: Floats

    def __post_init__(self) -> None:
        every = (self.forward, self.input, self.weight, self.communication)
        cases, stages = self.forward.shape if self.forward.ndim == 2 else (0, 0)
        if [times.shape for times in every] != [(cases, stages)] * 3 + [(cases, stages - 1)]:
            what = f'tables of shapes {", ".join(str(times.shape) for times in every)}'
            raise ScheduleError(Problem('pipeline times', what, 'give [cases, stages], and one way less than stages'))
        if not all(((times >= 0) & (times < np.inf)).all() for times in every):
            raise ScheduleError(Problem('pipeline times', 'negative or not finite'))

    @staticmethod
    def of(cases: Sequence[StageTimes]) -> StageTimesTable:
        """The table of one case or more, each of as many stages."""
        names = [field.name for field in fields(StageTimesTable)]
        return StageTimesTable(**{name: np.array([getattr(case, name) for case in cases], float) for name in names})

    @property
    def stages(self) -> int:
        """Number of stages."""
        stages: int = self.forward.shape[1]
        return stages

    def __len__(self) -> int:
        return len(self.forward)


def step_times(order: Order | Recurrence, times: StageTimesTable, steps: int = 3) -> Floats:
    """Seconds of a step in the steady state for each case, shape [cases]; each is `step_time`'s to the bit.

    Arguments:
        order: or its `Recurrence`, which is worth keeping where the order is timed again.
        steps: how many run back to back; the last one counts.
    Raises `ScheduleError` where the times are for another number of stages, or ranks wait for each other for ever.
    """
    todo = Recurrence.of(order) if isinstance(order, Order) else order
    _check_stages(times.stages, todo.stages)
    seconds = np.empty(len(times))
    for first in range(0, len(times), BLOCK):
        some = slice(first, first + BLOCK)
        lasts = todo.lasts(*([*each[some].T] for each in (times.forward, times.input, times.weight)))
        travel = [*times.communication[some].T, 0.0]
        before = latest = np.zeros(len(seconds[some]))
        end = [latest] * todo.ranks
        for _ in range(steps):
            _, end = _one_step(todo, lasts, travel, end, np.maximum)
            before, latest = latest, np.max(end, axis=0)
        seconds[some] = latest - before
    return seconds
