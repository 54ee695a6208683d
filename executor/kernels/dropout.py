"""Dropout: the mask of a rank's shard, and what it leaves."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from executor.dropout import kept
from executor.kernels.context import Context, position
from executor.kernels.places import held, in_order
from simpar.program import OpClass


def mask_of(
    op: OpClass,
    where: Context,
    keys: torch.Tensor,
    shape: Sequence[int],
    pairs: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """The mask of this rank's shard.

    Arguments: ``shape`` of the shard, batch first; ``pairs``, of probabilities the places of queries and keys, which
    are others than all places in order.
    """
    full, probability = list(shape[1:]), float(op.attributes['dropout'])
    places = _places(op, where, full) if pairs is None else dict(enumerate(pairs, 1))
    site, shard = str(op.attributes['site']), (0, 0, 0)
    # The mask is drawn by places in the full tensor, so that any plan drops the same elements.
    if 'cut' in op.attributes:
        # ``cut`` counts the batch, the mask's shape does not.
        dim = int(op.attributes['cut']) - 1
        length = full[dim]
        full[dim] *= where.size[str(op.attributes['partition'])]
        shard = (dim, position(op, where) * length, length)
    return kept(keys, site, full, probability, shard, places)


def _places(op: OpClass, where: Context, full: Sequence[int]) -> dict[int, torch.Tensor]:
    """By dim the places of a sequence that a rank does not hold from the first on, in order."""
    first = int(op.attributes.get('first', 0))
    if first and len(full) == 2:
        # A chunk of it, whose tokens or features tensor ranks may share.
        own = position(op, where) * full[0] if int(op.attributes.get('cut', 0)) == 1 else 0
        return {0: first + own + torch.arange(full[0])}
    if 'balanced' not in op.attributes:
        return {}
    if len(full) == 2:
        return {0: held(op, where, full[0])}
    # Probabilities of whole sequences, for each head.
    every = in_order(op, full[-1])
    return {1: every, 2: every}


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
