"""Tables: schedules as CSV of torch.distributed.pipelining, and as lines of text that a plan holds."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from simpar.errors import Problem, ScheduleError
from simpar.files import read_regular, write_atomically
from simpar.pipeline.checks import MOST_FAULTS, check_order, drawing, faults
from simpar.pipeline.order import Action, Order, parse_action

MOST_BYTES: Final = 64 * 2**20
_WAIT: Final = re.compile(r'\d+WAIT_(SEND|RECV)_[FB]\d+')
_Cell = tuple[int, int, Action]
"""Line and column, from 1, and what stands there."""


def write_csv(order: Order, path: Path) -> None:
    """Write an order so that torch reads it: ``compute_comms`` where it communicates, else ``compute_only``.

    Raises ``OSError``. The number of sequence chunks is not written: torch has none.
    """
    text = io.StringIO()
    csv.writer(text, lineterminator='\n').writerows(order.actions)
    write_atomically(path, text.getvalue())


def read_csv(path: Path) -> Order:
    """Read an order, torch's ``compute_only`` or ``compute_comms``, and check it.

    Stages, their ranks and the micro-batches are those that its actions name. Empty cells, torch's idle steps, are
    skipped. Raises `ScheduleError` with every fault and its file:line:column.
    """
    cells, problems = _cells(path, _text(path))
    if not problems and not any(cells):
        problems = [Problem(str(path), 'no actions', 'write a row for each rank, e.g. 0F0,0B0')]
    problems = problems or _numbering(path, cells)
    if problems:
        raise ScheduleError(problems[:MOST_FAULTS])
    order = _order(cells)
    found = faults(order)
    if found:
        told = [Problem(_where(path, cells, fault.rank, fault.position), fault.what) for fault in found]
        raise ScheduleError([*told, drawing(order, found, str(path))])
    return order


def _text(path: Path) -> str:
    try:
        data = read_regular(path, MOST_BYTES)
    except OSError as error:
        raise ScheduleError(Problem(str(path), error.strerror or 'cannot be read')) from error
    try:
        # Spreadsheets put a byte order mark in front.
        return data.decode('utf-8-sig')
    except UnicodeDecodeError as error:
        line = data.count(b'\n', 0, error.start) + 1
        raise ScheduleError(Problem(f'{path}:{line}', 'not UTF-8')) from error


def _cells(path: Path, text: str) -> tuple[list[list[_Cell]], list[Problem]]:
    """Rows of cells without the empty ones, and every cell that is no action."""
    # Line by line, not csv.reader over the file: a stray quote must not swallow the lines behind it.
    lines = text.rstrip().replace('\r\n', '\n').split('\n')
    rows: list[list[_Cell]] = []
    problems: list[Problem] = []
    for number, line in enumerate(lines, 1):
        words = ((column, cell.strip()) for column, cell in enumerate(_split(line), 1))
        # From 2.15 on torch also writes when it waits for sends; a send's buffer is known here by its needs.
        read = [(column, _read(word)) for column, word in words if word and not _WAIT.fullmatch(word)]
        rows.append([(number, column, found) for column, found in read if isinstance(found, Action)])
        for column, found in read:
            if isinstance(found, ValueError):
                what, _, instead = str(found).partition('; ')
                problems.append(Problem(f'{path}:{number}:{column}', what, instead))
    return rows, problems


def _read(word: str) -> Action | ValueError:
    try:
        return parse_action(word)
    except ValueError as error:
        return error


def _split(line: str) -> list[str]:
    try:
        return next(csv.reader([line], strict=True), [])
    except csv.Error:
        # Python 3.10 takes no NUL; cells have their columns all the same.
        return line.split(',') if '\0' in line else [line]


def _numbering(path: Path, cells: list[list[_Cell]]) -> list[Problem]:
    """Stages and micro-batches count from 0 without a gap: the first cell beyond each gap."""
    problems = []
    flat = [(line, column, part) for row in cells for line, column, action in row for part in action.parts]
    for what, numbers in (
        ('stage', {part.stage for *_, part in flat}),
        ('micro-batch', {part.micro_batch for *_, part in flat if part.micro_batch is not None}),
    ):
        # Of n numbers one from 0 to n is always missing: n itself where there is no gap.
        gap = next(number for number in range(len(numbers) + 1) if number not in numbers)
        if gap < len(numbers):
            line, column, part = next(
                cell for cell in flat if ((cell[2].stage if what == 'stage' else cell[2].micro_batch) or 0) > gap
            )
            problems.append(Problem(f'{path}:{line}:{column}', f'{part}, but no action of {what} {gap}'))
    return problems


def _order(cells: list[list[_Cell]]) -> Order:
    placement: dict[int, int] = {}
    micro_batches = 0
    for rank, row in enumerate(cells):
        for *_, action in row:
            for part in action.parts:
                placement.setdefault(part.stage, rank)
                micro_batches = max(micro_batches, (part.micro_batch or 0) + 1)
    rows = tuple(tuple(action for *_, action in row) for row in cells)
    return Order(rows, tuple(placement[stage] for stage in range(len(placement))), micro_batches)


def _where(path: Path, cells: list[list[_Cell]], rank: int, position: int) -> str:
    """File, line and column of an action; of what is missing at a rank's end, its line."""
    row = cells[rank]
    return f'{path}:{row[position][0]}:{row[position][1]}' if position < len(row) else f'{path}:{rank + 1}'


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
    read = [_action_of(word, where) for word in row.replace(',', ' ').split()]
    problems += [found for found in read if isinstance(found, Problem)]
    return [found for found in read if isinstance(found, Action)]


def _action_of(word: str, where: str) -> Action | Problem:
    try:
        return parse_action(word)
    except ValueError as error:
        what, _, instead = str(error).partition('; ')
        return Problem(where, what, instead)
