"""Where the tensors of experts lie by degrees (Megatron-LM's expert parallelism).

Tokens lie over the data ranks, and with sequence parallelism over the tensor ranks. Before a grouped product they go to
the ranks of their experts by an all-to-all: what split samples over the ranks that share experts splits experts then.
Tensor ranks split each expert by its width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simpar.errors import Infeasible
from simpar.layout import TensorLayout
from simpar.layout.axis import minus, size_of, union
from simpar.layout.operator import Operator
from simpar.lower.place import Placed, outermost
from simpar.lower.value import Value
from simpar.model.operators.experts import Dispatch, GroupedProduct

if TYPE_CHECKING:
    from simpar.lower.degrees import Degrees


def grouped(degrees: Degrees, operator: GroupedProduct, rule: Operator, x: Value) -> Placed:
    """A grouped product: experts over their ranks, an expert's width over the tensor ranks."""
    world, tensor, expert = degrees.placer.world, degrees.tensor, degrees.expert
    rows = outermost(minus(degrees.data, expert), x.shape[0] // degrees.placer.copies)
    features = x.layout.dims[3]
    # Context ranks keep the slots of their own tokens.
    slots = minus(x.layout.dims[2], tensor)
    if tensor and features == tensor:
        local = TensorLayout(world, (rows, expert, slots, ()), tensor)
        inputs = (TensorLayout(world, (rows, expert, slots, tensor)), TensorLayout(world, (expert, tensor, ())))
    else:
        divides = operator.split == 'outputs' and degrees.divides(rule.lengths['n'], 'the experts (their width)')
        width = tensor if divides else ()
        local = TensorLayout(world, (rows, expert, slots, width))
        inputs = (TensorLayout(world, (rows, expert, slots, ())), TensorLayout(world, (expert, (), width)))
    if operator.split == 'outputs':
        return Placed(inputs, local, local)
    return Placed(inputs, local, _back(degrees, x))


def slots_fit(operator: Dispatch, name: str, x: Value) -> None:
    """Raise ``Infeasible`` where ranks that hold slices of a sequence cannot hold equal slices of slots."""
    slices = x.layout.shard_counts[1]
    if operator.slots % slices:
        raise Infeasible(
            f'{name}: {operator.slots} slots of an expert cannot be dealt out to {slices} slices of a sequence; choose '
            'another experts.capacity'
        )


def _back(degrees: Degrees, x: Value) -> TensorLayout:
    """Where results go: to the ranks of their tokens, with sequence parallelism to those of the slots."""
    rows = outermost(degrees.data, x.shape[0] // degrees.placer.copies)
    slots = minus(x.layout.dims[2], degrees.tensor)
    slices = size_of(slots) * degrees.degree
    splits = degrees.sequence_parallel and degrees.degree > 1 and x.shape[2] % slices == 0
    return TensorLayout(degrees.placer.world, (rows, (), (*slots, *degrees.tensor) if splits else slots, ()))


def balanced(logits: TensorLayout, *, together: bool) -> Placed:
    """Sums over tokens: a part of them on each rank that has a slice of the sequence, or of the samples."""
    rows, sequence, _ = logits.dims
    pending = union(rows, sequence) if together else sequence
    local = TensorLayout(logits.world, (() if together else rows, (), ()), pending)
    return Placed((logits,), local, local.without_partial())
