"""What a rank's update reads and writes of every parameter: its shard, or all of it without optimizer parallelism."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

from simpar.lower.tape import Tape
from simpar.program import Tensor


class Owned(NamedTuple):
    """What a rank's update works on of one parameter, or of the parameters of a flat message.

    Arguments:
        fulls: the full gradients that W adds to.
        flat: name of the flat message; empty: it is none.
        layer: the layer that it is updated with.
    """

    weight: Tensor
    gradient: Tensor
    fulls: tuple[Tensor, ...]
    flat: str
    layer: str


class UpdateShard(NamedTuple):
    """One parameter's shard, or that of a flat message.

    Arguments:
        parameter: its name.
        weight: what the update reads and writes.
        gradient: what it reads and frees.
        fulls: the gradients that W adds to.
        stage: whose backward adds to the gradient (the first, for a weight that two use).
        layer: the layer that it is updated with.
    """

    parameter: str
    weight: Tensor
    gradient: Tensor
    fulls: tuple[Tensor, ...]
    stage: int
    layer: str


def layer_of(parameter: str) -> str:
    """``layer3.qkv.weight`` → ``layer3``."""
    return parameter.partition('.')[0]


def local_elements(tape: Tape, tensor: Tensor) -> int:
    """Elements of a parameter, gradient or state that one rank holds."""
    known = tape.elements.get(id(tensor))
    if known is None:
        known = tape.elements[id(tensor)] = (tensor, prod(local_shape(tape, tensor)))
    return known[1]


def local_shape(tape: Tape, tensor: Tensor) -> tuple[int, ...]:
    """The shape that one rank holds of a parameter, gradient or state."""
    return tensor.local_shape(tape.partitions)


def updated(tape: Tape) -> tuple[str, ...]:
    """All parameters that ops add to, in the order in which the forward uses them."""
    adds = {tape.tensors[name].like for op in tape.ops for name in op.accumulates}
    return tuple([parameter for parameter in tape.tensors if parameter in adds])


def update_shards(tape: Tape, owned: Mapping[str, Owned] | None = None) -> list[UpdateShard]:
    """The shards of all parameters, in the order in which the forward uses them; a flat message with its first.

    Arguments: ``owned``, those of the parameters that are sharded.
    """
    # The backward goes from the last stage to the first, so that of two users the first stage stays.
    adds = {tape.tensors[name].like: op.stage for op in tape.ops for name in op.accumulates}
    found: dict[str, UpdateShard] = {}
    for parameter in tape.tensors:
        if parameter in adds:
            own = (owned or {}).get(parameter) or _full(tape, parameter)
            name = own.flat or parameter
            if name not in found:
                found[name] = UpdateShard(name, own.weight, own.gradient, own.fulls, adds[parameter], own.layer)
    return list(found.values())


def _full(tape: Tape, parameter: str) -> Owned:
    gradient = tape.tensors[f'd:{parameter}']
    return Owned(tape.tensors[parameter], gradient, (gradient,), '', layer_of(parameter))
