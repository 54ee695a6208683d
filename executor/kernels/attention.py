"""Attention with grouped queries; backward from the saved log-sum-exp, as in FlashAttention-2 (Dao 2023, 3.1.2).

Scores are held whole, [sequence, sequence] for each head: the arithmetic is flash attention's, its memory is not.
B batch, S sequence, G groups (key/value heads on this rank), Q queries of a group, D head_dim.
"""

from __future__ import annotations

from math import sqrt

import torch

from executor.kernels.context import Context
from executor.kernels.precision import wide
from simpar.program import OpClass


def attention_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """qkv → y, lse [B, G, Q, S]."""
    q, k, v = _split(op, tensors[0])
    scores = _scores(op, q, k)
    lse = scores.logsumexp(-1)
    y = (scores - lse.unsqueeze(-1)).exp().to(v.dtype) @ v
    return [_join(op, y), lse.reshape(lse.shape[0], lse.shape[1], int(op.attributes['queries']), -1)]


def attention_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy, qkv, y, lse → dqkv."""
    dy, qkv, y, lse = tensors
    q, k, v = _split(op, qkv)
    dy_heads, y_heads = _heads(op, dy), _heads(op, y)
    probability = (_scores(op, q, k) - lse.reshape(*q.shape[:-1], 1)).exp().to(v.dtype)
    dscores = probability * (dy_heads @ v.mT - (dy_heads * y_heads).sum(-1, keepdim=True))
    scale = 1 / sqrt(q.shape[-1])
    dq = dscores @ k * scale
    dk = dscores.mT @ q * scale
    dv = probability.mT @ dy_heads
    return [_merge(op, dq, dk, dv)]


def _split(op: OpClass, qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q [B, G, Q × S, D], k and v [B, G, S, D]: a group's queries lie below one another, so they share its keys."""
    groups, queries, head_dim = _attributes(op)
    qkv_BGCSD = qkv.unflatten(-1, (groups, queries + 2, head_dim)).permute(0, 2, 3, 1, 4)
    return qkv_BGCSD[:, :, :queries].flatten(2, 3), qkv_BGCSD[:, :, queries], qkv_BGCSD[:, :, queries + 1]


def _merge(op: OpClass, dq: torch.Tensor, dk: torch.Tensor, dv: torch.Tensor) -> torch.Tensor:
    """The inverse of ``_split``."""
    _, queries, _ = _attributes(op)
    parts_BGCSD = [dq.unflatten(2, (queries, -1)), dk.unsqueeze(2), dv.unsqueeze(2)]
    return torch.cat(parts_BGCSD, dim=2).permute(0, 3, 1, 2, 4).flatten(2)


def _heads(op: OpClass, y: torch.Tensor) -> torch.Tensor:
    """[B, S, G × Q × D] → [B, G, Q × S, D]."""
    return y.unflatten(-1, _attributes(op)).permute(0, 2, 3, 1, 4).flatten(2, 3)


def _join(op: OpClass, y: torch.Tensor) -> torch.Tensor:
    """The inverse of ``_heads``."""
    _, queries, _ = _attributes(op)
    return y.unflatten(2, (queries, -1)).permute(0, 3, 1, 2, 4).flatten(2)


def _scores(op: OpClass, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """[B, G, Q × S, S], what a query must not see at minus infinity."""
    scores = wide(q @ k.mT) / sqrt(q.shape[-1])
    if not op.attributes['causal']:
        return scores
    sequence = k.shape[2]
    future = torch.ones(sequence, sequence, dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(future.repeat(q.shape[2] // sequence, 1), float('-inf'))


def _attributes(op: OpClass) -> tuple[int, int, int]:
    return int(op.attributes['groups']), int(op.attributes['queries']), int(op.attributes['head_dim'])


KERNELS = {('attention', 'F'): attention_forward, ('attention', 'I'): attention_dx}
