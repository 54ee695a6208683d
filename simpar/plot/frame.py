"""What all pictures of a step share: colours, sizes, the answer as title, the legend, axes; how a file is written."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from simpar.files import write_atomically
from simpar.plot.dark import darken
from simpar.units import format_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

FORWARD: Final = '#0072B2'
BACKWARD: Final = '#009E73'
WEIGHT: Final = '#E69F00'
UPDATE: Final = '#CC79A7'
HIDDEN: Final = '#A9A9A9'
EXPOSED: Final = '#D55E00'
"""Okabe and Ito's palette, which the colour-blind tell apart."""
HATCH: Final = '/////'
"""What exposed communication carries besides its colour."""
ROW: Final = '#F4F4F4'
"""The ground of a row, where nothing happens."""
WIDTH: Final = 13.0
BETWEEN: Final = 0.55
TOP: Final = 1.0
BOTTOM: Final = 0.55
"""Inches: of the figure, above a panel, for title and legend, for the axis at the bottom."""
LARGE: Final = 13.0
LONG: Final = 112
"""The title's size in points, and how many letters of it fill the figure."""


Colour = tuple[float, float, float]
"""Red, green and blue from 0 to 1."""


def rgb(colour: str, white: float = 0.0) -> Colour:
    """``#RRGGBB`` mixed with a share of white."""
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return red + (1 - red) * white, green + (1 - green) * white, blue + (1 - blue) * white


def new_figure(height: float) -> Figure:
    """An empty figure, so many inches high, that leaves matplotlib's global state alone."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    class Picture(Figure):
        """A figure that shows itself as the last value of a notebook's cell."""

        def _repr_png_(self) -> bytes:
            # Jupyter knows matplotlib's figures only once ``pyplot`` is imported.
            buffer = io.BytesIO()
            self.savefig(buffer, format='png')
            return buffer.getvalue()

    # Not ``pyplot``, which keeps figures alive and needs a display on some systems.
    figure = Picture(figsize=(WIDTH, height), dpi=120)
    FigureCanvasAgg(figure)
    return figure


def write_figure(path: Path, figure: Figure) -> None:
    """Write a figure; the suffix says the format (png, svg, pdf), ``.dark.png`` that its ground is dark.

    The same figure gives the same bytes.

    Raises ``ValueError`` for a format that matplotlib does not know, ``OSError`` if it cannot be written.
    """
    from matplotlib import rc_context

    kind = path.suffix.removeprefix('.').lower() or 'png'
    # Files with a date would differ from run to run.
    unstamped = {'svg': {'Date': None}, 'pdf': {'CreationDate': None}}.get(kind)
    if path.with_suffix('').suffix == '.dark':
        darken(figure)
    buffer = io.BytesIO()
    # matplotlib names parts of an SVG at random unless it has a salt.
    with rc_context({'svg.hashsalt': 'simpar', 'hatch.linewidth': 0.7}):
        figure.savefig(buffer, format=kind, metadata=unstamped)
    write_atomically(path, buffer.getvalue())


def title(figure: Figure, text: str, patches: list[Patch]) -> None:
    """The answer, smaller where it is long, and below it the legend."""
    height = float(figure.get_size_inches()[1])
    # Smaller rather than cut off: the title is the answer.
    size = LARGE * min(1.0, LONG / len(text))
    figure.text(0.012, 1 - 0.12 / height, text, fontsize=size, fontweight='bold', va='top')
    figure.legend(
        handles=patches, loc='upper left', bbox_to_anchor=(0.006, 1 - 0.38 / height), ncols=len(patches),
        frameon=False, fontsize=8.5, handlelength=1.5, columnspacing=1.5, borderpad=0.2,
    )  # fmt: skip


UNITS: Final = {1.0: 's', 1e3: 'ms', 1e6: 'us', 1e9: 'ns'}
"""Units of an axis by what seconds are multiplied with."""


def time_unit(seconds: float) -> tuple[float, str]:
    """What to multiply seconds with for the axis, and its name."""
    # The largest unit in which the step is at least one.
    return next(((factor, name) for factor, name in UNITS.items() if seconds * factor >= 1), (1e9, 'ns'))


@dataclass(frozen=True, slots=True)
class Frame:
    """The axes of one panel with rows, in a window of time.

    Arguments:
        window: seconds.
        scale: what seconds are multiplied with for the axis.
        inches: its width.
    """

    axes: Axes
    window: tuple[float, float]
    scale: float
    inches: float

    def draw(self, heading: str, rows: list[str], half: float) -> None:
        """The axes, the names of the rows and their ground; ``half`` of a row's height, which is 1 with its gap."""
        axes = self.axes
        axes.set_xlim(self.window[0] * self.scale, self.window[1] * self.scale)
        # Upside down, so that the first row is at the top.
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_yticks(range(len(rows)), rows, fontsize=9)
        axes.tick_params(axis='y', length=0)
        axes.tick_params(axis='x', labelsize=8, length=3)
        unit = UNITS[self.scale]
        axes.xaxis.set_major_formatter(lambda value, _: f'{value:g} {unit}')
        for side in ('top', 'right', 'left'):
            axes.spines[side].set_visible(False)
        axes.set_title(heading, loc='left', fontsize=9.5, pad=4)
        for row in range(len(rows)):
            axes.axhspan(row - half, row + half, facecolor=ROW, linewidth=0, zorder=0)

    def outline(self, window: tuple[float, float]) -> None:
        """Frame a window that another panel shows larger."""
        left, right = window[0] * self.scale, window[1] * self.scale
        self.axes.axvspan(left, right, facecolor='none', edgecolor='black', linewidth=1.1, zorder=5)

    def end_of_step(self, step: float) -> None:
        """A line where the step ends."""
        self.axes.axvline(step * self.scale, color='black', linewidth=1.4)

    def saving(self, since: float, until: float, text: str) -> None:
        """An arrow from the end of the step to a later time, with text over it."""
        middle = sum(self.axes.get_ylim()) / 2
        ends = since * self.scale, until * self.scale
        arrow: dict[str, Any] = {'arrowstyle': '<->', 'shrinkA': 0, 'shrinkB': 0, 'linewidth': 1.0}
        self.axes.annotate('', (ends[0], middle), (ends[1], middle), arrowprops=arrow)
        if self.letters(until - since, 8.0) > len(text) + 1:
            self.axes.text(sum(ends) / 2, middle - 0.1, text, ha='center', va='bottom', fontsize=8)

    def letters(self, seconds: float, points: float) -> float:
        """How many letters of a size a time has room for."""
        # A letter of the default font is about 0.55 of its size wide.
        return self.points(seconds) / (0.55 * points)

    def points(self, seconds: float) -> float:
        """How wide a time is drawn, in points of 1/72 inch."""
        return seconds / (self.window[1] - self.window[0]) * self.inches * 72


def saving(frames: list[Frame], steps: list[float]) -> None:
    """Point out, on the shorter of two steps, the difference to the longer."""
    # An arrow shorter than a hundredth of the width has no room for its heads.
    if len(steps) > 1 and abs(steps[0] - steps[1]) > 0.01 * max(steps):
        shorter = steps.index(min(steps))
        frames[shorter].saving(min(steps), max(steps), f'{format_time(max(steps) - min(steps))} less')
