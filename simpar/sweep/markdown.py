"""A sweep's answer as a table in Markdown, for documents: a row for each row, or one key's values side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from simpar.errors import Problem, ScheduleError
from simpar.sweep.answer import Result, SweepAnswer
from simpar.sweep.table import cells_of, heads_of, short_keys, shown
from simpar.units import format_size, format_time


def as_markdown(answer: SweepAnswer) -> str:
    """The table as it is on the screen; the fastest row is bold, and what cannot be says why."""
    shorts, named = short_keys(answer.keys), _named(answer)
    heads = heads_of(answer)
    rows = []
    for place, result in enumerate(answer.results):
        settings = [named[key](result.settings) for key in answer.keys]
        # An infeasible row has its reason in place of the first figure.
        figures = cells_of(answer, result) or [result.outcome.reason, *[''] * (len(heads) - 1)]
        cells = [*settings, *figures]
        rows.append([f'**{cell}**' if cell and place == answer.best else cell for cell in cells])
    return _table([*(shorts[key] for key in answer.keys), *heads], rows, left=len(answer.keys))


def side_by_side(answer: SweepAnswer, across: str) -> str:
    """A column for each value of a key, a row for all that other keys have in common; the fastest of a row is bold.

    A cell has the step, the share of it that is exposed communication, and memory at the peak; or why it cannot be.
    Raises ``ScheduleError`` where the sweep has no such key.
    """
    if across not in answer.keys:
        what = f'the sweep has no such key (got {across})'
        raise ScheduleError(Problem('--across', what, f'write one of {", ".join(answer.keys)}'))
    shorts, named = short_keys(answer.keys), _named(answer)
    others = [key for key in answer.keys if key != across]
    found: dict[tuple[str, ...], dict[str, Result]] = {}
    for result in answer.results:
        row = tuple(named[key](result.settings) for key in others)
        # The first of rows that look alike; later ones would overwrite it.
        found.setdefault(row, {}).setdefault(named[across](result.settings), result)
    columns = list(dict.fromkeys(named[across](result.settings) for result in answer.results))
    rows = [[*row, *_cells_of_row([results.get(column) for column in columns])] for row, results in found.items()]
    heads = [*(shorts[key] for key in others), *(f'{shorts[across]} {column}' for column in columns)]
    return _table(heads, rows, left=len(others))


def _cells_of_row(results: Sequence[Result | None]) -> Iterator[str]:
    best = min((result.sample for result in results if result and result.step), default=None)
    for result in results:
        if result is None:
            yield ''
        elif result.step is None or result.outcome.figures is None:
            yield result.outcome.reason
        else:
            outcome, exposed = result.outcome, result.outcome.figures.exposed / result.step
            step = format_time(result.step)
            told = f'**{step}**' if result.sample == best else step
            yield f'{told}, {exposed * 100:.0f} %, {format_size(outcome.peak)}'


class _Name:
    """What a setting is called; of mappings, only what differs between the rows."""

    def __init__(self, key: str, values: Sequence[Any]) -> None:
        self._key = key
        mappings = [value for value in values if isinstance(value, Mapping)]
        parts = dict.fromkeys(part for value in mappings for part in value)
        self._parts = [part for part in parts if any(one.get(part) != mappings[0].get(part) for one in mappings)]

    def __call__(self, settings: Mapping[str, Any]) -> str:
        if self._key not in settings:
            return '-'
        value = settings[self._key]
        if self._parts and isinstance(value, Mapping):
            return ', '.join(f'{part} {shown(value[part])}' for part in self._parts if part in value)
        return shown(value)


def _named(answer: SweepAnswer) -> dict[str, _Name]:
    settings = [result.settings for result in answer.results]
    return {key: _Name(key, [one[key] for one in settings if key in one]) for key in answer.keys}


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, left: int) -> str:
    """Arguments: ``left``, how many columns stand at the left; figures stand at the right."""
    rules = ['---' if column < left else '---:' for column in range(len(heads))]
    lines = [heads, rules, *rows]
    return ''.join(f'| {" | ".join(_escaped(cell) for cell in line)} |\n' for line in lines)


def _escaped(cell: str) -> str:
    # A line break or a bar would end the cell.
    return ' '.join(cell.split()).replace('|', '\\|')
