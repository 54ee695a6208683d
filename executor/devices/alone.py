"""One rank of a program alone on a device, with copies as traffic: its times, its bytes, and costs made of them."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from executor.devices.issue import Issuer
from executor.devices.open import Device
from executor.devices.traffic import Copies
from executor.tensors import TORCH
from executor.transport import Transport
from executor.validate import communicators
from simpar.cost.costs import Communication, Costs
from simpar.program import Program
from simpar.units import quantise

FILL: Final = 512
"""Rows of the products that keep a device busy while the host gets ahead of it."""
RANK: Final = 0


@dataclass(frozen=True, slots=True)
class Alone:
    """What was seen.

    Arguments:
        step: median seconds of a steady step.
        ops: op class → median seconds on the device.
        host: seconds that the host took to issue an op, in the mean.
        bytes: the most that tensors took on the device; 0 where it is not known.
    """

    step: float
    ops: dict[str, float]
    host: float
    bytes: int


def run_alone(program: Program, device: Device, *, steps: int, dtype: str = '', ahead: int = 0) -> Alone:
    """Run rank 0's role.

    Arguments: ``ahead``, products that the device has to do before each step, so that it never waits for the host.
    """
    transports: dict[tuple[str, str], Transport] = {
        (partition.name, stream): Copies(partition.size, partition.place(RANK)[1])
        for partition, stream in communicators(program)
    }
    issuer = Issuer(program, RANK, device, transports, steps=steps, dtype=TORCH[dtype] if dtype else None)
    issuer.begin(time.perf_counter, -1)
    filler = torch.ones(FILL, FILL, device=device.name) if ahead else None
    device.module.reset_peak_memory_stats(device.name)
    hosts = []
    for step in range(steps):
        issuer.keep_near(step)
        with device.module.stream(issuer.streams[0]), torch.no_grad():
            for _ in range(ahead):
                torch.mm(filler, filler)
        begun = time.perf_counter()
        issuer.issue(step)
        hosts.append((time.perf_counter() - begun) / len(issuer.slots))
    issuer.finish()
    ends = issuer.end_KS.max(axis=1)
    steady = slice(min(2, steps - 1), None)
    return Alone(
        step=float(np.median(np.diff(ends)[1:] if steps > 2 else np.diff(ends))),
        ops=_of_ops(program, issuer, steady),
        host=float(np.median(hosts[steady])),
        bytes=int(device.module.max_memory_allocated(device.name)),
    )


def _of_ops(program: Program, issuer: Issuer, steady: slice) -> dict[str, float]:
    seconds = defaultdict(list)
    took = np.median((issuer.end_KS - issuer.arrive_KS)[steady], axis=0)
    for slot, value in zip(issuer.slots, took.tolist(), strict=True):
        seconds[slot.op.name].append(value)
    return {name: float(np.median(values)) for name, values in seconds.items()}


def costs_of(program: Program, seen: dict[str, float], host: float) -> Costs:
    """Costs of a program whose op classes took so long."""
    ops = program.op_classes
    count, groups = len(ops), {name: len(part.groups_GP) for name, part in program.partitions.items()}

    def of(op: Any) -> float:
        return quantise(seen.get(op.name, 0.0))

    return Costs(
        compute=np.array([of(op) if op.kind == 'compute' else 0.0 for op in ops]),
        host=np.full(count, quantise(host)),
        beside_communication=np.ones(count),
        beside_compute=np.ones(count),
        communication={
            index: [Communication(alpha=of(op), transfer=0.0)] * groups[op.partition]
            for index, op in enumerate(ops)
            if op.kind not in ('compute', 'recv')
        },
        links=(),
        rank_speed=np.ones(program.world),
    )
