"""Planned: the best plan as a card, with front and why; numbers of devices beside one another."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from simpar.page.page import why_html
from simpar.planner.answer import Answer, Robustness, words
from simpar.planner.plan import Planned, Sizes
from simpar.planner.render import front_picture, proven, ranking_cells, robust_cells, size_cells, sizes_picture
from simpar.units import format_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DPI = 75


def answer_html(answer: Answer) -> str:
    """Headline, what is proven, ranking and front."""
    choice = answer.choice
    if choice is None:
        return '<p><b>No plan is known to fit</b></p>'
    head = f'<p><b>{html.escape(words(choice))}</b>: {format_time(choice.step)} a step</p>'
    table = cells_html(ranking_cells(answer))
    return f'{head}<p>{html.escape(proven(answer))}</p>{table}{picture_html(front_picture(answer))}'


def planned_html(found: Planned) -> str:
    """The answer, why the runner-up loses, and what happens where something is worse."""
    parts = [answer_html(found.answer)]
    if found.why and found.why.baseline:
        rival = html.escape(found.why.baseline.name)
        parts.append(f'<p>Why the runner-up loses, which has {rival}:</p><div>{why_html(found.why)}</div>')
    if found.robustness:
        parts.append(robust_html(found.robustness))
    return ''.join(parts)


def robust_html(found: Robustness) -> str:
    """A row for everything that is made worse."""
    return f'<p>If something is worse:</p>{cells_html(robust_cells(found))}'


def sizes_html(found: Sizes) -> str:
    """A row for each number of devices, and their front."""
    picture = picture_html(sizes_picture(found)) if found.front else ''
    return f'{cells_html(size_cells(found))}{picture}'


def cells_html(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells, the first of which are heads."""
    head = ''.join(f'<th>{html.escape(cell)}</th>' for cell in rows[0])
    lines = (''.join(f'<td>{html.escape(cell)}</td>' for cell in row) for row in rows[1:])
    body = ''.join(f'<tr>{line}</tr>' for line in lines)
    return f'<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def picture_html(figure: Figure) -> str:
    """A small picture that the page holds."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format='png', dpi=_DPI)
    return f'<img style="max-width:100%" src="data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}">'
