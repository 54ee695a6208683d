"""One panel of a timeline: a program in one window of time, as bars or as shares over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from simpar.plot.frame import BACKWARD, EXPOSED, FORWARD, HATCH, HIDDEN, UPDATE, WEIGHT, Colour, Frame, rgb
from simpar.plot.view import KINDS, Bar, Kind, View, share

COLOURS: Final[dict[Kind, str]] = {
    'F': FORWARD, 'I': BACKWARD, 'W': WEIGHT, 'U': UPDATE, 'hidden': HIDDEN, 'exposed': EXPOSED,
}  # fmt: skip
_MOMENTS: Final = 800
_LABEL_POINTS: Final = 6.5
MARKED: Final = 0.9
"""Height of the outline of a marked op, a bit more than that of its bar."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A program in a window of time."""

    frame: Frame
    view: View

    def draw(self, heading: str, averaged: float) -> None:
        """Draw rows and their contents; ``averaged`` over so many seconds, or 0: op by op."""
        self.frame.draw(heading, list(self.view.streams), 0.4)
        for row in range(len(self.view.streams)):
            if averaged:
                self._shares(row, averaged)
            else:
                self._bars(row)

    def _shares(self, row: int, averaged: float) -> None:
        """What share of each moment the row spends on what, stacked."""
        times = np.linspace(0.0, self.view.step, _MOMENTS)
        floor = np.full(_MOMENTS, row + 0.4)
        # Stacked in one order in all rows, so that colours line up.
        for kind in KINDS:
            top = floor - 0.8 * share(self.view.intervals(kind, row), times, averaged)
            self.frame.axes.fill_between(times * self.frame.scale, floor, top, color=COLOURS[kind], linewidth=0)
            floor = top
        # Single ops are too narrow for an outline: a line over the row shows where marked ones are.
        marked = [self._span(bar.arrive, bar.end) for bar in self.view.bars if bar.row == row and bar.marked]
        self.frame.axes.broken_barh(marked, (row - MARKED / 2, 0.06), facecolors='black', linewidth=0)

    def _bars(self, row: int) -> None:
        """Every op as a bar; a wait for peers as a thinner one; labels where they fit."""
        seen = [bar for bar in self.view.bars if bar.row == row and self._shows(bar)]
        waited = [bar for bar in seen if bar.start > bar.arrive]
        self._draw([(bar, bar.start, bar.end) for bar in seen], (row - 0.4, 0.8))
        self._draw([(bar, bar.arrive, bar.start) for bar in waited], (row - 0.13, 0.26))
        exposed = self.view.intervals('exposed', row)
        self._overlay([self._span(*self._clip(left, right)) for left, right in exposed.tolist()], row)
        wide = [bar for bar in seen if self.frame.letters(bar.end - bar.start, _LABEL_POINTS) > 1]
        edges = [time * self.frame.scale for bar in wide for time in (bar.start, bar.end)]
        self.frame.axes.vlines(edges, row - 0.4, row + 0.4, colors='white', linewidth=0.6)
        for bar in seen:
            self._label(bar)
        self._mark([bar for bar in seen if bar.marked], row)

    def _mark(self, bars: list[Bar], row: int) -> None:
        """A black outline around ops that are pointed out."""
        spans = [self._span(*self._clip(bar.arrive, bar.end)) for bar in bars]
        self.frame.axes.broken_barh(
            spans, (row - MARKED / 2, MARKED), facecolors='none', edgecolors='black', linewidth=1.2, zorder=4
        )

    def _draw(self, spans: list[tuple[Bar, float, float]], height: tuple[float, float]) -> None:
        """Parts of bars, each in its bar's colour."""
        colours = [self._colour(bar) for bar, _, _ in spans]
        places = [self._span(since, until) for _, since, until in spans]
        self.frame.axes.broken_barh(places, height, facecolors=colours, linewidth=0)

    def _overlay(self, spans: list[tuple[float, float]], row: int) -> None:
        """Exposed communication over the bars that it is part of."""
        self.frame.axes.broken_barh(
            [span for span in spans if span[1] > 0],
            (row - 0.4, 0.8),
            facecolor=COLOURS['exposed'],
            edgecolor='white',
            hatch=HATCH,
            linewidth=0,
        )

    def _label(self, bar: Bar) -> None:
        """The op's name and copy, or one of them, where there is room."""
        since, until = self._clip(bar.start, bar.end)
        room = self.frame.letters(until - since, _LABEL_POINTS) - 1
        copy = f'c{bar.copy}' if self.view.copies > 1 and bar.copy is not None else ''
        texts = (f'{bar.label} {copy}'.strip(), bar.label, copy)
        text = next((text for text in texts if len(text) <= room), '')
        # Blue and green are dark enough for white letters; later copies are lighter.
        dark = not bar.communicates and bar.phase in ('F', 'I') and not bar.copy
        if text:
            # On a hatch letters cannot be read without a ground.
            box = {'facecolor': 'white', 'alpha': 0.75, 'linewidth': 0, 'pad': 0.6} if bar.communicates else None
            self.frame.axes.text(
                (since + until) / 2 * self.frame.scale, bar.row, text, ha='center', va='center', fontsize=_LABEL_POINTS,
                color='white' if dark else 'black', clip_on=True, bbox=box,
            )  # fmt: skip

    def _shows(self, bar: Bar) -> bool:
        return bar.end > self.frame.window[0] and bar.arrive < self.frame.window[1]

    def _clip(self, since: float, until: float) -> tuple[float, float]:
        return max(since, self.frame.window[0]), min(until, self.frame.window[1])

    def _span(self, since: float, until: float) -> tuple[float, float]:
        return since * self.frame.scale, (until - since) * self.frame.scale

    def _colour(self, bar: Bar) -> Colour:
        """Its kind's colour, the lighter the higher the copy."""
        kind = next(kind for kind in KINDS if kind == ('hidden' if bar.communicates else bar.phase))
        return rgb(COLOURS[kind], 0.5 * (bar.copy or 0) / max(1, self.view.copies - 1))
