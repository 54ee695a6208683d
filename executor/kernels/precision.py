"""Reductions in 16 bits lose what they sum; they work in fp32."""

from __future__ import annotations

import torch


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in at least fp32."""
    return tensor.float() if tensor.element_size() < torch.float32.itemsize else tensor
