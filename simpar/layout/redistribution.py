"""Redistribution: the steps that bring a tensor from one layout into another, forward and backward.

Bytes are what one rank receives (and sends) in ring or pairwise form, of a message over g ranks: all-gather
(g − 1) · slice, all-to-all and reduce-scatter (g − 1) / g · slice, all-reduce twice that; slicing nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from simpar.errors import Infeasible
from simpar.layout import cheapest, compat
from simpar.layout.frame import Frame, State, Step, frame
from simpar.layout.layout import TensorLayout

Method = Literal['cheapest', 'mindspore-2.0', 'mindspore-2.10']


@dataclass(frozen=True, slots=True)
class Part:
    """Steps on one view of the tensor.

    Arguments:
        shape: full lengths of the view's dims.
        dim_of: for each of them, the tensor dim that it is a part of.
        begin, end: the axis that shards each of them before and after.
    """

    shape: tuple[int, ...]
    dim_of: tuple[int, ...]
    begin: State
    end: State
    steps: tuple[Step, ...]

    def backward(self) -> Part:
        """The transposed steps from the last to the first."""
        steps = tuple(step.transposed() for step in reversed(self.steps))
        return replace(self, begin=self.end, end=self.begin, steps=steps)


@dataclass(frozen=True, slots=True)
class Redistribution:
    """What brings a tensor of ``shape`` from ``source`` to ``target``: parts one after the other.

    Backward, ``source`` and ``target`` are the layouts of the gradient: where the tensor is replicated, it has pending
    sums.
    """

    shape: tuple[int, ...]
    source: TensorLayout
    target: TensorLayout
    parts: tuple[Part, ...]

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps in order."""
        return tuple(step for part in self.parts for step in part.steps)

    @property
    def elements(self) -> Fraction:
        """Elements that one rank receives."""
        return sum((step.elements for step in self.steps), Fraction(0))

    def backward(self) -> Redistribution:
        """The transposed map, which takes the gradient back: gathers scatter sums, slices are filled up with zeros.

        A replicated tensor's gradient has pending sums over all ranks that have the same, as MindSpore keeps it.
        """
        return Redistribution(
            self.shape,
            _gradient(self.target),
            _gradient(self.source),
            # The transpose of a product of maps is the product of the transposes in reverse.
            tuple(part.backward() for part in reversed(self.parts)),
        )


def _gradient(layout: TensorLayout) -> TensorLayout:
    return layout.with_partial(layout.replicated_axes)


@lru_cache(maxsize=4096)
def redistribute(
    shape: tuple[int, ...],
    source: TensorLayout,
    target: TensorLayout,
    method: Method = 'cheapest',
    all_to_all: bool = True,
) -> Redistribution:
    """The steps from one layout to another.

    Arguments: ``shape`` of the full tensor; ``method``: ``cheapest``, the fewest bytes, and of those the fewest
    collectives (without all-to-all of axes that move unsplit); or the sequence of MindSpore's compiler; ``all_to_all``:
    may be used. Pending sums of ``source`` that ``target`` has not are summed. Raises ``Infeasible`` where a layout
    does not fit the shape or sums would have to be undone. Does not model: latency, links, memory of what is gathered
    on the way.
    """
    # Called for their checks: both layouts must fit the shape.
    source.slice_shape(shape), target.slice_shape(shape)
    if source.world != target.world:
        raise Infeasible(f'a layout on {source.world} ranks cannot become one on {target.world} ranks')
    if source == target:
        return Redistribution(shape, source, target, ())
    common = frame(shape, source, target)
    if common is not None:
        return Redistribution(shape, source, target, (_part(common, method, all_to_all),))
    # No common parts: all is gathered, then sliced.
    # Pending sums that the target keeps are kept on the way, so that nothing is summed twice.
    middle = TensorLayout(source.world, ((),) * len(shape), target.partial)
    halves = [redistribute(shape, *ends, method, all_to_all) for ends in ((source, middle), (middle, target))]
    return Redistribution(shape, source, target, tuple(part for half in halves for part in half.parts))


def _part(common: Frame, method: Method, all_to_all: bool) -> Part:
    pending, left = common.split(common.source.partial), set(common.split(common.target.partial))
    # A pending sum could be made from a replicated value by zeros on all ranks but one; no compiler does so.
    if not left <= set(pending):
        raise Infeasible('a full value cannot become a pending sum')
    sums = tuple(axis for axis in pending if axis not in left)
    if method == 'cheapest':
        common, steps = cheapest.steps(common, sums, all_to_all=all_to_all)
    else:
        last_first = method == 'mindspore-2.10'
        steps = compat.steps(common, common.begin, common.end, sums, all_to_all=all_to_all, last_first=last_first)
    return Part(common.shape, common.dim_of, common.begin, common.end, steps)
