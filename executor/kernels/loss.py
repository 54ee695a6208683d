"""Losses: ``attributes['scale']`` × the sum over the local samples, unsharded or with the vocabulary over a partition.

Cross entropy over a sharded vocabulary is Megatron's (Shoeybi et al. 2019, section 3). It all-reduces a maximum and two
sums, and never logits.
"""

from __future__ import annotations

import torch

from executor.kernels.context import Context
from executor.kernels.embedding import local_rows
from executor.kernels.precision import wide
from simpar.program import OpClass


def cross_entropy_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """logits, labels → loss, lse [..., 1]."""
    logits, labels = wide(tensors[0]), tensors[1]
    lse = logits.logsumexp(-1, keepdim=True)
    return [_scale(op) * (lse - logits.gather(-1, labels.unsqueeze(-1))).sum(), lse]


def cross_entropy_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """logits, labels, lse → dlogits, of this rank's shard of the vocabulary where it is sharded."""
    logits, labels, lse = wide(tensors[0]), *tensors[1:]
    local, inside = local_rows(op, where, labels, logits.shape[-1])
    dlogits = (logits - lse.reshape(*labels.shape, 1)).exp()
    # One is subtracted at the target, and nothing where another rank holds the target's logit.
    dlogits.scatter_add_(-1, local.unsqueeze(-1), -inside.unsqueeze(-1).to(dlogits.dtype))
    return [dlogits * (_scale(op) * _partial_share(op))]


def ce_max(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """logits → maximum [..., 1]."""
    return [tensors[0].amax(-1, keepdim=True)]


def ce_sum(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """logits, labels, maximum → parts [..., 2]: Σ exp(logit − maximum), and the target's logit − maximum if here."""
    logits, labels, maximum = wide(tensors[0]), *tensors[1:]
    shifted = logits - maximum.reshape(*labels.shape, 1)
    local, inside = local_rows(op, where, labels, logits.shape[-1])
    target = shifted.gather(-1, local.unsqueeze(-1)).squeeze(-1)
    # Both sums in one tensor, so that one all-reduce does for them.
    return [torch.stack([shifted.exp().sum(-1), target * inside], dim=-1)]


def ce_loss(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """parts, maximum → loss, lse [..., 1]."""
    parts, maximum = map(wide, tensors)
    total, target = parts.unbind(-1)
    logarithm = total.log()
    # The maximum cancels in the loss, and is part of the log-sum-exp that the backward reads.
    return [_scale(op) * (logarithm - target).sum(), maximum.reshape(*total.shape, 1) + logarithm.unsqueeze(-1)]


def mse_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """y, target → loss."""
    y, target = map(wide, tensors)
    return [_scale(op) * (y - target).square().sum()]


def mse_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """y, target → dy."""
    y, target = tensors
    return [(y - target) * (2 * _scale(op) * _partial_share(op))]


def mae_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """y, target → loss."""
    y, target = map(wide, tensors)
    return [_scale(op) * (y - target).abs().sum()]


def mae_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """y, target → dy; 0 where they are equal."""
    y, target = tensors
    return [(y - target).sign() * (_scale(op) * _partial_share(op))]


def _scale(op: OpClass) -> float:
    return float(op.attributes['scale'])


def _partial_share(op: OpClass) -> float:
    return float(op.attributes.get('partial_share', 1.0))


KERNELS = {
    ('cross_entropy', 'F'): cross_entropy_forward,
    ('cross_entropy', 'I'): cross_entropy_dx,
    ('ce_max', 'F'): ce_max,
    ('ce_sum', 'F'): ce_sum,
    ('ce_loss', 'F'): ce_loss,
    ('mse', 'F'): mse_forward,
    ('mse', 'I'): mse_dx,
    ('mae', 'F'): mae_forward,
    ('mae', 'I'): mae_dx,
}
LOSSES = frozenset({'cross_entropy', 'ce_loss', 'cross_entropy_mean', 'mse', 'mae', 'aux_loss'})
"""Operators whose first written tensor in phase F is a loss."""
