"""Interpolation between measured rows, in logarithms, exact on the rows themselves.

Between rows a power law is assumed, so that log(seconds) is linear in log(size) along each axis; where the work is a
product of the sizes this is the same as interpolating the efficiency.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

Row = Sequence[float]


class Axis(NamedTuple):
    """One axis of a grid: below its smallest and beyond its largest value time goes with these powers of the size."""

    name: str
    below: float = 0.0
    beyond: float = 1.0


class _Level(NamedTuple):
    """Logarithms of an axis's values, rising, and for each the level of the next axis or log(seconds)."""

    keys: list[float]
    below: list[_Level | float]


class Grid:
    """Seconds over a grid that may be ragged: each value of the first axis has its own values of the next.

    Arguments: ``axes``, outermost first; ``rows`` of one number for each axis, then seconds, all positive.
    """

    def __init__(self, axes: Sequence[Axis], rows: Iterable[Row]) -> None:
        self.axes = tuple(axes)
        logs = sorted(tuple(math.log(number) for number in row) for row in rows)
        self._top = _nest(logs, len(self.axes))

    def __call__(self, *point: float) -> float:
        """Seconds at a point."""
        return math.exp(self._value(self._top, 0, [math.log(size) for size in point]))

    def _value(self, level: _Level, depth: int, point: list[float]) -> float:
        keys, x = level.keys, point[depth]
        place = bisect_left(keys, x)
        # Outside of what was measured, or on its first value.
        if place == 0 or place == len(keys):
            edge = min(place, len(keys) - 1)
            axis = self.axes[depth]
            power = 0.0 if keys[edge] == x else axis.below if place == 0 else axis.beyond
            return self._inner(level.below[edge], depth, point) + power * (x - keys[edge])
        upper = self._inner(level.below[place], depth, point)
        # Exact on the rows: no rounding of a weight of 1 comes in.
        if keys[place] == x:
            return upper
        # A ragged grid: each value has its own values of the next axis, so both are looked up there.
        lower = self._inner(level.below[place - 1], depth, point)
        part = (x - keys[place - 1]) / (keys[place] - keys[place - 1])
        return lower + part * (upper - lower)

    def _inner(self, below: _Level | float, depth: int, point: list[float]) -> float:
        return below if isinstance(below, float) else self._value(below, depth + 1, point)


def _nest(rows: list[tuple[float, ...]], depth: int) -> _Level:
    """Rows, sorted, by their first number; a point that was measured twice counts with its last, the slowest, time."""
    groups: dict[float, list[tuple[float, ...]]] = {}
    for first, *rest in rows:
        groups.setdefault(first, []).append(tuple(rest))
    below: list[_Level | float] = [inner[-1][0] if depth == 1 else _nest(inner, depth - 1) for inner in groups.values()]
    return _Level(list(groups), below)


def is_grid(rows: Sequence[Row]) -> bool:
    """Whether every combination of the values of all axes was measured."""
    points = {tuple(row[:-1]) for row in rows}
    return len(points) == math.prod(len(set(axis)) for axis in zip(*points, strict=True))


class Curve:
    """Seconds of messages by their size.

    Arguments: ``rows`` of bytes and seconds. Below the smallest message its time holds; beyond the largest, what it
    takes above ``alpha`` grows with the size. ``line``: alpha is where the line through the two smallest messages
    begins, not the time of the quickest.
    """

    def __init__(self, rows: Iterable[Row], *, line: bool = False) -> None:
        # Of a size that was measured twice the slower time counts, as in a grid.
        ordered = sorted(dict(sorted((size, seconds) for size, seconds in rows)).items())
        self._grid = Grid([Axis('bytes')], ordered)
        self._largest, self._slowest = ordered[-1]
        # Small messages scatter; the fastest of all is the best guess at latency.
        self.alpha = min(seconds for _, seconds in ordered)
        if line and len(ordered) > 1:
            (small, least), (large, most) = ordered[:2]
            self.alpha = max(0.0, min(self.alpha, least - (most - least) / (large - small) * small))
        rates = [seconds / size for size, seconds in ordered]
        self.best = min([*rates, (self._slowest - self.alpha) / self._largest])

    def __call__(self, size: float) -> float:
        """Seconds of a message of this many bytes."""
        if size > self._largest:
            return self.alpha + (self._slowest - self.alpha) * size / self._largest
        return self._grid(size)
