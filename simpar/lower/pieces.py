"""Pieces: what a rank's update reads and writes of every parameter: whole, unless optimizer parallelism has cut it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from simpar.lower.tape import Tape
from simpar.program import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One parameter's piece.

    Arguments: ``parameter``, its name; ``weight``, what the update reads and writes; ``gradient``, what it reads and
    frees; ``stage``, whose backward adds to the gradient (the first, for a weight that two use).
    """

    parameter: str
    weight: Tensor
    gradient: Tensor
    stage: int

    @property
    def layer(self) -> str:
        """The layer that the parameter belongs to."""
        return layer_of(self.parameter)


def layer_of(parameter: str) -> str:
    """``layer3.qkv.weight`` → ``layer3``."""
    return parameter.partition('.')[0]


def local_elements(tape: Tape, tensor: Tensor) -> int:
    """Elements of a parameter, gradient or state that one rank holds."""
    return prod(tensor.shape) // prod(tape.partitions[cut.partition].size for cut in tensor.cuts)


def pieces(tape: Tape, cut: Mapping[str, tuple[Tensor, Tensor]] | None = None) -> list[Piece]:
    """The pieces of all parameters, in the order in which the forward uses them.

    Arguments: ``cut``, parameter → (weight, gradient) of those that are not whole.
    """
    adds = {tape.tensors[name].like: op.stage for op in tape.ops for name in op.accumulates}
    whole = {name: (tape.tensors[name], tape.tensors[f'd:{name}']) for name in adds}
    found = []
    for parameter in tape.tensors:
        if parameter in adds:
            weight, gradient = (cut or whole).get(parameter, whole[parameter])
            found.append(Piece(parameter=parameter, weight=weight, gradient=gradient, stage=adds[parameter]))
    return found
