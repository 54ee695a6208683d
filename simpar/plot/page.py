"""The timeline of one steady step: of a plan below its baseline, on one scale, with the answer as its title.

A row is a stream of one rank. Compute is coloured by phase and shaded by copy; communication is grey where computation
hides it and hatched vermilion where it is exposed. Where a step has many ops, the window with most exposed
communication beside computing is shown larger; where it has too many to see, the step is drawn as shares over time.

Of a pipeline, unless one rank is asked for, pipeline ranks are rows and actions are boxes, as in the papers. Forward is
blue, backward green, the gradient of the weights orange where it is apart; the later stages of a rank are lighter, and
so are the higher copies, one below the other. The thin lane at the bottom of a row shows when communication is exposed;
what stays blank above it is the bubble. Where the numbers of micro-batches do not fit, the middle of the step is shown
larger. matplotlib is imported when a figure is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from simpar import metrics
from simpar.headline import headline, short_time
from simpar.plot import pipeline_panel as panels
from simpar.plot.frame import HATCH, MOST_ZOOMED, WIDTH, Page, left_edge, new_figure, rgb, title
from simpar.plot.panel import COLOURS, EASY, VISIBLE, Kind, Panel, View, view
from simpar.plot.pipeline_panel import BoxKind, PipelinePanel, PipelineView
from simpar.trace import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

NAMES: Final[dict[Kind, str]] = {
    'F': 'forward', 'R': 'recomputed', 'I': 'gradient of the input', 'W': 'gradient of the weight', 'U': 'update',
    'hidden': 'communication under computation', 'exposed': 'exposed communication',
}  # fmt: skip
_ROW: Final = 0.4
"""Inches of a row of a stream."""
_RIGHT: Final = 0.985
_AVERAGED: Final = 60
"""Shares over time are averaged over the longest step divided by this."""
BOXES: Final[dict[BoxKind, str]] = {
    'F': 'F forward', 'R': 'recomputed', 'B': 'B backward', 'I': 'I gradient of the input',
    'W': 'W gradient of the weights', 'U': 'update', 'exposed': 'exposed communication (lane)',
}  # fmt: skip
_MOST_BOXES: Final = 160
"""Boxes on a row beyond which they are too narrow to see."""
_AVERAGED_BOXES: Final = 80
_RIGHT_OF_BOXES: Final = 0.895


def timeline(
    plan: Trace,
    baseline: Trace | None = None,
    *,
    names: tuple[str, str] = ('plan', 'baseline'),
    rank: int | None = None,
    marks: frozenset[tuple[int, int]] = frozenset(),
    answer: str = '',
) -> Figure:
    """The timeline of a plan and, above it, of its baseline.

    Arguments:
        names: what to call the plan and the baseline.
        rank: the rank whose streams are shown. Unless given, a pipeline shows all pipeline ranks, and other
            programs show the rank that ends last.
        marks: (rank, slot) of ops that are outlined on both sides, where one rank is shown.
        answer: the title, instead of which of the two is faster.
    """
    sides = [(plan, names[0])] if baseline is None else [(baseline, names[1]), (plan, names[0])]
    # One rank of a pipeline shows little; both sides are drawn alike if either is a pipeline.
    if rank is None and any(metrics.is_pipeline(trace.program) for trace, _ in sides):
        return _of_pipelines([panels.pipeline_view(trace, name) for trace, name in sides])
    views = [view(trace, name, rank, marks) for trace, name in sides]
    windows = _windows(views) if max(v.most_bars for v in views) > EASY else []
    edges = left_edge((name for v in views for name in v.streams), 9.0), _RIGHT
    page = Page([v.step for v in views], [len(v.streams) for v in views], _ROW, edges, windows)
    averaged = max(page.steps) / _AVERAGED if max(v.most_bars for v in views) > VISIBLE else 0.0
    figure = new_figure(page.height)
    frames = page.frames(figure)
    for index, frame in enumerate(frames):
        v, zoomed = views[index % len(views)], index >= len(views)
        heading = _zoomed(v, frame.window) if zoomed else _heading(v, averaged)
        Panel(frame, v).draw(heading, 0.0 if zoomed else averaged)
    page.finish(frames)
    title(figure, answer or _faster(views), _patches(views))
    return figure


def _of_pipelines(views: list[PipelineView]) -> Figure:
    """The steps of pipelines below one another; the last is the plan."""
    rows = sum(len(v.rows) for v in views)
    # Many rows get thinner, so that the figure stays on one page.
    row = 0.36 if rows <= 16 else max(0.16, 5.8 / rows)
    edges = (
        left_edge((panels.row_name(v, number, row) for v in views for number in range(len(v.rows))), 8.5),
        _RIGHT_OF_BOXES,
    )
    points = 72 * (WIDTH * (_RIGHT_OF_BOXES - 0.1)) / max(v.step for v in views)
    windows = [] if all(panels.labels_fit(v, points) for v in views) else _windows(views)
    page = Page([v.step for v in views], [len(v.rows) for v in views], row, edges, windows)
    averaged = max(page.steps) / _AVERAGED_BOXES if max(v.most_boxes for v in views) > _MOST_BOXES else 0.0
    figure = new_figure(page.height)
    frames = page.frames(figure)
    drawn = [PipelinePanel(frame, views[index % len(views)], page.row) for index, frame in enumerate(frames)]
    # Panels of one scale show exposed communication in one way.
    for some, zoomed in ((drawn[: len(views)], False), (drawn[len(views) :], True)):
        shares = any(panel.lane_is_shares() for panel in some)
        for panel in some:
            heading = _zoomed(panel.view, panel.frame.window) if zoomed else _heading_of_boxes(panel.view, averaged)
            panel.draw(heading, 0.0 if zoomed else averaged, lane_is_shares=shares)
            if not zoomed:
                panel.figures()
    page.finish(frames)
    title(figure, _faster(views), _patches_of_boxes(views))
    return figure


def _windows(views: list[Any]) -> list[tuple[float, float]]:
    """For each view a window of one length: of the last, the plan, where there is most to see; of the others, where
    they do the same. None where it would repeat the step."""
    # One length for all windows, so that bars can be compared.
    seconds = min(v.stretch() for v in views)
    if seconds > MOST_ZOOMED * max(v.step for v in views):
        return []
    begin = views[-1].most_telling(seconds)
    begins = [*(v.as_in(views[-1], begin, seconds) for v in views[:-1]), begin]
    return [(one, one + seconds) for one in begins]


def _faster(views: Sequence[View | PipelineView]) -> str:
    return headline(*((v.name, v.step) for v in reversed(views)), exact=False)


def _patches(views: list[View]) -> list[Patch]:
    """The legend of streams."""
    from matplotlib.patches import Patch

    bars = [bar for v in views for bar in v.bars]
    used = {bar.phase for bar in bars if not bar.communicates}
    if any(bar.communicates for bar in bars):
        used |= {'hidden', 'exposed'}
    patches = [
        Patch(facecolor=colour, label=NAMES[kind], edgecolor='white', hatch=HATCH if kind == 'exposed' else None)
        for kind, colour in COLOURS.items()
        if kind in used
    ]
    copies = max(v.copies for v in views)
    if copies > 1:
        lighter = 'lighter: copy 1' if copies == 2 else f'the lighter, the higher the copy, to {copies - 1}'
        patches.append(Patch(facecolor='#7FB8D8', label=lighter))
    if any(bar.marked for bar in bars):
        patches.append(Patch(facecolor='none', edgecolor='black', label='not as predicted'))
    return patches


def _patches_of_boxes(views: list[PipelineView]) -> list[Patch]:
    """The legend of boxes."""
    from matplotlib.patches import Patch

    used = set().union(*(v.kinds for v in views))
    names = dict(BOXES)
    if used.issuperset('BI'):
        # Both are green, so the legend names them together.
        names['B'] = f'{names["B"]}, {names.pop("I")}'
    patches = [
        Patch(facecolor=panels.COLOURS[kind], label=name, edgecolor='white', hatch=HATCH if kind == 'exposed' else None)
        for kind, name in names.items()
        if kind in used
    ]
    whites: list[tuple[bool, BoxKind, float, str]] = [
        (any(len(box.parts) > 1 for v in views for row in v.rows for box in row.boxes), 'B', panels.WAITS_WHITE,
         'waits in its action'),
        (max(v.chunks for v in views) > 1, 'F', panels.CHUNK_WHITE, "lighter: a rank's later stage"),
        (max(v.copies for v in views) > 1, 'F', panels.COPY_WHITE, 'layers in a box: copies'),
    ]  # fmt: skip
    lighter = (
        Patch(facecolor=rgb(panels.COLOURS[kind], white), label=name) for has, kind, white, name in whites if has
    )
    return [*patches, *lighter]


def _zoomed(v: View | PipelineView, window: tuple[float, float]) -> str:
    return f'{v.name}: the framed {short_time(window[1] - window[0])}'


def _averaged(seconds: float) -> str:
    return f'; shares of time, averaged over {short_time(seconds)}' if seconds else ''


def _heading(v: View, averaged: float) -> str:
    """A panel's name and its figures."""
    figures = f'{v.name}: {short_time(v.step)} a step'
    if v.metrics.communication:
        exposed = f'{short_time(v.metrics.exposed)} ({v.metrics.exposed / v.step * 100:.0f} %)'
        figures += f', {exposed} of it exposed communication, overlap {v.metrics.overlap * 100:.0f} %'
    return f'{figures}; rank {v.rank}{_averaged(averaged)}'


def _heading_of_boxes(v: PipelineView, averaged: float) -> str:
    bare = ((row.metrics.bubble, row.metrics.exposed) for row in v.rows)
    bubble, exposed = (sum(seconds) / len(v.rows) / v.step * 100 for seconds in zip(*bare, strict=True))
    means = f'bubble {bubble:.0f} %, exposed communication {exposed:.0f} %'
    return f'{v.name}: {short_time(v.step)} a step, {means}{_averaged(averaged)}'
