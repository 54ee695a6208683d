"""Collectives of the device's own library (NCCL, HCCL) on the current stream, by ``torch.distributed``.

One communicator belongs to one (partition, stream), made at start-up. Sends and receives that belong together go as
one batch, so that none waits for another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist

REDUCE: Final = {'sum': dist.ReduceOp.SUM, 'max': dist.ReduceOp.MAX}


@dataclass(frozen=True, slots=True)
class Native:
    """One rank's end of a communicator.

    Arguments: ``members``, ranks by position.
    """

    group: Any
    members: tuple[int, ...]
    rank: int

    @property
    def size(self) -> int:
        """Ranks in the group."""
        return len(self.members)

    @property
    def position(self) -> int:
        """This rank's place among them."""
        return self.members.index(self.rank)

    def all_reduce(self, flat: torch.Tensor, reduce: str) -> None:
        """Reduce a flat tensor in place."""
        dist.all_reduce(flat, REDUCE[reduce], self.group)

    def all_gather(self, own: torch.Tensor) -> torch.Tensor:
        """The flat tensors of all ranks, by position."""
        gathered = own.new_empty(self.size * own.numel())
        dist.all_gather_into_tensor(gathered, own, self.group)
        return gathered.view(self.size, -1)

    def reduce_scatter(self, chunks: list[torch.Tensor], reduce: str) -> torch.Tensor:
        """The reduced chunk of this rank's position."""
        own = torch.empty_like(chunks[self.position])
        dist.reduce_scatter_tensor(own, torch.cat(chunks), REDUCE[reduce], self.group)
        return own

    def all_to_all(self, chunks: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The chunks that all ranks have for this one, by position."""
        # Every rank's chunk for this one is as long as this rank's own.
        length = chunks[self.position].numel()
        received = chunks[0].new_empty(length * self.size)
        sizes = [chunk.numel() for chunk in chunks]
        dist.all_to_all_single(received, torch.cat(list(chunks)), [length] * self.size, sizes, self.group)
        return list(received.split(length))

    def exchange(self, sends: Sequence[tuple[torch.Tensor, int]], receives: Sequence[tuple[torch.Tensor, int]]) -> None:
        """Send and receive at once, as one batch."""
        # Both ends know the sizes, so both leave empty messages out.
        batch = [
            dist.P2POp(way, tensor, self.members[peer], self.group)
            for way, messages in ((dist.irecv, receives), (dist.isend, sends))
            for tensor, peer in messages
            if tensor.numel()
        ]
        for work in dist.batch_isend_irecv(batch) if batch else ():
            # On a device this has the current stream wait, not the host.
            work.wait()
