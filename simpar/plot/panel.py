"""One panel of a timeline: a program in one window of time, as bars or as shares over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from simpar.plot.view import KINDS, Bar, Kind, View, share

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS: Final[dict[Kind, str]] = {
    'F': '#0072B2', 'I': '#E69F00', 'W': '#009E73', 'U': '#CC79A7', 'hidden': '#A9A9A9', 'exposed': '#D55E00',
}  # fmt: skip
"""Okabe and Ito's palette, which the colour-blind tell apart."""
_MOMENTS: Final = 800
_LABEL_POINTS: Final = 6.5
_HATCH: Final = '/////'


@dataclass(frozen=True, slots=True)
class Panel:
    """A program in a window of time.

    Arguments: ``window``, seconds; ``scale``, what seconds are multiplied with for the axis; ``inches``, its width.
    """

    axes: Axes
    view: View
    window: tuple[float, float]
    scale: float
    inches: float

    def draw(self, heading: str, averaged: float) -> None:
        """Draw rows and their contents; ``averaged`` over so many seconds, or 0: op by op."""
        axes, rows = self.axes, len(self.view.streams)
        axes.set_xlim(self.window[0] * self.scale, self.window[1] * self.scale)
        axes.set_ylim(rows - 0.5, -0.5)
        axes.set_yticks(range(rows), self.view.streams, fontsize=9)
        axes.tick_params(axis='y', length=0)
        axes.tick_params(axis='x', labelsize=8, length=3)
        for side in ('top', 'right', 'left'):
            axes.spines[side].set_visible(False)
        axes.set_title(heading, loc='left', fontsize=9.5, pad=4)
        for row in range(rows):
            axes.axhspan(row - 0.4, row + 0.4, facecolor='#F4F4F4', linewidth=0, zorder=0)
            if averaged:
                self._shares(row, averaged)
            else:
                self._bars(row)

    def outline(self, window: tuple[float, float]) -> None:
        """Frame a window that another panel shows larger."""
        left, right = window[0] * self.scale, window[1] * self.scale
        self.axes.axvspan(left, right, facecolor='none', edgecolor='black', linewidth=1.1, zorder=5)

    def end_of_step(self) -> None:
        """A line where the step ends."""
        self.axes.axvline(self.view.step * self.scale, color='black', linewidth=1.4)

    def saving(self, until: float, words: str) -> None:
        """An arrow from the end of the step to a later time, with words over it."""
        since = self.view.step
        middle = (len(self.view.streams) - 1) / 2
        ends = since * self.scale, until * self.scale
        arrow: dict[str, Any] = {'arrowstyle': '<->', 'shrinkA': 0, 'shrinkB': 0, 'linewidth': 1.0}
        self.axes.annotate('', (ends[0], middle), (ends[1], middle), arrowprops=arrow)
        if self._letters(until - since) >= len(words):
            self.axes.text(sum(ends) / 2, middle - 0.1, words, ha='center', va='bottom', fontsize=8)

    def _shares(self, row: int, averaged: float) -> None:
        """What share of each moment the row spends on what, stacked."""
        times = np.linspace(0.0, self.view.step, _MOMENTS)
        floor = np.full(_MOMENTS, row + 0.4)
        for kind in KINDS:
            top = floor - 0.8 * share(self.view.intervals(kind, row), times, averaged)
            self.axes.fill_between(times * self.scale, floor, top, color=COLOURS[kind], linewidth=0)
            floor = top

    def _bars(self, row: int) -> None:
        """Every op as a bar; a wait for peers as a thinner one; labels where they fit."""
        seen = [bar for bar in self.view.bars if bar.row == row and self._shows(bar)]
        waited = [bar for bar in seen if bar.start > bar.arrive]
        self._draw([(bar, bar.start, bar.end) for bar in seen], (row - 0.4, 0.8))
        self._draw([(bar, bar.arrive, bar.start) for bar in waited], (row - 0.13, 0.26))
        exposed = self.view.intervals('exposed', row)
        self._overlay([self._span(*self._clip(left, right)) for left, right in exposed.tolist()], row)
        wide = [bar for bar in seen if self._letters(bar.end - bar.start) > 1]
        edges = [time * self.scale for bar in wide for time in (bar.start, bar.end)]
        self.axes.vlines(edges, row - 0.4, row + 0.4, colors='white', linewidth=0.6)
        for bar in seen:
            self._label(bar)

    def _draw(self, spans: list[tuple[Bar, float, float]], height: tuple[float, float]) -> None:
        """Parts of bars, each in its bar's colour."""
        colours = [self._colour(bar) for bar, _, _ in spans]
        places = [self._span(since, until) for _, since, until in spans]
        self.axes.broken_barh(places, height, facecolors=colours, linewidth=0)

    def _overlay(self, spans: list[tuple[float, float]], row: int) -> None:
        """Exposed communication over the bars that it is part of."""
        self.axes.broken_barh(
            [span for span in spans if span[1] > 0],
            (row - 0.4, 0.8),
            facecolor=COLOURS['exposed'],
            edgecolor='white',
            hatch=_HATCH,
            linewidth=0,
        )

    def _label(self, bar: Bar) -> None:
        """The op's name and copy, or one of them, where there is room."""
        since, until = self._clip(bar.start, bar.end)
        room = self._letters(until - since) - 1
        copy = f'c{bar.copy}' if self.view.copies > 1 and bar.copy is not None else ''
        texts = (f'{bar.label} {copy}'.strip(), bar.label, copy)
        text = next((text for text in texts if len(text) <= room), '')
        dark = not bar.communicates and bar.phase in ('F', 'W') and not bar.copy
        if text:
            box = {'facecolor': 'white', 'alpha': 0.75, 'linewidth': 0, 'pad': 0.6} if bar.communicates else None
            self.axes.text(
                (since + until) / 2 * self.scale, bar.row, text, ha='center', va='center', fontsize=_LABEL_POINTS,
                color='white' if dark else 'black', clip_on=True, bbox=box,
            )  # fmt: skip

    def _letters(self, seconds: float) -> float:
        """How many letters of a label a time has room for."""
        inches = seconds / (self.window[1] - self.window[0]) * self.inches
        return inches * 72 / (0.55 * _LABEL_POINTS)

    def _shows(self, bar: Bar) -> bool:
        return bar.end > self.window[0] and bar.arrive < self.window[1]

    def _clip(self, since: float, until: float) -> tuple[float, float]:
        return max(since, self.window[0]), min(until, self.window[1])

    def _span(self, since: float, until: float) -> tuple[float, float]:
        return since * self.scale, (until - since) * self.scale

    def _colour(self, bar: Bar) -> tuple[float, float, float]:
        """Its kind's colour, the lighter the higher the copy."""
        from matplotlib.colors import to_rgb

        kind = next(kind for kind in KINDS if kind == ('hidden' if bar.communicates else bar.phase))
        white = 0.5 * (bar.copy or 0) / max(1, self.view.copies - 1)
        red, green, blue = (channel + (1 - channel) * white for channel in to_rgb(COLOURS[kind]))
        return red, green, blue
