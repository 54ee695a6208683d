"""Which channels a group's collective uses, and what it demands of each while it transfers."""

from __future__ import annotations

from collections.abc import Sequence

from simpar.hardware import Topology

GRID = 1024
"""Demands are multiples of 1 / GRID, so that sums of them are exact."""


def demand(load: float, transfer: float) -> float:
    """What a collective takes of a channel: bytes over it / its bandwidth / transfer, in 1 / 1024, above 0, at most 1.

    Arguments: ``load``, seconds that the channel needs for the bytes; ``transfer``, seconds that the collective takes
    when alone, more than 0.
    """
    # At least one part: what uses a link at all must be seen by those that share it.
    return min(max(round(load / transfer * GRID), 1), GRID) / GRID


def demands(topology: Topology, loads: Sequence[float], transfer: float) -> tuple[tuple[int, float], ...]:
    """What a collective demands of each channel of a level that it shares: pairs (level, demand).

    Arguments: ``loads``, at each level, seconds of work on each of its channels; ``transfer``, seconds. Links of a
    fatpipe are left out: nobody shares them. Does not model: channels of one level that carry unequal loads.
    """
    # Written so that NaN is refused, too.
    if not transfer > 0:
        return ()
    return tuple(
        [
            (level, demand(load, transfer))
            for level, load in enumerate(loads)
            if load > 0 and topology.links[level].sharing == 'shared'
        ]
    )
