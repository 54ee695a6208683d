"""An order's computations as tasks in an order that can be done; no seconds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

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
