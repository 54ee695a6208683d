"""Dropout: the mask of a rank's shard, and what it leaves."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from executor.dropout import kept
from executor.kernels.context import Context, position
from simpar.program import OpClass


def mask_of(op: OpClass, where: Context, keys: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """The mask of this rank's shard; ``shape`` of the shard, batch first."""
    full, probability = list(shape[1:]), float(op.attributes['dropout'])
    site = str(op.attributes['site'])
    if 'cut' not in op.attributes:
        return kept(keys, site, full, probability)
    # ``cut`` counts the batch, the mask's shape does not.
    dim = int(op.attributes['cut']) - 1
    length = full[dim]
    # The mask is drawn by places in the full tensor, so that any plan drops the same elements.
    full[dim] *= where.size[str(op.attributes['partition'])]
    return kept(keys, site, full, probability, (dim, position(op, where) * length, length))


def left(op: OpClass, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """x × mask / (1 − probability)."""
    return x * mask / (1 - float(op.attributes['dropout']))


def dropout_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """x, keys → y, mask."""
    x, keys = tensors
    mask = mask_of(op, where, keys, x.shape)
    return [left(op, x, mask), mask]


def dropout_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy, mask → dx."""
    return [left(op, *tensors)]


KERNELS = {('dropout', 'F'): dropout_forward, ('dropout', 'I'): dropout_dx, ('residual', 'I'): dropout_dx}
