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
from operator import itemgetter
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


class Stage(NamedTuple):
    """How many communicate over the link of a level, and by which algorithm."""

    level: int
    members: int
    algorithm: str


class Phase(NamedTuple):
    """A collective over the link of a level, of a part of the vector."""

    operator: str
    stage: Stage
    part: float = 1.0


Use = tuple[int, float, float]
"""A level, seconds of latency, and seconds of work on each of its channels."""


def terms(op: OpClass, shape: Shape, topology: Topology, library: Library, *, graph: bool = False) -> Terms:
    """Seconds of a collective by formula.

    A library with ``tuning`` chooses algorithm and protocol by size and ranks; others take what a link names.
    Arguments: ``graph``, whether it is part of a graph that has sunk to the device.
    """
    message, operator = _Message(op, shape, topology, library), op.operator
    crossed = [level for level, members in enumerate(shape.members) if members > 1]
    stages = [message.stage(level) for level in crossed]
    if operator not in _PASSES:
        return message.phases([Phase(SEND, stages[-1])])
    if 'once' in op.dims and shape.nodes > 1:
        return message.once_a_node()
    if exchanged(op, library):
        return message.phases([Phase(EXCHANGE, stages[-1])])
    if has_rules(library.tuning, operator):
        return message.by_rule(stages, graph=graph)
    if library.tuning in _LL_MOST and operator != PAIRWISE:
        return message.chosen(crossed)
    if len(crossed) > 1 and operator == PAIRWISE:
        return message.pairwise()
    if len(crossed) > 1 and library.across != 'phases':
        return message.flat()
    return message.phases(_plan(operator, stages))


def exchanged(op: OpClass, library: Library) -> bool:
    """Whether an all-reduce is so small that the library exchanges it in one step."""
    return op.operator == 'all_reduce' and library.exchange is not None and op.bytes <= library.exchange.value


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
            plan += [Phase(one, stage, part) for one in ('reduce_scatter', 'all_gather')]
            part /= stage.members
        return [*plan, Phase(operator, stages[-1], part)]
    for stage in stages if near else reversed(stages):
        plan.append(Phase(operator, stage, part))
        part /= stage.members if operator not in (PAIRWISE, 'all_reduce') else 1
    # An all-gather is a reduce-scatter backwards.
    return plan if COLLECTIVES[operator].adds else plan[::-1]


def distinct(places: float, drawn: int) -> float:
    """How many of so many places so many experts lie on, each on any of them alike: p · (1 − (1 − 1 / p)^k)."""
    return places * (1 - (1 - 1 / places) ** drawn)


@dataclass(frozen=True, slots=True)
class _Message:
    """A collective in a group that lies so on links, by a library: a method for each way that it may go."""

    op: OpClass
    shape: Shape
    topology: Topology
    library: Library

    def made(self, text: str, uses: list[Use], latencies: Sequence[Use] = (), transfers: Sequence[Use] = ()) -> Terms:
        """The sum of what it does, one after the other, and of the reduction where that is not done on the way.

        Arguments: ``latencies`` and ``transfers``, what sets the pace, where that is not all ``uses`` of links.
        """
        op, links, library = self.op, self.topology.links, self.library
        parts: list[Part] = [(library.start.value, (library.start,))]
        parts += [(seconds, (links[level].latency,)) for level, seconds, _ in latencies or uses]
        alpha = sum(seconds for seconds, _ in parts)
        sent: list[Part] = []
        sent += [(load, (links[level].bandwidth, links[level].share)) for level, _, load in transfers or uses]
        # HCCL reduces some types on the way (inline reduce); others pass a kernel: (p − 1) / p · n bytes of results.
        reduces = op.operator in COLLECTIVES and COLLECTIVES[op.operator].adds and op.dtype not in library.inline
        if reduces and library.reduce is not None:
            reduction = (self.shape.ranks - 1) / self.shape.ranks * op.bytes / library.reduce.value
            sent, text = [*sent, (reduction, (library.reduce,))], f'{text}, {op.dtype} reduced by kernels'
        transfer = sum(seconds for seconds, _ in sent)
        loads = [0.0] * len(self.shape.members)
        for level, _, load in uses:
            loads[level] += load
        return Terms(alpha, transfer, tuple(loads), major(alpha + transfer, [*parts, *sent]), text)

    def stage(self, level: int) -> Stage:
        """Those who communicate on a level, by the algorithm that its link names."""
        members = self.shape.members[level]
        return Stage(level, members, self.topology.links[level].algorithm_for(members))

    def sharers(self, link: Link) -> int:
        """Members that send over one channel at once."""
        return -(-self.shape.ranks // self.shape.nodes) if link.per == 'node' else 1

    def over(self, size: float, phase: Phase) -> Use:
        """What a phase does. Arguments: ``size``, bytes of the full vector."""
        operator, (level, members, algorithm), part = phase
        link = self.topology.links[level]
        # Members behind one network card share its rate; of a ring's members one sends out of a node.
        sharers = 1 if operator == SEND else self.sharers(link)
        if operator in _PASSES and algorithm in AT_ONCE and link.per != 'pair':
            # What goes to all peers at once leaves by one port.
            sharers *= members - 1
        load = size * part * share(algorithm, operator, members) * sharers / link.rate
        return level, steps(algorithm, operator, members) * link.latency.value, load

    def phases(self, plan: list[Phase]) -> Terms:
        """One phase after the other: Σ steps · latency + Σ bytes / rate."""
        links = self.topology.links
        names = [f'{operator} by {by} of {of} over {links[level].name}' for operator, (level, of, by), _ in plan]
        return self.made(', then '.join(names), [self.over(self.op.bytes, phase) for phase in plan])

    def by_rule(self, named: list[Stage], *, graph: bool) -> Terms:
        """What HCCL takes: the first of its rules that holds. Arguments: ``named``, stages as the links name them."""
        op, library = self.op, self.library
        lies = lie(library.tuning, self.shape, self.topology)
        rule = chosen(library.tuning, op.operator, lies.facts(op.bytes, self.shape.ranks, graph=graph))
        if rule.between == 'pairwise' and rule.inside == 'flat':
            made = self.pairwise()
        elif rule.inside == 'flat':
            stages = [Stage(level, members, rule.between) for level, members, _ in named]
            made = self.phases(_plan(op.operator, stages, near=True))
        elif rule.between == 'pipeline':
            made = self.pipelined(lies)
        else:
            # Between supernodes HCCL has NHR, whatever it takes between servers.
            beyond = rule.between if rule.between != 'parallel' else 'nhr'
            algorithms = (rule.inside, beyond, 'nhr' if op.operator != PAIRWISE else beyond)
            levels = [Stage(*one) for one in zip(lies.levels, lies.members, algorithms, strict=True)]
            inner = levels[:1] if rule.inside else [one for one in named if one.level < lies.levels[1]]
            stages = [one for one in (*inner, *levels[1:]) if one.members > 1]
            both = rule.between == 'parallel'
            made = self.parallel(stages) if both else self.phases(_plan(op.operator, stages))
        return made._replace(text=f'{rule.name}: {made.text}')

    def pipelined(self, lies: Lie) -> Terms:
        """One ring between servers, each of whose parts goes on over the mesh of a server while the next comes.

        HCCL's manual: (servers − 1) · max(α + bytes · β of both links) + α + bytes · β of the inner, each a rank's
        part; an all-reduce has it twice. Of an all-to-all a server's part goes between servers, of which a rank's goes
        on.
        """
        op, ranks = self.op, self.shape.ranks
        inside, servers = lies.members[0], lies.members[1] * lies.members[2]
        inner, outer = lies.levels[0], lies.levels[2 if lies.members[2] > 1 else 1]
        near, far = self.topology.links[inner], self.topology.links[outer]
        passes, part = _PASSES[op.operator], op.bytes / ranks
        sent = part * (inside if op.operator == PAIRWISE else 1)
        over, on = sent * self.sharers(far) / far.rate, part * self.sharers(near) / near.rate
        behind = over + far.latency.value < on + near.latency.value
        # Steps in which the inner link sets the pace, and the outer.
        turns = (passes * servers, 0) if behind else (passes, passes * (servers - 1))
        paced = [(inner, turns[0] * near.latency.value, turns[0] * on),
                 (outer, turns[1] * far.latency.value, turns[1] * over)]  # fmt: skip
        uses = [(inner, 0.0, passes * servers * on), (outer, 0.0, passes * (servers - 1) * over)]
        text = f'{op.operator} of {ranks} in a pipeline of {near.name} and {far.name}'
        return self.made(text, uses, paced, paced)

    def parallel(self, stages: list[Stage]) -> Terms:
        """Half of the vector goes over the inner link first and half over the outer, so that both are in use."""
        op, uses, paced = self.op, list[Use](), list[Use]()
        for operator in ('reduce_scatter', 'all_gather') if op.operator == 'all_reduce' else (op.operator,):
            for pair in zip(_plan(operator, stages), _plan(operator, stages, near=True), strict=True):
                both = [self.over(op.bytes / 2, phase) for phase in pair]
                paced.append(max(both, key=lambda use: use[1] + use[2]))
                uses += both
        text = f'{op.operator} of {self.shape.ranks}, half over each level at once'
        return self.made(text, uses, paced, paced)

    def flat(self) -> Terms:
        """One ring through all levels at once; its rings leave a domain by all of its members' channels.

        α as NCCL counts it (2.30, tuning.cc, ring latency): each of passes × (p − 1) steps has the latency of the level
        that it crosses. The level that is slowest sets the pace.
        """
        op, ranks, uses = self.op, self.shape.ranks, list[Use]()
        below, inside = ranks, 1
        for level, (link, members, domains) in enumerate(self.levels):
            # Each of the domain's members has a ring of its own that leaves it, with its part of the vector.
            part = share('ring', op.operator, ranks) / inside if below > domains else 0.0
            latency = _PASSES[op.operator] * (below - domains) * link.latency.value
            uses.append((level, latency, op.bytes * part * self.sharers(link) / link.rate))
            below, inside = domains, inside * members
        text = f'{op.operator} by one ring of {ranks} over {self.crossed(uses)}'
        return self.made(text, uses, transfers=[max(uses, key=itemgetter(2))])

    @property
    def levels(self) -> Iterator[tuple[Link, int, int]]:
        """Of each level its link, members and domains."""
        return zip(self.topology.links, self.shape.members, self.shape.domains, strict=True)

    def crossed(self, uses: list[Use]) -> str:
        """The names of links that do any work."""
        return ' and '.join(self.topology.links[level].name for level, _, load in uses if load)

    def pairwise(self) -> Terms:
        """A p-th of the vector to every peer, one after the other, over the link that parts it from this rank.

        Does not model: steps in which some ranks have near peers and others far ones.
        """
        op, ranks, uses = self.op, self.shape.ranks, list[Use]()
        inside = 1
        for level, (link, members, _) in enumerate(self.levels):
            peers = min(inside * members, ranks) - inside
            # On a mesh each peer has its own link, so that all parts go at once.
            at_once = members - 1 if link.algorithm_for(members) == 'mesh' and members > 1 else 1
            load = op.bytes * peers / at_once / ranks * self.sharers(link) / link.rate
            uses.append((level, peers / at_once * link.latency.value, load))
            inside += peers
        return self.made(f'{op.operator} by pairs of {ranks} over {self.crossed(uses)}', uses)

    def once_a_node(self) -> Terms:
        """Tokens go once to each other node that has an expert of theirs, and there to each device that has one.

        Both ways at once, as what comes is forwarded. Source: deepseek-ai/DeepEP, csrc/kernels/internode.cu: a token
        goes by RDMA to the device of the same place in the other node, and over NVLink from there; its groups are
        limited as the router says. Experts are taken as drawn independently. Does not model: multiprocessors that it
        takes.
        """
        op, ranks, nodes, drawn = self.op, self.shape.ranks, self.shape.nodes, self.op.dims['once']
        tokens = op.bytes / drawn
        reached = distinct(nodes, drawn)
        if op.dims.get('groups', 1) % nodes == 0:
            # Groups lie whole on nodes.
            reached = min(reached, op.dims['group_top_k'])
        inside = ranks / nodes
        forwarded = min(distinct(ranks, drawn), reached * distinct(inside, drawn)) * (inside - 1) / inside
        uses: list[Use] = []
        for level, (link, members, domains) in enumerate(self.levels):
            copies = reached * (nodes - 1) / nodes if domains < nodes else forwarded
            load = tokens * copies * self.sharers(link) / link.rate if members > 1 else 0.0
            uses.append((level, link.latency.value if load else 0.0, load))
        text = f'{op.operator} of {ranks}, a token once a node, over {self.crossed(uses)}'
        return self.made(text, uses, transfers=[max(uses, key=itemgetter(2))])

    def chosen(self, crossed: list[int]) -> Terms:
        """What NCCL takes: of its algorithms and protocols the one whose message is over first."""
        passes, tuning = _PASSES[self.op.operator], self.library.tuning
        offers = [*self.choices(passes, self.flat())]
        link = self.topology.links[crossed[0]]
        if len(crossed) == 1 and passes == 2 and link.algorithm_for(self.shape.ranks) == 'nvls':
            switch = self.phases(_plan(self.op.operator, [self.stage(crossed[0])]))
            transfer = switch.transfer / _SWITCH_RATE.get(tuning, 1.0)
            offers.append(switch._replace(alpha=SWITCH, transfer=transfer, text=f'{switch.text}, Simple'))
        return min(offers, key=lambda one: one.alpha + one.transfer)

    def choices(self, passes: int, ring: Terms) -> Iterator[Terms]:
        """What NCCL weighs for a group. Arguments: ``passes``, 2 for an all-reduce; ``ring``, a ring at its best.

        Does not model: trees in one node, channels fewer than the links could feed.
        """
        shape, by_ring = self.shape, passes * (self.shape.ranks - 1) / self.shape.ranks
        start, named = self.library.start.value, f'{self.op.operator} by {{}} of {shape.ranks}'

        def under(text: str, alpha: float, longer: float, transfer: float) -> Terms:
            # Its transfer is so many times as long as that of the ring.
            return Terms(start + alpha, transfer, tuple(load * longer for load in ring.loads), ring.figures, text)

        if passes == 1 and shape.nodes == shape.ranks:
            # Parallel aggregated trees: log steps, and a part that grows with the ranks.
            outermost = self.topology.links[shape.outermost]
            hop = outermost.latency.value + (_PAT_HOP - _HOP['network', 'ring'][0]) * 1e-6
            alpha = (_PAT_BASE - _BASE['ring'][0]) * 1e-6 + math.floor(math.log2(shape.nodes)) * hop / 3.5
            text = f'{named.format("parallel trees")}, Simple'
            yield under(text, alpha + shape.ranks * _PAT_RANK, 1 / _PAT, ring.transfer * (1 / _PAT))
        # The step of a ring in which a block of threads sends nothing, over those in which it sends. Each block goes
        # through its steps one by one, p for a gather and 2p - 1 for an all-reduce: it sends in all but the last, which
        # copies to the result what came (NCCL, src/device/all_gather.h, reduce_scatter.h, all_reduce.h). Between nodes
        # the network sets the pace, not the blocks.
        idle = 1 / (passes * (shape.ranks - 1)) if shape.nodes == 1 else 0.0
        for algorithm in ('ring', 'tree') if passes == 2 and shape.nodes > 1 else ('ring',):
            # Up and down a tree goes the whole vector.
            sent = by_ring if algorithm == 'ring' else 2 / _TREE
            for at, protocol in enumerate(PROTOCOLS):
                most = _LL_MOST[self.library.tuning][min(shape.nodes, 3) - 1] * 1e9
                # However fast the links.
                least = sent * self.op.bytes / most if protocol == 'LL' else 0.0
                longer = sent / by_ring / _RATE[algorithm][at]
                text = ring.text if algorithm == 'ring' else named.format('one tree')
                transfer = max(ring.transfer * longer, least) * (1 + idle)
                yield under(f'{text}, {protocol}', self.hops(algorithm, at, passes), longer, transfer)

    def hops(self, algorithm: str, at: int, passes: int) -> float:
        """Seconds of all hops, and by how much a protocol starts later than LL on a ring."""
        seconds = (_BASE[algorithm][at] - _BASE['ring'][0]) * 1e-6
        below, node = self.shape.ranks, self.topology.node
        for size, (link, _, domains) in zip(self.topology.sizes, self.levels, strict=True):
            near = 'pcie' if link.bandwidth.value <= _PCIE else 'nvlink'
            place = 'network' if not size or size > node else near
            hops: float = passes * (below - domains)
            if algorithm == 'tree':
                # Between nodes a double binary tree; in each, a chain.
                hops = 2 * (math.log2(below / domains) if place == 'network' else math.ceil(below / domains) - 1)
            # A link's own latency is that of a ring under LL; NCCL's table says how much more the others take.
            seconds += hops * (link.latency.value + (_HOP[place, algorithm][at] - _HOP[place, 'ring'][0]) * 1e-6)
            below = domains
        return seconds


def symmetric(op: OpClass, shape: Shape, topology: Topology, library: Library) -> Terms | None:
    """NCCL over symmetric memory in a node whose switch adds: the quicker of its low-latency and its full-rate kernel.

    Source: NCCL 2.30.7, src/sym_kernels.cc, queryModel_lsa; its rates as parts of the link's on the same device. None:
    it has no kernel for the message.
    """
    passes, tuning = _PASSES.get(op.operator), _SYMMETRIC.get(library.tuning)
    if passes is None or tuning is None or op.operator == PAIRWISE or shape.nodes > 1 or shape.ranks < 3:
        return None
    link, ranks = topology.links[shape.outermost], shape.ranks
    low, full = tuning.low.get(op.operator, tuning.low['']), tuning.full[passes - 1]
    sent = ((low, _LOW * (ranks if passes == 2 else 1)), (full, share('nvls', op.operator, ranks)))
    made = []
    for base, times in sent:
        load = times * op.bytes / (link.rate * tuning.part)
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
