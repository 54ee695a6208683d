"""How a device spent its time: unions of kernels, by step."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from simpar.interval_sets import length
from simpar.traces.table import COMMUNICATION, COMPUTE, COPY, NANOSECOND, NO_STEP, Ints, Kernels, RankTrace


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
    return _figures(kernels.begin, kernels.end, kernels.kind)


def _figures(begin: Ints, end: Ints, kind: Ints) -> Figures:
    if not len(begin):
        return Figures(**dict.fromkeys(Figures.__slots__, 0.0))
    first = begin.min()
    # From the first begin on: doubles hold nanoseconds of a hundred days, and their sums, exactly.
    times = np.column_stack((begin - first, end - first)).astype(np.float64)
    computing, communication, both = (
        length(times[rows]) for rows in (kind == COMPUTE, kind == COMMUNICATION, kind != COPY)
    )
    span, busy = float(times[:, 1].max()), length(times)
    found = (
        span,
        computing,
        communication,
        computing + communication - both,
        both - computing,
        busy - both,
        span - busy,
    )
    return Figures(**{name: value * NANOSECOND for name, value in zip(Figures.__slots__, found, strict=True)})


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
        order = np.argsort(kernels.step, kind='stable')
        bounds = np.searchsorted(kernels.step[order], np.arange(len(trace.steps) + 1))
        for index, name in enumerate(trace.steps):
            if index != trace.cut:
                rows = order[bounds[index] : bounds[index + 1]]
                yield name, _figures(kernels.begin[rows], kernels.end[rows], kernels.kind[rows])


def whole(trace: RankTrace) -> Kernels | None:
    """The kernels of whole steps; all where none is marked."""
    kernels = trace.kernels
    if kernels is None or not trace.steps:
        return kernels
    return kernels.of((kernels.step != NO_STEP) & (kernels.step != trace.cut))
