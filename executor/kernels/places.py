"""The places of a rank's tokens in their sequence, whichever way ranks share it."""

from __future__ import annotations

import torch

from executor.kernels.context import Context, position
from executor.sequence import in_sequence
from simpar.program import OpClass


def places_of(op: OpClass, where: Context, tokens: int) -> torch.Tensor:
    """The places of the tokens that a rank has of a sequence, shape [tokens].

    Arguments: ``tokens``, how many these are.
    """
    partition = str(op.attributes.get('partition', ''))
    return slice_places(op, position(op, where), tokens, where.size[partition] if partition else 1)


def slice_places(op: OpClass, number: int, tokens: int, slices: int) -> torch.Tensor:
    """The places of slice ``number`` of equal ``slices`` of a sequence as it lies on the ranks."""
    index = torch.arange(tokens) + number * tokens
    return in_sequence(index, slices * tokens, int(op.attributes.get('balanced', 0)))
