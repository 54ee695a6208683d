"""A sweep's rows as bars: how long a step of each is, and what it is spent on; matplotlib is imported when drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from simpar import headline, units
from simpar.plot.frame import EXPOSED, FORWARD, HATCH, HIDDEN, WIDTH, new_figure, time_unit, title
from simpar.sweep.answer import Result, SweepAnswer
from simpar.sweep.table import best_summary, name_of, short_keys, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_ROWS: Final = 100
"""Of more rows, the fastest are drawn."""
_PARTS: Final = (
    ('compute', FORWARD, 'computing', ''),
    ('exposed', EXPOSED, 'exposed communication', HATCH),
    ('idle', HIDDEN, 'idle', ''),
)
"""They add up to a step exactly: figure, colour, name, hatch."""
_ROW: Final = 0.27
_TOP, _BOTTOM = 0.85, 0.6
"""Inches."""
_LETTER: Final = 0.075
"""Inches of a letter of a row's name."""
_LONGEST: Final = 48
"""Letters of a row's name; of longer ones the keys stand above."""
_BETWEEN: Final = ' · '
_TITLE: Final = 112
"""Letters that the title has room for."""
_ROOM: Final = 1.42
"""The axis ends so many times behind the longest bar: text stands there."""


def bars(answer: SweepAnswer) -> Figure:
    """One bar for each row in the order given; where batches differ, of the seconds a sample takes."""
    page = _Page(answer, tuple(_drawn(answer)))
    figure = new_figure(_TOP + _BOTTOM + _ROW * max(len(page.rows), 3))
    page.draw(figure)
    return figure


def _drawn(answer: SweepAnswer) -> list[int]:
    """Which rows are drawn, in order."""
    rows = range(len(answer.results))
    # The fastest rows are chosen, and then drawn in the order given.
    return sorted(sorted(rows, key=lambda row: answer.results[row].sample)[:MOST_ROWS])


@dataclass(frozen=True, slots=True)
class _Page:
    """The rows of an answer that are drawn, from the top."""

    answer: SweepAnswer
    rows: tuple[int, ...]

    def draw(self, figure: Figure) -> None:
        """Draw everything."""
        from matplotlib.patches import Patch

        height = float(figure.get_size_inches()[1])
        left = 0.2 + _LETTER * max(map(len, self._names()))
        place = (left / WIDTH, _BOTTOM / height, 1 - (left + 0.2) / WIDTH, 1 - (_TOP + _BOTTOM) / height)
        self._bars(figure.add_axes(place))
        patches = [
            Patch(facecolor=colour, label=name, hatch=hatch, edgecolor='white')
            for part, colour, name, hatch in _PARTS
            if any(self._length(result, part) for result in self.answer.results)
        ]
        title(figure, self._headline(), patches)

    def _headline(self) -> str:
        left_out = len(self.answer.results) - len(self.rows)
        text = best_summary(self.answer, exact=False)
        text = text if len(text) <= _TITLE else best_summary(self.answer, brief=True, exact=False)
        tail = f'; {left_out} slower rows not drawn' if left_out else ''
        room = _TITLE - len(tail)
        return (text if len(text) <= room else f'{text[: room - 1]}…') + tail

    @property
    def _keys(self) -> list[str]:
        """The keys that tell rows apart, where their names are too long to stand at every row; else none."""
        names = (name_of(self.answer, self.answer.results[row]) for row in self.rows)
        return (
            [key for key in self.answer.keys if key in self.answer.varying] if max(map(len, names)) > _LONGEST else []
        )

    def _names(self) -> list[str]:
        results = [self.answer.results[row] for row in self.rows]
        keys = self._keys
        if not keys:
            return [name_of(self.answer, result) for result in results]
        rows = (_BETWEEN.join(shown(result.settings.get(key, '-')) for key in keys) for result in results)
        return [name if len(name) <= _LONGEST else f'{name[: _LONGEST - 1]}…' for name in rows]

    def _bars(self, axes: Axes) -> None:
        longest = max((self._length(result, 'step') for result in self.answer.results), default=0.0) or 1.0
        scale, unit = time_unit(longest)
        axes.set_xlim(0, longest * scale * _ROOM)
        # At least three rows' height, or two bars would fill the figure.
        axes.set_ylim(max(len(self.rows), 3) - 0.5, -0.5)
        axes.set_yticks(range(len(self.rows)), self._names(), fontsize=9)
        axes.tick_params(axis='y', length=0)
        axes.tick_params(axis='x', labelsize=8, length=3)
        for side in ('top', 'right', 'left'):
            axes.spines[side].set_visible(False)
        if self._keys:
            heads = short_keys(self.answer.keys)
            axes.set_title(f'rows: {_BETWEEN.join(heads[key] for key in self._keys)}', loc='left', fontsize=9, pad=4)
        for place, row in enumerate(self.rows):
            self._bar(axes, place, row, scale)
        what = 'time of a sample' if self.answer.batches_differ else 'time of a step'
        axes.set_xlabel(f'{what} ({unit}), mean over the ranks', fontsize=9, labelpad=2)

    def _bar(self, axes: Axes, place: int, row: int, scale: float) -> None:
        result, end = self.answer.results[row], 0.0
        for figure, colour, _, hatch in _PARTS:
            width = self._length(result, figure) * scale
            axes.barh(place, width, left=end, height=0.72, color=colour, hatch=hatch, edgecolor='white', linewidth=0)
            end += width
        best = row == self.answer.best
        colour = 'black' if result.step is not None else '#707070'
        weight = 'bold' if best else 'normal'
        text = f' {self._text_of(result)}{"   fastest" if best else ""}'
        axes.text(end, place, text, va='center', fontsize=8.5, color=colour, fontweight=weight, clip_on=True)
        axes.get_yticklabels()[place].set(color=colour, fontweight=weight)

    def _length(self, result: Result, figure: str) -> float:
        """Seconds of a bar or a part of it; none where the row is infeasible."""
        if result.step is None:
            return 0.0
        seconds = float(getattr(result.outcome.figures, figure))
        return seconds / result.batch if self.answer.batches_differ else seconds

    def _text_of(self, result: Result) -> str:
        """What stands behind a bar."""
        if result.step is None:
            return result.outcome.reason
        text = headline.short_time(self._length(result, 'step'))
        if result.gain is not None and not result.is_baseline:
            text += f', {headline.gain_in_words(result.gain)}'
        return f'{text}, {units.format_size(headline.short(result.outcome.peak))}'
