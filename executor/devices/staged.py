"""gloo's rings between devices: messages go through the host, which waits for the stream meanwhile.

For ranks that share one device, which NCCL and HCCL refuse. Nothing overlaps with what the host issues, so times show
no overlap; values do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from executor.collectives import Rings


@dataclass(frozen=True, slots=True)
class Staged:
    """One rank's end of a communicator.

    Arguments: ``rings``, that of the same tensors on the host.
    """

    rings: Rings

    @property
    def size(self) -> int:
        """Ranks in the group."""
        return self.rings.size

    @property
    def position(self) -> int:
        """This rank's place among them."""
        return self.rings.position

    def all_reduce(self, flat: torch.Tensor, reduce: str) -> None:
        """Reduce a flat tensor in place."""
        here = flat.cpu()
        self.rings.all_reduce(here, reduce)
        flat.copy_(here)

    def all_gather(self, own: torch.Tensor) -> torch.Tensor:
        """The flat tensors of all ranks, by position."""
        return self.rings.all_gather(own.cpu()).to(own.device)

    def reduce_scatter(self, chunks: list[torch.Tensor], reduce: str) -> torch.Tensor:
        """The reduced chunk of this rank's position."""
        return self.rings.reduce_scatter([chunk.cpu() for chunk in chunks], reduce).to(chunks[0].device)

    def all_to_all(self, chunks: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The chunks that all ranks have for this one, by position."""
        received = self.rings.all_to_all([chunk.cpu() for chunk in chunks])
        return [chunk.to(chunks[0].device) for chunk in received]

    def exchange(self, sends: Sequence[tuple[torch.Tensor, int]], receives: Sequence[tuple[torch.Tensor, int]]) -> None:
        """Send and receive at once."""
        here = [(torch.empty(into.shape, dtype=into.dtype), peer) for into, peer in receives]
        self.rings.exchange([(out.cpu(), peer) for out, peer in sends], here)
        for (into, _), (received, _) in zip(receives, here, strict=True):
            into.copy_(received)
