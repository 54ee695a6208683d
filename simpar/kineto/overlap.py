"""Busy, exposed and overlapped seconds of a recording, by the definitions of Holistic Trace Analysis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simpar.interval_sets import Intervals, length, minus, union
from simpar.kineto.read import Interval, Recording


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """Seconds of a rank's device, of whole steps.

    Arguments:
        span: from the first kernel's start to the last one's end. idle: of it without any kernel.
        compute: with a compute kernel. exposed: busy without a compute kernel: communication and memory alone.
        communication: with a communication kernel. overlap: the share of that beside compute.
    """

    span: float
    idle: float
    compute: float
    exposed: float
    communication: float
    overlap: float


def busy(recording: Recording) -> Busy:
    """How the device of a recording spent its time; all 0 where no kernel was recorded."""
    kernels = recording.whole_kernels
    everything = _of(kernels)
    if not len(everything):
        return Busy(span=0.0, idle=0.0, compute=0.0, exposed=0.0, communication=0.0, overlap=0.0)
    compute = _of([kernel for kernel in kernels if kernel.kind == 'compute'])
    communication = _of([kernel for kernel in kernels if kernel.kind == 'communication'])
    span = float(everything[:, 1].max() - everything[:, 0].min())
    busy_seconds, computing, talking = length(everything), length(compute), length(communication)
    alone = length(minus(communication, compute)) if talking else 0.0
    return Busy(
        span=span,
        idle=span - busy_seconds,
        compute=computing,
        exposed=busy_seconds - computing,
        communication=talking,
        overlap=1 - alone / talking if talking else 0.0,
    )


def _of(kernels: Sequence[Interval]) -> Intervals:
    return union(np.array([(kernel.start, kernel.end) for kernel in kernels]).reshape(-1, 2))
