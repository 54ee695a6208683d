"""The picture of a pipeline: pipeline ranks as rows, actions as boxes, as in the papers; a plan below its baseline.

Forward is blue, backward green, the gradient of the weights orange where it is apart; the later stages of a rank are
lighter, and so are the higher copies, one below the other. The thin lane at the bottom of a row shows when
communication is exposed; what stays blank above it is the bubble. Where the numbers of micro-batches do not fit, the
middle of the step is shown larger.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from simpar.headline import headline, short_time
from simpar.plot import pipeline_panel as panels
from simpar.plot.frame import HATCH, MOST_ZOOMED, WIDTH, Page, left_edge, new_figure, rgb, title
from simpar.plot.pipeline_panel import BoxKind, PipelinePanel, PipelineView
from simpar.trace import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

NAMES: Final[dict[BoxKind, str]] = {
    'F': 'F forward', 'R': 'recomputed', 'B': 'B backward', 'I': 'I gradient of the input',
    'W': 'W gradient of the weights', 'U': 'update', 'exposed': 'exposed communication (lane)',
}  # fmt: skip
_VISIBLE: Final = 160
"""Boxes on a row beyond which they are too narrow to see."""
_ZOOMED: Final = 24
"""Boxes of a row in the window that is shown larger."""
_AVERAGED: Final = 80
"""Shares over time are averaged over the longest step divided by this."""
_RIGHT: Final = 0.895


def pipeline_timeline(sides: list[tuple[Trace, str]]) -> Figure:
    """The steady steps of some traces, with their names, below one another on one scale; the last is the plan."""
    views = [panels.pipeline_view(trace, name) for trace, name in sides]
    row = _row(views)
    edges = left_edge((panels.row_name(v, number, row) for v in views for number in range(len(v.rows))), 8.5), _RIGHT
    page = Page([v.step for v in views], [len(v.rows) for v in views], row, edges, _windows(views))
    figure = new_figure(page.height)
    frames = page.frames(figure)
    averaged = max(page.steps) / _AVERAGED if max(v.most_boxes for v in views) > _VISIBLE else 0.0
    drawn = [PipelinePanel(frame, views[index % len(views)], page.row) for index, frame in enumerate(frames)]
    # Panels of one scale show exposed communication in one way.
    shares = [any(panel.lane_is_shares() for panel in some) for some in (drawn[: len(views)], drawn[len(views) :])]
    for index, panel in enumerate(drawn):
        if index < len(views):
            panel.draw(_heading(panel.view, averaged), averaged, lane_is_shares=shares[0])
            panel.figures()
        else:
            begin, end = panel.frame.window
            heading = f'{panel.view.name}: the framed {short_time(end - begin)}'
            panel.draw(heading, 0.0, lane_is_shares=shares[1])
    page.finish(frames)
    title(figure, headline(*((v.name, v.step) for v in reversed(views)), exact=False), _patches(views))
    return figure


def _row(views: list[PipelineView]) -> float:
    """Inches of a row."""
    rows = sum(len(v.rows) for v in views)
    # Many rows get thinner, so that the figure stays on one page.
    return 0.36 if rows <= 16 else max(0.16, 5.8 / rows)


def _windows(views: list[PipelineView]) -> list[tuple[float, float]]:
    """For each view the window that is shown larger, of one length and from the same micro-batch on; none where numbers
    fit anyway, or it would repeat most of the step."""
    points = 72 * (WIDTH * (_RIGHT - 0.1)) / max(v.step for v in views)
    if all(panels.labels_fit(v, points) for v in views):
        return []
    begin = views[-1].middle(_ZOOMED)[0]
    seconds = min(v.middle(_ZOOMED)[1] for v in views)
    if seconds > MOST_ZOOMED * max(v.step for v in views):
        return []
    begins = [*(v.as_in(views[-1], begin, seconds) for v in views[:-1]), begin]
    return [(begin, begin + seconds) for begin in begins]


def _patches(views: list[PipelineView]) -> list[Patch]:
    """The legend."""
    from matplotlib.patches import Patch

    used = set().union(*(v.kinds for v in views))
    names = dict(NAMES)
    if used.issuperset('BI'):
        # Both are green, so the legend names them together.
        names['B'] = f'{names["B"]}, {names.pop("I")}'
    patches = [
        Patch(facecolor=panels.COLOURS[kind], label=name, edgecolor='white', hatch=HATCH if kind == 'exposed' else None)
        for kind, name in names.items()
        if kind in used
    ]
    if any(len(box.parts) > 1 for v in views for row in v.rows for box in row.boxes):
        patches.append(Patch(facecolor=rgb(panels.COLOURS['B'], panels.WAITS_WHITE), label='waits in its action'))
    if max(v.chunks for v in views) > 1:
        patches.append(
            Patch(facecolor=rgb(panels.COLOURS['F'], panels.CHUNK_WHITE), label="lighter: a rank's later stage")
        )
    if max(v.copies for v in views) > 1:
        patches.append(Patch(facecolor=rgb(panels.COLOURS['F'], panels.COPY_WHITE), label='layers in a box: copies'))
    return patches


def _heading(view: PipelineView, averaged: float) -> str:
    """A panel's name and its figures."""
    shares = f'; shares of time, averaged over {short_time(averaged)}' if averaged else ''
    bare = ((row.metrics.bubble, row.metrics.exposed) for row in view.rows)
    means = [sum(seconds) / len(view.rows) / view.step * 100 for seconds in zip(*bare, strict=True)]
    means_text = f'bubble {means[0]:.0f} %, exposed communication {means[1]:.0f} %'
    return f'{view.name}: {short_time(view.step)} a step, {means_text}{shares}'
