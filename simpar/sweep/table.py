"""A sweep's answer as a person and as programs read it: one table, one JSON object, CSV; see docs/sweep.md."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from simpar import errors, headline, report, units
from simpar.sweep.answer import Result, SweepAnswer

if TYPE_CHECKING:
    from rich.text import Text


FORMAT: Final = 'simpar sweep 1'
WIDTH: Final = 120
_FIGURES: Final = ('step', 'compute', 'exposed', 'idle', 'bubble')
_GAP: Final = '  '
_REASONS: Final = 8
"""Reasons too long for their row that are told below the table."""
_LEAST: Final = 6
"""Letters that the values of a key have room for at least."""
_VALUE: Final = 28
"""Letters that a value has at most."""


def render(answer: SweepAnswer, *, colour: bool | None = None) -> str:
    """The answer, a row for each row, and what the signs mean; ``colour`` as of ``simpar.report.render``."""
    lines = _lines(answer)
    # Before lines are cut to the width: too long reasons are told below in full.
    notes = [*_in_full(answer, lines), *_notes(answer)]
    for line in lines:
        line.truncate(WIDTH, overflow='ellipsis')
    parts: list[Any] = [best_summary(answer), '', *lines, *(['', *notes] if notes else [])]
    return report.render_parts(parts, colour=colour, width=WIDTH)


def best_summary(answer: SweepAnswer, *, brief: bool = False, exact: bool = True) -> str:
    """The fastest row in a sentence, over what its gain is measured from.

    Arguments: ``brief`` leaves the latter out; ``exact`` as of ``headline``.
    """
    rows = f'{len(answer.results)} rows'
    if answer.best is None:
        return f'none of {rows} is feasible'
    best = answer.results[answer.best]
    name, (reference, seconds) = name_of(answer, best), _reference(answer, best)
    lead = f'fastest of {rows}: ' if len(answer.results) > 1 else ''
    if not answer.batches_differ:
        step = best.step or 0.0
        below = None if brief or seconds is None else (reference, seconds)
        return lead + headline.headline((name, step), below, exact=exact)
    text = f'{lead}{name}: {_rate(best)}'
    if brief or best.is_baseline or best.gain is None:
        return text
    return f'{text}, {headline.than(1.0, 1.0 + best.gain)} {reference}'


def _reference(answer: SweepAnswer, result: Result) -> tuple[str, float | None]:
    """Name and seconds of the step that a row's gain is measured from; no seconds where it is its own."""
    first = answer.results[answer.first or 0]
    name = _named(answer.keys, answer.against) if answer.against else name_of(answer, first)
    return name, None if result.is_baseline else result.baseline


def name_of(answer: SweepAnswer, result: Result) -> str:
    """A row as one says it, e.g. ``copies 2, tensor 4``: by the keys that tell rows apart."""
    settings = {key: value for key, value in result.settings.items() if key in answer.varying}
    return _named(answer.keys, settings or result.settings)


def _named(keys: Sequence[str], settings: Mapping[str, Any]) -> str:
    shorts = short_keys([*keys, *(key for key in settings if key not in keys)])
    return ', '.join(f'{shorts[key]} {shown(value)}' for key, value in settings.items())


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """Keys without their first part, where that leaves them different."""
    tails = {key: key.partition('.')[2] or key for key in keys}
    # Two keys with one last part keep their full names.
    alike = [tail for tail in tails.values() if list(tails.values()).count(tail) > 1]
    return {key: (key if tail in alike else tail).replace('_', ' ') for key, tail in tails.items()}


def shown(value: Any) -> str:
    """A value in as few letters as tell it."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False).replace('"', '')
    # Control characters would break the table.
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= _VALUE else f'{text[: _VALUE - 1]}…'


def _lines(answer: SweepAnswer) -> list[Text]:
    """Lay out heads and rows; an infeasible row's reason runs over the columns of its figures."""
    from rich.cells import cell_len
    from rich.text import Text

    shorts = short_keys(answer.keys)
    keys = [['', *(shorts[key] for key in answer.keys)]]
    keys += [['*' if row == answer.best else '', *_values(answer, r)] for row, r in enumerate(answer.results)]
    figures = [heads_of(answer), *(cells_of(answer, result) for result in answer.results)]
    aligned = iter(_aligned([cells for cells in figures if cells], left=False))
    # The heads and the rows that have figures, aligned; nothing for the others.
    columns = [next(aligned) if cells else '' for cells in figures]
    keys = _narrowed(keys, WIDTH - max(map(cell_len, columns)) - len(_GAP))
    lines = []
    for row, (left, right) in enumerate(zip(_aligned(keys, left=True), columns, strict=True)):
        result = answer.results[row - 1] if row else None
        tail = right if result is None or result.step is not None else result.outcome.reason
        style = 'bold' if not row or row - 1 == answer.best else 'dim' if result and result.step is None else ''
        lines.append(Text(f'{left}{_GAP}{tail}', style=style))
    return lines


def _in_full(answer: SweepAnswer, lines: list[Text]) -> list[str]:
    """The reasons that are too long for their rows, each once."""
    long: dict[str, int] = {}
    for row, (line, result) in enumerate(zip(lines[1:], answer.results, strict=True), 1):
        if line.cell_len > WIDTH and result.step is None:
            long.setdefault(result.outcome.reason, row)
    reasons = [f'Row {row}: {reason}' for reason, row in list(long.items())[:_REASONS]]
    return reasons + ([f'Of {len(long) - _REASONS} more reasons see --json.'] if len(long) > _REASONS else [])


def _values(answer: SweepAnswer, result: Result) -> list[str]:
    return [shown(result.settings[key]) if key in result.settings else '-' for key in answer.keys]


def _has_bubbles(answer: SweepAnswer) -> bool:
    return any(r.outcome.figures and r.outcome.figures.bubble is not None for r in answer.results)


def heads_of(answer: SweepAnswer) -> list[str]:
    """What the figures of a row are."""
    heads = ['step', *(['samples/s'] if answer.batches_differ else []), 'gain', 'exposed comm.']
    return [*heads, *(['bubble'] if _has_bubbles(answer) else []), 'memory at the peak']


def cells_of(answer: SweepAnswer, result: Result) -> list[str]:
    """The figures of a row; none where it is infeasible."""
    figures, outcome = result.outcome.figures, result.outcome
    if figures is None or result.step is None:
        return []
    cells = [units.format_time(figures.step)]
    cells += [_rate(result).removesuffix(' samples/s')] if answer.batches_differ else []
    cells += [_gain(result), _of(figures.exposed, figures.step)]
    if _has_bubbles(answer):
        cells.append('' if figures.bubble is None else _of(figures.bubble, figures.step))
    return [*cells, f'{units.format_size(outcome.peak)} {outcome.peak / outcome.device * 100:3.0f} %']


def _gain(result: Result) -> str:
    if result.is_baseline:
        return 'baseline'
    return '?' if result.gain is None else headline.gain_in_words(result.gain)


def _rate(result: Result) -> str:
    return f'{1 / result.sample:.4g} samples/s'


def _of(seconds: float, total: float) -> str:
    return f'{units.format_time(seconds)} {seconds / total * 100:3.0f} %' if seconds else '-'


def _aligned(rows: list[list[str]], *, left: bool) -> list[str]:
    from rich.cells import cell_len

    widths = [max(cell_len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        blanks = [' ' * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
        cells = [f'{cell}{blank}' if left else f'{blank}{cell}' for cell, blank in zip(row, blanks, strict=True)]
        lines.append(_GAP.join(cells))
    return lines


def _narrowed(rows: list[list[str]], room: int) -> list[list[str]]:
    """Narrow the widest columns until all have room, none below a few letters."""
    from rich.cells import cell_len, set_cell_size

    widths = [max(cell_len(row[column]) for row in rows) for column in range(len(rows[0]))]
    # A letter at a time from the widest column, so that short columns stay readable.
    while sum(widths) + len(_GAP) * (len(widths) - 1) > room and max(widths) > _LEAST:
        # A letter at a time from the widest, so that short columns stay readable.
        widths[widths.index(max(widths))] -= 1
    return [
        [
            cell if cell_len(cell) <= width else f'{set_cell_size(cell, width - 1)}…'
            for cell, width in zip(row, widths, strict=True)
        ]
        for row in rows
    ]


def _notes(answer: SweepAnswer) -> Iterator[str]:
    """Whose steps these are, and what the signs of the table mean."""
    if answer.framework:
        yield answer.framework
    if answer.against and answer.best is not None:
        yield f'Gain: over the same row with {_named(answer.keys, answer.against)}.'
    if any(key not in result.settings for result in answer.results for key in answer.keys):
        yield '- as a setting: as in the file.'
    if answer.batches_differ:
        yield 'Gain and fastest: by samples a second, for the batches differ.'
    for key in answer.without_effect:
        yield f'Note: {key} is without effect here: rows that differ in it alone have the same figures.'
    without = {result.why_no_gain for result in answer.results if result.why_no_gain}
    for reason in sorted(without)[:3]:
        yield f'Note: no gain (?) where the baseline is infeasible: {reason}'
    if answer.changed_links:
        yield 'Note: links are not as in the profile (cluster.links); what rests on their bandwidth is an estimate.'


def to_dict(answer: SweepAnswer) -> dict[str, Any]:
    """The answer as one object; seconds, bytes, and shares from 0 to 1."""
    from simpar import __version__

    return {
        'format': FORMAT,
        'simpar': __version__,
        'keys': list(answer.keys),
        'against': dict(answer.against) or None,
        'best': answer.best,
        'rows': [_row(result) for result in answer.results],
        'without_effect': list(answer.without_effect),
        'notes': list(_notes(answer)),
    }


def _row(result: Result) -> dict[str, Any]:
    outcome, figures = result.outcome, result.outcome.figures if result.outcome.feasible else None
    return {
        'settings': dict(result.settings),
        'feasible': outcome.feasible,
        'reason': outcome.reason,
        'detail': outcome.detail,
        'batch': result.batch,
        **{name: getattr(figures, name) if figures else None for name in _FIGURES},
        'gain': result.gain,
        'baseline': result.baseline,
        'memory': {'peak': outcome.peak, 'device': outcome.device} if outcome.device else None,
        'grades': dict(figures.grades) if figures else None,
        'notes': [*(figures.notes if figures else ()), *([result.why_no_gain] if result.why_no_gain else [])],
    }


def as_csv(answer: SweepAnswer) -> str:
    """A line of heads and one for each row, seconds and bytes; empty where there is no figure."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator='\n')
    writer.writerow([*answer.keys, 'feasible', 'batch', *_FIGURES, 'gain', 'memory', 'device_memory', 'reason'])
    for result in answer.results:
        row = _row(result)
        memory = row['memory'] or {'peak': None, 'device': None}
        values = [_cell(result.settings.get(key, '')) for key in answer.keys]
        figures = [row[name] for name in _FIGURES]
        marks = ['yes' if row['feasible'] else 'no', row['batch']]
        writer.writerow([*values, *marks, *figures, row['gain'], memory['peak'], memory['device'], row['reason']])
    return text.getvalue()


def _cell(value: Any) -> Any:
    """A scalar as it is, anything else as JSON."""
    # CSV has no booleans: ``true`` as in YAML, not Python's ``True``.
    return value if isinstance(value, (str, int, float)) and not isinstance(value, bool) else json.dumps(value)


# A sweep's answer as a table in Markdown, for documents: a row for each row, or one key's values side by side.


def as_markdown(answer: SweepAnswer) -> str:
    """The table as it is on the screen; the fastest row is bold, and what cannot be says why."""
    shorts, named = short_keys(answer.keys), {key: _value_name(answer, key) for key in answer.keys}
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
        raise errors.ScheduleError(errors.Problem('--across', what, f'write one of {", ".join(answer.keys)}'))
    shorts, named = short_keys(answer.keys), {key: _value_name(answer, key) for key in answer.keys}
    others = [key for key in answer.keys if key != across]
    by_row: dict[tuple[str, ...], dict[str, Result]] = {}
    for result in answer.results:
        row = tuple(named[key](result.settings) for key in others)
        # The first of rows that look alike; later ones would overwrite it.
        by_row.setdefault(row, {}).setdefault(named[across](result.settings), result)
    columns = list(dict.fromkeys(named[across](result.settings) for result in answer.results))
    rows = [[*row, *_cells_of_row([results.get(column) for column in columns])] for row, results in by_row.items()]
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
            step = units.format_time(result.step)
            text = f'**{step}**' if result.sample == best else step
            yield f'{text}, {exposed * 100:.0f} %, {units.format_size(outcome.peak)}'


def _value_name(answer: SweepAnswer, key: str) -> Callable[[Mapping[str, Any]], str]:
    """What a setting of a key is called; of mappings, only what differs between the rows."""
    values = (result.settings.get(key) for result in answer.results)
    mappings = [value for value in values if isinstance(value, Mapping)]
    parts = dict.fromkeys(part for value in mappings for part in value)
    unlike = [part for part in parts if any(one.get(part) != mappings[0].get(part) for one in mappings)]

    def named(settings: Mapping[str, Any]) -> str:
        value = settings.get(key)
        if unlike and isinstance(value, Mapping):
            return ', '.join(f'{part} {shown(value[part])}' for part in unlike if part in value)
        return shown(value) if key in settings else '-'

    return named


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, left: int) -> str:
    """Arguments: ``left``, how many columns stand at the left; figures stand at the right."""
    rules = ['---' if column < left else '---:' for column in range(len(heads))]
    lines = [heads, rules, *rows]
    # A line break or a bar would end the cell.
    cells = ([' '.join(cell.split()).replace('|', '\\|') for cell in line] for line in lines)
    return ''.join(f'| {" | ".join(line)} |\n' for line in cells)
