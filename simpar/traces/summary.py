"""How a device spent its time: unions of kernels, by step."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from simpar.interval_sets import Intervals, length, minus, union
from simpar.traces.table import COMMUNICATION, COMPUTE, COPY, NANOSECOND, NO_STEP, Kernels, RankTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Seconds of a rank's device.

    Arguments:
        span: from the first begin to the last end. idle: of it without any kernel or copy.
        computing, communication: with a kernel of that kind. overlapped: with both.
        exposed: communication without computation.
        copies: copies of memory beside neither.
    """

    span: float
    computing: float
    communication: float
    overlapped: float
    exposed: float
    copies: float
    idle: float


def figures(kernels: Kernels) -> Figures:
    """Of some kernels; all 0 where there is none.

    Kernels of streams overlap, so each figure is the length of a union, as the profilers' own are.
    """
    if not len(kernels):
        return Figures(span=0.0, computing=0.0, communication=0.0, overlapped=0.0, exposed=0.0, copies=0.0, idle=0.0)
    first = kernels.begin.min()
    # From the first begin on: doubles hold nanoseconds of a hundred days.
    times = np.column_stack((kernels.begin - first, kernels.end - first)).astype(np.float64)
    compute, talk, copy = (times[kernels.kind == kind] for kind in (COMPUTE, COMMUNICATION, COPY))
    exposed = _exposed(talk, compute)
    communication, span = length(talk), float(times[:, 1].max())
    return Figures(
        **{
            name: value * NANOSECOND
            for name, value in (
                ('span', span),
                ('computing', length(compute)),
                ('communication', communication),
                ('overlapped', communication - exposed),
                ('exposed', exposed),
                ('copies', _exposed(copy, np.concatenate((compute, talk)))),
                ('idle', span - length(times)),
            )
        }
    )


def _exposed(mine: Intervals, others: Intervals) -> float:
    return float(np.diff(minus(union(mine), others)).sum())


def step_figures(trace: RankTrace) -> Iterator[tuple[str, Figures]]:
    """The figures of each whole step by its name; of the whole recording where no step is marked.

    The profiler's own totals stand for a rank whose kernels were not written.
    """
    kernels = trace.kernels
    if kernels is None:
        for name, total in zip(trace.steps, trace.totals, strict=True):
            yield name, Figures(**{figure: value * NANOSECOND for figure, value in total.items()})
    elif not trace.steps:
        yield '', figures(kernels)
    else:
        for index, name in enumerate(trace.steps):
            if index != trace.cut:
                yield name, figures(kernels.of(kernels.step == index))


def whole(trace: RankTrace) -> Kernels | None:
    """The kernels of whole steps; all where none is marked."""
    kernels = trace.kernels
    if kernels is None or not trace.steps:
        return kernels
    return kernels.of((kernels.step != NO_STEP) & (kernels.step != trace.cut))
