"""Copies on the device in place of messages: one rank's part of a program runs alone, with traffic of the right sizes.

For a machine with a single device: streams, events and overlap are those of many ranks, the numbers are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Copies:
    """One rank's end of a communicator whose other ranks are not there."""

    size: int
    position: int

    def all_reduce(self, flat: torch.Tensor, reduce: str) -> None:
        """There and back."""
        flat.copy_(flat.clone())

    def all_gather(self, own: torch.Tensor) -> torch.Tensor:
        """Its own tensor from everybody."""
        return own.unsqueeze(0).repeat(self.size, 1)

    def reduce_scatter(self, chunks: list[torch.Tensor], reduce: str) -> torch.Tensor:
        """All chunks are read, and its own is kept."""
        return torch.stack(chunks)[self.position].clone()

    def all_to_all(self, chunks: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Chunks as long as its own."""
        return [chunks[self.position].clone() for _ in chunks]

    def exchange(self, sends: Sequence[tuple[torch.Tensor, int]], receives: Sequence[tuple[torch.Tensor, int]]) -> None:
        """What is sent is copied; what comes is small and finite."""
        for tensor, _ in sends:
            tensor.clone()
        for tensor, _ in receives:
            tensor.fill_(0.01 if tensor.is_floating_point() else 0)
