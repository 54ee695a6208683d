"""Frames: two layouts of a tensor made comparable, each of its dims parted so that one axis shards one part at most.

``[64, 64]`` split (8, 1) and then (2, 4) becomes [2, 32, 64]: the outer axis shards the first part both times, the
inner axis the second part before and the third after. MindSpore calls this unifying device arrangement and shape. A
frame may be finer than it must: the inner axis of four ranks as two of two, on [2, 2, 16, 2, 32].
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Final, Literal, cast

from simpar.layout.layout import Axis, TensorLayout, size_of
from simpar.program import COLLECTIVES

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
