"""The timeline of one steady step: of a plan below its baseline, on one scale, with the answer as its title.

A row is a stream of one rank. Compute is coloured by phase and shaded by copy; communication is grey where computation
hides it and hatched vermilion where it is exposed. Where a step has many ops, a window in the middle of its backward is
shown larger; where it has too many to see, the whole is drawn as shares over time. matplotlib is imported when a figure
is drawn, and its global state is never touched.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from simpar.files import write_whole
from simpar.plot.panel import COLOURS, Panel
from simpar.plot.view import EASY, VISIBLE, Kind, View, view
from simpar.trace import Trace
from simpar.units import format_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES: Final[dict[Kind, str]] = {
    'F': 'forward', 'I': 'gradient of the input', 'W': 'gradient of the weight', 'U': 'update',
    'hidden': 'communication under computation', 'exposed': 'exposed communication',
}  # fmt: skip
_WIDTH, _ROW, _BETWEEN, _TOP, _BOTTOM = 13.0, 0.4, 0.55, 1.0, 0.55
"""Inches: of the figure, of a row, above a panel, for title and legend, for the axis at the bottom."""
_LEFT, _RIGHT = 0.075, 0.985
_AVERAGED = 60
"""Shares over time are averaged over the longest step divided by this."""


def timeline(
    plan: Trace,
    baseline: Trace | None = None,
    *,
    names: tuple[str, str] = ('plan', 'baseline'),
    rank: int | None = None,
) -> Figure:
    """The timeline of a plan and, above it, of its baseline.

    Arguments: ``names`` of the plan and the baseline; ``rank`` to show, unless given the one that ends last.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    views = [view(plan, names[0], rank)]
    if baseline is not None:
        views.insert(0, view(baseline, names[1], rank))
    page = _Page(views, _windows(views) if max(v.most_bars for v in views) > EASY else [])
    figure = Figure(figsize=(_WIDTH, page.height), dpi=120)
    FigureCanvasAgg(figure)
    page.draw(figure)
    return figure


def write_figure(path: Path, figure: Figure) -> None:
    """Write a figure; the suffix says the format (png, svg, pdf). The same figure gives the same bytes.

    Raises ``ValueError`` for a format that matplotlib does not know, ``OSError`` if it cannot be written.
    """
    from matplotlib import rc_context

    kind = path.suffix.removeprefix('.').lower() or 'png'
    unstamped = {'svg': {'Date': None}, 'pdf': {'CreationDate': None}}.get(kind)
    buffer = io.BytesIO()
    with rc_context({'svg.hashsalt': 'simpar', 'hatch.linewidth': 0.7}):
        figure.savefig(buffer, format=kind, metadata=unstamped)
    write_whole(path, buffer.getvalue())


def headline(plan: tuple[str, float], baseline: tuple[str, float] | None = None) -> str:
    """The answer in a sentence; arguments: name and seconds of a step, of the plan and of its baseline."""
    words = f'{plan[0]}: {format_time(plan[1])} a step'
    if baseline is None:
        return words
    gain = baseline[1] / plan[1] - 1
    how = 'as fast as' if abs(gain) < 0.0005 else f'{abs(gain) * 100:.1f} % {"faster" if gain > 0 else "slower"} than'
    return f'{words}, {how} {baseline[0]} ({format_time(baseline[1])})'


def _windows(views: list[View]) -> list[tuple[float, float]]:
    """For each view a window of one length around the middle of its backward, with few enough ops to see each."""
    seconds = min(v.busy_stretch() for v in views)
    begins = [max(0.0, min(v.middle() - seconds / 2, v.step - seconds)) for v in views]
    return [(begin, begin + seconds) for begin in begins]


@dataclass(frozen=True, slots=True)
class _Page:
    """Whole steps from the top; below them, where there are ``windows``, each view in its window."""

    views: list[View]
    windows: list[tuple[float, float]]

    @property
    def rows(self) -> list[int]:
        """How many rows each panel has, from the top."""
        return [len(v.streams) for v in self.views] * (2 if self.windows else 1)

    @property
    def height(self) -> float:
        """Inches."""
        return _TOP + _BOTTOM + _ROW * sum(self.rows) + _BETWEEN * (len(self.rows) - 1)

    def draw(self, figure: Figure) -> None:
        """Draw everything."""
        whole = max(v.step for v in self.views)
        scale, unit = _unit(whole)
        panels = self._panels(figure, [(0.0, whole)] * len(self.views) + self.windows, scale)
        for index, panel in enumerate(panels):
            zoomed = index >= len(self.views)
            averaged = whole / _AVERAGED if max(v.most_bars for v in self.views) > VISIBLE and not zoomed else 0.0
            panel.draw(_heading(panel, averaged, zoomed=zoomed), averaged)
        for panel, window in zip(panels, self.windows, strict=False):
            panel.outline(window)
        for panel in panels[: len(self.views)]:
            panel.end_of_step()
        panels[-1].axes.set_xlabel(f'time in the step ({unit})', fontsize=9, labelpad=2)
        if len(self.views) > 1:
            self._saving(panels)
        self._headline(figure)

    def _panels(self, figure: Figure, windows: list[tuple[float, float]], scale: float) -> list[Panel]:
        """Axes at their places, with what they show."""
        panels = []
        bottom = self.height - _TOP
        for index, (rows, window) in enumerate(zip(self.rows, windows, strict=True)):
            bottom -= _ROW * rows
            place = (_LEFT, bottom / self.height, _RIGHT - _LEFT, _ROW * rows / self.height)
            v = self.views[index % len(self.views)]
            panels.append(Panel(figure.add_axes(place), v, window, scale, _WIDTH * (_RIGHT - _LEFT)))
            bottom -= _BETWEEN
        return panels

    def _saving(self, panels: list[Panel]) -> None:
        """Point out, on the shorter step, the difference to the longer."""
        longer, shorter = sorted(panels[:2], key=lambda panel: -panel.view.step)
        difference = longer.view.step - shorter.view.step
        if difference > 0.01 * longer.view.step:
            shorter.saving(longer.view.step, f'{format_time(difference)} less')

    def _headline(self, figure: Figure) -> None:
        """Title and legend."""
        from matplotlib.patches import Patch

        top = 1 - 0.12 / self.height
        answer = headline(*((v.name, v.step) for v in reversed(self.views)))
        figure.text(0.012, top, answer, fontsize=13, fontweight='bold', va='top')
        bars = [bar for v in self.views for bar in v.bars]
        used = {bar.phase for bar in bars if not bar.communicates}
        if any(bar.communicates for bar in bars):
            used |= {'hidden', 'exposed'}
        patches = [
            Patch(facecolor=colour, label=NAMES[kind], edgecolor='white', hatch='/////' if kind == 'exposed' else None)
            for kind, colour in COLOURS.items()
            if kind in used
        ]
        copies = max(v.copies for v in self.views)
        if copies > 1:
            lighter = 'lighter: copy 1' if copies == 2 else f'the lighter, the higher the copy, to {copies - 1}'
            patches.append(Patch(facecolor='#7FB8D8', label=lighter))
        figure.legend(
            handles=patches, loc='upper left', bbox_to_anchor=(0.006, 1 - 0.38 / self.height), ncols=len(patches),
            frameon=False, fontsize=8.5, handlelength=1.5, columnspacing=1.5, borderpad=0.2,
        )  # fmt: skip


def _heading(panel: Panel, averaged: float, *, zoomed: bool) -> str:
    """A panel's name and its figures."""
    v = panel.view
    if zoomed:
        return f'{v.name}: the framed {format_time(panel.window[1] - panel.window[0])}'
    figures = f'{v.name}: {format_time(v.step)} a step'
    if v.metrics.communication:
        exposed = f'{format_time(v.metrics.exposed)} ({v.metrics.exposed / v.step * 100:.0f} %)'
        figures += f', {exposed} of it exposed communication, overlap {v.metrics.overlap * 100:.0f} %'
    shares = f'; shares of time, averaged over {format_time(averaged)}' if averaged else ''
    return f'{figures}; rank {v.rank}{shares}'


def _unit(seconds: float) -> tuple[float, str]:
    """What to multiply seconds with for the axis, and its name."""
    return next(((f, n) for f, n in ((1.0, 's'), (1e3, 'ms'), (1e6, 'us')) if seconds * f >= 1), (1e9, 'ns'))
