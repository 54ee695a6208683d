"""Who made whom wait: collectives of several ranks' recordings joined, and the rank that came last to them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, Literal

import numpy as np

from simpar.traces.summary import Figures, figures, step_figures, whole
from simpar.traces.table import COMMUNICATION, NANOSECOND, Kernels, RankTrace

LEAST: Final = 0.02
"""Of a step: a smaller wait is named of nobody."""
CLEAR: Final = 2.0
"""A culprit causes so many times as much as the next rank."""
_NUMBERS = re.compile(r'\d+')
Cause = Literal['computes', 'host', 'late']


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Of a rank, seconds of all whole steps.

    Arguments:
        caused: how much earlier its collectives would begin, had it come when the one before it came.
        waited: for the last rank of each collective.
        own: of its collectives, from the last rank's arrival to the end.
    """

    caused: float = 0.0
    waited: float = 0.0
    own: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """The rank that makes others wait.

    Arguments:
        seconds: of a step. step: seconds of a step.
        cause: ``computes``, longer than the others; ``host``, its device is idle longer; ``late``, neither is known.
        times: how many times as long as the others it computes.
        excess: seconds a step by which it computes or idles longer.
    """

    rank: int
    seconds: float
    step: float
    cause: Cause
    times: float
    excess: float


def waits_of(traces: Sequence[RankTrace]) -> dict[int, Waits]:
    """The waits of each rank: the n-th collective of a group on one rank meets the n-th on the others.

    Clocks are set by the ends of what ranks have in common, for a collective ends at once on all. Groups whose
    recordings hold different numbers of collectives, or other ones, are left out.
    """
    talks = {trace.rank: _talk(trace) for trace in traces}
    total: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    groups: dict[str, list[int]] = defaultdict(list)
    for rank, of_group in talks.items():
        for group in of_group:
            groups[group].append(rank)
    for group, ranks in groups.items():
        mine = [talks[rank][group] for rank in ranks]
        if len(ranks) < 2 or len({_names(one) for one in mine}) > 1:
            continue
        end = np.array([one.end for one in mine])
        shift = np.median(end - end[0], axis=1).astype(np.int64)[:, None]
        begin, end = np.array([one.begin for one in mine]) - shift, end - shift
        ordered = np.sort(begin, axis=0)
        last = ordered[-1]
        for row, rank in enumerate(ranks):
            caused = np.where(begin[row] == last, last - ordered[-2], 0).sum()
            own = np.maximum(end[row] - np.maximum(last, begin[row]), 0).sum()
            for place, value in enumerate((caused, (last - begin[row]).sum(), own)):
                total[rank][place] += float(value) * NANOSECOND
    return {rank: Waits(caused=one[0], waited=one[1], own=one[2]) for rank, one in total.items()}


def _talk(trace: RankTrace) -> dict[str, Kernels]:
    """A rank's collectives of whole steps by their group."""
    kernels = whole(trace)
    if kernels is None:
        return {}
    found = kernels.of(kernels.kind == COMMUNICATION)
    return {str(group): found.of(found.group == group) for group in dict.fromkeys(found.group.tolist())}


def _names(kernels: Kernels) -> tuple[str, ...]:
    return tuple(_NUMBERS.sub('', name) for name in kernels.name.tolist())


def culprit_of(traces: Sequence[RankTrace]) -> Culprit | None:
    """The one rank that makes others wait; None where none clearly does, or the recordings cannot be joined."""
    waits = waits_of(traces)
    if len(waits) < 2:
        return None
    steps = max(1, min(sum(1 for _ in step_figures(trace)) for trace in traces))
    by_rank = {trace.rank: figures(kernels) for trace in traces if (kernels := whole(trace)) is not None}
    step = median(one.span for one in by_rank.values()) / steps
    first, second = sorted(waits, key=lambda rank: -waits[rank].caused)[:2]
    seconds = waits[first].caused / steps
    if seconds < LEAST * step or waits[first].caused < CLEAR * waits[second].caused:
        return None
    return _explained(first, seconds, step, steps, by_rank)


def _explained(rank: int, seconds: float, step: float, steps: int, by_rank: dict[int, Figures]) -> Culprit:
    mine, others = by_rank[rank], [one for other, one in by_rank.items() if other != rank]
    computing, idle = median(one.computing for one in others), median(one.idle for one in others)
    more, longer = (mine.computing - computing) / steps, (mine.idle - idle) / steps
    cause: Cause = 'computes' if more >= seconds / 2 else 'host' if longer >= seconds / 2 else 'late'
    return Culprit(
        rank=rank,
        seconds=seconds,
        step=step,
        cause=cause,
        times=mine.computing / computing if computing else 0.0,
        excess=more if cause == 'computes' else longer if cause == 'host' else 0.0,
    )
