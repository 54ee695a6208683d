"""What carries messages between devices: their own library, gloo through the host, or copies in place of messages."""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist

from executor.devices.open import Device
from executor.ranks.collectives import Channel, Rings
from executor.ranks.request import Request
from executor.ranks.transport import Transport
from executor.validate import communicators
from simpar.errors import RunFailed
from simpar.program import Program

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


# gloo's rings between devices: messages go through the host, which waits for the stream meanwhile.


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

    def exchange(self, sends: Sequence[tuple[torch.Tensor, int]], receives: Sequence[tuple[torch.Tensor, int]]) -> None:
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
        return {key: Staged(Rings(channel)) for key, channel in channels.items()}
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
                found[partition.name, stream] = Native(groups[key], members, rank)
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
