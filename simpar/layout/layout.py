"""Layouts of tensors on axes of ranks, and frames in which two layouts have the same dims."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import chain, pairwise
from math import prod
from typing import Any, Final, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from simpar.errors import Infeasible
from simpar.program import COLLECTIVES

# Layouts: how a tensor lies on the ranks, sharded along its dims, replicated, or still to be summed.
#
# An axis counts the ranks that are a stride apart, as a digit of a number counts its powers.

Alias = str | None | Sequence[str]
"""What shards a tensor dim in ``Layout``: an alias, several from the outermost on, or nothing (None or ``'None'``)."""


@dataclass(frozen=True)
class TensorLayout:
    """One tensor on ``world`` ranks.

    Arguments:
        dims: for each tensor dim the axes that shard it, the outermost first.
        partial: axes over which the true value is still to be summed. Along all other axes the tensor is replicated.

    Attributes:
        sharding_axes: all axes that shard a dim.
        unsharded_axes: those that shard nothing: along them a tensor is replicated, and its gradient has parts to be
            summed.
        replicated_axes: those along which all ranks have the same.
        shard_counts: into how many slices each dim is split: the strategy.

    Axes are kept merged, so that two layouts are equal if and only if every rank has the same slice, however their
    device matrices are written. Raises ``Infeasible`` where an axis is used twice.
    """

    world: int
    dims: tuple[tuple[Axis, ...], ...]
    partial: tuple[Axis, ...] = ()
    sharding_axes: tuple[Axis, ...] = field(init=False, repr=False, compare=False)
    unsharded_axes: tuple[Axis, ...] = field(init=False, repr=False, compare=False)
    replicated_axes: tuple[Axis, ...] = field(init=False, repr=False, compare=False)
    shard_counts: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # A frozen dataclass has no other way to normalise its fields; what follows from them comes along.
        vars(self).update(_normal(self.world, self.dims, self.partial))

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
        indices = []
        for dim in self.dims:
            place = 0
            for axis in dim:
                # The outermost axis counts most, as digits of a number do.
                place = place * axis.size + axis.position(rank)
            indices.append(place)
        return tuple(indices)

    def slices(self, shape: Sequence[int], rank: int) -> tuple[slice, ...]:
        """Where a rank's slice lies in the full tensor."""
        sizes = self.slice_shape(shape)
        return tuple(slice(at * size, (at + 1) * size) for at, size in zip(self.index(rank), sizes, strict=True))


# Layouts are made for every tensor that is registered, and few of them differ.
@lru_cache(maxsize=2**12)
def _normal(world: int, dims: tuple[tuple[Axis, ...], ...], partial: tuple[Axis, ...]) -> dict[str, Any]:
    """Dims and pending sums with merged axes, and what follows from them."""
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
    world: int, matrix: Sequence[int], tensor_map: Sequence[Sequence[int]], partial: Sequence[int] = ()
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

    Called with one alias, several, or None for each tensor dim it gives the tensor's layout. Arguments: ``aliases``,
    the keys of ``plan.device_matrix``, so that all differ; ``world``, ranks; 0: those of the matrix.
    """

    matrix: tuple[int, ...]
    aliases: tuple[str, ...]
    world: int = 0

    def __post_init__(self) -> None:
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
    joint_axes: list[Axis] = []
    for axis in axes:
        # Merging is what makes equality of layouts mean equality of slices: (2x2, 2x1) and 4x1 are one thing.
        if joint_axes and joint_axes[-1].stride == axis.size * axis.stride:
            joint_axes[-1] = Axis(joint_axes[-1].size * axis.size, axis.stride)
        # An axis of one position tells nothing apart, so it would only make equal layouts look different.
        elif axis.size > 1:
            joint_axes.append(axis)
    return tuple(joint_axes)


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
    ranks = [rank - sum(axis.position(rank) * axis.stride for axis in axes)]
    for axis in axes:
        # The first axis must count most, as in ``rank_groups``: both list a group in the order of positions.
        ranks = [base + step * axis.stride for base in ranks for step in range(axis.size)]
    return tuple(ranks)


def axes_name(world: int, axes: Sequence[Axis]) -> str:
    """``world``, or positions x stride of each axis: ``4x2+2x1``."""
    return 'world' if size_of(axes) == world else '+'.join(map(str, axes))


# Frames: two layouts of a tensor made comparable, each of its dims parted so that one axis shards one part at most.
#
# ``[64, 64]`` split (8, 1) and then (2, 4) becomes [2, 32, 64]: the outer axis shards the first part both times, the
# inner axis the second part before and the third after. MindSpore calls this unifying device arrangement and shape. A
# frame may be finer than it must: the inner axis of four ranks as two of two, on [2, 2, 16, 2, 32].

# Steps of a redistribution: one collective, or local work, of the ranks along some axes.


StepKind = Literal['slice', 'pad', 'all_gather', 'all_to_all', 'all_reduce', 'reduce_scatter']
_TRANSPOSED: Final[dict[StepKind, str]] = {
    'slice': 'pad',
    'pad': 'slice',
    **{cast('StepKind', name): one.gradient for name, one in COLLECTIVES.items()},
}


@dataclass(frozen=True, slots=True)
class Step:
    """One step on a view of a tensor.

    Arguments:
        axes: whose ranks take part; a group's positions count along the first axis most.
        gather: for each axis the dim of the view along which the slices of its positions are joined (all_gather,
            all_to_all), or along which its own is put between zeros (pad); empty otherwise.
        split: for each axis the dim of the view of which its position is kept (slice, reduce_scatter), or along which
            the slices for its positions are split (all_to_all); empty otherwise.
        before, after: shape of a rank's slice of the view.
    """

    kind: StepKind
    axes: tuple[Axis, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    gather: tuple[int, ...] = ()
    split: tuple[int, ...] = ()

    @property
    def elements(self) -> Fraction:
        """Elements that one rank receives."""
        size, held = size_of(self.axes), prod(self.before)
        # An all-gather's message is the result, all others' what goes in: here ``held`` is what goes in.
        if self.kind == 'all_gather':
            return Fraction((size - 1) * held)
        # A ring all-reduce is a reduce-scatter and an all-gather, each (g − 1) / g of the slice.
        passes = COLLECTIVES[self.kind].passes if self.communicates else 0
        return Fraction(passes * (size - 1) * held, size)

    @property
    def communicates(self) -> bool:
        """Whether ranks exchange anything."""
        return self.kind not in ('slice', 'pad')

    def transposed(self) -> Step:
        """The step that takes the gradient back."""
        return replace(
            self,
            kind=cast('StepKind', _TRANSPOSED[self.kind]),
            before=self.after,
            after=self.before,
            # What was split on the way there is joined on the way back.
            gather=self.split,
            split=self.gather,
        )


State = tuple[Axis | None, ...]
"""For each part of a frame the axis that shards it."""
Bounds = set[int]


@dataclass(frozen=True)
class Frame:
    """A shape in parts.

    Arguments:
        full_shape: of the tensor, by dim.
        source, target: both layouts.
        shape: length of each part; ``dim_of``, the tensor dim that each belongs to.
        atoms: the axes that shard parts or have pending sums, each used once at most.
    """

    full_shape: tuple[int, ...]
    source: TensorLayout
    target: TensorLayout
    shape: tuple[int, ...]
    dim_of: tuple[int, ...]
    atoms: tuple[Axis, ...]

    @cached_property
    def begin(self) -> State:
        """The axis on each part in the source."""
        return self._state(self.source)

    @cached_property
    def end(self) -> State:
        """The axis on each part in the target."""
        return self._state(self.target)

    def local(self, state: State) -> tuple[int, ...]:
        """Lengths of a rank's slice."""
        return tuple(n // (axis.size if axis else 1) for n, axis in zip(self.shape, state, strict=True))

    def _state(self, layout: TensorLayout) -> State:
        state: list[Axis | None] = []
        for dim, axes in enumerate(layout.dims):
            parts = [index for index, of in enumerate(self.dim_of) if of == dim]
            held: list[Axis | None] = list(self.split(axes))
            state += held + [None] * (len(parts) - len(held))
        return tuple(state)

    def split(self, axes: Sequence[Axis]) -> tuple[Axis, ...]:
        """The atoms that axes are made of, outermost first."""
        return tuple(
            atom
            for axis in axes
            for atom in self.atoms
            if axis.stride <= atom.stride and atom.size * atom.stride <= axis.size * axis.stride
        )

    def parted(self, strides: Iterable[int]) -> Frame | None:
        """The coarsest frame as fine as this whose axes also begin at these strides; None where there is none."""
        return frame(self.full_shape, self.source, self.target, {*strides, *(atom.stride for atom in self.atoms)})

    def finest(self) -> Frame:
        """The frame whose axes have prime sizes, so far as they can be parted alike."""
        fine_frame = self
        for atom in self.atoms:
            # An axis that cannot be parted alike in both layouts stays as it is.
            fine_frame = fine_frame.parted(_strides_inside(atom)) or fine_frame
        return fine_frame


def frame(shape: tuple[int, ...], source: TensorLayout, target: TensorLayout, also: Iterable[int] = ()) -> Frame | None:
    """The coarsest frame of both layouts; None where their axes cannot be parted alike (2 × 3 and 3 × 2 ranks).

    Arguments: ``also``, strides within their axes at which these are to be parted.
    """
    layouts = (source, target)
    axes = [axis for layout in layouts for axis in (*layout.sharding_axes, *layout.partial)]
    strides: Bounds = {bound for axis in axes for bound in (axis.stride, axis.size * axis.stride)} | set(also)
    prefixes: list[Bounds] = [{1} for _ in shape]
    before = -1
    # A bound of one dim parts an axis, and that axis parts the other layout's dims: repeated until nothing is new.
    while before != len(strides) + sum(map(len, prefixes)):
        before = len(strides) + sum(map(len, prefixes))
        for layout in layouts:
            for bounds, dim in zip(prefixes, layout.dims, strict=True):
                if not _part(dim, bounds, strides):
                    return None
    # Bounds that do not divide one another give parts of no whole length.
    if any(high % low for bounds in (strides, *prefixes) for low, high in pairwise(sorted(bounds))):
        return None
    return Frame(shape, source, target, *_parts(shape, prefixes), _atoms_of(axes, strides))


def _part(dim: Sequence[Axis], prefixes: Bounds, strides: Bounds) -> bool:
    """Carry bounds of strides over to the parts of a dim and back; False where they do not meet."""
    outer = 1
    # The end of a dim's last axis is no bound: an axis may shard a part that is longer than its ranks.
    for axis in dim:
        end = outer * axis.size
        prefixes.add(outer)
        for bound in [b for b in strides if axis.stride < b < axis.size * axis.stride]:
            # The axis would have to be parted unevenly, as 2 × 3 ranks by a bound of 3 × 2.
            if (axis.size * axis.stride) % bound or bound % axis.stride:
                return False
            prefixes.add(outer * (axis.size * axis.stride // bound))
        for bound in [b for b in prefixes if outer < b < end]:
            if bound % outer or end % bound:
                return False
            strides.add(axis.stride * (end // bound))
        outer = end
    beyond = [b for b in prefixes if b > outer]
    # Behind the last axis a dim is one run of elements; a bound there is fine if it lies between the slices.
    return not beyond or min(beyond) % outer == 0


def _atoms_of(axes: Sequence[Axis], strides: Bounds) -> tuple[Axis, ...]:
    atoms = [Axis(high // low, low) for low, high in pairwise(sorted(strides))]
    used = [
        atom
        for atom in atoms
        if any(axis.stride <= atom.stride < axis.size * axis.stride for axis in axes) and atom.size > 1
    ]
    # Outermost first, as everywhere: axes were found from the smallest stride on.
    return tuple(reversed(used))


def _parts(shape: Sequence[int], prefixes: Sequence[Bounds]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The length of every part and the dim that it is of."""
    lengths: list[int] = []
    dim_of: list[int] = []
    for dim, (length, bounds) in enumerate(zip(shape, prefixes, strict=True)):
        outer = [high // low for low, high in pairwise(sorted(bounds))]
        lengths += [*outer, length // prod(outer)]
        dim_of += [dim] * (len(outer) + 1)
    return tuple(lengths), tuple(dim_of)


def _strides_inside(axis: Axis) -> Iterable[int]:
    """The strides at which an axis falls into prime sizes, the smallest outermost."""
    left, factor = axis.size, 2
    while left > 1:
        if left % factor:
            factor += 1
            continue
        left //= factor
        yield axis.stride * left


# Moves on a frame: where each axis stands, and the step that changes it.


NOWHERE = -1
"""The place of an axis that shards nothing."""


@dataclass
class Walk:
    """Steps from a state on, one after the other; only a search or a pass that makes a sequence holds one."""

    frame: Frame
    state: list[Axis | None]
    steps: list[Step]

    @classmethod
    def start(cls, frame: Frame, state: State) -> Walk:
        """Nothing done yet."""
        return cls(frame, list(state), [])

    def go(self, kind: StepKind, axes: Sequence[Axis], targets: Sequence[int] = ()) -> None:
        """Do one step with these axes.

        Arguments: ``targets``, the part that each is to shard (slice, all_to_all, reduce_scatter).
        """
        before = self.frame.local(tuple(self.state))
        moved = kind in ('all_gather', 'all_to_all')
        gather = tuple(self.state.index(axis) for axis in axes) if moved else ()
        # Positions in a group count along its axes in the order of parts, so that what is joined lies in the order of
        # the tensor.
        order = sorted(range(len(axes)), key=lambda at: (*gather[at : at + 1], *targets[at : at + 1]))
        # Gathered parts are cleared before targets are set: an all-to-all may land an axis where another has just left.
        for part in gather:
            self.state[part] = None
        for axis, part in zip(axes, targets, strict=False):
            self.state[part] = axis
        self.steps.append(
            Step(
                kind,
                tuple(axes[at] for at in order),
                before,
                self.frame.local(tuple(self.state)),
                tuple(gather[at] for at in order if gather),
                tuple(targets[at] for at in order if targets),
            )
        )


def places(axes: Sequence[Axis], state: State) -> dict[Axis, int]:
    """Where each axis stands."""
    return {axis: state.index(axis) if axis in state else NOWHERE for axis in axes}
