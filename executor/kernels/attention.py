"""Attention with grouped queries; backward from the saved log-sum-exp, as in FlashAttention-2 (Dao 2023, 3.1.2).

Torch's fused kernel does it where there is one (``flash``). Else scores are held in full, [sequence, sequence] for each
head: the arithmetic is flash attention's, its memory is not.
B batch, S sequence, G groups (key/value heads on this rank), Q queries of a group, D head_dim of queries and keys.
Values may have other features.
"""

from __future__ import annotations

from math import sqrt

import torch

from executor.constants import on_device
from executor.kernels import flash
from executor.kernels.context import Context
from executor.kernels.dropout import left, mask_of
from executor.kernels.places import document_of, in_order
from executor.kernels.precision import wide
from simpar.program import OpClass


def attention_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """qkv[, keys of dropout] → y, lse [B, G, Q, S]."""
    q, k, v = split(op, tensors[0])
    if name := flash.fused(op, q):
        y, lse = flash.forward(name, _apart(op, q), k, v, bool(op.attributes['causal']), scale_of(op))
        return [y.transpose(1, 2).flatten(2), lse]
    scores = _scores(op, q, k)
    lse = scores.logsumexp(-1)
    # The backward has lse alone and forms the probabilities in the same way.
    probability = _dropped(op, where, (scores - lse.unsqueeze(-1)).exp(), tensors[1:])
    y = probability.to(v.dtype) @ v
    return [join(op, y), lse.reshape(lse.shape[0], lse.shape[1], int(op.attributes['queries']), -1)]


def attention_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy, qkv, y, lse[, keys of dropout] → dqkv."""
    dy, qkv, y, lse, *keys = tensors
    q, k, v = split(op, qkv)
    dy_heads, y_heads = heads(op, dy), heads(op, y)
    if name := flash.fused(op, q):
        dy, y, lse = _apart(op, dy_heads), _apart(op, y_heads), lse.reshape(q.shape[0], -1, k.shape[2])
        causal = bool(op.attributes['causal'])
        dq, dk, dv = flash.backward(name, dy, (_apart(op, q), k, v), y, lse, causal, scale_of(op))
        return [merge(op, dq.reshape(q.shape), dk, dv)]
    probability = (_scores(op, q, k) - lse.reshape(*q.shape[:-1], 1)).exp().to(v.dtype)
    dprobability = _dropped(op, where, dy_heads @ v.mT, keys)
    # The row sum of dP · P equals that of dy · y, so no probabilities need to be kept.
    dscores = probability * (dprobability - (dy_heads * y_heads).sum(-1, keepdim=True))
    dscores, scale = dscores * _uncapped(op, q, k), scale_of(op)
    dq = dscores @ k * scale
    dk = dscores.mT @ q * scale
    # The mask is drawn again from its keys: that costs less memory than to keep it.
    dv = _dropped(op, where, probability, keys).mT @ dy_heads
    return [merge(op, dq, dk, dv)]


def _dropped(op: OpClass, where: Context, scores: torch.Tensor, keys: list[torch.Tensor]) -> torch.Tensor:
    """[B, G, Q × S, S], what dropout leaves of it; all where there are no keys."""
    if not keys:
        return scores
    shape = (scores.shape[0], scores.shape[1] * int(op.attributes['queries']), scores.shape[-1], scores.shape[-1])
    return left(op, scores, mask_of(op, where, keys[0], shape).reshape(scores.shape))


def split(op: OpClass, qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q [B, G, Q × S, D], k and v [B, G, S, D]: a group's queries lie below one another, so they share its keys."""
    groups, queries, head_dim = _attributes(op)
    # Each group holds its queries, then its key and value, so that tensor parallelism can shard by groups.
    q, k, v = qkv.unflatten(-1, (groups, -1)).split((queries * head_dim, head_dim, values_of(op)), -1)
    q_BGQSD = q.unflatten(-1, (queries, head_dim)).permute(0, 2, 3, 1, 4)
    return q_BGQSD.flatten(2, 3), k.transpose(1, 2), v.transpose(1, 2)


def _apart(op: OpClass, q: torch.Tensor) -> torch.Tensor:
    """[B, G, Q × S, D] → [B, G × Q, S, D]: every head for itself."""
    return q.unflatten(2, (int(op.attributes['queries']), -1)).flatten(1, 2)


def merge(op: OpClass, dq: torch.Tensor, dk: torch.Tensor, dv: torch.Tensor) -> torch.Tensor:
    """The inverse of ``split``."""
    _, queries, _ = _attributes(op)
    dq_BSGQD = dq.unflatten(2, (queries, -1)).permute(0, 3, 1, 2, 4)
    return torch.cat([dq_BSGQD.flatten(3), dk.transpose(1, 2), dv.transpose(1, 2)], -1).flatten(2)


def heads(op: OpClass, y: torch.Tensor) -> torch.Tensor:
    """[B, S, G × Q × D] → [B, G, Q × S, D]."""
    groups, queries, _ = _attributes(op)
    return y.unflatten(-1, (groups, queries, values_of(op))).permute(0, 2, 3, 1, 4).flatten(2, 3)


def join(op: OpClass, y: torch.Tensor) -> torch.Tensor:
    """The inverse of ``_heads``."""
    _, queries, _ = _attributes(op)
    return y.unflatten(2, (queries, -1)).permute(0, 3, 1, 2, 4).flatten(2)


def _scores(op: OpClass, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """[B, G, Q × S, S], what a query must not see at minus infinity."""
    scores, cap = wide(q @ k.mT) * scale_of(op), float(op.attributes.get('softcap', 0))
    if cap:
        scores = (scores / cap).tanh() * cap
    if not op.attributes['causal']:
        return scores
    sequence = k.shape[2]
    # Queries of a group lie below one another, so the mask repeats.
    return scores.masked_fill(hidden(op, scores).repeat(q.shape[2] // sequence, 1), float('-inf'))


def _uncapped(op: OpClass, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor | float:
    """The derivative of the cap: 1 where there is none."""
    cap = float(op.attributes.get('softcap', 0))
    if not cap:
        return 1.0
    return (1 - (wide(q @ k.mT) * scale_of(op) / cap).tanh().square()).to(q.dtype)


def scale_of(op: OpClass) -> float:
    """What scores are multiplied by."""
    return float(op.attributes.get('scale', 0)) or 1 / sqrt(float(op.attributes['head_dim']))


def hidden(op: OpClass, scores: torch.Tensor) -> torch.Tensor:
    """[S, S], true where a token must not see another: one behind it, before its window, or of another document.

    Arguments: ``scores`` [..., S], for their size and device.
    """
    # Heads of context ranks see a sequence in the order in which these hold it.
    tokens = in_order(op, scores.shape[-1])
    return on_device(unseen(op, tokens, tokens), scores)


def unseen(op: OpClass, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """[queries, keys], true where a token must not see another, from which tokens these are."""
    behind = queries.unsqueeze(1) - keys
    window = int(op.attributes.get('window', 0))
    hidden = (behind < 0) | (behind >= window) if window else behind < 0
    if 'documents' not in op.attributes:
        return hidden
    return hidden | (document_of(op, queries).unsqueeze(1) != document_of(op, keys))


def values_of(op: OpClass) -> int:
    """Features of a value."""
    return int(op.attributes.get('value_dim', op.attributes['head_dim']))


def _attributes(op: OpClass) -> tuple[int, int, int]:
    return int(op.attributes['groups']), int(op.attributes['queries']), int(op.attributes['head_dim'])


KERNELS = {('attention', 'F'): attention_forward, ('attention', 'I'): attention_dx}
