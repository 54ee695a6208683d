"""Tensors that the host makes for a kernel, such as masks: brought to the device without waiting for it."""

from __future__ import annotations

import torch

from executor.devices.kinds import KINDS


def on_device(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A tensor of the host where another one is; its dtype stays."""
    if tensor.device == like.device:
        return tensor
    # A copy from memory that is not pinned would have the host wait for all that the stream has to do.
    host = tensor.pin_memory() if KINDS[like.device.type].pins else tensor
    return host.to(like.device, non_blocking=True)
