"""What an op of communication does with its tensors, over any transport: ``Transport`` is the seam to what carries it.

gloo's rings (``collectives``), the collectives of NCCL and HCCL, and those of virtual accelerators all have the same
few calls, on flat tensors of one group.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
import torch.distributed as dist

from executor.devices.open import Device
from executor.ranks.collectives import Channel, Messages, Rings
from executor.ranks.request import Request
from executor.tensors import joined, slices_of
from executor.validate import communicators, dims_of, exchange_of
from simpar.errors import RunFailed
from simpar.program import OpClass, Program

REDUCE: Final = {'sum': dist.ReduceOp.SUM, 'max': dist.ReduceOp.MAX}


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


@dataclass(frozen=True, slots=True)
class Native:
    """One rank's end of a communicator of the device's own library.

    Arguments: ``members``, ranks by position.
    """

    group: Any
    members: tuple[int, ...]
    position: int

    @property
    def size(self) -> int:
        """Ranks in the group."""
        return len(self.members)

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

    def exchange(self, sends: Messages, receives: Messages) -> None:
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


# Copies on the device in place of messages: one rank's part of a program runs alone, with traffic of the right
# sizes.


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

    def exchange(self, sends: Messages, receives: Messages) -> None:
        """What is sent is copied; what comes is small and finite."""
        for tensor, _ in sends:
            tensor.clone()
        for tensor, _ in receives:
            tensor.fill_(0.01 if tensor.is_floating_point() else 0)


# What one rank of several processes needs to run on a device: its transports, and the host that issues.

Transports = dict[tuple[str, str], Transport]
Groups = dict[tuple[object, ...], object]
"""Communicators that a rank has made; one is made in about a second, and never ended before the process."""


def device_transports(
    program: Program,
    rank: int,
    device: Device,
    channels: Mapping[tuple[str, str], Channel],
    request: Request,
    timeout: datetime.timedelta,
    groups: Groups,
) -> Transports:
    """The transport of every communicator of a rank; all ranks must call this alike.

    Arguments: ``groups``, the rank's own, to which those of this program are added.
    """
    if not _is_native(program, device, request):
        if request.issue == 'graph' and channels:
            raise RunFailed(
                '--issue graph: messages by gloo wait for the host, which a graph cannot; write --issue eager'
            )
        return {key: Rings(channel) for key, channel in channels.items()}
    found: Transports = {}
    for partition, stream in communicators(program):
        for members in map(tuple, partition.groups_GP.tolist()):
            if len(members) == 1:
                continue
            key = (device.kind.backend, members, partition.name, stream)
            if key not in groups:
                # Bound to its device, it connects at once: not in the middle of a step, where ranks would wait for
                # one another in different orders.
                groups[key] = dist.new_group(
                    list(members),
                    backend=device.kind.backend,
                    timeout=timeout,
                    device_id=device.name if device.kind.numbered else None,
                )
            if rank in members:
                found[partition.name, stream] = Native(groups[key], members, members.index(rank))
    return found


def _is_native(program: Program, device: Device, request: Request) -> bool:
    """Whether the device's own library carries messages."""
    backend, count = device.kind.backend, device.module.device_count()
    there = backend in dist.Backend.backend_list and _available(backend)
    ranks = int(os.environ.get('LOCAL_WORLD_SIZE', program.world))
    # These libraries refuse two ranks on one device.
    alone = not device.kind.numbered or ranks <= count
    if request.transport == 'native' and not there:
        raise RunFailed(f'--transport native: torch here has no {backend}; write --transport gloo')
    if request.transport == 'native' and not alone:
        raise RunFailed(f'--transport native: {ranks} ranks on {count} devices; write --transport gloo')
    if (
        request.transport == 'native'
        and not device.kind.numbered
        and any(op.kind == 'send' for op in program.op_classes)
    ):
        raise RunFailed('--transport native on CPUs runs no pipeline: each send would hold up its rank; leave it out')
    return request.transport != 'gloo' and there and alone


def _available(backend: str) -> bool:
    return bool(getattr(dist, f'is_{backend}_available', lambda: True)())
