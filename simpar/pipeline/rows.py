"""An order as lines of text, one a pipeline rank: how a plan holds it, e.g. ``0F0 0F1 0B0 0B1``."""

from __future__ import annotations

from collections.abc import Sequence

from simpar.errors import Problem, ScheduleError
from simpar.pipeline.action import Action, parse_action
from simpar.pipeline.checks import check_order
from simpar.pipeline.order import Order


def rows_of(order: Order) -> tuple[str, ...]:
    """The lines of an order."""
    return tuple(' '.join(map(str, row)) for row in order.actions)


def order_of_rows(rows: Sequence[str], name: str = 'plan.rows') -> Order:
    """Read lines back and check them.

    Arguments: ``name``, said where they are wrong. Raises `ScheduleError` with every fault.
    """
    problems: list[Problem] = []
    actions = [[*_actions(row, f'{name}.{rank}', problems)] for rank, row in enumerate(rows)]
    placement: dict[int, int] = {}
    micro_batches = 0
    for rank, row in enumerate(actions):
        for part in (part for action in row for part in action.parts):
            # The first rank that names a stage has it; another that does is told as a fault by check_order.
            placement.setdefault(part.stage, rank)
            micro_batches = max(micro_batches, (part.micro_batch or 0) + 1)
    if not problems and (not placement or sorted(placement) != list(range(len(placement)))):
        problems.append(Problem(name, f'stages {sorted(placement)}', 'number stages from 0 without a gap'))
    if problems:
        raise ScheduleError(problems[:20])
    order = Order(tuple(map(tuple, actions)), tuple(placement[stage] for stage in range(len(placement))), micro_batches)
    return check_order(order, name)


def _actions(row: str, where: str, problems: list[Problem]) -> list[Action]:
    read = [_read(word, where) for word in row.replace(',', ' ').split()]
    problems += [found for found in read if isinstance(found, Problem)]
    return [found for found in read if isinstance(found, Action)]


def _read(word: str, where: str) -> Action | Problem:
    try:
        return parse_action(word)
    except ValueError as error:
        what, _, instead = str(error).partition('; ')
        return Problem(where, what, instead)
