"""What a rank holds over a steady step: of a plan below its baseline, on one scale, with the peak and its op.

Bytes are stacked: what stays (states, parameters), gradients, and activations by the operator that wrote them. A dashed
line is the memory of a device. matplotlib is imported when a figure is drawn, and its global state is never touched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from simpar.memory import Memory, RankMemory
from simpar.plot.frame import new_figure
from simpar.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Bytes = NDArray[np.int64]
OTHERS: Final = 'other activations'
_KINDS: Final = {
    'state': ('optimizer states', '#4D4D4D'),
    'parameter': ('parameters', '#8C8C8C'),
    'gradient': ('gradients', '#CC79A7'),
    'buffer': ('communication buffers', '#D55E00'),
    'input': ('inputs', '#8B5A2B'),
}
_OPERATORS: Final = ('#0072B2', '#56B4E9', '#009E73', '#E69F00', '#F0E442')
"""Okabe and Ito's palette, for the operators whose outputs take most; the rest shares a pale colour."""
_REST: Final = '#D9E6EE'
_WIDTH, _PANEL, _BETWEEN, _TOP, _BOTTOM = 13.0, 2.6, 0.5, 1.0, 0.55
"""Inches: of the figure, of a panel, above a panel, for title and legend, for the axis at the bottom."""
_LEFT, _RIGHT = 0.065, 0.985


def memory_over_time(
    plan: Memory,
    baseline: Memory | None = None,
    *,
    names: tuple[str, str] = ('plan', 'baseline'),
    rank: int | None = None,
    size: float | None = None,
) -> Figure:
    """Bytes over the time of a step, of a plan and, above it, of its baseline.

    Arguments:
        names: what to call the plan and the baseline.
        rank: the rank to show; unless given, the fullest of each side.
        size: bytes of a device.
    """
    sides = [(names[1], baseline), (names[0], plan)] if baseline else [(names[0], plan)]
    shown = [(name, side.fullest if rank is None else side.rank(rank)) for name, side in sides]
    page = _Page(shown, rank, size, _colours([held for _, held in shown]))
    figure = new_figure(page.height)
    page.draw(figure)
    return figure


def _colours(ranks: list[RankMemory]) -> dict[str, str]:
    """The layers from the bottom up: kinds, the operators that take most at some time, and what is left."""
    most: dict[str, int] = {}
    for line in (rank.by_operator() for rank in ranks):
        for name, size in zip(line.names, line.bytes.max(axis=0).tolist(), strict=True):
            if name not in _KINDS:
                most[name] = max(most.get(name, 0), size)
    # By their largest moment: an operator that is large only once decides the peak all the same.
    chosen = sorted(most, key=lambda operator: -most[operator])[: len(_OPERATORS)]
    colours = {kind: colour for kind, (_, colour) in _KINDS.items()}
    colours |= dict(zip(chosen, _OPERATORS, strict=False))
    return {**colours, OTHERS: _REST}


@dataclass(frozen=True, slots=True)
class _Page:
    """One panel for each (name, what a rank holds), from the top; ``asked``, the rank that was asked for."""

    shown: list[tuple[str, RankMemory]]
    asked: int | None
    size: float | None
    colours: dict[str, str]

    @property
    def height(self) -> float:
        """Inches."""
        return _TOP + _BOTTOM + len(self.shown) * (_PANEL + _BETWEEN) - _BETWEEN

    def draw(self, figure: Figure) -> None:
        """Draw everything."""
        longest = max(rank.step for _, rank in self.shown)
        highest = max(rank.peak.bytes for _, rank in self.shown)
        # The device's line is part of the picture where it is not so far up that it would press the rest flat.
        limit = self.size if self.size is not None and self.size < 2 * highest else None
        seconds, time_unit = _scale(longest, ((1.0, 's'), (1e-3, 'ms'), (1e-6, 'us')))
        unit, size_unit = _scale(highest, ((1e9, 'GB'), (1e6, 'MB'), (1e3, 'KB')))
        used: set[str] = set()
        for index, (name, rank) in enumerate(self.shown):
            bottom = (self.height - _TOP - _PANEL - index * (_PANEL + _BETWEEN)) / self.height
            axes = figure.add_axes((_LEFT, bottom, _RIGHT - _LEFT, _PANEL / self.height))
            axes.set_xlim(0, longest / seconds)
            axes.set_ylim(0, 1.12 * max(highest, limit or 0) / unit)
            axes.set_ylabel('held', fontsize=9)
            axes.xaxis.set_major_formatter(f'{{x:g}} {time_unit}')
            axes.yaxis.set_major_formatter(f'{{x:g}} {size_unit}')
            panel = _Panel(axes, rank, seconds, unit)
            used |= panel.draw(self.colours)
            number = rank.rank if self.asked is None else self.asked
            panel.frame(f'{name}: {_peak_text(rank, self.size)}; rank {number}', limit)
        axes.set_xlabel('time in the step', fontsize=9, labelpad=2)
        self._headline(figure, used)

    def _headline(self, figure: Figure, used: set[str]) -> None:
        """Title and legend."""
        from matplotlib.patches import Patch

        name, rank = self.shown[-1]
        text = f'{name}: {format_size(rank.peak.bytes)} at its peak'
        if len(self.shown) > 1:
            text += f'; {self.shown[0][0]}: {format_size(self.shown[0][1].peak.bytes)}'
        figure.text(0.012, 1 - 0.12 / self.height, text, fontsize=13, fontweight='bold', va='top')
        patches = [
            Patch(facecolor=colour, label=_KINDS[label][0] if label in _KINDS else label)
            for label, colour in self.colours.items()
            if label in used
        ]
        figure.legend(
            handles=patches, loc='upper left', bbox_to_anchor=(0.006, 1 - 0.38 / self.height), ncols=len(patches),
            frameon=False, fontsize=8.5, handlelength=1.5, columnspacing=1.5, borderpad=0.2,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Panel:
    """One rank; ``seconds`` and ``unit``, what a time and a size are divided by for the axes."""

    axes: Axes
    rank: RankMemory
    seconds: float
    unit: float

    def draw(self, colours: dict[str, str]) -> set[str]:
        """Stack the layers and point out the peak; returns what is to be seen."""
        line = self.rank.by_operator()
        layers: dict[str, Bytes] = {label: np.zeros(len(line.bytes), dtype=np.int64) for label in colours}
        for name, column in zip(line.names, line.bytes.T, strict=True):
            layers[name if name in layers else OTHERS] += column
        # Each edge twice, so that bytes are drawn as steps and not as slopes.
        edges = np.repeat(line.times, 2)[1:-1] / self.seconds
        floor = np.zeros(len(edges))
        for label, layer in layers.items():
            top = floor + np.repeat(layer, 2) / self.unit
            self.axes.fill_between(edges, floor, top, color=colours[label], linewidth=0)
            floor = top
        self.axes.plot(edges, floor, color='black', linewidth=0.6)
        self._peak()
        # Thinner layers cannot be seen, and would only fill the legend.
        least = 0.002 * self.rank.peak.bytes
        return {label for label, layer in layers.items() if layer.max() > least}

    def _peak(self) -> None:
        """A mark at the peak with its op."""
        peak = self.rank.peak
        where = peak.time / self.seconds, peak.bytes / self.unit
        self.axes.plot(*where, marker='v', color='black', markersize=6, clip_on=False)
        # The label goes to the side that has room.
        right = where[0] > 0.5 * self.axes.get_xlim()[1]
        self.axes.annotate(
            f'{peak.action}, {format_size(peak.bytes)}', where, xytext=(-8 if right else 8, 4),
            textcoords='offset points', ha='right' if right else 'left', fontsize=8.5,
        )  # fmt: skip

    def frame(self, heading: str, limit: float | None) -> None:
        """Heading, axes, the end of the step and the device's memory."""
        axes = self.axes
        axes.set_title(heading, loc='left', fontsize=9.5, pad=4)
        axes.tick_params(labelsize=8, length=3)
        for side in ('top', 'right'):
            axes.spines[side].set_visible(False)
        axes.axvline(self.rank.step / self.seconds, color='black', linewidth=1.4)
        if limit is not None:
            axes.axhline(limit / self.unit, color='#D55E00', linewidth=1.2, linestyle='--')
            axes.text(0.004, limit / self.unit, f'device: {format_size(limit)}', fontsize=8, color='#D55E00',
                      va='bottom', transform=axes.get_yaxis_transform())  # fmt: skip


def _peak_text(rank: RankMemory, size: float | None) -> str:
    """How much of the device a rank's peak takes, and what of it always stays."""
    share = '' if size is None else f' ({rank.peak.bytes / size * 100:.3g} % of the device)'
    stays = f', of which {format_size(rank.always)} always'
    return f'peak {format_size(rank.peak.bytes)}{share}{stays}'


def _scale(value: float, steps: tuple[tuple[float, str], ...]) -> tuple[float, str]:
    """The unit that a value is told in, as (size, name)."""
    return next(((size, name) for size, name in steps if value >= size), steps[-1])
