"""Collectives by their algorithm: steps, bytes over a channel, and the seconds of a group that spans several levels.

Steps and bytes are those of HCCL's "Collective Communication Algorithms" (CANN 9.0, also for NCCL's and our own rings):
D = α + n·β + n·γ with n the bytes of the full vector. An all-to-all is pairwise: in each of p − 1 steps a p-th goes to
another peer, whatever the algorithm of the link's other collectives; on a mesh all go at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from simpar.cost.costs import Part, major
from simpar.hardware import Figure, Library, Link, Shape, Topology
from simpar.program import COLLECTIVES, OpClass

SEND = 'send'
PAIRWISE = 'all_to_all'
EXCHANGE = 'exchange'
_PASSES = {name: one.passes for name, one in COLLECTIVES.items() if one.passes}


def steps(algorithm: str, operator: str, members: int) -> int:
    """Latencies that follow one another.

    Arguments: ``operator``, a collective or ``send``; ``members`` of the group, at least 2.
    """
    passes = _PASSES.get(operator)
    if passes is None:
        return 1
    # On a mesh all peers are reached in one step; NVLS has a switch that adds, for all-reduces alone.
    if algorithm == 'mesh' or (algorithm == 'nvls' and passes == 2):
        return passes
    # Halving and doubling wants a power of two; NHR was made to do without.
    halves = algorithm == 'nhr' or (algorithm == 'halving_doubling' and members & (members - 1) == 0)
    if halves and operator != PAIRWISE:
        return passes * math.ceil(math.log2(members))
    return passes * (members - 1)


def share(algorithm: str, operator: str, members: int) -> float:
    """Part of the full vector that goes over one channel in one direction.

    A channel is a device's port; for ``mesh`` it is the link of one pair. ``nvls`` sends the vector to the switch,
    which adds, and each device one part of the result (NVIDIA's NVLink SHARP).
    """
    passes = _PASSES.get(operator)
    if passes is None:
        # What is exchanged goes to every other member, one behind the other through one port.
        return members - 1.0 if operator == EXCHANGE else 1.0
    if algorithm == 'mesh':
        return passes / members
    if algorithm == 'nvls' and passes == 2:
        return 1 + 1 / members
    return passes * (members - 1) / members


class Terms(NamedTuple):
    """``alpha`` and ``transfer``, seconds; ``loads``, seconds of work on a channel of each level; what is used."""

    alpha: float
    transfer: float
    loads: tuple[float, ...]
    figures: tuple[Figure, ...]
    text: str


def terms(op: OpClass, shape: Shape, topology: Topology, library: Library) -> Terms:
    """Seconds of a collective by formula.

    A library with ``tuning`` chooses algorithm and protocol by size and ranks; others take what a link names.
    """
    crossed = [level for level, members in enumerate(shape.members) if members > 1]
    if op.operator not in _PASSES:
        return _phases(op, shape, topology, library, [(crossed[-1], SEND, 1.0)])
    if 'once' in op.dims and shape.nodes > 1:
        return once_a_node(op, shape, topology, library)
    if exchanged(op, library):
        return _phases(op, shape, topology, library, [(crossed[-1], EXCHANGE, 1.0)])
    if library.tuning != 'none' and op.operator != PAIRWISE:
        return _chosen(op, shape, topology, library, crossed)
    if len(crossed) == 1:
        return _phases(op, shape, topology, library, [(crossed[0], op.operator, 1.0)])
    if op.operator == PAIRWISE:
        return _pairwise(op, shape, topology, library)
    if library.across == 'phases':
        return _phases(op, shape, topology, library, _plan(op.operator, shape, crossed))
    return _flat(op, shape, topology, library)


def exchanged(op: OpClass, library: Library) -> bool:
    """Whether an all-reduce is so small that the library exchanges it in one step."""
    return op.operator == 'all_reduce' and library.exchange is not None and op.bytes <= library.exchange.value


def _plan(operator: str, shape: Shape, crossed: list[int]) -> list[tuple[int, str, float]]:
    """HCCL's phases as (level, collective, part of the vector that it works on).

    All-reduce: reduce-scatter inwards to outwards, all-reduce on the outermost level, all-gather back. All-gather goes
    from the innermost level outwards, reduce-scatter from the outermost inwards, so that slices stay contiguous.
    """
    plan: list[tuple[int, str, float]] = []
    part = 1.0
    if operator == 'all_reduce':
        for level in crossed[:-1]:
            plan += [(level, 'reduce_scatter', part), (level, 'all_gather', part)]
            part /= shape.members[level]
        return [*plan, (crossed[-1], 'all_reduce', part)]
    for level in reversed(crossed):
        plan.append((level, operator, part))
        part /= shape.members[level]
    # An all-gather is a reduce-scatter backwards.
    return plan if COLLECTIVES[operator].adds else plan[::-1]


def _phases(
    op: OpClass, shape: Shape, topology: Topology, library: Library, plan: list[tuple[int, str, float]]
) -> Terms:
    """One phase after the other: Σ steps · latency + Σ bytes / rate."""
    latencies: list[Part] = [(library.start.value, (library.start,))]
    transfers: list[Part] = []
    loads = [0.0] * len(shape.members)
    names = []
    for level, operator, part in plan:
        link, members = topology.links[level], shape.members[level]
        algorithm = link.algorithm_for(members)
        # Members behind one network card share its rate.
        # Of a ring's members one sends out of a node.
        sharers = 1 if operator == SEND else _sharers(link, shape)
        load = op.bytes * part * share(algorithm, operator, members) * sharers / link.rate
        latencies.append((steps(algorithm, operator, members) * link.latency.value, (link.latency,)))
        transfers.append((load, (link.bandwidth, link.share)))
        loads[level] += load
        names.append(f'{operator} by {algorithm} of {members} over {link.name}')
    return _terms(op, shape, library, latencies, transfers, loads, ', then '.join(names))


def _chosen(op: OpClass, shape: Shape, topology: Topology, library: Library, crossed: list[int]) -> Terms:
    """What NCCL takes: of its algorithms and protocols the one whose message is over first."""
    passes = _PASSES[op.operator]
    ring = _flat(op, shape, topology, library)
    found = [
        _under(choice, ring, op, shape, library)
        for choice in choices(passes, op.bytes, shape, topology, library.tuning)
    ]
    link = topology.links[crossed[0]]
    if len(crossed) == 1 and passes == 2 and link.algorithm_for(shape.ranks) == 'nvls':
        switch = _phases(op, shape, topology, library, [(crossed[0], op.operator, 1.0)])
        transfer = switch.transfer / switch_rate(library.tuning)
        found.append(switch._replace(alpha=SWITCH, transfer=transfer, text=f'{switch.text}, Simple'))
    return min(found, key=lambda one: one.alpha + one.transfer)


def _under(choice: Choice, ring: Terms, op: OpClass, shape: Shape, library: Library) -> Terms:
    """A ring at its best, as another algorithm and protocol would do it."""
    alpha = library.start.value + choice.alpha
    transfer = max(ring.transfer * choice.longer, choice.least) * (1 + choice.idle)
    text = ring.text if choice.algorithm == 'ring' else f'{op.operator} by one tree of {shape.ranks}'
    loads = tuple(load * choice.longer for load in ring.loads)
    return Terms(alpha, transfer, loads, ring.figures, f'{text}, {choice.protocol}')


def _flat(op: OpClass, shape: Shape, topology: Topology, library: Library) -> Terms:
    """One ring through all levels at once; its rings leave a domain by all of its members' channels.

    α as NCCL counts it (2.30, tuning.cc, ring latency): each of passes × (p − 1) steps has the latency of the level
    that it crosses. The level that is slowest sets the pace.
    """
    passes, ranks = _PASSES[op.operator], shape.ranks
    latencies: list[Part] = [(library.start.value, (library.start,))]
    loads, crossed = [], []
    below, inside = ranks, 1
    for link, members, domains in zip(topology.links, shape.members, shape.domains, strict=True):
        # Each of the domain's members has a ring of its own that leaves it, with its part of the vector.
        part = share('ring', op.operator, ranks) / inside if below > domains else 0.0
        loads.append(op.bytes * part * _sharers(link, shape) / link.rate)
        latencies.append((passes * (below - domains) * link.latency.value, (link.latency,)))
        crossed += [link.name] if part else []
        below, inside = domains, inside * members
    slowest = loads.index(max(loads))
    link = topology.links[slowest]
    text = f'{op.operator} by one ring of {ranks} over {" and ".join(crossed)}'
    return _terms(op, shape, library, latencies, [(loads[slowest], (link.bandwidth, link.share))], loads, text)


def _pairwise(op: OpClass, shape: Shape, topology: Topology, library: Library) -> Terms:
    """A p-th of the vector to every peer, one after the other, over the link that parts it from this rank.

    Does not model: steps in which some ranks have near peers and others far ones.
    """
    latencies: list[Part] = [(library.start.value, (library.start,))]
    transfers: list[Part] = []
    loads = []
    inside = 1
    for link, members in zip(topology.links, shape.members, strict=True):
        peers = min(inside * members, shape.ranks) - inside
        # On a mesh each peer has its own link, so that all parts go at once.
        at_once = members - 1 if link.algorithm_for(members) == 'mesh' and members > 1 else 1
        load = op.bytes * peers / at_once / shape.ranks * _sharers(link, shape) / link.rate
        latencies.append((peers / at_once * link.latency.value, (link.latency,)))
        transfers.append((load, (link.bandwidth, link.share)))
        loads.append(load)
        inside += peers
    crossed = ' and '.join(link.name for link, load in zip(topology.links, loads, strict=True) if load)
    text = f'{op.operator} by pairs of {shape.ranks} over {crossed}'
    return _terms(op, shape, library, latencies, transfers, loads, text)


def distinct(places: float, drawn: int) -> float:
    """How many of so many places so many experts lie on, each on any of them alike: p · (1 − (1 − 1 / p)^k)."""
    return places * (1 - (1 - 1 / places) ** drawn)


def once_a_node(op: OpClass, shape: Shape, topology: Topology, library: Library) -> Terms:
    """Tokens go once to each other node that has an expert of theirs, and there to each device that has one.

    Both ways at once, as what comes is forwarded. Source: deepseek-ai/DeepEP, csrc/kernels/internode.cu: a token goes
    by RDMA to the device of the same place in the other node, and over NVLink from there; its groups are limited as the
    router says. Experts are taken as drawn independently. Does not model: multiprocessors that it takes.
    """
    ranks, nodes, drawn = shape.ranks, shape.nodes, op.dims['once']
    tokens = op.bytes / drawn
    reached = distinct(nodes, drawn)
    if op.dims.get('groups', 1) % nodes == 0:
        # Groups lie whole on nodes.
        reached = min(reached, op.dims['group_top_k'])
    inside = ranks / nodes
    forwarded = min(distinct(ranks, drawn), reached * distinct(inside, drawn)) * (inside - 1) / inside
    latencies: list[Part] = [(library.start.value, (library.start,))]
    loads, parts, crossed = [], [], []
    for link, members, domains in zip(topology.links, shape.members, shape.domains, strict=True):
        copies = reached * (nodes - 1) / nodes if domains < nodes else forwarded
        load = tokens * copies * _sharers(link, shape) / link.rate if members > 1 else 0.0
        loads.append(load)
        latencies.append((link.latency.value if load else 0.0, (link.latency,)))
        parts.append((load, (link.bandwidth, link.share)))
        crossed += [link.name] if load else []
    text = f'{op.operator} of {ranks}, a token once a node, over {" and ".join(crossed)}'
    return _terms(op, shape, library, latencies, [max(parts, key=lambda part: part[0])], loads, text)


def _terms(
    op: OpClass,
    shape: Shape,
    library: Library,
    latencies: list[Part],
    transfers: list[Part],
    loads: list[float],
    text: str,
) -> Terms:
    """Adds the reduction where it is not done on the way: (p − 1) / p · n bytes of results."""
    # HCCL reduces some types on the way (inline reduce); others pass a kernel.
    reduces = op.operator in COLLECTIVES and COLLECTIVES[op.operator].adds and op.dtype not in library.inline
    if reduces and library.reduce is not None:
        reduction = (shape.ranks - 1) / shape.ranks * op.bytes / library.reduce.value
        transfers, text = [*transfers, (reduction, (library.reduce,))], f'{text}, {op.dtype} reduced by kernels'
    alpha, transfer = sum(seconds for seconds, _ in latencies), sum(seconds for seconds, _ in transfers)
    return Terms(alpha, transfer, tuple(loads), major(alpha + transfer, [*latencies, *transfers]), text)


def _sharers(link: Link, shape: Shape) -> int:
    """Members that send over one channel at once."""
    return -(-shape.ranks // shape.nodes) if link.per == 'node' else 1


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
