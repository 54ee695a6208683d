"""An order as a recurrence over rows of numbers, one number for each case: what evaluates it knows no actions.

With one row for each way, each work and each result under way, a task is: end = max(now, result + travel) + lasts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from simpar.pipeline.order import Order
from simpar.pipeline.tasks import Task, Tasks, tasks

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
        # Taken before what it reads is given back: kernels need another row to write than they read.
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
