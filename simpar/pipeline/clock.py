"""When an order's actions begin and end, given the times of the stages; no streams, no links, no launches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from simpar.errors import Problem, ScheduleError
from simpar.pipeline.action import COMPUTE
from simpar.pipeline.needs import Result, gives, needs
from simpar.pipeline.order import Order


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


@dataclass(frozen=True, slots=True)
class Task:
    """One action as the clock sees it: seconds, numbers of the results that it gives, and of those that it needs.

    Arguments: ``needs``: (result, seconds that it travels).
    """

    seconds: float
    gives: tuple[int, ...]
    needs: tuple[tuple[int, float], ...]


def step_time(order: Order, times: StageTimes, steps: int = 3) -> float:
    """Seconds of a step in the steady state: between the last end of step ``steps`` and that of the step before."""
    ran = run(tasks(order, times), steps)
    return max(ran[-1].end) - (max(ran[-2].end) if steps > 1 else 0.0)


def tasks(order: Order, times: StageTimes) -> list[list[Task]]:
    """An order's computations as the clock runs them; sends and receives take their time on no rank.

    B takes I + W and gives its gradient at its end; an overlap takes the sum of its parts and gives both at its end.
    Raises `ScheduleError` where the times are for another number of stages.
    """
    if times.stages != order.stages:
        what = f'times of {times.stages} stages, but the order has {order.stages}'
        raise ScheduleError(Problem('pipeline order', what))
    # Results as numbers: the automatic search times thousands of orders, and tuples hash slowly.
    numbers: defaultdict[Result, int] = defaultdict(lambda: len(numbers))
    seconds = {'F': times.forward, 'I': times.input, 'W': times.weight}
    # A full backward hands its gradient on at its very end, as autograd's does; that is what splitting it gains.
    seconds['B'] = tuple(i + w for i, w in zip(times.input, times.weight, strict=True))

    def travel(result: Result, rank: int) -> float:
        kind, stage, _ = result
        holder = order.placement[stage]
        return 0.0 if holder == rank else times.communication[stage if kind == 'F' else stage - 1]

    return [
        [
            Task(
                sum(seconds[part.kind][part.stage] for part in action.parts),
                tuple(numbers[result] for result in gives(action)),
                tuple((numbers[need], travel(need, rank)) for need in needs(action, order)),
            )
            for action in row
            # Sends and receives take no time on their ranks here: ``travel`` has it.
            if action.sub_actions or action.kind in COMPUTE
        ]
        for rank, row in enumerate(order.actions)
    ]


def run(rows: Sequence[Sequence[Task]], steps: int = 1) -> list[Step]:
    """Do each rank's tasks one after the other, as early as their needs allow, for some steps without a barrier.

    Raises `ScheduleError` where ranks wait for each other for ever.
    """
    free = [0.0] * len(rows)
    done = []
    for _ in range(steps):
        begin, end = _one_step(rows, free)
        done.append(Step(tuple(begin), tuple(end)))
        free = end
    return done


def _one_step(rows: Sequence[Sequence[Task]], free: Sequence[float]) -> tuple[list[float], list[float]]:
    # −1 is before any time, so it tells that a rank has not begun.
    begin, end = [-1.0] * len(rows), list(free)
    position = [0] * len(rows)
    known: dict[int, float] = {}
    waiting: defaultdict[int, list[int]] = defaultdict(list)
    ready = list(range(len(rows)))
    while ready:
        rank = ready.pop()
        row, now = rows[rank], end[rank]
        for task in row[position[rank] :]:
            start = now
            for result, travel in task.needs:
                if result not in known:
                    waiting[result].append(rank)
                    break
                start = max(start, known[result] + travel)
            else:
                begin[rank] = start if begin[rank] < 0 else begin[rank]
                now = start + task.seconds
                position[rank] += 1
                for result in task.gives:
                    known[result] = now
                    # Ranks wait for one result at a time and look again when it is there: each need is looked at a few
                    # times only.
                    ready += waiting.pop(result, ())
                continue
            break
        end[rank] = now
    if any(at < len(row) for at, row in zip(position, rows, strict=True)):
        raise ScheduleError(Problem('pipeline order', 'cannot be carried out: ranks wait for each other'))
    return [max(0.0, at) for at in begin], end
