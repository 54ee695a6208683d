"""Collectives by their algorithm: steps, bytes over a channel, and the seconds of a group that spans several levels.

Steps and bytes are those of HCCL's "Collective Communication Algorithms" (CANN 9.0, also for NCCL's and our own rings):
D = α + n·β + n·γ with n the bytes of the full vector. An all-to-all is pairwise: in each of p − 1 steps a p-th goes to
another peer, whatever the algorithm of the link's other collectives; on a mesh all go at once. Which algorithm HCCL
takes is said in ``simpar.cost.hccl``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from simpar.cost.costs import Part, major
from simpar.cost.hccl import Lie, chosen, has_rules, lie
from simpar.hardware import Figure, Library, Link, Shape, Topology
from simpar.program import COLLECTIVES, OpClass

AT_ONCE: Final = ('mesh', 'star', 'one_shot')
"""Algorithms that reach all peers in one step."""
WHOLE: Final = ('star', 'one_shot', 'doubling')
"""Algorithms of small all-reduces, that send the whole vector in each step."""
LOGARITHMIC: Final = ('nhr', 'halving_doubling', 'doubling')
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
    if algorithm in ('mesh', 'star') or (algorithm == 'nvls' and passes == 2):
        return passes
    if algorithm == 'one_shot':
        return 1
    if algorithm not in LOGARITHMIC or operator == PAIRWISE:
        return passes * (members - 1)
    if algorithm == 'doubling':
        return math.ceil(math.log2(members))
    # Halving and doubling wants a power of two, and pays a step before and one behind for it; NHR does without.
    if algorithm == 'halving_doubling' and members & (members - 1):
        return passes * math.floor(math.log2(members)) + 2
    return passes * math.ceil(math.log2(members))


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
    if algorithm in WHOLE:
        # The whole vector in each step.
        return float(steps(algorithm, operator, members))
    if algorithm == 'nvls' and passes == 2:
        return 1 + 1 / members
    if algorithm == 'halving_doubling' and operator != PAIRWISE and members & (members - 1):
        return _halved(passes, members)
    return passes * (members - 1) / members


def _halved(passes: int, members: int) -> float:
    """Halving and doubling where p is no power of two: some send all of theirs to a neighbour first."""
    exponent = math.floor(math.log2(members))
    if passes == 2:
        return 4 - 2 / (1 << exponent)
    return 1 + sum(math.ceil(members / (1 << step)) for step in range(1, exponent + 1)) / members + 1 / members


class Terms(NamedTuple):
    """``alpha`` and ``transfer``, seconds; ``loads``, seconds of work on a channel of each level; what is used."""

    alpha: float
    transfer: float
    loads: tuple[float, ...]
    figures: tuple[Figure, ...]
    text: str


class Phase(NamedTuple):
    """A collective of ``members`` over the link of a level, of a part of the vector."""

    level: int
    operator: str
    part: float
    members: int
    algorithm: str


class Stage(NamedTuple):
    """How many communicate over the link of a level, and by which algorithm."""

    level: int
    members: int
    algorithm: str


def terms(op: OpClass, shape: Shape, topology: Topology, library: Library, *, graph: bool = False) -> Terms:
    """Seconds of a collective by formula.

    A library with ``tuning`` chooses algorithm and protocol by size and ranks; others take what a link names.
    Arguments: ``graph``, whether it is part of a graph that has sunk to the device.
    """
    crossed = [level for level, members in enumerate(shape.members) if members > 1]
    stages = [_stage(level, shape, topology) for level in crossed]
    if op.operator not in _PASSES:
        return _phases(op, shape, topology, library, [_whole(SEND, stages[-1])])
    if 'once' in op.dims and shape.nodes > 1:
        return once_a_node(op, shape, topology, library)
    if exchanged(op, library):
        return _phases(op, shape, topology, library, [_whole(EXCHANGE, stages[-1])])
    if has_rules(library.tuning, op.operator):
        return _by_rule(op, shape, topology, library, stages, graph=graph)
    if library.tuning in _LL_MOST and op.operator != PAIRWISE:
        return _chosen(op, shape, topology, library, crossed)
    if len(crossed) == 1:
        return _phases(op, shape, topology, library, _plan(op.operator, stages))
    if op.operator == PAIRWISE:
        return _pairwise(op, shape, topology, library)
    if library.across == 'phases':
        return _phases(op, shape, topology, library, _plan(op.operator, stages))
    return _flat(op, shape, topology, library)


def exchanged(op: OpClass, library: Library) -> bool:
    """Whether an all-reduce is so small that the library exchanges it in one step."""
    return op.operator == 'all_reduce' and library.exchange is not None and op.bytes <= library.exchange.value


def _stage(level: int, shape: Shape, topology: Topology) -> Stage:
    members = shape.members[level]
    return Stage(level, members, topology.links[level].algorithm_for(members))


def _whole(operator: str, stage: Stage, part: float = 1.0) -> Phase:
    return Phase(stage.level, operator, part, stage.members, stage.algorithm)


def _plan(operator: str, stages: Sequence[Stage], *, near: bool = False) -> list[Phase]:
    """HCCL's phases, each on its part of the vector.

    All-reduce: reduce-scatter inwards to outwards, all-reduce on the outermost level, all-gather back. All-gather goes
    from the innermost level outwards, reduce-scatter from the outermost inwards, so that slices stay contiguous; with
    ``near`` most goes over the innermost, as where one algorithm runs over all levels. Of an all-to-all each phase
    moves the whole vector.
    """
    plan: list[Phase] = []
    part = 1.0
    if operator == 'all_reduce' and not any(stage.algorithm in WHOLE for stage in stages):
        for stage in stages[:-1]:
            plan += [_whole(one, stage, part) for one in ('reduce_scatter', 'all_gather')]
            part /= stage.members
        return [*plan, _whole(operator, stages[-1], part)]
    for stage in stages if near else reversed(stages):
        plan.append(_whole(operator, stage, part))
        part /= stage.members if operator not in (PAIRWISE, 'all_reduce') else 1
    # An all-gather is a reduce-scatter backwards.
    return plan if COLLECTIVES[operator].adds else plan[::-1]


def _by_rule(
    op: OpClass, shape: Shape, topology: Topology, library: Library, named: list[Stage], *, graph: bool
) -> Terms:
    """What HCCL takes: the first of its rules that holds. Arguments: ``named``, stages as the links name them."""
    lies = lie(library.tuning, shape, topology)
    rule = chosen(library.tuning, op.operator, lies.facts(op.bytes, shape.ranks, graph=graph))
    if rule.between == 'pairwise' and rule.inside == 'flat':
        made = _pairwise(op, shape, topology, library)
    elif rule.inside == 'flat':
        stages = [Stage(level, members, rule.between) for level, members, _ in named]
        made = _phases(op, shape, topology, library, _plan(op.operator, stages, near=True))
    elif rule.between == 'pipeline':
        made = _pipelined(op, shape, topology, library, lies)
    else:
        # Between supernodes HCCL has NHR, whatever it takes between servers.
        beyond = rule.between if rule.between != 'parallel' else 'nhr'
        algorithms = (rule.inside, beyond, 'nhr' if op.operator != PAIRWISE else beyond)
        found = [Stage(*one) for one in zip(lies.levels, lies.members, algorithms, strict=True)]
        inner = found[:1] if rule.inside else [one for one in named if one.level < lies.levels[1]]
        stages = [one for one in (*inner, *found[1:]) if one.members > 1]
        if rule.between == 'parallel':
            made = _parallel(op, shape, topology, library, stages)
        else:
            made = _phases(op, shape, topology, library, _plan(op.operator, stages))
    return made._replace(text=f'{rule.name}: {made.text}')


def _pipelined(op: OpClass, shape: Shape, topology: Topology, library: Library, lies: Lie) -> Terms:
    """One ring between servers, each of whose parts goes on over the mesh of a server while the next comes.

    HCCL's manual: (servers − 1) · max(α + bytes · β of both links) + α + bytes · β of the inner, each a rank's part; an
    all-reduce has it twice. Of an all-to-all a server's part goes between servers, of which a rank's goes on.
    """
    inside, servers = lies.members[0], lies.members[1] * lies.members[2]
    inner, outer = lies.levels[0], lies.levels[2 if lies.members[2] > 1 else 1]
    near, far = topology.links[inner], topology.links[outer]
    passes, part = _PASSES[op.operator], op.bytes / shape.ranks
    sent = part * (inside if op.operator == PAIRWISE else 1)
    over, on = sent * _sharers(far, shape) / far.rate, part * _sharers(near, shape) / near.rate
    behind = over + far.latency.value < on + near.latency.value
    # Steps in which the inner link sets the pace, and the outer.
    turns = (passes * servers, 0) if behind else (passes, passes * (servers - 1))
    pairs = ((near, on, turns[0]), (far, over, turns[1]))
    latencies: list[Part] = [(library.start.value, (library.start,))]
    latencies += [(count * link.latency.value, (link.latency,)) for link, _, count in pairs]
    transfers: list[Part] = [(count * seconds, (link.bandwidth, link.share)) for link, seconds, count in pairs]
    loads = [0.0] * len(shape.members)
    loads[inner] += passes * servers * on
    loads[outer] += passes * (servers - 1) * over
    text = f'{op.operator} of {shape.ranks} in a pipeline of {near.name} and {far.name}'
    return _terms(op, shape, library, latencies, transfers, loads, text)


def _parallel(op: OpClass, shape: Shape, topology: Topology, library: Library, stages: list[Stage]) -> Terms:
    """Half of the vector goes over the inner link first and half over the outer, so that both are in use."""
    latencies: list[Part] = [(library.start.value, (library.start,))]
    transfers: list[Part] = []
    loads = [0.0] * len(shape.members)
    for operator in ('reduce_scatter', 'all_gather') if op.operator == 'all_reduce' else (op.operator,):
        for pair in zip(_plan(operator, stages), _plan(operator, stages, near=True), strict=True):
            both = [_over(op.bytes / 2, phase, shape, topology) for phase in pair]
            latency, transfer = max(both, key=lambda parts: parts[0][0] + parts[1][0])
            latencies.append(latency)
            transfers.append(transfer)
            for phase, (_, (load, _)) in zip(pair, both, strict=True):
                loads[phase.level] += load
    text = f'{op.operator} of {shape.ranks}, half over each level at once'
    return _terms(op, shape, library, latencies, transfers, loads, text)


def _phases(op: OpClass, shape: Shape, topology: Topology, library: Library, plan: list[Phase]) -> Terms:
    """One phase after the other: Σ steps · latency + Σ bytes / rate."""
    latencies: list[Part] = [(library.start.value, (library.start,))]
    transfers: list[Part] = []
    loads = [0.0] * len(shape.members)
    names = []
    for phase in plan:
        latency, transfer = _over(op.bytes, phase, shape, topology)
        latencies.append(latency)
        transfers.append(transfer)
        loads[phase.level] += transfer[0]
        link = topology.links[phase.level].name
        names.append(f'{phase.operator} by {phase.algorithm} of {phase.members} over {link}')
    return _terms(op, shape, library, latencies, transfers, loads, ', then '.join(names))


def _over(size: float, phase: Phase, shape: Shape, topology: Topology) -> tuple[Part, Part]:
    """Seconds of latency and of transfer of a phase. Arguments: ``size``, bytes of the full vector."""
    level, operator, part, members, algorithm = phase
    link = topology.links[level]
    # Members behind one network card share its rate; of a ring's members one sends out of a node.
    sharers = 1 if operator == SEND else _sharers(link, shape)
    if operator in _PASSES and algorithm in AT_ONCE and link.per != 'pair':
        # What goes to all peers at once leaves by one port.
        sharers *= members - 1
    load = size * part * share(algorithm, operator, members) * sharers / link.rate
    latency = steps(algorithm, operator, members) * link.latency.value
    return (latency, (link.latency,)), (load, (link.bandwidth, link.share))


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
        switch = _phases(op, shape, topology, library, _plan(op.operator, [_stage(crossed[0], shape, topology)]))
        transfer = switch.transfer / _SWITCH_RATE.get(library.tuning, 1.0)
        found.append(switch._replace(alpha=SWITCH, transfer=transfer, text=f'{switch.text}, Simple'))
    return min(found, key=lambda one: one.alpha + one.transfer)


def _under(choice: Choice, ring: Terms, op: OpClass, shape: Shape, library: Library) -> Terms:
    """A ring at its best, as another algorithm and protocol would do it."""
    alpha = library.start.value + choice.alpha
    transfer = max(ring.transfer * choice.longer, choice.least) * (1 + choice.idle)
    other = {'tree': 'one tree', 'pat': 'parallel trees'}
    text = f'{op.operator} by {other[choice.algorithm]} of {shape.ranks}' if choice.algorithm in other else ring.text
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


def symmetric(op: OpClass, shape: Shape, topology: Topology, library: Library) -> Terms | None:
    """NCCL over symmetric memory in a node whose switch adds: the quicker of its low-latency and its full-rate kernel.

    Source: NCCL 2.30.7, src/sym_kernels.cc, queryModel_lsa; its rates as parts of the link's on the same device. None:
    it has no kernel for the message.
    """
    passes, found = _PASSES.get(op.operator), _SYMMETRIC.get(library.tuning)
    if passes is None or found is None or op.operator == PAIRWISE or shape.nodes > 1 or shape.ranks < 3:
        return None
    link, ranks = topology.links[shape.outermost], shape.ranks
    low, full = found.low.get(op.operator, found.low['']), found.full[passes - 1]
    sent = ((low, _LOW * (ranks if passes == 2 else 1)), (full, share('nvls', op.operator, ranks)))
    made = []
    for base, times in sent:
        load = times * op.bytes / (link.rate * found.part)
        loads = [load if level == shape.outermost else 0.0 for level in range(len(shape.members))]
        text = f'{op.operator} of {ranks} over symmetric memory'
        made.append(Terms(base * 1e-6, load, tuple(loads), (link.bandwidth, link.share), text))
    return min(made, key=lambda one: one.alpha + one.transfer)


class _Symmetric(NamedTuple):
    """Microseconds of low-latency kernels by operator, and of gathers and sums by the switch; part of the links' rate.

    NCCL has more for sums by the switch, 480 and 1000 GiB/s, than the links have.
    """

    low: Mapping[str, float]
    full: tuple[float, float]
    part: float


_LOW: Final = 9
"""Bytes that low-latency kernels count for each byte."""
_SYMMETRIC: Final[Mapping[str, _Symmetric]] = {
    # 320 GiB/s beside 371 GB/s of its NVLinks; 600 beside 722.
    'hopper': _Symmetric({'': 4.5}, (7.8, 7.8), 0.93),
    'blackwell': _Symmetric({'': 11.0, 'all_gather': 8.5}, (13.0, 19.5), 0.89),
}
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
_PAT: Final = 0.75
"""Part of a ring's rate that PAT reaches, gathers and reduce-scatters of one rank a node (2.23 and later)."""
_PAT_BASE, _PAT_HOP = 8.0, 14.0
"""Microseconds of PAT, and of a hop between nodes."""
_PAT_RANK: Final = 2.8e-6
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

    Does not model: trees in one node, channels fewer than the links could feed.
    """
    ring = passes * (shape.ranks - 1) / shape.ranks
    if passes == 1 and shape.nodes == shape.ranks:
        # Parallel aggregated trees: log steps, and a part that grows with the ranks.
        hop = topology.links[shape.outermost].latency.value + (_PAT_HOP - _HOP['network', 'ring'][0]) * 1e-6
        alpha = (_PAT_BASE - _BASE['ring'][0]) * 1e-6 + math.floor(math.log2(shape.nodes)) * hop / 3.5
        yield Choice('pat', 'Simple', alpha + shape.ranks * _PAT_RANK, 1 / _PAT, 0.0, 0.0)
    for algorithm in ('ring', 'tree') if passes == 2 and shape.nodes > 1 else ('ring',):
        # Up and down a tree goes the whole vector.
        sent = ring if algorithm == 'ring' else 2 / _TREE
        for at, protocol in enumerate(PROTOCOLS):
            most = _LL_MOST[tuning][min(shape.nodes, 3) - 1] * 1e9
            least = sent * size / most if protocol == 'LL' else 0.0
            alpha = _alpha(algorithm, at, passes, shape, topology)
            yield Choice(algorithm, protocol, alpha, sent / ring / _RATE[algorithm][at], least, _idle(passes, shape))


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
