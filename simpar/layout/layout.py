"""Layouts: how a tensor lies on the ranks, sharded along its dims, replicated, or still to be summed.

An axis counts the ranks that are a stride apart, as a digit of a number counts its powers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simpar.errors import Infeasible

Alias = str | None | Sequence[str]
"""What shards a tensor dim in ``Layout``: an alias, several from the outermost on, or nothing (None or ``'None'``)."""


@dataclass(frozen=True)
class TensorLayout:
    """One tensor on ``world`` ranks.

    Arguments:
        dims: for each tensor dim the axes that shard it, the outermost first.
        partial: axes over which the true value is still to be summed. Along all other axes the tensor is replicated.

    Axes are kept merged, so that two layouts are equal if and only if every rank has the same slice, however their
    device matrices are written. Raises ``Infeasible`` where an axis is used twice.
    """

    world: int
    dims: tuple[tuple[Axis, ...], ...]
    partial: tuple[Axis, ...] = ()

    def __post_init__(self) -> None:
        # A frozen dataclass has no other way to normalise its fields; what follows from them comes along.
        vars(self).update(_normal(self.world, self.dims, self.partial))

    @cached_property
    def sharding_axes(self) -> tuple[Axis, ...]:
        """All axes that shard a dim."""
        return tuple(chain.from_iterable(self.dims))

    @cached_property
    def unsharded_axes(self) -> tuple[Axis, ...]:
        """The axes that shard nothing: along them a tensor is replicated, and its gradient has parts to be summed."""
        return complement(self.world, self.sharding_axes)

    @cached_property
    def replicated_axes(self) -> tuple[Axis, ...]:
        """The axes along which all ranks have the same."""
        return complement(self.world, [*self.sharding_axes, *self.partial])

    @cached_property
    def shard_counts(self) -> tuple[int, ...]:
        """Into how many slices each dim is split: the strategy."""
        return tuple(size_of(dim) for dim in self.dims)

    def without_partial(self) -> TensorLayout:
        """The same shards without pending sums."""
        return TensorLayout(self.world, self.dims)

    def with_partial(self, axes: Sequence[Axis]) -> TensorLayout:
        """The same shards with pending sums over these axes."""
        return TensorLayout(self.world, self.dims, tuple(axes))

    def slice_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of one rank's slice of a tensor of this shape.

        Raises ``Infeasible`` where a dim does not divide.
        """
        if len(shape) != len(self.dims):
            raise Infeasible(f'a layout of {len(self.dims)} dims cannot lay out a tensor of shape {tuple(shape)}')
        for dim, (length, count) in enumerate(zip(shape, self.shard_counts, strict=True)):
            if length % count:
                raise Infeasible(f'dim {dim} of {tuple(shape)} cannot be split into {count} equal slices')
        return tuple(length // count for length, count in zip(shape, self.shard_counts, strict=True))

    def index(self, rank: int) -> tuple[int, ...]:
        """Which slice of each dim a rank has."""
        found = []
        for dim in self.dims:
            place = 0
            for axis in dim:
                # The outermost axis counts most, as digits of a number do.
                place = place * axis.size + axis.position(rank)
            found.append(place)
        return tuple(found)

    def slices(self, shape: Sequence[int], rank: int) -> tuple[slice, ...]:
        """Where a rank's slice lies in the full tensor."""
        sizes = self.slice_shape(shape)
        return tuple(slice(at * size, (at + 1) * size) for at, size in zip(self.index(rank), sizes, strict=True))


# Layouts are made for every tensor that is registered, and few of them differ.
@lru_cache(maxsize=2**12)
def _normal(world: int, dims: tuple[tuple[Axis, ...], ...], partial: tuple[Axis, ...]) -> dict[str, Any]:
    """Dims and pending sums with merged axes, and the cached properties."""
    dims = tuple(merged(dim) for dim in dims)
    # A sum has no order, so one order is chosen: then equal sums are equal tuples. The axes of a dim do have one.
    partial = merged(sorted(partial, key=lambda axis: -axis.stride))
    sharding = tuple(chain.from_iterable(dims))
    return {
        'dims': dims,
        'partial': partial,
        'sharding_axes': sharding,
        'unsharded_axes': complement(world, sharding),
        'replicated_axes': complement(world, [*sharding, *partial]),
        'shard_counts': tuple(size_of(dim) for dim in dims),
    }


def replicated(world: int, dims: int) -> TensorLayout:
    """Every rank has all of a tensor of so many dims."""
    return TensorLayout(world, ((),) * dims)


def mapped(
    world: int,
    matrix: Sequence[int],
    tensor_map: Sequence[Sequence[int]],
    partial: Sequence[int] = (),
) -> TensorLayout:
    """The layout that a device matrix and a tensor map give.

    Arguments:
        matrix: sizes, outermost first. Where its product is less than ``world``, the calculation is replicated on an
            axis appended on the right, as MindSpore 2.x does.
        tensor_map: for each tensor dim the places in ``matrix`` that shard it, outermost first.
        partial: places over which sums are pending.

    Raises ``Infeasible`` where the matrix does not divide the ranks.
    """
    count = prod(matrix)
    if count < 1 or world % count:
        raise Infeasible(f'a device matrix {tuple(matrix)} of {count} ranks does not divide {world} ranks')
    # Ranks beyond the matrix stand on the right, least significant: neighbours do the same work (MindSpore 2.x).
    axes = matrix_axes(matrix, world // count)
    dims = tuple(tuple(axes[place] for place in places) for places in tensor_map)
    return TensorLayout(world, dims, tuple(axes[place] for place in partial))


@dataclass(frozen=True)
class Layout:
    """A device matrix whose axes have names, as MindSpore's ``Layout((2, 2, 2), ('dp', 'sp', 'mp'))``.

    Called with one alias, several, or None for each tensor dim it gives the tensor's layout. Arguments: ``world``,
    ranks; 0: those of the matrix. Raises ``Infeasible`` where sizes and names do not match.
    """

    matrix: tuple[int, ...]
    aliases: tuple[str, ...]
    world: int = 0

    def __post_init__(self) -> None:
        if len(self.matrix) != len(self.aliases) or len(set(self.aliases)) != len(self.aliases):
            raise Infeasible(
                f'a device matrix {self.matrix} has {len(self.matrix)} axes, but the names are {self.aliases}; '
                'write one name for each axis, all different'
            )
        object.__setattr__(self, 'world', self.world or prod(self.matrix))

    def __call__(self, *dims: Alias, partial: Alias = None) -> TensorLayout:
        """The layout of a tensor, by what shards each of its dims."""
        tensor_map = [self._places(dim) for dim in dims]
        return mapped(self.world, self.matrix, tensor_map, self._places(partial))

    def axis(self, alias: str) -> Axis:
        """The axis of a name.

        Raises ``Infeasible`` where there is none of that name.
        """
        return matrix_axes(self.matrix, self.world // prod(self.matrix))[self._place(alias)]

    def _places(self, dim: Alias) -> list[int]:
        if dim is None or dim == 'None':
            return []
        return [self._place(alias) for alias in ([dim] if isinstance(dim, str) else dim)]

    def _place(self, alias: str) -> int:
        if alias not in self.aliases:
            raise Infeasible(f'no axis is called {alias!r}; there are {", ".join(self.aliases)}')
        return self.aliases.index(alias)


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
