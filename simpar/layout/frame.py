"""Frames: two layouts of a tensor made comparable, each of its dims parted so that one axis cuts one part at most.

``[64, 64]`` cut (8, 1) and then (2, 4) becomes [2, 32, 64]: the outer axis cuts the first part before and after, the
inner axis the second part before and the third after. MindSpore calls this unifying device arrangement and shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from simpar.layout.axis import Axis
from simpar.layout.layout import TensorLayout

State = tuple[Axis | None, ...]
"""For each part of a frame the axis that cuts it."""
Bounds = set[int]


@dataclass(frozen=True, slots=True)
class Frame:
    """A shape in parts.

    Arguments: ``shape``, length of each part; ``dim_of``, the tensor dim that each belongs to; ``atoms``, the axes that
    cut parts or have pending sums, none of them in use twice.
    """

    shape: tuple[int, ...]
    dim_of: tuple[int, ...]
    atoms: tuple[Axis, ...]

    def local(self, state: State) -> tuple[int, ...]:
        """Lengths of a rank's slice."""
        return tuple(n // (axis.size if axis else 1) for n, axis in zip(self.shape, state, strict=True))

    def state(self, layout: TensorLayout) -> State:
        """The axis on each part in a layout that the frame was made for."""
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


def frame(shape: Sequence[int], source: TensorLayout, target: TensorLayout) -> Frame | None:
    """The coarsest frame of both layouts; None where their axes cannot be parted alike (2 × 3 and 3 × 2 ranks)."""
    layouts = (source, target)
    axes = [axis for layout in layouts for axis in (*layout.cutting, *layout.partial)]
    strides: Bounds = {bound for axis in axes for bound in (axis.stride, axis.size * axis.stride)}
    prefixes: list[Bounds] = [{1} for _ in shape]
    before = -1
    while before != len(strides) + sum(map(len, prefixes)):
        before = len(strides) + sum(map(len, prefixes))
        for layout in layouts:
            for bounds, dim in zip(prefixes, layout.dims, strict=True):
                if not _part(dim, bounds, strides):
                    return None
    if not all(map(_is_chain, (strides, *prefixes))):
        return None
    return _framed(shape, prefixes, _atoms(axes, strides))


def _part(dim: Sequence[Axis], prefixes: Bounds, strides: Bounds) -> bool:
    """Carry bounds of strides over to the parts of a dim and back; False where they do not meet."""
    outer = 1
    # The end of a dim's last axis is no bound: an axis may cut a part that is longer than its ranks.
    for axis in dim:
        end = outer * axis.size
        prefixes.add(outer)
        for bound in [b for b in strides if axis.stride < b < axis.size * axis.stride]:
            if (axis.size * axis.stride) % bound or bound % axis.stride:
                return False
            prefixes.add(outer * (axis.size * axis.stride // bound))
        for bound in [b for b in prefixes if outer < b < end]:
            if bound % outer or end % bound:
                return False
            strides.add(axis.stride * (end // bound))
        outer = end
    beyond = [b for b in prefixes if b > outer]
    return not beyond or min(beyond) % outer == 0


def _is_chain(bounds: Bounds) -> bool:
    return all(high % low == 0 for low, high in pairwise(sorted(bounds)))


def _atoms(axes: Sequence[Axis], strides: Bounds) -> tuple[Axis, ...]:
    pieces = [Axis(high // low, low) for low, high in pairwise(sorted(strides))]
    used = [
        piece
        for piece in pieces
        if any(axis.stride <= piece.stride < axis.size * axis.stride for axis in axes) and piece.size > 1
    ]
    return tuple(reversed(used))


def _framed(shape: Sequence[int], prefixes: Sequence[Bounds], atoms: tuple[Axis, ...]) -> Frame:
    lengths: list[int] = []
    dim_of: list[int] = []
    for dim, (length, bounds) in enumerate(zip(shape, prefixes, strict=True)):
        outer = [high // low for low, high in pairwise(sorted(bounds))]
        lengths += [*outer, length // prod(outer)]
        dim_of += [dim] * (len(outer) + 1)
    return Frame(tuple(lengths), tuple(dim_of), atoms)
