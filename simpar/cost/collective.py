"""Isolated cost of collectives: measured curves where a profile has them, the algorithm's formula elsewhere."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simpar.cost.entries import Alike
from simpar.cost.formula import EXCHANGE, SEND, Terms, exchanged, share, terms
from simpar.cost.interpolate import Curve
from simpar.cost.links import Demands, demand, demands
from simpar.cost.lying import Lying, places_of
from simpar.cost.model import CollectiveCost
from simpar.hardware import Cluster, Grade, Library, Shape, worst
from simpar.kept import Facts, Kept, Same
from simpar.profiles import Row, read_table
from simpar.program import OpClass

Groups = NDArray[np.int32]
Group = tuple[int, int]
"""Ranks of a group, and nodes that it touches."""
Asked = tuple[tuple[int, float], ...]
"""Pairs (level, demand)."""
Curves = dict[str, dict[Group, Curve]]
"""By algorithm and group."""


class _Alone(NamedTuple):
    """A message in groups of one shape, as of ``CollectiveCost``; ``loads``, seconds of work on each level."""

    alpha: float
    transfer: float
    best: float
    why: str
    grade: Grade
    loads: tuple[float, ...]

    def over(self, links: Sequence[tuple[str, float]]) -> CollectiveCost:
        """The same over a group's links."""
        return CollectiveCost(self.alpha, self.transfer, self.best, links, self.why, self.grade)


class _Measured(NamedTuple):
    """``alpha`` and ``seconds`` of a message, ``best`` without latency; in words; what it rests on beside the table."""

    alpha: float
    seconds: float
    best: float
    text: str
    grades: tuple[Grade, ...] = ()


class _InNode(NamedTuple):
    """What the part of a group in one node says of the group.

    Arguments: ``alpha``, ``transfer`` and ``best`` as of ``_Measured``, of the bytes that the group sends;
    ``formula_alpha``, latency by formula; ``level`` of the links in the node.
    """

    alpha: float
    formula_alpha: float
    transfer: float
    best: float
    level: int
    text: str
    grades: tuple[Grade, ...]


class ClusterCollectives:
    """Collectives on a cluster's links and library.

    Does not model: groups with unequal numbers of ranks in their nodes (the fullest node counts for all).
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.topology = cluster.topology
        self._measured_on = cluster.as_measured
        self.library = cluster.profile.library
        # Measured curves hold what was chosen: they are carried to other groups and links by one algorithm.
        self._plain = _plain_of(self.library)
        # Clusters of a sweep over links lie alike, and their links have the same channels.
        self._places = places_of(self.topology)
        # By ids of what the places keep.
        self._alone: dict[tuple[object, int], _Alone] = {}
        self._known_links: dict[tuple[int, Asked], Demands] = {}
        self._costs: dict[tuple[object, int], CollectiveCost] = {}
        node = self.topology.node
        levels = zip(self.topology.links, self.topology.sizes, strict=True)
        inside = [link for link, size in levels if 0 < size <= node]
        self._inside = _insides.get(Same(cluster.profile, *inside), dict)

    def cost(self, op: OpClass, ranks: Sequence[int]) -> CollectiveCost:
        """Isolated cost of a collective (or of a send and its recv) in the group of these ranks."""
        pair = op.kind != 'collective'
        key = ('send' if pair else op.operator, op.bytes, op.dtype)
        lying = self._places.group(tuple(ranks), pair)
        # Ops of one message in one group are asked for once: a thousand layers have the same few messages.
        found = self._costs.get((key, id(lying)))
        if found is None:
            alone = self._alone_in(op, key, lying.shape)
            links = self._links(lying, demands(self.topology, alone.loads, alone.transfer))
            found = self._costs[key, id(lying)] = alone.over(links)
        return found

    @functools.cached_property
    def shapes_tell(self) -> bool:
        """Whether groups that lie alike from their first node on cost the same on channels that lie alike, too."""
        # Channels between pairs are too many to be numbered.
        return bool(self._places.node) and all(link.per != 'pair' for link in self.topology.links)

    def lying_alike(self, groups: Groups) -> list[NDArray[np.int64]]:
        """The rows of groups that lie alike from their first node on. Arguments: ``groups``, shape [groups, ranks]."""
        return _equal_rows(groups - groups[:, :1] // self._places.node * self._places.node)

    def by_shape(self, op: OpClass, groups: Groups, alike: Sequence[NDArray[np.int64]]) -> tuple[Alike, ...]:
        """Isolated costs of a collective, or a send and its receive, in many groups.

        Arguments: ``groups``, shape [groups, ranks]; ``alike``, as ``lying_alike`` says. Only where ``shapes_tell``.
        """
        pair = op.kind != 'collective'
        key = ('send' if pair else op.operator, op.bytes, op.dtype)
        found = []
        for rows in alike:
            members = groups[rows].astype(np.int64)
            alone = self._alone_in(op, key, self._places.shape(tuple(members[0].tolist())))
            # A message goes out of its sender's ports.
            channels = self._channels(members[:, :1] if pair else members, alone.loads, alone.transfer)
            found.append(Alike(rows, alone.over(()), *channels))
        return tuple(found)

    def _channels(
        self, users: NDArray[np.int64], loads: Sequence[float], transfer: float
    ) -> tuple[NDArray[np.int64], tuple[float, ...], tuple[int, ...]]:
        """As ``demands`` says it: of each group the numbers of its channels, and what is demanded of how many."""
        found: list[NDArray[np.int64]] = [np.empty((len(users), 0), dtype=np.int64)]
        parts: list[float] = []
        for level, load in enumerate(loads if transfer > 0 else ()):
            link = self.topology.links[level]
            if not load > 0 or link.sharing != 'shared':
                continue
            ports = users
            if link.per == 'node':
                # All groups lie alike, so that the same columns have the nodes of the first.
                _, first = np.unique(users[0] // self._places.node, return_index=True)
                ports = users[:, first] // self._places.node
            found.append(level * self.cluster.world + ports)
            parts.append(demand(load, transfer))
        return np.concatenate(found, axis=1), tuple(parts), tuple([one.shape[1] for one in found[1:]])

    def name(self, channel: int) -> str:
        """The name of a channel by its number."""
        level, port = divmod(channel, self.cluster.world)
        link = self.topology.links[level]
        return f'{link.name}/{"node" if link.per == "node" else ""}{port}'

    def _alone_in(self, op: OpClass, key: object, shape: Shape) -> _Alone:
        """A message in groups of a shape; ``key``, what tells it from others."""
        found = self._alone.get((key, id(shape)))
        if found is None:
            found = self._alone[key, id(shape)] = self._price(op, shape)
        return found

    def _links(self, lying: Lying, asked: Asked) -> Demands:
        """Pairs (channel, demand) of the channels that a group uses at some levels.

        Messages of many sizes ask the same, and then have the very same tuple: whoever works on links looks at them
        once.
        """
        found = self._known_links.get((id(lying), asked))
        if found is None:
            names, counts = lying.over(tuple([level for level, _ in asked]))
            found = self._known_links[id(lying), asked] = Demands.on(names, [part for _, part in asked], counts)
        return found

    def _price(self, op: OpClass, shape: Shape) -> _Alone:
        if shape.ranks < 2 or not op.bytes:
            return _Alone(0.0, 0.0, 0.0, 'nothing to send', 'measured', ())
        formula = terms(op, shape, self.topology, self._plain)
        table, found = self.cluster.profile.tables.collective, self._measured(op, shape, formula)
        if found is None or table is None:
            formula = terms(op, shape, self.topology, self.library)
            grade = worst(formula.figures)
            why = f'{formula.text}: {formula.alpha * 1e6:.3g} us + {_speed(op, formula.transfer)} ({grade})'
            return _Alone(formula.alpha, formula.transfer, formula.transfer, why, grade, formula.loads)
        transfer = max(found.seconds - found.alpha, 0.0)
        grade = worst([table.grade, *found.grades])
        why = f'{found.text}: {found.alpha * 1e6:.3g} us + {_speed(op, transfer)} ({grade})'
        best = min(found.best, found.seconds)
        return _Alone(found.alpha, transfer, best, why, grade, formula.loads)

    def _measured(self, op: OpClass, shape: Shape, formula: Terms) -> _Measured | None:
        curves = self._curves.get(self._algorithm(op), _NO_CURVES)
        exact = curves.get((shape.ranks, shape.nodes))
        if exact is not None:
            return self._read(exact, op, shape, f'measured {op.operator} of {shape.ranks}')
        known = _alike_of(curves)
        alike = known.get((shape.ranks, shape.nodes))
        if alike is None:
            alike = {group: curve for group, curve in curves.items() if _alike(group, (shape.ranks, shape.nodes))}
            known[shape.ranks, shape.nodes] = alike
        if alike:
            return self._near(op, shape, alike, formula)
        # Rounded up: the fullest node counts for all.
        inner = -(-shape.ranks // shape.nodes)
        # A flat ring inside a node moves the same bytes over the same links, whatever is outside; phases do not.
        if shape.nodes > 1 and inner > 1 and self.library.across == 'flat' and curves:
            return self._outwards(op, shape.ranks, inner, formula)
        return None

    def _near(self, op: OpClass, shape: Shape, curves: Mapping[Group, Curve], formula: Terms) -> _Measured:
        """Between two measured group sizes in log(size); beyond them scaled as the formula scales."""
        sizes = sorted(curves)
        below = [group for group in sizes if group[0] < shape.ranks]
        above = [group for group in sizes if group[0] > shape.ranks]
        if not below or not above:
            # The nearest size: the largest below, or the smallest above.
            return self._scaled(op, shape, (below or above)[-1 if below else 0], curves, formula)
        small, large = (self._read(curves[group], op, self._laid(group), '') for group in (below[-1], above[0]))
        part = math.log(shape.ranks / below[-1][0]) / math.log(above[0][0] / below[-1][0])
        alpha, seconds, best = (
            # Linear in the logarithm: between measured sizes time is taken as a power of the size.
            low ** (1 - part) * high**part
            for low, high in ((small.alpha, large.alpha), (small.seconds, large.seconds), (small.best, large.best))
        )
        text = f'{op.operator} of {shape.ranks} between measured {below[-1][0]} and {above[0][0]}'
        # Each was interpolated by itself, so α might come out above the total.
        return _Measured(min(alpha, seconds), seconds, best, text, ('estimate',))

    def _scaled(
        self, op: OpClass, shape: Shape, group: Group, curves: Mapping[Group, Curve], formula: Terms
    ) -> _Measured:
        """A measured curve of another group size, α and transfer each scaled by the formula's ratio."""
        there = self._laid(group)
        near = self._read(curves[group], op, there, '')
        other = terms(op, there, self.topology, self._plain)
        alpha = near.alpha * formula.alpha / other.alpha if other.alpha else near.alpha
        ratio = formula.transfer / other.transfer
        text = f'measured {op.operator} of {group[0]}, scaled to {shape.ranks} by formula'
        seconds = alpha + (near.seconds - near.alpha) * ratio
        return _Measured(alpha, seconds, near.best * ratio, text, ('estimate', *(f.grade for f in formula.figures)))

    def _laid(self, group: Group) -> Shape:
        """How a group of so many ranks in so many nodes lies, evenly."""
        inner = -(-group[0] // group[1])
        node = self.topology.node
        return self._places.shape(tuple([place // inner * node + place % inner for place in range(group[0])]))

    def _read(self, curve: Curve, op: OpClass, shape: Shape, text: str) -> _Measured:
        """A message on a measured curve; where a link was changed since, its transfer scaled as the formula scales."""
        seconds = curve(op.bytes)
        read = _Measured(min(curve.alpha, seconds), seconds, op.bytes * curve.best, text)
        if not self.cluster.links:
            return read
        now, then = (terms(op, shape, links, self._plain).transfer for links in (self.topology, self._measured_on))
        # The same to the bit: a link was changed that this group does not use.
        if now == then:
            return read
        ratio = now / then
        seconds = read.alpha + (read.seconds - read.alpha) * ratio
        return _Measured(read.alpha, seconds, read.best * ratio, f'{text} scaled to changed links', ('estimate',))

    def _outwards(self, op: OpClass, ranks: int, inner: int, formula: Terms) -> _Measured:
        """A group over nodes from the curve of its part in one node, and the formula's links between nodes."""
        part = self._part_in_node(op, ranks, inner)
        alpha = part.alpha + max(formula.alpha - part.formula_alpha, 0.0)
        network = max([load for level, load in enumerate(formula.loads) if level != part.level])
        # Links inside and between nodes work at once: the slower sets the pace.
        transfer = max(part.transfer, network)
        grades = (*part.grades, *[figure.grade for figure in formula.figures])
        return _Measured(alpha, alpha + transfer, max(part.best, network), part.text, grades)

    def _part_in_node(self, op: OpClass, ranks: int, inner: int) -> _InNode:
        """What the part in one node says of a group over nodes; once for all that changes between nodes alone."""
        key = (op.operator, op.bytes, op.dtype, ranks, inner, self.topology.node)
        found = self._inside.get(key)
        if found is not None:
            return found
        shape = self._places.shape(tuple(range(inner)))
        alone = terms(op, shape, self.topology, self._plain)
        read = self._measured(op, shape, alone)
        exact = read or _Measured(alone.alpha, alone.alpha + alone.transfer, 0.0, '')
        ratio = share('ring', op.operator, ranks) / share('ring', op.operator, inner)
        found = _InNode(
            exact.alpha,
            alone.alpha,
            (exact.seconds - exact.alpha) * ratio,
            exact.best * ratio,
            next(level for level, load in enumerate(alone.loads) if load),
            f'measured {op.operator} of {inner} in a node, formula between nodes',
            exact.grades,
        )
        # Formulas over one level know nothing of links that are not used.
        if sum(members > 1 for members in shape.members) == 1:
            if len(self._inside) >= _MOST_INSIDE:
                self._inside.clear()
            self._inside[key] = found
        return found

    def _algorithm(self, op: OpClass) -> str:
        """The name of the curves that price an op: a send and its receive have one, all-reduces one an algorithm."""
        if op.kind != 'collective':
            return SEND
        return EXCHANGE if EXCHANGE in self._curves and exchanged(op, self.library) else op.operator

    @functools.cached_property
    def _curves(self) -> Curves:
        table, exchange = self.cluster.profile.tables.collective, self.library.exchange
        if table is None:
            return {}
        key = (read_table(table, 'collective'), exchange.value if exchange else 0.0)
        return _curves_of.get(key, lambda: _collective_curves(*key))


_NO_CURVES: Final[dict[Group, Curve]] = {}
_plain_of: Final[Facts[Library, Library]] = Facts(lambda library: replace(library, tuning='none'), 8)
"""The same for all clusters of a library, whose terms are then told to be the same."""
_MOST_INSIDE: Final = 1024
_insides: Final[Kept[Same, dict[tuple[object, ...], _InNode]]] = Kept(4)
"""Of parts in a node, by profile and links there: what a formula and what a table says of a message."""


_alike_of: Final[Facts[Mapping[Group, Curve], dict[Group, dict[Group, Curve]]]] = Facts(lambda curves: {}, 64)
"""Of some curves those of groups that lie like one."""
_curves_of: Final[Kept[tuple[tuple[Row, ...], float], Curves]] = Kept(8)
"""The curves of tables."""


def _collective_curves(rows: tuple[Row, ...], exchange: float) -> Curves:
    """Curves by operator and group; those of all-reduces up to ``exchange`` bytes apart, as another algorithm's."""
    points: dict[str, dict[Group, list[tuple[float, float]]]] = {}
    for operator, ranks, nodes, size, seconds in rows:
        name = EXCHANGE if operator == 'all_reduce' and size <= exchange else operator
        points.setdefault(name, {}).setdefault((int(ranks), int(nodes)), []).append((size, seconds))
    # Where an algorithm begins at some size, its quickest message is long: latency lies below.
    begins = {'all_reduce'} if EXCHANGE in points else set()
    return {
        name: {group: Curve(curve, line=name in begins) for group, curve in groups.items()}
        for name, groups in points.items()
    }


def _equal_rows(groups: Groups) -> list[NDArray[np.int64]]:
    """The rows of equal groups, by first occurrence."""
    if (groups == groups[0]).all():
        return [np.arange(len(groups))]
    # By their columns, the first one last: equal rows come to stand together, in order.
    order = np.lexsort(groups.T[::-1])
    begins = np.flatnonzero((groups[order[1:]] != groups[order[:-1]]).any(axis=1)) + 1
    return sorted(np.split(order, begins), key=lambda rows: int(rows[0]))


def _alike(one: Group, other: Group) -> bool:
    """Both in one node, or both over several with as many ranks in each."""
    # A group inside a node uses other links than any that leaves it.
    if one[1] == 1 or other[1] == 1:
        return one[1] == other[1]
    return one[0] * other[1] == other[0] * one[1]


def _speed(op: OpClass, transfer: float) -> str:
    return f'{op.bytes / transfer / 1e9:.4g} GB/s' if transfer > 0 else 'no transfer'
