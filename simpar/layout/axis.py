"""Axes of the ranks: an axis counts the ranks that are a stride apart, as a digit of a number counts its powers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simpar.errors import Infeasible

Ranks = NDArray[np.int32]


class Axis(NamedTuple):
    """Rank r stands at position (r // stride) mod size."""

    size: int
    stride: int

    def __str__(self) -> str:
        return f'{self.size}x{self.stride}'

    def position(self, rank: int) -> int:
        """The position of a rank."""
        return rank // self.stride % self.size


def matrix_axes(matrix: Sequence[int], below: int = 1) -> tuple[Axis, ...]:
    """The axes of a device matrix, outermost first.

    Arguments: ``below``, ranks that every element of the matrix stands for (the replicated calculation).
    """
    strides = [prod(matrix[index + 1 :]) * below for index in range(len(matrix))]
    return tuple(Axis(size, stride) for size, stride in zip(matrix, strides, strict=True))


def merged(axes: Iterable[Axis]) -> tuple[Axis, ...]:
    """The same positions by the fewest axes: those of size 1 left out, neighbours that count on made one."""
    return _merged(tuple(axes))


@lru_cache(maxsize=2**14)
def _merged(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    found: list[Axis] = []
    for axis in axes:
        # Merging is what makes equality of layouts mean equality of slices: (2x2, 2x1) and 4x1 are one thing.
        if found and found[-1].stride == axis.size * axis.stride:
            found[-1] = Axis(found[-1].size * axis.size, axis.stride)
        # An axis of one position tells nothing apart, so it would only make equal layouts look different.
        elif axis.size > 1:
            found.append(axis)
    return tuple(found)


def union(axes: Iterable[Axis], others: Iterable[Axis]) -> tuple[Axis, ...]:
    """The axes of both, outermost first, those that both have once."""
    first, second = tuple(axes), tuple(others)
    # What both have must stand once, or a sum over the union would count its ranks twice.
    joined = [*first, *minus(second, first)]
    return merged(sorted(joined, key=lambda axis: -axis.stride))


def minus(axes: Iterable[Axis], others: Iterable[Axis]) -> tuple[Axis, ...]:
    """What the others leave of the axes, outermost first.

    Raises ``Infeasible`` where axes cannot be parted alike (2 × 3 and 3 × 2 ranks).
    """
    return _minus(tuple(axes), tuple(others))


@lru_cache(maxsize=2**14)
def _minus(first: tuple[Axis, ...], second: tuple[Axis, ...]) -> tuple[Axis, ...]:
    # Both sides are parted at the same bounds, so that a set difference of their parts is exact.
    bounds = sorted({bound for axis in (*first, *second) for bound in (axis.stride, axis.size * axis.stride)})
    gone = {atom for axis in second for atom in _atoms(axis, bounds)}
    left = [atom for axis in first for atom in _atoms(axis, bounds) if atom not in gone]
    return merged(sorted(left, key=lambda axis: -axis.stride))


def _atoms(axis: Axis, bounds: Sequence[int]) -> list[Axis]:
    """An axis in parts that begin and end at the bounds inside of it, outermost first."""
    inside = [bound for bound in bounds if axis.stride < bound < axis.size * axis.stride]
    ends = [axis.stride, *inside, axis.size * axis.stride]
    # 2 × 3 and 3 × 2 ranks have a common bound at neither 2 nor 3: no digit of the one is a digit of the other.
    if any(high % low for low, high in pairwise(ends)):
        raise Infeasible(f'axis {axis} (positions x stride) cannot be parted at {inside}')
    return [Axis(high // low, low) for low, high in pairwise(ends)][::-1]


def size_of(axes: Iterable[Axis]) -> int:
    """Ranks in a group along axes."""
    return prod(axis.size for axis in axes)


def complement(world: int, axes: Iterable[Axis]) -> tuple[Axis, ...]:
    """The axes that the given ones leave of the ranks, outermost first.

    Raises ``Infeasible`` where the given axes share ranks or do not count them evenly.
    """
    return _complement(world, tuple(axes))


@lru_cache(maxsize=2**14)
def _complement(world: int, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    left, above = [], world
    # From the outermost on, what lies between two axes is free; a stride that does not divide it would share ranks.
    for axis in sorted(axes, key=lambda axis: -axis.stride):
        top = axis.size * axis.stride
        if top > above or above % top:
            raise Infeasible(f'axis {axis} (positions x stride) has no place in {world} ranks beside the other axes')
        left.append(Axis(above // top, top))
        above = axis.stride
    return merged([*left, Axis(above, 1)])


def rank_groups(world: int, axes: Sequence[Axis]) -> Ranks:
    """The groups of ranks that differ only along axes.

    Returns shape [groups, size]: by position, that along the first axis counting most; groups by their first rank.
    """
    ranks = np.arange(world, dtype=np.int32)
    position = np.zeros(world, dtype=np.int64)
    for axis in axes:
        position = position * axis.size + ranks // axis.stride % axis.size
    first = ranks - sum(ranks // axis.stride % axis.size * axis.stride for axis in axes)
    # lexsort sorts by its last key first: groups in the order of their first ranks, ranks by position inside.
    return ranks[np.lexsort((position, first))].reshape(-1, size_of(axes))


def group_of(rank: int, axes: Sequence[Axis]) -> tuple[int, ...]:
    """The ranks of a rank's group along axes, by position."""
    found = [rank - sum(axis.position(rank) * axis.stride for axis in axes)]
    for axis in axes:
        # The first axis must count most, as in ``rank_groups``: both list a group in the order of positions.
        found = [base + step * axis.stride for base in found for step in range(axis.size)]
    return tuple(found)


def axes_name(world: int, axes: Sequence[Axis]) -> str:
    """``world``, or positions x stride of each axis: ``4x2+2x1``."""
    return 'world' if size_of(axes) == world else '+'.join(map(str, axes))
