"""Updates that are left out where a gradient is not finite: decided on the device, so that no host waits for it."""

from __future__ import annotations

import torch

from simpar.program import OpClass

Tensors = list[torch.Tensor]


def overflow_of(op: OpClass, tensors: Tensors) -> torch.Tensor | None:
    """How many gradients of all ranks are not finite, where the op reads that: behind all others."""
    return tensors[-1] if 'loss_scale' in op.attributes else None


def saved(overflow: torch.Tensor | None, tensors: Tensors) -> Tensors:
    """What an update will change, as it was; nothing where nothing can be left out."""
    return [] if overflow is None else [tensor.clone() for tensor in tensors]


def restore(overflow: torch.Tensor | None, tensors: Tensors, before: Tensors) -> None:
    """Put all back where something is not finite."""
    if overflow is not None:
        # A choice, not a product: NaN times zero is NaN.
        for tensor, old in zip(tensors, before, strict=True):
            tensor.copy_(torch.where(overflow.reshape(()) > 0, old, tensor))
