"""What one rank of several processes needs to run on a device: its transports, and the host that issues."""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping

import torch
import torch.distributed as dist

from executor.collectives import Channel, Rings
from executor.devices.graph import ISSUERS
from executor.devices.issue import Issuer
from executor.devices.native import Native
from executor.devices.open import Device
from executor.devices.run import DeviceRun
from executor.devices.staged import Staged
from executor.rank import Request
from executor.status import Status
from executor.stretch import Stretch
from executor.tensors import TORCH
from executor.transport import Transport
from executor.validate import communicators
from simpar.errors import RunFailed
from simpar.program import Program

Transports = dict[tuple[str, str], Transport]
_groups: dict[tuple[object, ...], object] = {}
"""Communicators that this process has made; one is made in about a second, and never ended before the process."""


def device_transports(
    program: Program,
    rank: int,
    device: Device,
    channels: Mapping[tuple[str, str], Channel],
    request: Request,
    timeout: datetime.timedelta,
) -> Transports:
    """The transport of every communicator of a rank; all ranks must call this alike."""
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
            if key not in _groups:
                # Bound to its device, it connects at once: not in the middle of a step, where ranks would wait for
                # one another in different orders.
                _groups[key] = dist.new_group(
                    list(members),
                    backend=device.kind.backend,
                    timeout=timeout,
                    device_id=device.name if device.kind.numbered else None,
                )
            if rank in members:
                found[partition.name, stream] = Native(_groups[key], members, rank)
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


def device_run(
    program: Program,
    rank: int,
    device: Device,
    transports: Transports,
    request: Request,
    status: Status,
    held: Mapping[str, torch.Tensor] | None,
) -> tuple[Issuer, DeviceRun]:
    """The host of a rank, and its run.

    Arguments: ``held``, parameters and states before the first step; None, as the seed draws them.
    """
    stretch = request.stretch or Stretch()
    issuer = ISSUERS[request.issue](
        program,
        rank,
        device,
        transports,
        steps=request.steps,
        seed=request.seed,
        dtype=TORCH[request.dtype] if request.dtype else None,
        first=stretch.first,
        held=held,
    )
    return issuer, DeviceRun(program, rank, request.steps, issuer, status)
