"""Cards: answers as Jupyter shows them, one screen each; large ones stay small, on the screen and in the file."""

from __future__ import annotations

import base64
import functools
import html
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from simpar import hardware, predict, report, units
from simpar.case import Case
from simpar.page.page import table_html, why_html
from simpar.planner import plan, render
from simpar.planner.answer import Answer, Robustness, words
from simpar.sweep.answer import SweepAnswer
from simpar.sweep.table import best_summary, cells_of, heads_of, short_keys, shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_STYLE: Final = (
    '<style>.simpar table{border-collapse:collapse;font-variant-numeric:tabular-nums;display:inline-block;'
    'vertical-align:top;margin:0 40px 8px 0}.simpar td,.simpar th{text-align:right;padding:2px 0 2px 18px;'
    'white-space:nowrap}.simpar td:first-child,.simpar th:first-child{text-align:left;padding-left:0}'
    '.simpar i{display:inline-block;height:9px;background:#0a7d4f}.simpar i.loss{background:#b3431b}</style>'
)
_DPI: Final = 75
"""Of pictures in cards: about 60 KB each."""
_MOST_ROWS: Final = 100
"""Rows of a sweep that a card shows."""


def card(answer: Any) -> str:
    """An answer as HTML; raises ``TypeError`` for what is none."""
    return f'<div class="simpar">{_STYLE}{_body(answer)}</div>'


@functools.singledispatch
def _body(answer: Any) -> str:
    raise TypeError(f'{type(answer).__name__} has no card')


@_body.register
def _(prediction: predict.Prediction) -> str:
    """Headline, picture, figures and why."""
    parts = [
        f'<p><b>{html.escape(report.answer(prediction))}</b></p>',
        image_of(prediction.timeline()),
        '<p><small><code>.interactive()</code>: zoom in, and point at ops</small></p>',
        f'<div>{table_html(report.figures(prediction))}{why_html(prediction)}</div>',
        f'<p>{html.escape(prediction.critical_path.summary)}</p>',
        *(f'<p>Note: {html.escape(note)}</p>' for note in prediction.notes),
    ]
    return ''.join(parts)


@_body.register
def _(case: Case) -> str:
    """What is asked: model, plan, cluster and the size of the program."""
    mine, _ = case.names
    slots = sum(len(role) for role in case.program.roles)
    of_devices = f'{case.cluster.world} × {case.cluster.profile.device.name}'
    rows = {
        'cluster': of_devices,
        'parameters': f'{case.parameters:,}',
        'batch': f'{case.workload.batch} samples',
        'plan': mine,
        'program': f'{len(case.program.roles)} roles, {slots:,} ops, {case.program.hash[:12]}',
    }
    if case.baseline:
        rows['baseline'] = case.names[1]
    body = ''.join(f'<tr><td>{html.escape(key)}</td><td>{html.escape(value)}</td></tr>' for key, value in rows.items())
    return f'<p><b>A case</b>: <code>.predict()</code> answers it</p><table><tbody>{body}</tbody></table>'


@_body.register
def _(profile: hardware.Profile) -> str:
    """The device and its links, each number with its grade."""
    device = profile.device
    rows = [('device', device.name, ''), ('devices a node', str(profile.devices), '')]
    rows += [(f'matrix, {kind}', f'{one.value / 1e12:.4g} TFLOP/s', one.grade) for kind, one in device.matrix.items()]
    rows.append(('memory', f'{device.memory.size.value / 1e9:.4g} GB', device.memory.size.grade))
    rows += [(link.name, f'{link.bandwidth.value / 1e9:.4g} GB/s', link.bandwidth.grade) for link in profile.links]
    body = ''.join(f'<tr>{"".join(f"<td>{html.escape(cell)}</td>" for cell in row)}</tr>' for row in rows)
    return f'<p><b>{html.escape(profile.name)}</b></p><table><tbody>{body}</tbody></table>'


@_body.register
def _(answer: SweepAnswer) -> str:
    """The table; the fastest row is bold."""
    heads = [*short_keys(answer.keys).values(), *heads_of(answer)]
    head = ''.join(f'<th>{html.escape(text)}</th>' for text in heads)
    rows = ''.join(_row(answer, place, len(heads)) for place in range(min(len(answer.results), _MOST_ROWS)))
    left = len(answer.results) - _MOST_ROWS
    more = f'<p>{left} more rows: see <code>to_dataframe</code></p>' if left > 0 else ''
    table = f'<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<p><b>{html.escape(best_summary(answer))}</b></p>{table}{more}'


def _row(answer: SweepAnswer, place: int, columns: int) -> str:
    result = answer.results[place]
    settings = [shown(result.settings[key]) if key in result.settings else '' for key in answer.keys]
    figures = cells_of(answer, result) or [result.outcome.reason]
    cells = [html.escape(text) for text in (*settings, *figures)]
    cells += [''] * (columns - len(cells))
    weight = ' style="font-weight:bold"' if place == answer.best else ''
    return f'<tr{weight}>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'


def image_of(figure: Figure) -> str:
    """A figure as a small PNG inside of HTML."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format='png', dpi=_DPI)
    return f'<img style="max-width:100%" src="data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}">'


# Planned: the best plan as a card, with front and why; numbers of devices beside one another.


@_body.register
def answer_html(answer: Answer) -> str:
    """Headline, what is proven, ranking and front."""
    choice = answer.choice
    if choice is None:
        return '<p><b>No plan is known to fit</b></p>'
    head = f'<p><b>{html.escape(words(choice))}</b>: {units.format_time(choice.step)} a step</p>'
    table = cells_html(render.ranking_cells(answer))
    return f'{head}<p>{html.escape(render.proven(answer))}</p>{table}{image_of(render.front_picture(answer))}'


@_body.register
def planned_html(found: plan.Planned) -> str:
    """The answer, why the runner-up loses, and what happens where something is worse."""
    parts = [answer_html(found.answer)]
    if found.why and found.why.baseline:
        rival = html.escape(found.why.baseline.name)
        parts.append(f'<p>Why the runner-up loses, which has {rival}:</p><div>{why_html(found.why)}</div>')
    if found.robustness:
        parts.append(robust_html(found.robustness))
    return ''.join(parts)


@_body.register
def robust_html(found: Robustness) -> str:
    """A row for everything that is made worse."""
    return f'<p>If something is worse:</p>{cells_html(render.robust_cells(found))}'


@_body.register
def sizes_html(found: plan.Sizes) -> str:
    """A row for each number of devices, and their front."""
    picture = image_of(render.sizes_picture(found)) if found.front else ''
    return f'{cells_html(render.size_cells(found))}{picture}'


def cells_html(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells, the first of which are heads."""
    head = ''.join(f'<th>{html.escape(cell)}</th>' for cell in rows[0])
    lines = (''.join(f'<td>{html.escape(cell)}</td>' for cell in row) for row in rows[1:])
    body = ''.join(f'<tr>{line}</tr>' for line in lines)
    return f'<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
