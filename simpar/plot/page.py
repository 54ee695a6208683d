"""The timeline of one steady step: of a plan below its baseline, on one scale, with the answer as its title.

A row is a stream of one rank. Compute is coloured by phase and shaded by copy; communication is grey where computation
hides it and hatched vermilion where it is exposed. Where a step has many ops, the window with most exposed
communication is shown larger; where it has too many to see, the step is drawn as shares over time. Of a pipeline, all
pipeline ranks are shown, action by action, unless one rank is asked for. matplotlib is imported when a figure is drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from simpar.headline import headline
from simpar.metrics import is_pipeline
from simpar.plot.frame import BETWEEN, BOTTOM, HATCH, TOP, WIDTH, Frame, new_figure, saving, time_unit, title
from simpar.plot.panel import COLOURS, EASY, VISIBLE, Kind, Panel, View, view
from simpar.plot.pipeline_page import pipeline_timeline
from simpar.trace import Trace
from simpar.units import format_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES: Final[dict[Kind, str]] = {
    'F': 'forward', 'I': 'gradient of the input', 'W': 'gradient of the weight', 'U': 'update',
    'hidden': 'communication under computation', 'exposed': 'exposed communication',
}  # fmt: skip
_ROW: Final = 0.4
"""Inches of a row."""
_LEFT, _RIGHT = 0.075, 0.985
_AVERAGED = 60
"""Shares over time are averaged over the longest step divided by this."""


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
    if rank is None and any(is_pipeline(trace.program) for trace, _ in sides):
        return pipeline_timeline(sides)
    views = [view(trace, name, rank, marks) for trace, name in sides]
    page = _Page(views, _windows(views) if max(v.most_bars for v in views) > EASY else [], answer)
    figure = new_figure(page.height)
    page.draw(figure)
    return figure


def _windows(views: list[View]) -> list[tuple[float, float]]:
    """For each view a window of one length where most communication is exposed, with few enough ops to see each."""
    # One length for all windows, so that bars can be compared.
    seconds = min(v.busy_stretch() for v in views)
    begins = [v.most_exposed(seconds) for v in views]
    return [(begin, begin + seconds) for begin in begins]


@dataclass(frozen=True, slots=True)
class _Page:
    """Whole steps from the top; below them, where there are ``windows``, each view in its window."""

    views: list[View]
    windows: list[tuple[float, float]]
    answer: str = ''

    @property
    def rows(self) -> list[int]:
        """How many rows each panel has, from the top."""
        return [len(v.streams) for v in self.views] * (2 if self.windows else 1)

    @property
    def height(self) -> float:
        """Inches."""
        return TOP + BOTTOM + _ROW * sum(self.rows) + BETWEEN * (len(self.rows) - 1)

    def draw(self, figure: Figure) -> None:
        """Draw everything."""
        longest = max(v.step for v in self.views)
        scale, _ = time_unit(longest)
        panels = self._panels(figure, [(0.0, longest)] * len(self.views) + self.windows, scale)
        for index, panel in enumerate(panels):
            zoomed = index >= len(self.views)
            averaged = longest / _AVERAGED if max(v.most_bars for v in self.views) > VISIBLE and not zoomed else 0.0
            panel.draw(_heading(panel, averaged, zoomed=zoomed), averaged)
        # Only the panels of whole steps have a window to outline.
        for panel, window in zip(panels, self.windows, strict=False):
            panel.frame.outline(window)
        frames = [panel.frame for panel in panels[: len(self.views)]]
        for frame, v in zip(frames, self.views, strict=True):
            frame.end_of_step(v.step)
        panels[-1].frame.axes.set_xlabel('time in the step', fontsize=9, labelpad=2)
        saving(frames, [v.step for v in self.views])
        self._title(figure)

    def _panels(self, figure: Figure, windows: list[tuple[float, float]], scale: float) -> list[Panel]:
        """Axes at their places, with what they show."""
        panels = []
        bottom = self.height - TOP
        for index, (rows, window) in enumerate(zip(self.rows, windows, strict=True)):
            bottom -= _ROW * rows
            place = (_LEFT, bottom / self.height, _RIGHT - _LEFT, _ROW * rows / self.height)
            frame = Frame(figure.add_axes(place), window, scale, WIDTH * (_RIGHT - _LEFT))
            panels.append(Panel(frame, self.views[index % len(self.views)]))
            bottom -= BETWEEN
        return panels

    def _title(self, figure: Figure) -> None:
        """Title and legend."""
        from matplotlib.patches import Patch

        bars = [bar for v in self.views for bar in v.bars]
        used = {bar.phase for bar in bars if not bar.communicates}
        if any(bar.communicates for bar in bars):
            used |= {'hidden', 'exposed'}
        patches = [
            Patch(facecolor=colour, label=NAMES[kind], edgecolor='white', hatch=HATCH if kind == 'exposed' else None)
            for kind, colour in COLOURS.items()
            if kind in used
        ]
        copies = max(v.copies for v in self.views)
        if copies > 1:
            lighter = 'lighter: copy 1' if copies == 2 else f'the lighter, the higher the copy, to {copies - 1}'
            patches.append(Patch(facecolor='#7FB8D8', label=lighter))
        if any(bar.marked for bar in bars):
            patches.append(Patch(facecolor='none', edgecolor='black', label='not as predicted'))
        title(figure, self.answer or headline(*((v.name, v.step) for v in reversed(self.views))), patches)


def _heading(panel: Panel, averaged: float, *, zoomed: bool) -> str:
    """A panel's name and its figures."""
    v = panel.view
    if zoomed:
        window = panel.frame.window
        return f'{v.name}: the framed {format_time(window[1] - window[0])}'
    figures = f'{v.name}: {format_time(v.step)} a step'
    if v.metrics.communication:
        exposed = f'{format_time(v.metrics.exposed)} ({v.metrics.exposed / v.step * 100:.0f} %)'
        figures += f', {exposed} of it exposed communication, overlap {v.metrics.overlap * 100:.0f} %'
    shares = f'; shares of time, averaged over {format_time(averaged)}' if averaged else ''
    return f'{figures}; rank {v.rank}{shares}'
