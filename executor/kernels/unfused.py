"""Unfused attention: scores, softmax and the product with the values, each an op, probabilities [B, heads, S, S] kept.

B batch, S sequence, G groups (key/value heads on this rank), Q queries of a group, D head_dim.
"""

from __future__ import annotations

import torch

from executor.constants import on_device
from executor.kernels.attention import heads, hidden, join, merge, scale_of, split, unseen
from executor.kernels.context import Context
from executor.kernels.places import held, in_order
from executor.kernels.precision import wide
from simpar.program import OpClass


def scores_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """qkv → scores, those of the future too."""
    q, k, _ = split(op, tensors[0])
    return [_apart(op, q @ k.mT * scale_of(op))]


def scores_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dscores, qkv, dv [B, S, G × D] → dqkv."""
    dscores, qkv, dv = tensors
    q, k, _ = split(op, qkv)
    # Scores are kept by head; products want a group's queries below one another.
    dscores, scale = _together(op, dscores), scale_of(op)
    dv = dv.unflatten(-1, (k.shape[1], -1)).transpose(1, 2)
    return [merge(op, dscores @ k * scale, dscores.mT @ q * scale, dv)]


def softmax_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """scores → probability, zero for the future, and before a window, where ``causal``."""
    scores = wide(tensors[0])
    if op.attributes['causal']:
        scores = scores.masked_fill(_hidden(op, where, scores), float('-inf'))
    # The softmax runs in at least fp32, its result is kept in the program's dtype.
    return [scores.softmax(-1).to(tensors[0].dtype)]


def _hidden(op: OpClass, where: Context, scores: torch.Tensor) -> torch.Tensor:
    """[queries of this rank, S], true where a token must not see another."""
    if 'partition' not in op.attributes:
        return hidden(op, scores)
    rows, keys = scores.shape[-2:]
    return on_device(unseen(op, held(op, where, rows), in_order(op, keys)), scores)


def softmax_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dprobability, probability → dscores."""
    dy, y = map(wide, tensors)
    return [(y * (dy - (dy * y).sum(-1, keepdim=True))).to(tensors[0].dtype)]


def values_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """probability, qkv → y."""
    _, _, v = split(op, tensors[1])
    return [join(op, _together(op, tensors[0]) @ v)]


def values_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy, probability, qkv → dprobability, dv [B, S, G × D]."""
    dy, probability, qkv = tensors
    _, _, v = split(op, qkv)
    dy = heads(op, dy)
    dv = _together(op, probability).mT @ dy
    return [_apart(op, dy @ v.mT), dv.transpose(1, 2).flatten(2)]


def _apart(op: OpClass, scores: torch.Tensor) -> torch.Tensor:
    """[B, G, Q × S, S] → [B, G × Q, S, S]."""
    return scores.unflatten(2, (int(op.attributes['queries']), -1)).flatten(1, 2)


def _together(op: OpClass, scores: torch.Tensor) -> torch.Tensor:
    """The inverse of ``_apart``."""
    return scores.unflatten(1, (int(op.attributes['groups']), -1)).flatten(2, 3)


KERNELS = {
    ('attention_scores', 'F'): scores_forward,
    ('attention_scores', 'I'): scores_dx,
    ('softmax', 'F'): softmax_forward,
    ('softmax', 'I'): softmax_dx,
    ('attention_values', 'F'): values_forward,
    ('attention_values', 'I'): values_dx,
}
