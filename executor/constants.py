"""Tensors that the host makes for a kernel, such as masks: brought to the device without waiting for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from executor.devices.kinds import KINDS

Kept = dict[object, torch.Tensor]
_kept: Kept | None = None
_again = False


@contextmanager
def constants(kept: Kept, *, again: bool) -> Iterator[None]:
    """Within it, constants are remembered; ``again``: those that were remembered are given.

    A graph that is captured cannot read memory of the host, for the host has dropped it when the graph is replayed.
    """
    global _kept, _again
    _kept, _again = kept, again
    try:
        yield
    finally:
        _kept, _again = None, False


def on_device(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A tensor of the host where another one is; its dtype stays."""
    if tensor.device == like.device:
        return tensor
    key = None
    if _kept is not None:
        cells = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b''
        key = (like.device, tensor.dtype, tuple(tensor.shape), cells)
        if _again and key in _kept:
            return _kept[key]
    # A copy from memory that is not pinned would have the host wait for all that the stream has to do.
    host = tensor.pin_memory() if KINDS[like.device.type].pins else tensor
    moved = host.to(like.device, non_blocking=True)
    if _kept is not None:
        _kept.setdefault(key, moved)
    return moved
