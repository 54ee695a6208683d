"""Layouts: how a tensor lies on the ranks, sharded along its dims, replicated, or still to be summed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from math import prod
from typing import Any

from simpar.errors import Infeasible
from simpar.layout.axis import Axis, complement, matrix_axes, merged, size_of

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
