"""Steps of a redistribution: one collective, or local work, of the ranks along some axes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from typing import Final, Literal

from simpar.layout.axis import Axis, size_of

StepKind = Literal['slice', 'pad', 'all_gather', 'all_to_all', 'all_reduce', 'reduce_scatter']
_TRANSPOSED: Final[dict[StepKind, StepKind]] = {
    'slice': 'pad',
    'pad': 'slice',
    'all_gather': 'reduce_scatter',
    'reduce_scatter': 'all_gather',
    'all_to_all': 'all_to_all',
    'all_reduce': 'all_reduce',
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
        passes = {'all_to_all': 1, 'reduce_scatter': 1, 'all_reduce': 2}.get(self.kind, 0)
        return Fraction(passes * (size - 1) * held, size)

    @property
    def communicates(self) -> bool:
        """Whether ranks exchange anything."""
        return self.kind not in ('slice', 'pad')

    def transposed(self) -> Step:
        """The step that takes the gradient back."""
        return replace(
            self,
            kind=_TRANSPOSED[self.kind],
            before=self.after,
            after=self.before,
            # What was split on the way there is joined on the way back.
            gather=self.split,
            split=self.gather,
        )
