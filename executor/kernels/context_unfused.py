"""Unfused attention of a rank's queries with keys and values that are there: those of all context ranks, or of one.

Scores and probabilities are [B, heads, S, keys]; of keys of one rank they are a block, whose place is that rank's.
Shapes as in ``attention``.
"""

from __future__ import annotations

import torch

from executor.kernels.attention import heads, join, scale_of, values_of
from executor.kernels.context import Context
from simpar.program import OpClass

Tensors = list[torch.Tensor]


def scores_forward(op: OpClass, where: Context, tensors: Tensors) -> Tensors:
    """q, kv → scores, those of the future too."""
    q, kv = tensors
    k, _ = _apart(op, kv)
    return [_by_head(op, _queries(op, q) @ k.mT * scale_of(op))]


def scores_dx(op: OpClass, where: Context, tensors: Tensors) -> Tensors:
    """dscores, probability, dy, q, kv[, dq of keys before] → dq of all keys so far, dkv."""
    dscores, probability, dy, q, kv, *before = tensors
    k, _ = _apart(op, kv)
    dscores, probability = (_by_group(op, _there(op, where, one, kv.shape[1])) for one in (dscores, probability))
    dq = dscores @ k * scale_of(op)
    dk, dv = dscores.mT @ _queries(op, q) * scale_of(op), probability.mT @ heads(op, dy)
    dq = dq.unflatten(2, (int(op.attributes['queries']), -1)).permute(0, 3, 1, 2, 4).flatten(2)
    dkv = torch.cat([dk.transpose(1, 2), dv.transpose(1, 2)], -1).flatten(2)
    return [dq + before[0] if before else dq, dkv]


def values_forward(op: OpClass, where: Context, tensors: Tensors) -> Tensors:
    """probability, kv[, y of keys before] → y of all keys so far."""
    probability, kv, *before = tensors
    _, v = _apart(op, kv)
    y = join(op, _by_group(op, _there(op, where, probability, kv.shape[1])) @ v)
    return [y + before[0] if before else y]


def values_dx(op: OpClass, where: Context, tensors: Tensors) -> Tensors:
    """dy, kv → dprobability."""
    dy, kv = tensors
    _, v = _apart(op, kv)
    return [_by_head(op, heads(op, dy) @ v.mT)]


def join_keys(op: OpClass, where: Context, tensors: Tensors) -> Tensors:
    """blocks by step → the blocks in the order of the ranks that their keys are of."""
    ranks = len(tensors)
    steps = [(where.position[str(op.attributes['context'])] - rank) % ranks for rank in range(ranks)]
    return [torch.cat([tensors[step] for step in steps], -1)]


def _there(op: OpClass, where: Context, scores: torch.Tensor, keys: int) -> torch.Tensor:
    """The columns of the keys that are there."""
    if 'step' not in op.attributes:
        return scores
    context = str(op.attributes['context'])
    source = (where.position[context] - int(op.attributes['step'])) % where.size[context]
    return scores.narrow(-1, source * keys, keys)


def _queries(op: OpClass, q: torch.Tensor) -> torch.Tensor:
    """[B, S, G × Q × D] → [B, G, Q × S, D]."""
    groups, queries, head_dim = (int(op.attributes[key]) for key in ('groups', 'queries', 'head_dim'))
    return q.unflatten(-1, (groups, queries, head_dim)).permute(0, 2, 3, 1, 4).flatten(2, 3)


def _apart(op: OpClass, kv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [B, G, S, D]."""
    sizes = int(op.attributes['head_dim']), values_of(op)
    k, v = kv.unflatten(-1, (int(op.attributes['groups']), -1)).split(sizes, -1)
    return k.transpose(1, 2), v.transpose(1, 2)


def _by_head(op: OpClass, scores: torch.Tensor) -> torch.Tensor:
    """[B, G, Q × S, keys] → [B, G × Q, S, keys]."""
    return scores.unflatten(2, (int(op.attributes['queries']), -1)).flatten(1, 2)


def _by_group(op: OpClass, scores: torch.Tensor) -> torch.Tensor:
    """The inverse of ``_by_head``."""
    return scores.unflatten(1, (int(op.attributes['groups']), -1)).flatten(2, 3)


KERNELS = {
    ('context_scores', 'F'): scores_forward,
    ('context_scores', 'I'): scores_dx,
    ('context_values', 'F'): values_forward,
    ('context_values', 'I'): values_dx,
    ('join_keys', 'F'): join_keys,
    ('join_keys', 'I'): join_keys,
}
