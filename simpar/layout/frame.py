"""Frames: two layouts of a tensor made comparable, each of its dims parted so that one axis shards one part at most.

``[64, 64]`` split (8, 1) and then (2, 4) becomes [2, 32, 64]: the outer axis shards the first part both times, the
inner axis the second part before and the third after. MindSpore calls this unifying device arrangement and shape. A
frame may be finer than it must: the inner axis of four ranks as two of two, on [2, 2, 16, 2, 32].
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod

from simpar.layout.axis import Axis
from simpar.layout.layout import TensorLayout

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
        found: list[Axis | None] = []
        for dim, axes in enumerate(layout.dims):
            parts = [index for index, of in enumerate(self.dim_of) if of == dim]
            held: list[Axis | None] = list(self.split(axes))
            found += held + [None] * (len(parts) - len(held))
        return tuple(found)

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
        found = self
        for atom in self.atoms:
            # An axis that cannot be parted alike in both layouts stays as it is.
            found = found.parted(_strides_inside(atom)) or found
        return found


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
    if not all(map(_is_chain, (strides, *prefixes))):
        return None
    return Frame(shape, source, target, *_parts(shape, prefixes), _atoms(axes, strides))


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


def _is_chain(bounds: Bounds) -> bool:
    return all(high % low == 0 for low, high in pairwise(sorted(bounds)))


def _atoms(axes: Sequence[Axis], strides: Bounds) -> tuple[Axis, ...]:
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
