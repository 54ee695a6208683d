"""What multi-head latent attention has between its products: a norm of a part, a part, and what attention reads.

B batch, S sequence, G heads on this rank, D features.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from executor.kernels.attention import values_of
from executor.kernels.context import Context
from executor.kernels.norm import rms_dw, rms_dx, rms_forward
from executor.kernels.rotary import turned
from simpar.program import OpClass


def norm_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """x, gain → RMSNorm of the first features, as many as there are gains, and rstd."""
    x, gain = tensors
    return rms_forward(op, where, [x[..., : gain.shape[-1]], gain])


def norm_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy, x, gain, rstd → dx, zero for the features that were left out."""
    dy, x, gain, rstd = tensors
    features = gain.shape[-1]
    (dx,) = rms_dx(op, where, [dy, x[..., :features], gain, rstd])
    return [functional.pad(dx, (0, x.shape[-1] - features))]


def norm_dw(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy, x, rstd → dgain."""
    dy, x, rstd = tensors
    return rms_dw(op, where, [dy, x[..., : dy.shape[-1]], rstd])


def last_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """x → its features behind the first ``before``."""
    return [tensors[0][..., int(op.attributes['before']) :].contiguous()]


def last_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy → dx."""
    return [functional.pad(tensors[0], (int(op.attributes['before']), 0))]


def qkv_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """q, keys and values, shared keys → qkv [B, S, G × (query, key, value)]."""
    groups = int(op.attributes['groups'])
    (q, kv), k_rope = (tensor.unflatten(-1, (groups, -1)) for tensor in tensors[:2]), tensors[2]
    rotated, values = int(op.attributes['rotated']), values_of(op)
    q_nope, q_rope = q.split((q.shape[-1] - rotated, rotated), -1)
    k_nope, v = kv.split((kv.shape[-1] - values, values), -1)
    k_turned = turned(op, where, k_rope.unsqueeze(2)).expand(-1, -1, groups, -1)
    return [torch.cat([q_nope, turned(op, where, q_rope), k_nope, k_turned, v], -1).flatten(2)]


def qkv_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dqkv → the gradient of the part that ``of`` names."""
    head_dim, rotated, values = int(op.attributes['head_dim']), int(op.attributes['rotated']), values_of(op)
    dqkv_BSGD = tensors[0].unflatten(-1, (int(op.attributes['groups']), -1))
    parts = (head_dim - rotated, rotated, head_dim - rotated, rotated, values)
    dq, dq_turned, dk, dk_turned, dv = dqkv_BSGD.split(parts, -1)
    if op.attributes['of'] == 'q':
        return [torch.cat([dq, turned(op, where, dq_turned, back=True)], -1).flatten(2)]
    if op.attributes['of'] == 'kv':
        return [torch.cat([dk, dv], -1).flatten(2)]
    # All heads share it.
    return [turned(op, where, dk_turned.sum(2, keepdim=True), back=True).squeeze(2)]


KERNELS = {
    ('latent_norm', 'F'): norm_forward,
    ('latent_norm', 'I'): norm_dx,
    ('latent_norm', 'W'): norm_dw,
    ('last_features', 'F'): last_forward,
    ('last_features', 'I'): last_dx,
    ('latent_qkv', 'F'): qkv_forward,
    ('latent_qkv', 'I'): qkv_dx,
}
