"""The page: the answer's texts, tables and data put into one HTML file."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Final

from simpar import report
from simpar.keys import without_effect_line
from simpar.page.memory import layers_of, memory_of
from simpar.page.timeline import TICKS, timeline_of
from simpar.predict import Contribution, Prediction
from simpar.units import format_time

if TYPE_CHECKING:
    from rich.table import Table

_HERE: Final = Path(__file__).parent
_MOST_PARTS: Final = 12
"""Parts of the critical path that are told apart."""


def answer_page(
    prediction: Prediction,
    *,
    schedule: str = '',
    notes: Iterable[str] = (),
    ranks: Sequence[int] = (),
    headline: str = '',
    measured: str = '',
) -> str:
    """The answer as an HTML page that stands alone.

    Arguments:
        schedule: the file's text, shown at the end.
        notes: what the reader should know besides the prediction's notes.
        ranks: whose ops are shown; unless given, a few that differ.
        headline: in place of the prediction's own.
        measured: HTML of a table that stands before the predicted figures.
    Does not show: ops of more ranks, or of longer steps, than a page of 3 MB holds; it says which.
    Example: ``Path('answer.html').write_text(answer_page(case.predict()))``.
    """
    sides = [prediction, *([prediction.baseline] if prediction.baseline else [])]
    unit = max(side.step for side in sides) / TICKS
    layers = layers_of(sides)
    data = {
        'unit': unit,
        'sides': [timeline_of(side, unit, ranks) for side in sides],
        'path': list(prediction.critical_path.shares.items())[:_MOST_PARTS],
        'memory': [memory_of(side, layers, unit) for side in sides],
    }
    text = Template((_HERE / 'page.html').read_text(encoding='utf-8'))
    headline = headline or report.answer(prediction)
    return text.substitute(
        title=html.escape(headline),
        headline=html.escape(headline),
        style=(_HERE / 'page.css').read_text(encoding='utf-8'),
        script=(_HERE / 'page.js').read_text(encoding='utf-8'),
        lines=_warnings(prediction),
        measured=f'<div><h2>Predicted and measured</h2>{measured}</div>' if measured else '',
        figures=table_html(report.figures(prediction)),
        why=f'<div><h2>Why</h2>{why}</div>' if (why := why_html(prediction)) else '',
        path=html.escape(prediction.critical_path.summary),
        streams=table_html(report.streams(prediction)),
        grades=html.escape(report.grades_line(prediction)),
        notes=''.join(f'<p>Note: {html.escape(note)}</p>' for note in (*prediction.notes, *notes)),
        schedule=html.escape(schedule),
        version=_version(),
        program=prediction.program.hash,
        # A name may hold </script>, which would end the data.
        data=json.dumps(data, separators=(',', ':'), allow_nan=False).replace('<', '\\u003c'),
    )


def _version() -> str:
    from simpar import __version__

    return __version__


def _warnings(prediction: Prediction) -> str:
    line = without_effect_line(prediction.without_effect)
    return f'<p class="warning">{html.escape(line)}</p>' if line else ''


def table_html(table: Table) -> str:
    """A table of the screen as one of the page."""
    heads = ''.join(f'<th>{html.escape(str(column.header))}</th>' for column in table.columns)
    rows = zip(*(column.cells for column in table.columns), strict=True)
    body = ''.join(f'<tr>{"".join(f"<td>{_cell(cell)}</td>" for cell in row)}</tr>' for row in rows)
    return f'<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>'


def _cell(cell: object) -> str:
    # Blanks at the front show that a row is a part of the one above.
    text = str(cell)
    return '&nbsp;' * (len(text) - len(text.lstrip())) + html.escape(text.lstrip())


def why_html(prediction: Prediction) -> str:
    """The gain as bars that add up."""
    baseline = prediction.baseline
    if baseline is None:
        return ''
    largest = max((abs(row.seconds) for row in prediction.explanation), default=0.0)
    rows = ''.join(_bar(row, largest) for row in prediction.explanation)
    together = f'<tr class="strong"><td>together</td><td>{_signed(baseline.step - prediction.step)}</td><td></td></tr>'
    heads = '<th>effect</th><th>saves</th><th class="bar"></th>'
    return f'<table><thead><tr>{heads}</tr></thead><tbody>{rows}{together}</tbody></table>'


def _bar(row: Contribution, largest: float) -> str:
    width = round(150 * abs(row.seconds) / largest) if largest else 0
    bar = f'<i class="{"loss" if row.seconds < 0 else "gain"}" style="width:{width}px"></i>'
    cells = f'<td>{html.escape(row.effect)}</td><td>{_signed(row.seconds)}</td>'
    return f'<tr>{cells}<td class="bar" style="text-align:left">{bar}</td></tr>'


def _signed(seconds: float) -> str:
    return f'{"+" if seconds > 0 else "−"}{format_time(abs(seconds))}' if seconds else '0'
