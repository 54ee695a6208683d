"""Collectives by their algorithm: steps, bytes over a channel, and the seconds of a group that spans several levels.

Steps and bytes are those of HCCL's "Collective Communication Algorithms" (CANN 9.0, also for NCCL's and our own rings):
D = α + n·β + n·γ with n the bytes of the full vector. An all-to-all is pairwise: in each of p − 1 steps a p-th goes to
another peer, whatever the algorithm of the link's other collectives; on a mesh all go at once.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from simpar.cost.nccl import SWITCH, Choice, choices, switch_rate
from simpar.cost.roofline import Part, major
from simpar.hardware import Figure, Library, Link, Shape, Topology
from simpar.program import OpClass

SEND = 'send'
PAIRWISE = 'all_to_all'
EXCHANGE = 'exchange'
_PASSES = {'all_reduce': 2, 'all_gather': 1, 'reduce_scatter': 1, PAIRWISE: 1}


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


_MOST: Final = 1024
_known: Final[dict[tuple[object, ...], tuple[tuple[object, ...], Terms]]] = {}
"""Of messages by what they are and the very links, library and shape; these are kept, too, so that ids stay theirs."""


def terms(op: OpClass, shape: Shape, topology: Topology, library: Library) -> Terms:
    """Seconds of a collective by formula; of a sweep's rows, those over links that did not change are worked out once.

    A library with ``tuning`` chooses algorithm and protocol by size and ranks; others take what a link names.
    """
    crossed = [level for level, members in enumerate(shape.members) if members > 1]
    used = (*(topology.links if len(crossed) > 1 else (topology.links[crossed[-1]],)), library, shape)
    key = (op.operator, op.bytes, op.dtype, *map(id, used))
    found = _known.get(key)
    if found is None:
        if len(_known) >= _MOST:
            _known.clear()
        found = _known[key] = (used, _of_message(op, shape, topology, library, crossed))
    return found[1]


def _of_message(op: OpClass, shape: Shape, topology: Topology, library: Library, crossed: list[int]) -> Terms:
    """Arguments: ``crossed``, the levels on which some communicate."""
    if op.operator not in _PASSES:
        return _phases(op, shape, topology, library, [(crossed[-1], SEND, 1.0)])
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
    return plan if operator == 'reduce_scatter' else plan[::-1]


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


class _Ring(NamedTuple):
    """A ring through all levels, whatever it sends.

    Arguments: ``latencies`` of start and levels; for each level the ``parts`` of the vector that go over a channel, how
    many ``sharers`` it has, its ``rates`` and ``figures``.
    """

    latencies: list[Part]
    parts: list[float]
    sharers: list[int]
    rates: list[float]
    figures: list[tuple[Figure, ...]]
    text: str


_rings: Final[dict[tuple[object, ...], tuple[tuple[object, ...], _Ring]]] = {}
"""As ``_known``, of messages of any size."""


def _flat(op: OpClass, shape: Shape, topology: Topology, library: Library) -> Terms:
    """One ring through all levels at once; its rings leave a domain by all of its members' channels.

    α as NCCL counts it (2.30, tuning.cc, ring latency): each of passes × (p − 1) steps has the latency of the level
    that it crosses. The level that is slowest sets the pace.
    """
    used = (*topology.links, library, shape)
    key = (op.operator, *map(id, used))
    found = _rings.get(key)
    if found is None:
        if len(_rings) >= _MOST:
            _rings.clear()
        found = _rings[key] = (used, _ring(op, shape, topology, library))
    ring = found[1]
    loads = [
        op.bytes * part * sharers / rate
        for part, sharers, rate in zip(ring.parts, ring.sharers, ring.rates, strict=True)
    ]
    slowest = loads.index(max(loads))
    return _terms(op, shape, library, ring.latencies, [(loads[slowest], ring.figures[slowest])], loads, ring.text)


def _ring(op: OpClass, shape: Shape, topology: Topology, library: Library) -> _Ring:
    passes, ranks = _PASSES[op.operator], shape.ranks
    latencies: list[Part] = [(library.start.value, (library.start,))]
    parts = []
    below, inside = ranks, 1
    for link, members, domains in zip(topology.links, shape.members, shape.domains, strict=True):
        # Each of the domain's members has a ring of its own that leaves it, with its part of the vector.
        parts.append(share('ring', op.operator, ranks) / inside if below > domains else 0.0)
        latencies.append((passes * (below - domains) * link.latency.value, (link.latency,)))
        below, inside = domains, inside * members
    links = topology.links
    crossed = ' and '.join(link.name for link, part in zip(links, parts, strict=True) if part)
    text = f'{op.operator} by one ring of {ranks} over {crossed}'
    sharers, rates = [_sharers(link, shape) for link in links], [link.rate for link in links]
    return _Ring(latencies, parts, sharers, rates, [(link.bandwidth, link.share) for link in links], text)


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
    reduces = op.operator in ('all_reduce', 'reduce_scatter') and op.dtype not in library.inline
    if reduces and library.reduce is not None:
        reduction = (shape.ranks - 1) / shape.ranks * op.bytes / library.reduce.value
        transfers, text = [*transfers, (reduction, (library.reduce,))], f'{text}, {op.dtype} reduced by kernels'
    alpha, transfer = sum(seconds for seconds, _ in latencies), sum(seconds for seconds, _ in transfers)
    return Terms(alpha, transfer, tuple(loads), major(alpha + transfer, [*latencies, *transfers]), text)


def _sharers(link: Link, shape: Shape) -> int:
    """Members that send over one channel at once."""
    return -(-shape.ranks // shape.nodes) if link.per == 'node' else 1
