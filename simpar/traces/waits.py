"""How long ranks waited in collectives of several recordings, joined, and who came last to them."""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simpar.traces.summary import whole
from simpar.traces.table import COMMUNICATION, NANOSECOND, Kernels, RankTrace

_NUMBERS = re.compile(r'\d+')


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
