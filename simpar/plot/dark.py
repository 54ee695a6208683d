"""Dark: a finished picture on a dark ground, its colours as they were."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

GROUND: Final = '#16171B'
"""The page's dark ground."""
ROW: Final = '#26292F'
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
            _lit(artist)
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
    yield from (axes.title, axes.xaxis.label, axes.yaxis.label, *axes.get_yticklabels())
    for name in ('_left_title', '_right_title'):
        yield getattr(axes, name)
    yield from (one for one in axes.texts if not (one.get_clip_on() and one.get_horizontalalignment() == 'center'))
    if legend := axes.get_legend():
        legend.get_frame().set_facecolor(GROUND)
        yield from legend.get_texts()


def _lit(artist: Any) -> None:
    """Ink becomes light, and the light ground of a row dark."""
    if hasattr(artist, 'get_facecolor'):
        _exchange(artist, 'facecolor')
        _exchange(artist, 'edgecolor')
    else:
        _exchange(artist, 'color')


def _exchange(artist: Any, what: str) -> None:
    from matplotlib.colors import to_rgba_array

    found = to_rgba_array(getattr(artist, f'get_{what}')())
    # Many colours at once are boxes, and their edges are gaps between them.
    if len(found) != 1 or not found[0][3] or not _is_grey(found[0]):
        return
    light = _light(found[0])
    if light < 0.3:
        getattr(artist, f'set_{what}')(TEXT)
    elif 0.9 < light < 1 and what == 'facecolor':
        getattr(artist, f'set_{what}')(ROW)
    elif light == 1:
        getattr(artist, f'set_{what}')(GROUND)


def _light(colour: Any) -> float:
    from matplotlib.colors import to_rgb

    return sum(to_rgb(colour)) / 3


def _is_grey(colour: Any) -> bool:
    from matplotlib.colors import to_rgb

    parts = to_rgb(colour)
    return max(parts) - min(parts) < _GREY
