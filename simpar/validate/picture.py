"""Picture: predicted against measured seconds, a panel a set; matplotlib is imported when drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from simpar.plot.frame import new_figure
from simpar.validate.run import SetAnswer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS: Final = 3
_HEIGHT: Final = 4.2
_BAND: Final = 0.1


def scatter(answers: Sequence[SetAnswer]) -> Figure:
    """A panel for each set: on the line a prediction is right, in the band within 10 %."""
    rows = -(-len(answers) // COLUMNS)
    figure = new_figure(_HEIGHT * rows)
    grid = figure.subplots(rows, min(COLUMNS, len(answers)), squeeze=False)
    figure.subplots_adjust(left=0.07, right=0.985, top=1 - 0.4 / (_HEIGHT * rows), bottom=0.55 / (_HEIGHT * rows),
                           hspace=0.35, wspace=0.25)  # fmt: skip
    axes = [one for line in grid for one in line]
    for panel, answer in zip(axes, answers, strict=False):
        _panel(panel, answer)
    for panel in axes[len(answers) :]:
        panel.set_visible(False)
    return figure


def _panel(panel: Axes, answer: SetAnswer) -> None:
    times = [time for pair in (*answer.pairs, *answer.fitted) for time in (pair.row.seconds, pair.seconds)]
    ends = (min(times, default=0.1) * 0.8, max(times, default=1.0) * 1.25)
    panel.fill_between(ends, [(1 - _BAND) * end for end in ends], [(1 + _BAND) * end for end in ends], color='0.9',
                       label=f'within {_BAND:.0%}')  # fmt: skip
    panel.plot(ends, ends, color='0.4', linewidth=0.8)
    for pairs, colour, name in ((answer.fitted, '#999999', 'kept for fitting'), (answer.pairs, '#0072B2', 'scored')):
        panel.scatter(
            [pair.row.seconds for pair in pairs], [pair.seconds for pair in pairs], s=9, color=colour, label=name
        )
    panel.set(xscale='log', yscale='log', xlim=ends, ylim=ends)
    score = answer.score
    told = f': mean error {score.mape:.0%} of {score.rows}' if score else ''
    panel.set_title(f'{answer.name}{told}', fontsize=9)
    panel.set_xlabel('measured step', fontsize=8)
    panel.set_ylabel('predicted step', fontsize=8)
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_formatter('{x:g} s')
    panel.tick_params(labelsize=7)
    panel.legend(fontsize=7, frameon=False, loc='upper left')
