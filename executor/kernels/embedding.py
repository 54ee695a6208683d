"""Token embedding, its vocabulary unsharded or sharded over a partition, and position embedding."""

from __future__ import annotations

import torch

from executor.constants import on_device
from executor.kernels.context import Context, position
from executor.kernels.places import places
from simpar.program import OpClass


def local_rows(op: OpClass, where: Context, tokens: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens as rows of this rank's shard of the vocabulary, and which of them lie in it; the others become row 0."""
    local = tokens - position(op, where) * rows
    inside = (local >= 0) & (local < rows)
    # Row 0 stands in for tokens of other ranks: an index out of range would abort, and ``inside`` removes what it
    # gives.
    return local.where(inside, 0), inside


def embedding_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """tokens, weight → y; zeros for tokens outside of this rank's rows."""
    tokens, weight = tensors
    local, inside = local_rows(op, where, tokens, weight.shape[0])
    # Zeros elsewhere, so that the sum over ranks is the full result.
    return [weight[local] * inside.unsqueeze(-1)]


def embedding_dw(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """tokens, dy → dweight; ``attributes['rows']``: how many rows of the weight this rank has."""
    tokens, dy = tensors
    rows = int(op.attributes['rows'])
    local, inside = local_rows(op, where, tokens, rows)
    # As in torch, the row of a padding token is not trained.
    inside = inside & (tokens != int(op.attributes.get('padding', -1)))
    dweight = dy.new_zeros(rows, dy.shape[-1])
    # A token may occur several times; ``index_add_`` sums, where an assignment would keep one.
    return [dweight.index_add_(0, local.flatten(), (dy * inside.unsqueeze(-1)).flatten(0, -2))]


def position_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """x, weight → y; the weight is unsharded, x may be this rank's shard of the sequence."""
    x, weight = tensors
    return [x + weight[on_device(places(op, where, x.shape[1]), weight)]]


def position_dw(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy → dweight of the full weight: zero rows outside of this rank's shard of the sequence, and behind its end."""
    drows = tensors[0].sum(0)
    rows = int(op.attributes['rows'])
    # Documents that a sample packs share the rows of their places.
    at = on_device(places(op, where, drows.shape[0]), drows)
    return [drows.new_zeros(rows, drows.shape[1]).index_add_(0, at, drows)]


KERNELS = {
    ('embedding', 'F'): embedding_forward,
    ('embedding', 'W'): embedding_dw,
    ('position', 'F'): position_forward,
    ('position', 'W'): position_dw,
}
