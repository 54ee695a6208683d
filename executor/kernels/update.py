"""Optimizer updates, in place and for all weights of an op at once, as fused optimizers do."""

from __future__ import annotations

import torch

from executor.kernels.context import Context
from simpar.program import OpClass


def sgd(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """gradients..., weights... → weights..."""
    gradients, weights = _by_kind(tensors, 2)
    torch._foreach_add_(weights, _like(gradients, weights), alpha=-float(op.attributes['learning_rate']))
    return weights


def adam(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """gradients..., weights..., m..., v...[, masters...] → the same but gradients; Kingma and Ba 2014, algorithm 1.

    Masters are weights in fp32: these are updated, and cast to the weights.
    """
    gradients, weights, m, v, *masters = _by_kind(tensors, 5 if op.attributes.get('master_weights') else 4)
    exact = masters[0] if masters else weights
    beta1, beta2 = float(op.attributes['beta1']), float(op.attributes['beta2'])
    gradients = _like(gradients, m)
    torch._foreach_lerp_(m, gradients, 1 - beta1)
    torch._foreach_mul_(v, beta2)
    torch._foreach_addcmul_(v, gradients, gradients, 1 - beta2)
    denominator = torch._foreach_sqrt(v)
    torch._foreach_div_(denominator, (1 - beta2 ** (where.step + 1)) ** 0.5)
    torch._foreach_add_(denominator, float(op.attributes['epsilon']))
    change = torch._foreach_div(m, denominator)
    rate = float(op.attributes['learning_rate']) / (1 - beta1 ** (where.step + 1))
    torch._foreach_add_(exact, _like(change, exact), alpha=-rate)
    if masters:
        torch._foreach_copy_(weights, exact)
    return [*weights, *m, *v, *(exact if masters else ())]


def _by_kind(tensors: list[torch.Tensor], kinds: int) -> list[list[torch.Tensor]]:
    count = len(tensors) // kinds
    return [tensors[first : first + count] for first in range(0, len(tensors), count)]


def _like(tensors: list[torch.Tensor], others: list[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors in the shapes and dtypes of the others."""
    return [tensor.reshape(other.shape).to(other.dtype) for tensor, other in zip(tensors, others, strict=True)]


KERNELS = {('sgd', 'U'): sgd, ('adam', 'U'): adam}
