"""The picture of a pipeline: pipeline ranks as rows, actions as boxes, as in the papers; a plan below its baseline.

Forward is blue, backward green, the gradient of the weights orange where it is apart; the later stages of a rank are
lighter, and so are the higher copies, one below the other. The thin lane at the bottom of a row shows when
communication is exposed; what stays blank above it is the bubble. Where the numbers of micro-batches do not fit,
the window with most exposed communication is shown larger.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from simpar.headline import headline
from simpar.plot.frame import (
    BETWEEN,
    BOTTOM,
    HATCH,
    TOP,
    WIDTH,
    Frame,
    new_figure,
    rgb,
    saving,
    time_unit,
    title,
)
from simpar.plot.pipeline_panel import (
    CHUNK_WHITE,
    COLOURS,
    COPY_WHITE,
    BoxKind,
    PipelinePanel,
    PipelineView,
    Row,
    labels_fit,
    pipeline_view,
)
from simpar.trace import Trace
from simpar.units import format_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

NAMES: Final[dict[BoxKind, str]] = {
    'F': 'F forward', 'B': 'B backward', 'I': 'I gradient of the input', 'W': 'W gradient of the weights',
    'U': 'update', 'exposed': 'exposed communication (lane)',
}  # fmt: skip
_VISIBLE: Final = 160
"""Boxes on a row beyond which they are too narrow to see."""
_ZOOMED: Final = 40
"""Boxes of a row in the window that is shown larger."""
_AVERAGED: Final = 80
"""Shares over time are averaged over the longest step divided by this."""
_LEFT, _RIGHT = 0.075, 0.895


def pipeline_timeline(sides: list[tuple[Trace, str]]) -> Figure:
    """The steady steps of some traces, with their names, below one another on one scale; the last is the plan."""
    page = _Page([pipeline_view(trace, name) for trace, name in sides])
    figure = new_figure(page.height)
    page.draw(figure)
    return figure


@dataclass(frozen=True)
class _Page:
    """Whole steps from the top; below them, where boxes are too narrow for numbers, each view in a window."""

    views: list[PipelineView]

    @property
    def longest(self) -> float:
        """Seconds that the whole panels show."""
        return max(v.step for v in self.views)

    @property
    def row(self) -> float:
        """Inches of a row."""
        rows = sum(len(v.rows) for v in self.views)
        # Many rows get thinner, so that the figure stays on one page.
        return 0.36 if rows <= 16 else max(0.16, 5.8 / rows)

    @cached_property
    def windows(self) -> list[tuple[float, float]]:
        """For each view the window that is shown larger, all of one length; none where numbers fit anyway."""
        if all(labels_fit(v, 72 * self.inches / self.longest) for v in self.views):
            return []
        seconds = min(v.stretch(_ZOOMED) for v in self.views)
        begins = [v.most_exposed(seconds) for v in self.views]
        return [(begin, begin + seconds) for begin in begins]

    @property
    def inches(self) -> float:
        """Width of a panel."""
        return WIDTH * (_RIGHT - _LEFT)

    @property
    def height(self) -> float:
        """Inches."""
        panels = self.views * (2 if self.windows else 1)
        return TOP + BOTTOM + self.row * sum(len(v.rows) for v in panels) + BETWEEN * (len(panels) - 1)

    def draw(self, figure: Figure) -> None:
        """Draw everything."""
        scale, _ = time_unit(self.longest)
        panels = self._panels(figure, scale)
        averaged = self.longest / _AVERAGED if max(v.most_boxes for v in self.views) > _VISIBLE else 0.0
        for index, panel in enumerate(panels):
            if index < len(self.views):
                panel.draw(_heading(panel.view, averaged), averaged)
                panel.figures()
                panel.frame.end_of_step(panel.view.step)
            else:
                begin, end = panel.frame.window
                panel.draw(f'{panel.view.name}: the framed {format_time(end - begin)}', 0.0)
        for panel, window in zip(panels, self.windows, strict=False):
            panel.frame.outline(window)
        panels[-1].frame.axes.set_xlabel('time in the step', fontsize=9, labelpad=2)
        saving([panel.frame for panel in panels[: len(self.views)]], [v.step for v in self.views])
        title(figure, headline(*((v.name, v.step) for v in reversed(self.views))), self._patches())

    def _panels(self, figure: Figure, scale: float) -> list[PipelinePanel]:
        """Axes at their places, with what they show."""
        windows = [(0.0, self.longest)] * len(self.views) + self.windows
        bottom = self.height - TOP
        panels = []
        for index, window in enumerate(windows):
            v = self.views[index % len(self.views)]
            bottom -= self.row * len(v.rows)
            place = (_LEFT, bottom / self.height, _RIGHT - _LEFT, self.row * len(v.rows) / self.height)
            panels.append(PipelinePanel(Frame(figure.add_axes(place), window, scale, self.inches), v, self.row))
            bottom -= BETWEEN
        return panels

    def _patches(self) -> list[Patch]:
        """The legend."""
        from matplotlib.patches import Patch

        used = set().union(*(v.kinds for v in self.views))
        names = dict(NAMES)
        if used.issuperset('BI'):
            # Both are green, so the legend names them together.
            names['B'] = f'{names["B"]}, {names.pop("I")}'
        patches = [
            Patch(facecolor=COLOURS[kind], label=name, edgecolor='white', hatch=HATCH if kind == 'exposed' else None)
            for kind, name in names.items()
            if kind in used
        ]
        if max(v.chunks for v in self.views) > 1:
            patches.append(Patch(facecolor=rgb(COLOURS['F'], CHUNK_WHITE), label="lighter: a rank's later stage"))
        if max(v.copies for v in self.views) > 1:
            patches.append(Patch(facecolor=rgb(COLOURS['F'], COPY_WHITE), label='layers in a box: copies'))
        return patches


def _heading(view: PipelineView, averaged: float) -> str:
    """A panel's name and its figures."""
    shares = f'; shares of time, averaged over {format_time(averaged)}' if averaged else ''
    means = [sum(seconds) / len(view.rows) / view.step * 100 for seconds in zip(*map(_bare, view.rows), strict=True)]
    means_text = f'bubble {means[0]:.0f} %, exposed communication {means[1]:.0f} %'
    return f'{view.name}: {format_time(view.step)} a step, {means_text}{shares}'


def _bare(row: Row) -> tuple[float, float]:
    return row.metrics.bubble, row.metrics.exposed
