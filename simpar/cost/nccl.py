"""NCCL's choice: which algorithm and protocol a collective goes by, of its size and its ranks.

The constants are those of NCCL 2.30 (src/graph/tuning.cc). NCCL predicts the seconds of each algorithm under each
protocol, latency + bytes / rate, and takes the quickest. LL sends a flag with every 4 bytes, LL128 with every 120, and
Simple waits at barriers instead: slow to start, and the only one that reaches the full rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from simpar.hardware import Link, Shape, Topology

PROTOCOLS: Final = ('LL', 'LL128', 'Simple')
SWITCH: Final = 25e-6
"""Seconds to begin where the switch adds (NVLS)."""
_PCIE: Final = 64e9
"""Bytes a second: no slot up to generation 5 has more, and all NVLinks of a device together do."""
_BASE: Final = {'tree': (6.8, 14.0, 8.4), 'ring': (6.6, 14.0, 8.4)}
"""Microseconds of a collective under each protocol, whatever its group."""
_HOP: Final = {
    ('nvlink', 'tree'): (0.6, 1.25, 4.0),
    ('nvlink', 'ring'): (0.6, 1.9, 3.4),
    ('pcie', 'tree'): (1.0, 1.9, 4.0),
    ('pcie', 'ring'): (1.0, 2.5, 5.7),
    ('network', 'tree'): (5.0, 8.5, 14.0),
    ('network', 'ring'): (2.7, 4.0, 14.0),
}
"""Microseconds of a hop."""
_LL_MOST: Final = {
    'volta': (39.0, 39.0, 20.4),
    'ampere': (87.7, 22.5, 19.0),
    'hopper': (141.0, 45.0, 35.0),
    'blackwell': (282.0, 90.0, 70.0),
}
"""GB/s that LL reaches at most, on one node, on two and on more."""
_RATE: Final = {'ring': (0.5, 0.92, 1.0), 'tree': (1 / 3.8, 120 / 128, 0.92)}
"""Parts of the links' rate."""
_TREE: Final = 0.85
"""Part of a ring's rate that trees between nodes reach."""
_SWITCH_RATE: Final = {'hopper': 0.85, 'blackwell': 0.74}
"""Part of the links' rate that the switch reaches where it adds (nvlsEfficiency)."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to go.

    Arguments:
        alpha: seconds of its hops, beside the start of any collective.
        longer: its transfer over that of a ring at its best.
        least: seconds that its transfer takes at least, however fast the links.
        idle: of its transfer beside, the part in which the links have nothing to send.
    """

    algorithm: str
    protocol: str
    alpha: float
    longer: float
    least: float
    idle: float


def choices(passes: int, size: float, shape: Shape, topology: Topology, tuning: str) -> Iterator[Choice]:
    """What NCCL weighs for a group. Arguments: ``passes``, 2 for an all-reduce; ``size``, bytes of the full vector.

    Does not model: PAT, trees in one node, channels fewer than the links could feed.
    """
    ring = passes * (shape.ranks - 1) / shape.ranks
    for algorithm in ('ring', 'tree') if passes == 2 and shape.nodes > 1 else ('ring',):
        # Up and down a tree goes the whole vector.
        sent = ring if algorithm == 'ring' else 2 / _TREE
        for at, protocol in enumerate(PROTOCOLS):
            most = _LL_MOST[tuning][min(shape.nodes, 3) - 1] * 1e9
            least = sent * size / most if protocol == 'LL' else 0.0
            alpha = _alpha(algorithm, at, passes, shape, topology)
            yield Choice(algorithm, protocol, alpha, sent / ring / _RATE[algorithm][at], least, _idle(passes, shape))


def switch_rate(tuning: str) -> float:
    """Part of the links' rate that an all-reduce by the switch reaches."""
    return _SWITCH_RATE.get(tuning, 1.0)


def _idle(passes: int, shape: Shape) -> float:
    """The step of a ring in which a block of threads sends nothing, over those in which it sends.

    Each block goes through its steps one by one, p for a gather and 2p - 1 for an all-reduce: it sends in all but the
    last, which copies to the result what came (NCCL, src/device/all_gather.h, reduce_scatter.h, all_reduce.h). Between
    nodes the network sets the pace, not the blocks.
    """
    return 1 / (passes * (shape.ranks - 1)) if shape.nodes == 1 else 0.0


def _alpha(algorithm: str, at: int, passes: int, shape: Shape, topology: Topology) -> float:
    """Seconds of all hops, and by how much a protocol starts later than LL on a ring."""
    seconds = (_BASE[algorithm][at] - _BASE['ring'][0]) * 1e-6
    below = shape.ranks
    for level, (link, domains) in enumerate(zip(topology.links, shape.domains, strict=True)):
        place = _place(link, topology.sizes[level], topology.node)
        hops: float = passes * (below - domains)
        if algorithm == 'tree':
            # Between nodes a double binary tree; in each, a chain.
            hops = 2 * (math.log2(below / domains) if place == 'network' else math.ceil(below / domains) - 1)
        seconds += hops * _hop(algorithm, at, link, place)
        below = domains
    return seconds


def _place(link: Link, size: int, node: int) -> str:
    if not size or size > node:
        return 'network'
    return 'pcie' if link.bandwidth.value <= _PCIE else 'nvlink'


def _hop(algorithm: str, at: int, link: Link, place: str) -> float:
    """A link's own latency is that of a ring under LL; NCCL's table says how much more the others take."""
    return link.latency.value + (_HOP[place, algorithm][at] - _HOP[place, 'ring'][0]) * 1e-6
