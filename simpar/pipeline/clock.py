"""Clock: when an order's actions begin and end, given the times of the stages; no streams, no links, no launches."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from math import inf
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from simpar.errors import Problem, ScheduleError
from simpar.pipeline.messages import Result, gives, needs
from simpar.pipeline.order import COMPUTE, Action, Kind, Order

Work = tuple[tuple[Kind, int], ...]
"""What a task does: kind and stage of each part. Tasks of the same work last equally long."""
Seconds = TypeVar('Seconds')


class Task(NamedTuple):
    """One action as a clock sees it.

    Arguments:
        rank: of the pipeline, that does it.
        work: its place in ``Tasks.works``.
        gives: numbers of the results that it gives.
        needs: of each result that it needs, the number and the way: stage s of the way from s to s + 1, or back;
            the last stage where the result stays on its rank and travels no way.
    """

    rank: int
    work: int
    gives: tuple[int, ...]
    needs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Tasks:
    """An order's computations; sends and receives take their time on no rank.

    Arguments:
        works: all that tasks do, each once.
        in_turn: the tasks, each behind those before it on its rank and behind those whose results it needs.
    """

    ranks: int
    stages: int
    works: tuple[Work, ...]
    in_turn: tuple[Task, ...]

    def seconds(self, F: Sequence[Seconds], I: Sequence[Seconds], W: Sequence[Seconds]) -> list[Seconds]:
        """How long each of ``works`` takes.

        Arguments: seconds of F, I and W by stage; anything that can be added.
        B takes I + W; an overlap takes the sum of its parts.
        """
        # A full backward hands its gradient on at its very end, as autograd's does; that is what splitting it gains.
        full = [i + w for i, w in zip(I, W, strict=True)]  # type: ignore[operator]
        by_kind = {'F': F, 'I': I, 'W': W, 'B': full}
        return [sum(by_kind[kind][stage] for kind, stage in work) for work in self.works]


def tasks(order: Order) -> Tasks:
    """The tasks of an order. Raises `ScheduleError` where ranks wait for each other for ever."""
    works: defaultdict[Work, int] = defaultdict(lambda: len(works))
    # Results as numbers: the automatic search times thousands of orders, and tuples hash slowly.
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
    return Tasks(order.ranks, order.stages, tuple(works), tuple(_in_turn(rows)))


def _in_turn(rows: Sequence[Sequence[Task]]) -> Iterator[Task]:
    """Each rank goes on until it lacks a result, then whoever gave one last: so few results are under way at once."""
    position = [0] * len(rows)
    known: set[int] = set()
    waiting: defaultdict[int, list[int]] = defaultdict(list)
    ready = list(range(len(rows)))
    while ready:
        rank = ready.pop()
        while position[rank] < len(rows[rank]):
            task = rows[rank][position[rank]]
            lacks = [result for result, _ in task.needs if result not in known]
            if lacks:
                # Ranks wait for one result at a time and look again when it is there: each need is looked at a few
                # times only.
                waiting[lacks[0]].append(rank)
                break
            yield task
            position[rank] += 1
            known.update(task.gives)
            for result in task.gives:
                ready += waiting.pop(result, ())
    if any(at < len(row) for at, row in zip(position, rows, strict=True)):
        raise ScheduleError(Problem('pipeline order', 'cannot be carried out: ranks wait for each other'))


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


# An order as a recurrence over rows of numbers, one number for each case: what evaluates it knows no actions.
#
# With one row for each way, each work and each result under way, a task is: end = max(now, result + travel) + lasts.


INSTRUCTION: Final = np.dtype([(name, np.uint32) for name in ('now', 'result', 'travel', 'lasts', 'end')])
"""Rows of one instruction: row ``end`` becomes max(row ``now``, row ``result`` + row ``travel``) + row ``lasts``."""


@dataclass(frozen=True, slots=True, eq=False)
class Recurrence:
    """An order, to be evaluated for many cases at once.

    Arguments:
        order: its tasks.
        code: of each task one `INSTRUCTION`, or one for each result that comes from another rank. Row ``end`` is no
            other row of the same instruction.
        rows: how many rows there are: those that are given, then when each rank is free, then results under way.
            Given are the seconds of each way, a row of zeros, and the seconds of each work.
        last: of each rank, the row that holds when it ends, shape [ranks].
    """

    order: Tasks
    code: NDArray[np.void]
    rows: int
    last: NDArray[np.uint32]

    @staticmethod
    def of(order: Order) -> Recurrence:
        """The recurrence of an order. Raises `ScheduleError` where ranks wait for each other for ever."""
        todo = tasks(order)
        waits = [*_waits(todo)]
        readers = Counter(number for wait in waits for number, _ in wait)
        writer = _Writer(todo)
        ends: list[int] = []
        for number, (task, wait) in enumerate(zip(todo.in_turn, waits, strict=True)):
            # The rank itself reads it, too, when it goes on.
            ends.append(writer.write(task, [(ends[other], way) for other, way in wait], 1 + readers[number]))
        last = np.array(writer.now, dtype=np.uint32)
        return Recurrence(todo, np.array(writer.code, dtype=INSTRUCTION), writer.rows, last)

    @property
    def given(self) -> int:
        """How many rows are given."""
        return self.order.stages + len(self.order.works)


def _waits(todo: Tasks) -> Iterator[list[tuple[int, int]]]:
    """For each task, by their numbers in turn, the tasks whose results it waits for, and the ways that these travel."""
    stays = todo.stages - 1
    giver: dict[int, int] = {}
    for number, task in enumerate(todo.in_turn):
        found = [(giver[result], way) for result, way in task.needs]
        # What its own rank gave is there when the rank is free.
        yield [(other, way) for other, way in found if way != stays or todo.in_turn[other].rank != task.rank]
        giver.update((result, number) for result in task.gives)


class _Writer:
    """Writes instructions, and uses a row again when all have read it, so that few rows are in use."""

    def __init__(self, todo: Tasks) -> None:
        self._zero = todo.stages - 1
        self._first_work = todo.stages
        free = todo.stages + len(todo.works)
        self.code: list[tuple[int, int, int, int, int]] = []
        self.now: list[int] = [*range(free, free + todo.ranks)]
        self.rows = free + todo.ranks
        # Of the rows that are used again, how many instructions have still to read them.
        self._readers = dict.fromkeys(self.now, 1)
        self._spare: list[int] = []

    def write(self, task: Task, waits: Sequence[tuple[int, int]], readers: int) -> int:
        """Write a task; returns the row that holds its end.

        Arguments: ``waits``, of the results that it waits for, the row and the row of the way; ``readers``, how many
        instructions read its end.
        """
        # Zero is before any time: a task that waits for nothing waits for that.
        *others, latest = waits or [(self._zero, self._zero)]
        for result, travel in others:
            self._add(task.rank, result, travel, self._zero, 1)
        self._add(task.rank, *latest, self._first_work + task.work, readers)
        return self.now[task.rank]

    def _add(self, rank: int, result: int, travel: int, lasts: int, readers: int) -> None:
        now = self.now[rank]
        # DeviceUse before what it reads is given back: kernels need another row to write than they read.
        end = self._taken()
        self.code.append((now, result, travel, lasts, end))
        for row in (now, result):
            if row in self._readers:
                self._readers[row] -= 1
                if not self._readers[row]:
                    self._spare.append(row)
        self._readers[end] = readers
        self.now[rank] = end

    def _taken(self) -> int:
        if self._spare:
            return self._spare.pop()
        self.rows += 1
        return self.rows - 1


Floats = NDArray[np.float64]
BLOCK: Final = 1_024
"""Cases that are evaluated together: rows of 8 KiB, so that what is under way stays in a cache."""


def scan(found: Recurrence, given: Floats, steps: int) -> Floats:
    """Seconds of step ``steps`` for each case, shape [cases].

    Arguments: ``given``, the seconds that the recurrence is given, shape [given, cases].
    """
    seconds = np.empty(given.shape[1])
    for first in range(0, len(seconds), BLOCK):
        seconds[first : first + BLOCK] = _block(found, given[:, first : first + BLOCK], steps)
    return seconds


def _block(found: Recurrence, given: Floats, steps: int) -> Floats:
    # A list: to take a row of an array takes as long as an addition.
    rows = [*given, *np.zeros((found.rows - found.given, given.shape[1]))]
    code = found.code.tolist()
    latest = before = np.zeros(given.shape[1])
    ends = np.zeros((len(found.last), given.shape[1]))
    for _ in range(steps):
        for rank, end in enumerate(ends):
            rows[found.given + rank][:] = end
        for now, result, travel, lasts, end in code:
            into = np.add(rows[result], rows[travel], out=rows[end])
            np.maximum(into, rows[now], out=into)
            np.add(into, rows[lasts], out=into)
        ends = np.array([rows[row] for row in found.last.tolist()])
        before, latest = latest, ends.max(axis=0)
    return latest - before


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
        order: or its `Recurrence`, which is worth keeping where the order is evaluated again.
        steps: how many run back to back; the last one counts.
    Raises `ScheduleError` where the times are for another number of stages, or ranks wait for each other for ever.
    """
    found = Recurrence.of(order) if isinstance(order, Order) else order
    check_stages(times.stages, found.order.stages)
    lasts = found.order.seconds([*times.forward.T], [*times.input.T], [*times.weight.T])
    given = np.concatenate([times.communication.T, np.zeros((1, len(times))), lasts])
    return scan(found, given, steps)
