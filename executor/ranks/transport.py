"""What an op of communication does with its tensors, over any transport: ``Transport`` is the seam to what carries it.

gloo's rings (``collectives``), the collectives of NCCL and HCCL, and those of virtual accelerators all have the same
few calls, on flat tensors of one group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from executor.tensors import joined, slices_of
from executor.validate import dims_of, exchange_of
from simpar.program import OpClass

Messages = Sequence[tuple[torch.Tensor, int]]
"""Pairs (flat tensor, position of the peer)."""


class Transport(Protocol):
    """Collectives of one communicator, a (partition, stream)."""

    @property
    def size(self) -> int:
        """Ranks in the group."""

    @property
    def position(self) -> int:
        """This rank's place among them."""

    def all_reduce(self, flat: torch.Tensor, reduce: str) -> None:
        """Reduce a flat tensor in place."""

    def all_gather(self, own: torch.Tensor) -> Sequence[torch.Tensor]:
        """The flat tensors of all ranks, by position."""

    def reduce_scatter(self, chunks: list[torch.Tensor], reduce: str) -> torch.Tensor:
        """The reduced chunk of this rank's position."""

    def all_to_all(self, chunks: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The chunks that all ranks have for this one, by position."""

    def exchange(self, sends: Messages, receives: Messages) -> object:
        """Send and receive at once."""


def transfer(
    op: OpClass, transport: Transport, reads: list[torch.Tensor], received: torch.Tensor | None
) -> list[torch.Tensor]:
    """Carry out a communication; returns what this rank gets.

    Arguments: ``received``, memory for what comes, of a receive or an exchange of neighbours.
    """
    if op.operator == 'all_reduce':
        # The reduction is in place, so a single tensor is copied first; several are copied by joining them.
        flat = _together(reads) if len(reads) > 1 else _flat(reads[0]).clone()
        transport.all_reduce(flat, op.reduce)
        return _apart(flat, reads)
    if op.operator == 'all_gather':
        gathered = transport.all_gather(_together(reads))
        # Gathered flat, one message a rank; each tensor's shards are then joined along its own dim.
        of_ranks = zip(*(_apart(flat, reads) for flat in gathered), strict=True)
        return [torch.cat(shards, dim) for shards, dim in zip(of_ranks, dims_of(op), strict=True)]
    if op.operator == 'reduce_scatter':
        split = [tensor.chunk(transport.size, dim) for tensor, dim in zip(reads, dims_of(op), strict=True)]
        # All tensors' shards for one position in one chunk: one collective for the whole op instead of one a tensor.
        chunks = [torch.cat([shard.flatten() for shard in shards]) for shards in zip(*split, strict=True)]
        own = transport.reduce_scatter(chunks, op.reduce)
        return _apart(own, [shards[0] for shards in split])
    if op.operator == 'all_to_all':
        joins, splits, sizes = exchange_of(op)
        slices = [slices_of(tensor, splits, sizes) for tensor in reads]
        like = [shards[0] for shards in slices]
        arrived = transport.all_to_all([_together(list(shards)) for shards in zip(*slices, strict=True)])
        of_ranks = zip(*(_apart(flat, like) for flat in arrived), strict=True)
        return [joined(shards, joins, sizes) for shards in of_ranks]
    return _pass(op, transport, reads, received)


def _pass(
    op: OpClass, transport: Transport, reads: list[torch.Tensor], received: torch.Tensor | None
) -> list[torch.Tensor]:
    """A send, a receive, or both among neighbours, of one tensor."""
    size, position = transport.size, transport.position
    if op.kind == 'send':
        transport.exchange([(_flat(reads[0]), (position + op.peer) % size)], [])
        return []
    if op.operator == 'send_recv':
        received = torch.empty_like(reads[0], memory_format=torch.contiguous_format)
        ahead, behind = (position + 1) % size, (position - 1) % size
        transport.exchange([(_flat(reads[0]), ahead)], [(received.view(-1), behind)])
        return [received]
    assert received is not None
    transport.exchange([], [(received.view(-1), (position + op.peer) % size)])
    return [received]


def _together(tensors: list[torch.Tensor]) -> torch.Tensor:
    """One flat tensor; no copy of a single one."""
    return torch.cat([_flat(tensor) for tensor in tensors]) if len(tensors) > 1 else _flat(tensors[0])


def _apart(flat: torch.Tensor, like: list[torch.Tensor]) -> list[torch.Tensor]:
    """The parts of a flat tensor, in the shapes of others."""
    parts = flat.split([tensor.numel() for tensor in like])
    return [part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1)
