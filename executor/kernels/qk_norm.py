"""RMSNorm of every head of the queries and keys of fused ``qkv``.

B batch, S sequence, G groups (key/value heads on this rank), C columns (queries, key and value), D head_dim.
"""

from __future__ import annotations

import torch

from executor.kernels.context import Context
from executor.kernels.precision import wide
from simpar.program import OpClass


def qk_norm_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """qkv, gain of queries, gain of keys → qkv, rstd [B, S, G × (C − 1)]."""
    qkv, *gains = tensors
    x_BSGCD = _columns(op, qkv)
    rstd = (wide(x_BSGCD[..., :-1, :]).square().mean(-1, keepdim=True) + float(op.attributes['epsilon'])).rsqrt()
    normalised = x_BSGCD[..., :-1, :] * rstd * _gains(op, gains)
    return [_joined(normalised, x_BSGCD), rstd.flatten(2)]


def qk_norm_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy, qkv, gain of queries, gain of keys, rstd → dqkv."""
    dy, qkv, q_gain, k_gain, kept = map(wide, tensors)
    dy_BSGCD, x_BSGCD, rstd = _columns(op, dy), _columns(op, qkv)[..., :-1, :], _rstd(op, kept)
    normalised, scaled = x_BSGCD * rstd, dy_BSGCD[..., :-1, :] * _gains(op, [q_gain, k_gain])
    dx = rstd * (scaled - normalised * (scaled * normalised).mean(-1, keepdim=True))
    return [_joined(dx, dy_BSGCD)]


def qk_norm_dw(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy, qkv, rstd → gradients of the gains."""
    dy, qkv, kept = map(wide, tensors)
    of_each = (_columns(op, dy)[..., :-1, :] * _columns(op, qkv)[..., :-1, :] * _rstd(op, kept)).sum((0, 1, 2))
    return [of_each[:-1].sum(0), of_each[-1]]


def _columns(op: OpClass, qkv: torch.Tensor) -> torch.Tensor:
    groups, queries, head_dim = (int(op.attributes[key]) for key in ('groups', 'queries', 'head_dim'))
    return qkv.unflatten(-1, (groups, queries + 2, head_dim))


def _rstd(op: OpClass, rstd: torch.Tensor) -> torch.Tensor:
    return rstd.unflatten(-1, (int(op.attributes['groups']), -1)).unsqueeze(-1)


def _gains(op: OpClass, gains: list[torch.Tensor]) -> torch.Tensor:
    """[C − 1, D]: the gain of queries for each of a group's, then that of keys."""
    q_gain, k_gain = gains
    return torch.cat([q_gain.expand(int(op.attributes['queries']), -1), k_gain.unsqueeze(0)])


def _joined(queries_and_keys: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """With the values of a source behind them."""
    return torch.cat([queries_and_keys, source[..., -1:, :]], -2).flatten(2)


KERNELS = {('qk_norm', 'F'): qk_norm_forward, ('qk_norm', 'I'): qk_norm_dx, ('qk_norm', 'W'): qk_norm_dw}
