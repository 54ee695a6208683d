"""Tables: seconds between measured rows, in logarithms, exact on the rows themselves.

Between rows of a grid a power law is assumed, so that log(seconds) is linear in log(size) along each axis; where the
work is a product of the sizes this is the same as interpolating the efficiency. Points that form no grid (``Scatter``)
are a formula times the factor by which near points miss it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

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


LATENCY: Final = 4096
"""Bytes that take little more than their latency: rows that begin there hold for fewer."""


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
        self.smallest = ordered[0][0]
        # Small messages scatter; the fastest of all is the best guess at latency.
        self.alpha = min(seconds for _, seconds in ordered)
        if line and len(ordered) > 1:
            (small, least), (large, most) = ordered[:2]
            self.alpha = max(0.0, min(self.alpha, least - (most - least) / (large - small) * small))
        rates = [seconds / size for size, seconds in ordered]
        self.best = min([*rates, (self._slowest - self.alpha) / self._largest])

    def is_outside(self, size: float) -> bool:
        """Whether rows say nothing of a size: below a smallest that is more than latency, and beside a single one."""
        return (size < self.smallest and self.smallest > LATENCY) or (size > self._largest == self.smallest)

    def __call__(self, size: float) -> float:
        """Seconds of a message of this many bytes."""
        if size > self._largest:
            return self.alpha + (self._slowest - self.alpha) * size / self._largest
        return self._grid(size)


Array = NDArray[np.float64]
Sizes = Callable[..., Iterable[float]]

NEAREST: Final = 64
"""Points that one is told from: further ones change it no more."""
MOST_FITTED: Final = 150
"""Points by which it is judged how far a factor reaches; the cost grows with the cube."""
WHOLE: Final = 1.0
"""Variance of the one factor that all points share, in log(seconds): a device may be e times as slow as its formula."""
NOISE: Final = 0.03
"""What measurements scatter by before anything is fitted, in log(seconds)."""
SPREAD: Final = 0.1
"""How far factors lie apart before anything is fitted, in log(seconds); they reach as far as e times the size."""
ROUNDS: Final = 4
GAIN: Final = 1e-6
"""A fit that is better by less is no better: the last digits differ from machine to machine."""


def _nothing(*_: float) -> Iterable[float]:
    return ()


class Scatter:
    """Seconds near measured points that form no grid, by kriging.

    The factors by which measured points miss a model are taken to be alike where points lie near: in log(size) along
    each axis, and in what ``waves`` tells of them. How far they reach along each is fitted on these points alone, by
    their likelihood (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, 5.4).

    Arguments: ``rows`` of the sizes, then seconds; ``model``, sizes → seconds; ``waves``, sizes → other numbers that
    tell which points are alike, as many for each.
    """

    def __init__(self, rows: Iterable[Row], model: Callable[..., float], waves: Sizes = _nothing) -> None:
        self._model, self._waves = model, waves
        self._seconds = {tuple(row[:-1]): row[-1] for row in rows}
        self._points = self._places(self._seconds)
        self._misses = np.array([math.log(seconds / model(*point)) for point, seconds in self._seconds.items()])
        # Any part of a table is spread over it.
        part = np.random.default_rng(0).permutation(len(self._misses))[:MOST_FITTED]
        self._law = _fitted([places[part] for places in self._points], self._misses[part])

    def __call__(self, *point: float) -> float:
        """Seconds at a point."""
        exact = self._seconds.get(point)
        return self._model(*point) * math.exp(self._factor(point)) if exact is None else exact

    def _places(self, points: Collection[Row]) -> list[Array]:
        """Where points lie: in log(size), and by their waves."""
        logs = np.log(np.array([*points], dtype=float))
        waves = np.array([tuple(self._waves(*point)) for point in points], dtype=float)
        return [logs, waves] if waves.shape[1] else [logs]

    def _factor(self, point: Row) -> float:
        alike = self._law.alike(_squares(self._places([point]), self._points))[0]
        near = np.sort(np.argsort(-alike, kind='stable')[:NEAREST])
        among = [places[near] for places in self._points]
        covariance = self._law.measured(_squares(among, among))
        pivots, (mine, misses) = _eliminated(covariance, alike[near], self._misses[near])
        return float((mine * misses / pivots).sum())


@dataclass(frozen=True, slots=True)
class _Law:
    """How alike the factors of two points are.

    Arguments: ``noise`` of a measurement; for each kind of place how far factors lie apart, and how far they reach.
    """

    noise: float
    spreads: Sequence[float]
    reaches: Sequence[Array]

    def alike(self, squares: Sequence[Array]) -> Array:
        """Covariance of the factors of points, by the squares of their distances along each axis."""
        covariance = np.full(squares[0].shape[:2], WHOLE)
        for square, spread, reach in zip(squares, self.spreads, self.reaches, strict=True):
            covariance += spread**2 * np.exp(-np.sqrt(np.einsum('ijk,k->ij', square, reach**-2)))
        return covariance

    def measured(self, squares: Sequence[Array]) -> Array:
        """The same of points that were measured."""
        covariance = self.alike(squares)
        return covariance + self.noise**2 * np.eye(len(covariance))

    def likelihood(self, squares: Sequence[Array], misses: Array) -> float:
        """Log of it, up to a constant."""
        pivots, (misses,) = _eliminated(self.measured(squares), misses)
        if pivots.min() <= 0:
            return -math.inf
        return -0.5 * float((misses**2 / pivots + np.log(pivots)).sum())


def _eliminated(covariance: Array, *told: Array) -> tuple[Array, Array]:
    """Pivots D of a covariance L·D·Lᵀ, and L⁻¹ of each of the others: xᵀ·covariance⁻¹·y is the sum of theirs over D.

    Not by LAPACK: its threads take longer than such small systems, and its digits differ from machine to machine.
    """
    rest = np.column_stack([covariance, *told])
    for place in range(len(rest) - 1):
        head = rest[place, place:].copy()
        rest[place + 1 :, place:] -= np.multiply.outer(rest[place + 1 :, place] / head[0], head)
    return rest.diagonal().copy(), rest[:, len(rest) :].T


def _squares(one: Sequence[Array], other: Sequence[Array]) -> list[Array]:
    """Of the distances of all points of one from all of the other, along each axis of each kind of place."""
    return [(mine[:, None] - its) ** 2 for mine, its in zip(one, other, strict=True)]


def _fitted(points: Sequence[Array], misses: Array) -> _Law:
    """The law that makes what was measured likeliest, found along one number after the other."""
    axes = [places.shape[1] for places in points]
    squares = _squares(points, points)
    start = np.array([NOISE, *[SPREAD] * len(axes), *[1.0] * sum(axes)])

    def judged(powers: Array) -> float:
        # Each number is as likely e times larger or smaller: few points cannot tell all of them.
        return _law(start * np.exp(powers), axes).likelihood(squares, misses) - 0.5 * float((powers**2).sum())

    return _law(start * np.exp(_climbed(judged, len(start))), axes)


def _law(numbers: Array, axes: Sequence[int]) -> _Law:
    kinds = len(axes)
    reaches = np.split(numbers[1 + kinds :], list(accumulate(axes))[:-1])
    return _Law(float(numbers[0]), [float(spread) for spread in numbers[1 : 1 + kinds]], reaches)


def _climbed(judged: Callable[[Array], float], numbers: int) -> Array:
    """Numbers that are judged best, from zeros: steps along each, longer where they help and shorter where not."""
    here, steps = np.zeros(numbers), np.full(numbers, 0.7)
    best = judged(here)
    for place in [*range(numbers)] * ROUNDS:
        for sign in (1.0, -1.0):
            there = here.copy()
            there[place] += sign * steps[place]
            if (value := judged(there)) > best + GAIN:
                here, best = there, value
                steps[place] *= 1.3
                break
        else:
            steps[place] *= 0.5
    return here
