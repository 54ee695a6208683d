"""Attention with grouped queries; backward from the saved log-sum-exp, as in FlashAttention-2 (Dao 2023, 3.1.2).

Torch's fused kernel does it where there is one (``flash_kernel``). Else scores are held in full, [sequence, sequence]
for each head: the arithmetic is flash attention's, its memory is not. Unfused attention has scores, softmax and the
product with the values as ops of their own.
B batch, S sequence, G groups (key/value heads on this rank), Q queries of a group, D head_dim of queries and keys.
Values may have other features.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any, Final

import torch

from executor.devices import KINDS
from executor.draws import on_device
from executor.kernels.context import Context, document_of, held, in_order, left, mask_of, wide
from simpar.program import OpClass

ASKS_MORE: Final = frozenset({'window', 'softcap', 'documents', 'balanced', 'value_dim', 'dropout'})
"""Attributes that torch's kernels do not know."""


def flash_kernel(op: OpClass, qkv: torch.Tensor) -> str:
    """The name of torch's kernel for an op on the device of what it reads; empty: there is none."""
    kind = KINDS.get(qkv.device.type)
    return '' if kind is None or ASKS_MORE & op.attributes.keys() else kind.attention


def flash_forward(
    name: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """y [B, H, S, D] and lse [B, H, S].

    Arguments: ``q`` [B, H, S, D], ``k`` and ``v`` [B, G, S, D], where H is a multiple of G.
    """
    k, v = _for_all(k, q), _for_all(v, q)
    y, lse = _aten(name)(q, k, v, 0.0, causal, scale=scale)[:2]
    return y, lse


def flash_backward(
    name: str,
    dy: torch.Tensor,
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    y: torch.Tensor,
    lse: torch.Tensor,
    causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dq, dk and dv in the shapes of q, k and v.

    Arguments: ``tensors``, q, k and v as the forward read them.
    """
    q, k, v = tensors
    everywhere = _for_all(k, q), _for_all(v, q)
    dq, dk, dv = _aten(f'{name}_backward')(dy, q, *everywhere, y, wide(lse), 0.0, causal, scale=scale)
    return dq, _of_group(dk, k), _of_group(dv, v)


def _aten(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(torch.ops.aten, name)
    return found


def _for_all(k: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Keys or values of groups, one for every query head."""
    queries = q.shape[1] // k.shape[1]
    return k if queries == 1 else k.repeat_interleave(queries, 1)


def _of_group(dk: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """The sum over the query heads of each group."""
    return dk if dk.shape == k.shape else dk.unflatten(1, (k.shape[1], -1)).sum(2)


# Attention with grouped queries; backward from the saved log-sum-exp, as in FlashAttention-2 (Dao 2023, 3.1.2).


def attention_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """qkv[, keys of dropout] → y, lse [B, G, Q, S]."""
    q, k, v = split(op, tensors[0])
    if name := flash_kernel(op, q):
        y, lse = flash_forward(name, by_head(op, q), k, v, bool(op.attributes['causal']), scale_of(op))
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
    if name := flash_kernel(op, q):
        dy, y, lse = by_head(op, dy_heads), by_head(op, y_heads), lse.reshape(q.shape[0], -1, k.shape[2])
        causal = bool(op.attributes['causal'])
        dq, dk, dv = flash_backward(name, dy, (by_head(op, q), k, v), y, lse, causal, scale_of(op))
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


def by_head(op: OpClass, q: torch.Tensor) -> torch.Tensor:
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


# Unfused attention: scores, softmax and the product with the values, each an op, probabilities [B, heads, S, S]
# kept.


def scores_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """qkv → scores, those of the future too."""
    q, k, _ = split(op, tensors[0])
    return [by_head(op, q @ k.mT * scale_of(op))]


def scores_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dscores, qkv, dv [B, S, G × D] → dqkv."""
    dscores, qkv, dv = tensors
    q, k, _ = split(op, qkv)
    # Scores are kept by head; products want a group's queries below one another.
    dscores, scale = by_group(op, dscores), scale_of(op)
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
    return [join(op, by_group(op, tensors[0]) @ v)]


def values_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy, probability, qkv → dprobability, dv [B, S, G × D]."""
    dy, probability, qkv = tensors
    _, _, v = split(op, qkv)
    dy = heads(op, dy)
    dv = by_group(op, probability).mT @ dy
    return [by_head(op, dy @ v.mT), dv.transpose(1, 2).flatten(2)]


def by_group(op: OpClass, scores: torch.Tensor) -> torch.Tensor:
    """The inverse of ``by_head``."""
    return scores.unflatten(1, (int(op.attributes['groups']), -1)).flatten(2, 3)


KERNELS = {
    ('attention', 'F'): attention_forward,
    ('attention', 'I'): attention_dx,
    ('attention_scores', 'F'): scores_forward,
    ('attention_scores', 'I'): scores_dx,
    ('softmax', 'F'): softmax_forward,
    ('softmax', 'I'): softmax_dx,
    ('attention_values', 'F'): values_forward,
    ('attention_values', 'I'): values_dx,
}
