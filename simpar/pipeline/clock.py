"""When an order's actions begin and end, given the times of the stages; no streams, no links, no launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from simpar.errors import Problem, ScheduleError
from simpar.pipeline.order import Order
from simpar.pipeline.tasks import Tasks, tasks


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
    ran = run(tasks(order), times, steps)
    return max(ran[-1].end) - (max(ran[-2].end) if steps > 1 else 0.0)


def run(todo: Tasks, times: StageTimes, steps: int = 1) -> list[Step]:
    """Do each rank's tasks one after the other, as early as their needs allow, for some steps without a barrier.

    Raises `ScheduleError` where the times are for another number of stages.
    """
    check_stages(times.stages, todo.stages)
    seconds = todo.seconds(times.forward, times.input, times.weight)
    # What stays on its rank travels the way behind the last stage, in no time.
    travel = (*times.communication, 0.0)
    free, done = [0.0] * todo.ranks, []
    for _ in range(steps):
        begin, end = _one_step(todo, seconds, travel, free)
        done.append(Step(tuple(begin), tuple(end)))
        free = end
    return done


def check_stages(given: int, stages: int) -> None:
    """Raise `ScheduleError` where the times are for another number of stages than the order's."""
    if given != stages:
        raise ScheduleError(Problem('pipeline order', f'times of {given} stages, but the order has {stages}'))


def _one_step(
    todo: Tasks, seconds: Sequence[float], travel: Sequence[float], free: Sequence[float]
) -> tuple[list[float], list[float]]:
    # −1 is before any time, so it tells that a rank has not begun.
    begin, end = [-1.0] * todo.ranks, list(free)
    known: dict[int, float] = {}
    for task in todo.in_turn:
        rank = task.rank
        now = end[rank]
        for result, way in task.needs:
            arrives = known[result] + travel[way]
            # This is most of the time of a search, and `max` takes twice as long.
            if arrives > now:  # noqa: PLR1730
                now = arrives
        begin[rank] = now if begin[rank] < 0 else begin[rank]
        end[rank] = now = now + seconds[task.work]
        for result in task.gives:
            known[result] = now
    return [max(0.0, at) for at in begin], end
