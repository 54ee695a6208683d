"""What all pictures of a step share: colours, sizes, the answer as title, the legend, axes; how a file is written."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from simpar import files
from simpar.headline import short_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch
    from matplotlib.text import Text


# Dark: a finished picture on a dark ground, its colours as they were.


GROUND: Final = '#16171B'
"""The page's dark ground."""
DARK_ROW: Final = '#26292F'
TEXT: Final = '#E8E8EC'
SOFT: Final = '#A3A7B0'
_GREY: Final = 0.15
"""Most difference between red, green and blue of what is grey, which is ground or ink; all else is a colour."""


def darken(figure: Figure) -> None:
    """Exchange ground and ink of a picture; what is coloured, and letters on it, stay."""
    figure.set_facecolor(GROUND)
    for axes in figure.axes:
        axes.set_facecolor('none')
        for spine in axes.spines.values():
            spine.set_edgecolor(SOFT)
        axes.tick_params(colors=SOFT, labelcolor=TEXT)
        for artist in (*axes.lines, *axes.collections, *axes.patches):
            # Ink becomes light, and the light ground of a row dark.
            for what in ('facecolor', 'edgecolor') if hasattr(artist, 'get_facecolor') else ('color',):
                _exchange(artist, what)
        for text in _on_the_ground(axes):
            if _is_grey(text.get_color()):
                text.set_color(TEXT if _light(text.get_color()) < 0.3 else SOFT)
            if arrow := getattr(text, 'arrow_patch', None):
                arrow.set_color(TEXT)
    for text in (*figure.texts, *(one for legend in figure.legends for one in legend.get_texts())):
        text.set_color(TEXT)
    for legend in figure.legends:
        handles: list[Any] = [handle for handle in legend.legend_handles if hasattr(handle, 'get_edgecolor')]
        for handle in handles:
            if _is_grey(handle.get_edgecolor()):
                handle.set_edgecolor(TEXT if _light(handle.get_edgecolor()) < 0.3 else GROUND)


def _on_the_ground(axes: Axes) -> Iterator[Text]:
    """All letters but those inside of boxes, which are centred and clipped with them."""
    from matplotlib.text import Text

    yield from (axes.title, axes.xaxis.label, axes.yaxis.label, *axes.get_yticklabels())
    # Titles at the left and at the right are among them.
    texts = (one for one in axes.get_children() if isinstance(one, Text))
    yield from (one for one in texts if not (one.get_clip_on() and one.get_horizontalalignment() == 'center'))
    if legend := axes.get_legend():
        legend.get_frame().set_facecolor(GROUND)
        yield from legend.get_texts()


def _exchange(artist: Any, what: str) -> None:
    from matplotlib.colors import to_rgba_array

    colours = to_rgba_array(getattr(artist, f'get_{what}')())
    # Many colours at once are boxes, and their edges are gaps between them.
    if len(colours) != 1 or not colours[0][3] or not _is_grey(colours[0]):
        return
    light = _light(colours[0])
    row = 0.9 < light < 1 and what == 'facecolor'
    if new := TEXT if light < 0.3 else DARK_ROW if row else GROUND if light == 1 else '':
        getattr(artist, f'set_{what}')(new)


def _light(colour: Any) -> float:
    from matplotlib.colors import to_rgb

    return sum(to_rgb(colour)) / 3


def _is_grey(colour: Any) -> bool:
    from matplotlib.colors import to_rgb

    parts = to_rgb(colour)
    return max(parts) - min(parts) < _GREY


FORWARD: Final = '#0072B2'
BACKWARD: Final = '#009E73'
WEIGHT: Final = '#E69F00'
UPDATE: Final = '#CC79A7'
AGAIN: Final = '#F0E442'
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
MOST_ZOOMED: Final = 0.4
"""Of the step: a window that is longer is not shown larger, as it would repeat what stands above it."""
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
    files.write_atomically(path, buffer.getvalue())


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


def left_edge(names: Iterable[str], points: float) -> float:
    """The share of a figure's width that names of rows need at its left; a name may have several lines."""
    longest = max(len(line) for name in names for line in name.splitlines())
    # A letter of the default font is at most 0.6 of its size wide in the mean of a name.
    return max(0.075, (0.6 * points * longest / 72 + 0.15) / WIDTH)


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


@dataclass(frozen=True, slots=True)
class Page:
    """Whole steps from the top; below them, where there are ``windows``, each in its window.

    Arguments:
        steps: seconds of each step.
        rows: how many rows each has; row, inches of one.
        edges: left and right, as shares of the width.
        windows: of each step the seconds that are shown larger; empty where none are.
    """

    steps: list[float]
    rows: list[int]
    row: float
    edges: tuple[float, float]
    windows: list[tuple[float, float]]

    @property
    def height(self) -> float:
        """Inches."""
        rows = self.rows * (2 if self.windows else 1)
        return TOP + BOTTOM + self.row * sum(rows) + BETWEEN * (len(rows) - 1)

    def frames(self, figure: Figure) -> list[Frame]:
        """Axes at their places, from the top."""
        longest, (left, right) = max(self.steps), self.edges
        scale, _ = time_unit(longest)
        panels, bottom = [], self.height - TOP
        for index, window in enumerate([(0.0, longest)] * len(self.steps) + self.windows):
            high = self.row * self.rows[index % len(self.rows)]
            bottom -= high
            place = (left, bottom / self.height, right - left, high / self.height)
            panels.append(Frame(figure.add_axes(place), window, scale, WIDTH * (right - left)))
            bottom -= BETWEEN
        return panels

    def finish(self, frames: list[Frame]) -> None:
        """Ends of steps, what windows show larger, the difference of two steps, and the name of the axis."""
        # Only the panels of whole steps have a window to outline.
        for frame, window in zip(frames, self.windows, strict=False):
            ends = (end * frame.scale for end in window)
            frame.axes.axvspan(*ends, facecolor='none', edgecolor='black', linewidth=1.1, zorder=5)
        for frame, step in zip(frames, self.steps, strict=False):
            frame.axes.axvline(step * frame.scale, color='black', linewidth=1.4)
        frames[-1].axes.set_xlabel('time in the step', fontsize=9, labelpad=2)
        # An arrow shorter than a hundredth of the width has no room for its heads.
        if len(self.steps) > 1 and abs(self.steps[0] - self.steps[1]) > 0.01 * max(self.steps):
            since, until = min(self.steps), max(self.steps)
            frames[self.steps.index(since)].saving(since, until, f'{short_time(until - since)} less')
