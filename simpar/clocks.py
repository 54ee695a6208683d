"""Clocks under load: what a step asks of the matrix units decides how fast a device's power lets them run.

Power of the units goes with the FLOPs that they do in a second and with the square of the voltage, which goes with
the clock. At clock f, as a share of that of short measurements, a step that would use the share u of the peak at f = 1
draws u · f³. A profile's ``sustained`` is the clock s of a device that does nothing but its largest products, which use
the share ``matmul.share``. So f = s · (matmul.share / u)^(1/3), and never above 1: a device that waits, streams or is
launched slowly keeps its clock.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simpar.cost.compute import MATRIX
from simpar.cost.price import Models, Pricer
from simpar.engine import step_ends
from simpar.hardware import Cluster, Device, ShareFigure
from simpar.program import Program

STEPS = 2
"""Steps that are simulated at full clocks; the last counts."""


def under_load(program: Program, cluster: Cluster, models: Models | None = None) -> Cluster:
    """The cluster with its matrix units at the clock that they keep under this program; ``cluster`` without a stack, or
    where the device is not bound by power. Arguments: ``models``, as of ``price``.

    Does not model: clocks that differ between ranks or change in a step; devices that share a node's power.
    """
    device = cluster.profile.device
    limit = device.sustained
    if cluster.stack is None or limit is None or not device.power_bound or limit.value >= 1:
        return cluster
    boosted = _at(cluster, replace(limit, value=1.0))
    step = float(np.diff(step_ends(program, Pricer(program, boosted, models=models).costs(), steps=STEPS))[-1])
    return _at(cluster, replace(limit, value=clock(device, limit.value, utilisation(program, device, step))))


def at_full_clocks(cluster: Cluster) -> Cluster:
    """The cluster as fast as any program finds it: its matrix units at the clock of short measurements."""
    limit = cluster.profile.device.sustained
    if cluster.stack is None or limit is None or not cluster.profile.device.power_bound:
        return cluster
    return _at(cluster, replace(limit, value=max(limit.value, 1.0)))


def clock(device: Device, sustained: float, share: float) -> float:
    """The clock of a device of which a step would use this share of the peak at full clocks."""
    full = device.matmul.share.value
    return min(1.0, sustained * (full / share) ** (1 / 3)) if share > 0 else 1.0


def utilisation(program: Program, device: Device, step: float) -> float:
    """The share of the matrix peak that the busiest rank of a program uses in a step of so many seconds."""
    peaks = {str(dtype): figure.value for dtype, figure in device.matrix.items()}
    work = np.array([
        op.flops / peaks[op.dtype] if op.kind == 'compute' and op.operator in MATRIX and op.dtype in peaks else 0.0
        for op in program.op_classes
    ])  # fmt: skip
    return max(float(work[role.op_class].sum()) for role in program.roles) / step


def _at(cluster: Cluster, figure: ShareFigure) -> Cluster:
    device = replace(cluster.profile.device, sustained=figure)
    return replace(cluster, profile=replace(cluster.profile, device=device))
