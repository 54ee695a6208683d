"""picture: step and memory of predicted plans, cost and time of sizes; matplotlib is imported when drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from simpar.planner.answer import Answer, Ranked
from simpar.planner.sizes import Size, Sizes
from simpar.planner.words import words
from simpar.plot.frame import EXPOSED, FORWARD, HIDDEN, new_figure, time_unit, title
from simpar.units import format_count, format_size, format_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HEIGHT: Final = 5.0
_PLACE: Final = (0.07, 0.12, 0.9, 0.72)
_NAMED: Final = 6
"""Plans of the front that have their words in the picture."""
_FAR: Final = 3.0
"""Plans that are slower than so many times the fastest are not drawn."""


def front_picture(answer: Answer) -> Figure:
    """Step and peak memory of every predicted plan, and the front. Raises ``ValueError`` where no plan is known."""
    best, choice = answer.best, answer.choice
    if best is None or choice is None:
        raise ValueError('no plan is known, so there is nothing to draw')
    figure = new_figure(_HEIGHT)
    axes = figure.add_axes(_PLACE)
    factor, unit = time_unit(best.step)
    near = [one for one in answer.ranking if one.step <= _FAR * best.step]
    front = [one for one in answer.front if one in near]
    _points(axes, [(one.step * factor, one.peak / 1e9) for one in near], HIDDEN, 'predicted plans')
    places = [(one.step * factor, one.peak / 1e9) for one in front]
    axes.plot(*zip(*places, strict=True), color=FORWARD, marker='o', drawstyle='steps-post', label='front')
    _points(axes, [(choice.step * factor, choice.peak / 1e9)], EXPOSED, 'the choice', size=90)
    for one, place in zip(front[:_NAMED], places, strict=False):
        axes.annotate(words(one), place, xytext=(6, 5), textcoords='offset points', fontsize=7.5)
    axes.set_xlabel(f'step, {unit}')
    axes.set_ylabel('peak memory, GB')
    axes.legend(frameon=False, fontsize=8.5)
    title(figure, _headline(choice), [])
    return figure


def sizes_picture(found: Sizes) -> Figure:
    """Cost and time on every number of devices. Raises ``ValueError`` where no plan is known on any."""
    front = found.front
    if not front:
        raise ValueError('no plan is known, so there is nothing to draw')
    figure = new_figure(_HEIGHT)
    axes = figure.add_axes(_PLACE)
    factor, unit = (1 / 86400, 'days of training') if found.budget else _step_unit(front[0])
    known = [one for one in found.found if one.choice and one.time < float('inf')]
    _points(axes, [(one.time * factor, one.cost) for one in known], HIDDEN, 'the best plan of a size')
    places = [(one.time * factor, one.cost) for one in front]
    axes.plot(*zip(*places, strict=True), color=FORWARD, marker='o', label='front')
    for one in known:
        axes.annotate(
            f'{one.devices}', (one.time * factor, one.cost), xytext=(6, 5), textcoords='offset points', fontsize=8.5
        )
    axes.set_xlabel(unit)
    axes.set_ylabel(found.unit)
    axes.legend(frameon=False, fontsize=8.5)
    quick, cheap = front[0], front[-1]
    text = f'quickest on {quick.devices} devices, cheapest on {cheap.devices}'
    title(figure, f'{text} ({format_count(cheap.cost)} {found.unit})', [])
    return figure


def _step_unit(one: Size) -> tuple[float, str]:
    factor, unit = time_unit(one.time)
    return factor, f'step, {unit}'


def _points(axes: Axes, places: list[tuple[float, float]], colour: str, label: str, size: float = 18) -> None:
    across, up = zip(*places, strict=True)
    axes.scatter(across, up, s=size, color=colour, label=label, zorder=3 if size > 50 else 1)


def _headline(choice: Ranked) -> str:
    return f'{words(choice)}: {format_time(choice.step)}, {format_size(choice.peak)}'
