"""Kineto recordings (torch.profiler on CUDA, ROCm and others) as tables of kernels."""

from __future__ import annotations

import re
from bisect import bisect_right
from pathlib import Path

from simpar.kineto.read import Interval, Recording, correlation, read_recording
from simpar.traces.table import COMMUNICATION, COMPUTE, COPY, NO_STEP, RankTrace, kernels_of

_KINDS = {'communication': COMMUNICATION, 'memory': COPY}


def read_kineto(path: Path, extra: re.Pattern[str] | None = None) -> RankTrace:
    """The kernels of a recording; each is of the step in which it was launched.

    Arguments: ``extra``, further names of communication.
    """
    recording = read_recording(path)
    steps = recording.steps
    launches = {correlation(each): each.start for each in recording.host if correlation(each) is not None}
    begins = sorted(step.start for step in steps)
    rows = []
    for kernel in recording.kernels:
        launched = launches.get(correlation(kernel), kernel.start)
        step = bisect_right(begins, launched) - 1
        kind = COMMUNICATION if extra and extra.search(kernel.name) else _KINDS.get(kernel.kind, COMPUTE)
        begin, end = (round((recording.origin + at) * 1e9) for at in (kernel.start, kernel.end))
        rows.append((begin, end, kind, step, kernel.name, '', str(kernel.place), _group(kernel), '', ''))
    return RankTrace(
        source=str(path),
        format='Kineto',
        rank=recording.rank,
        world=recording.world,
        device=recording.device,
        kernels=kernels_of(rows),
        steps=tuple(step.name.removeprefix('ProfilerStep#') for step in sorted(steps, key=lambda one: one.start)),
        cut=_cut(recording),
        notes=() if rows else ('no device was recorded',),
    )


def _group(kernel: Interval) -> str:
    return str(kernel.args.get('Process Group Ranks') or kernel.args.get('Process Group Name') or '')


def _cut(recording: Recording) -> int:
    """The last of several steps is cut off by the profiler."""
    return len(recording.steps) - 1 if len(recording.steps) > 1 else NO_STEP
