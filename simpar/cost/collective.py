"""Isolated cost of collectives: measured curves where a profile has them, the algorithm's formula elsewhere."""

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simpar import errors, hardware, profiles
from simpar.cost.costs import CollectiveCost
from simpar.cost.formula import EXCHANGE, SEND, Terms, distinct, exchanged, share, symmetric, terms
from simpar.cost.tables import Curve
from simpar.program import COPY, OpClass

Members = tuple[int, ...]
Asked = tuple[tuple[int, float], ...]
"""Pairs (level, demand)."""
Group = tuple[int, int]
"""Ranks of a group, and nodes that it touches."""
Curves = dict[str, dict[Group, Curve]]
"""By algorithm and group."""


class _Measured(NamedTuple):
    """``alpha`` and ``seconds`` of a message, ``best`` without latency; in words; what it rests on beside the table."""

    alpha: float
    seconds: float
    best: float
    text: str
    grades: tuple[hardware.Grade, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Alike:
    """Groups that lie alike, and what a message costs in each of them.

    Arguments (n groups, each over k channels):
        rows: shape [n], which groups.
        cost: without its links.
        channels: shape [n, k], numbers as of ``ClusterCollectives.name``.
        parts: what is demanded of the first ``widths[0]`` of the k, of the next ``widths[1]``, and so on.
    """

    rows: NDArray[np.int64]
    cost: CollectiveCost
    channels: NDArray[np.int64]
    parts: tuple[float, ...]
    widths: tuple[int, ...]


class ClusterCollectives:
    """Collectives on a cluster's links and library.

    Does not model: groups with unequal numbers of ranks in their nodes (the fullest node counts for all).
    """

    def __init__(self, cluster: hardware.Cluster) -> None:
        self.cluster = cluster
        self.topology = cluster.topology
        # Measured curves are scaled from the links that they were measured on to the changed ones.
        self._measured_on = replace(cluster, links={}).topology
        self.library = cluster.profile.library
        # Measured curves hold what was chosen: they are carried to other groups and links by one algorithm.
        self._plain = replace(self.library, tuning='none')
        node = self.topology.node
        # Where levels do not nest in nodes, a group's shape depends on where it begins, and no shape can be shared.
        self._node = node if all(node % size == 0 for size in self.topology.sizes if size) else 0
        self._shapes: dict[Members, hardware.Shape] = {}
        self._alone: dict[tuple[object, hardware.Shape], tuple[CollectiveCost, tuple[float, ...]]] = {}

    def cost(self, op: OpClass, ranks: Sequence[int]) -> CollectiveCost:
        """Isolated cost of a collective (or of a send and its recv) in the group of these ranks."""
        members = tuple(self.cluster.devices_of(np.array(ranks)).tolist())
        alone, loads = self._alone_in(op, self._shape(members))
        level_demands = demands(self.topology, loads, alone.transfer)
        return replace(alone, links=tuple(self._over(members, level_demands, pair=op.kind != 'collective')))

    @functools.cached_property
    def shapes_tell(self) -> bool:
        """Whether groups that lie alike from their first node on cost the same on channels that lie alike, too."""
        # Channels between pairs are too many to be numbered.
        return bool(self._node) and all(link.per != 'pair' for link in self.topology.links)

    def lying_alike(self, groups: NDArray[np.int32]) -> list[NDArray[np.int64]]:
        """The rows of groups that lie alike from their first node on. Arguments: ``groups``, shape [groups, ranks]."""
        devices = self.cluster.devices_of(groups)
        return _equal_rows(devices - devices[:, :1] // self._node * self._node)

    def by_shape(self, op: OpClass, groups: NDArray[np.int32], alike: Sequence[NDArray[np.int64]]) -> tuple[Alike, ...]:
        """Isolated costs of a collective, or a send and its receive, in many groups.

        Arguments: ``groups``, shape [groups, ranks]; ``alike``, as ``lying_alike`` says. Only where ``shapes_tell``.
        """
        costs = []
        for rows in alike:
            members = self.cluster.devices_of(groups[rows]).astype(np.int64)
            alone, loads = self._alone_in(op, self._shape(tuple(members[0].tolist())))
            # A message goes out of its sender's ports.
            users = members if op.kind == 'collective' else members[:, :1]
            costs.append(Alike(rows, alone, *self._channels(users, loads, alone.transfer)))
        return tuple(costs)

    def _channels(
        self, users: NDArray[np.int64], loads: Sequence[float], transfer: float
    ) -> tuple[NDArray[np.int64], tuple[float, ...], tuple[int, ...]]:
        """As ``demands`` says it: of each group the numbers of its channels, and what is demanded of how many."""
        channels: list[NDArray[np.int64]] = [np.empty((len(users), 0), dtype=np.int64)]
        parts: list[float] = []
        for level, load in enumerate(loads if transfer > 0 else ()):
            link = self.topology.links[level]
            if not load > 0 or link.sharing != 'shared':
                continue
            ports = users
            if link.per == 'node':
                # All groups lie alike, so that the same columns have the nodes of the first.
                _, first = np.unique(users[0] // self._node, return_index=True)
                ports = users[:, first] // self._node
            channels.append(level * self.cluster.world + ports)
            parts.append(demand(load, transfer))
        return np.concatenate(channels, axis=1), tuple(parts), tuple([one.shape[1] for one in channels[1:]])

    def name(self, channel: int) -> str:
        """The name of a channel by its number."""
        level, port = divmod(channel, self.cluster.world)
        link = self.topology.links[level]
        return f'{link.name}/{"node" if link.per == "node" else ""}{port}'

    def _shape(self, members: Members) -> hardware.Shape:
        """How a group lies; groups that lie alike from their first node on are looked at once."""
        if self._node:
            first = members[0] // self._node * self._node
            members = tuple([rank - first for rank in members])
        if members not in self._shapes:
            self._shapes[members] = self.topology.shape(members)
        return self._shapes[members]

    def _over(self, members: Members, level_demands: Asked, *, pair: bool) -> Iterator[tuple[str, float]]:
        """What is demanded of the channels that a group uses. Arguments: ``level_demands``, pairs (level, demand)."""
        # A message goes out of its sender's ports; what comes in by the same ports goes the other way. Between pairs
        # each has a channel of its own.
        for level, part in level_demands:
            users = members[:1] if pair and self.topology.links[level].per != 'pair' else members
            yield from ((name, part) for name in self.topology.channels(users, level))

    def _alone_in(self, op: OpClass, shape: hardware.Shape) -> tuple[CollectiveCost, tuple[float, ...]]:
        """A message in groups of a shape, without links; seconds of work on each level."""
        key = (_message(op), shape)
        if key not in self._alone:
            self._alone[key] = self._price(op, shape)
        return self._alone[key]

    def _price(self, op: OpClass, shape: hardware.Shape) -> tuple[CollectiveCost, tuple[float, ...]]:
        if op.operator == COPY:
            return self._to_host(op), ()
        if shape.ranks < 2 or not op.bytes:
            return CollectiveCost(0.0, 0.0, 0.0, (), 'nothing to send', 'measured'), ()
        if 'once' in op.dims and shape.nodes == 1:
            # A token goes once to each device that has an expert of it.
            op = replace(op, bytes=op.bytes * distinct(shape.ranks, op.dims['once']) / op.dims['once'], dims={})
        formula = terms(op, shape, self.topology, self._plain)
        table, timing = self.cluster.profile.tables.collective, self._measured(op, shape, formula)
        if timing is None or table is None:
            formula = terms(op, shape, self.topology, self.library, graph=self.cluster.sunk)
            grade = hardware.worst(formula.figures)
            timing = _Measured(formula.alpha, formula.alpha + formula.transfer, formula.transfer, formula.text)
            transfer, best = formula.transfer, formula.transfer
        else:
            grade = hardware.worst([table.grade, *timing.grades])
            transfer, best = max(timing.seconds - timing.alpha, 0.0), min(timing.best, timing.seconds)
        # What copy engines do takes no block, and nobody says how long they take.
        takes = self.cluster.kernels.get(op.operator)
        quick = symmetric(op, shape, self.topology, self.library) if takes and takes.blocks else None
        if quick and quick.alpha + quick.transfer < timing.seconds:
            formula, grade, transfer, best = quick, hardware.worst(quick.figures), quick.transfer, quick.transfer
            timing = _Measured(quick.alpha, quick.alpha + transfer, transfer, quick.text)
        why = f'{timing.text}: {timing.alpha * 1e6:.3g} us + {_speed(op, transfer)} ({grade})'
        return CollectiveCost(timing.alpha, transfer, best, (), why, grade), formula.loads

    def _to_host(self, op: OpClass) -> CollectiveCost:
        """A copy to the host or back; each device has its own way, and both ways go at once.

        Does not model: devices that share a switch or the memory of a host.
        """
        host = self.cluster.profile.host_link
        if host is None:
            raise errors.Infeasible(
                f'plan.offload: profile {self.cluster.profile.name} has no host_link; write one into a profile that '
                'extends it, or leave offload out'
            )
        alpha, transfer = host.latency.value, op.bytes / (host.bandwidth.value * host.share.value)
        grade = hardware.worst([host.latency, host.bandwidth, host.share])
        why = f'host link {host.name}: {alpha * 1e6:.3g} us + {_speed(op, transfer)} ({grade})'
        return CollectiveCost(alpha, transfer, transfer, (), why, grade)

    def _measured(self, op: OpClass, shape: hardware.Shape, formula: Terms) -> _Measured | None:
        if 'once' in op.dims:
            return None
        curves = self._curves.get(self._algorithm(op), {})
        exact = curves.get((shape.ranks, shape.nodes))
        if exact is not None:
            return self._read(exact, op, shape, f'measured {op.operator} of {shape.ranks}')
        alike = {group: curve for group, curve in curves.items() if _alike(group, (shape.ranks, shape.nodes))}
        if alike:
            return self._near(op, shape, alike, formula)
        # Rounded up: the fullest node counts for all.
        inner = -(-shape.ranks // shape.nodes)
        # A flat ring inside a node moves the same bytes over the same links, whatever is outside; phases do not.
        if shape.nodes > 1 and inner > 1 and self.library.across == 'flat' and curves:
            return self._outwards(op, shape.ranks, inner, formula)
        return None

    def _near(self, op: OpClass, shape: hardware.Shape, curves: Mapping[Group, Curve], formula: Terms) -> _Measured:
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
        self, op: OpClass, shape: hardware.Shape, group: Group, curves: Mapping[Group, Curve], formula: Terms
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

    def _laid(self, group: Group) -> hardware.Shape:
        """How a group of so many ranks in so many nodes lies, evenly."""
        inner = -(-group[0] // group[1])
        node = self.topology.node
        return self._shape(tuple([place // inner * node + place % inner for place in range(group[0])]))

    def _read(self, curve: Curve, op: OpClass, shape: hardware.Shape, text: str) -> _Measured:
        """A message on a measured curve; where a link was changed since, its transfer scaled as the formula scales."""
        seconds, alpha = curve(op.bytes), curve.alpha
        read = _Measured(min(alpha, seconds), seconds, op.bytes * curve.best, text)
        if curve.is_outside(op.bytes):
            # What was recorded has no small messages, whose time would be that of a large one, or one size alone.
            formulas = [
                terms(one, shape, self._measured_on, self._plain) for one in (op, replace(op, bytes=curve.smallest))
            ]
            part, full = ([one.alpha, one.alpha + one.transfer] for one in formulas)
            alpha, seconds = (curve(curve.smallest) * one / full[1] for one in part)
            text = f'{text} of {curve.smallest:.4g} B, extrapolated by formula'
            read = _Measured(alpha, seconds, op.bytes * curve.best, text, ('estimate',))
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
        shape = self._shape(tuple(range(inner)))
        alone = terms(op, shape, self.topology, self._plain)
        part = self._measured(op, shape, alone) or _Measured(alone.alpha, alone.alpha + alone.transfer, 0.0, '')
        # The bytes that the group sends in the node, over those that its part would.
        ratio = share('ring', op.operator, ranks) / share('ring', op.operator, inner)
        level = next(level for level, load in enumerate(alone.loads) if load)
        network = max([load for other, load in enumerate(formula.loads) if other != level])
        alpha = part.alpha + max(formula.alpha - alone.alpha, 0.0)
        # Links inside and between nodes work at once: the slower sets the pace.
        transfer = max((part.seconds - part.alpha) * ratio, network)
        text = f'measured {op.operator} of {inner} in a node, formula between nodes'
        grades = (*part.grades, *[figure.grade for figure in formula.figures])
        return _Measured(alpha, alpha + transfer, max(part.best * ratio, network), text, grades)

    def _algorithm(self, op: OpClass) -> str:
        """The name of the curves that price an op: a send and its receive have one, all-reduces one an algorithm."""
        if op.kind != 'collective':
            return SEND
        return EXCHANGE if EXCHANGE in self._curves and exchanged(op, self.library) else op.operator

    @functools.cached_property
    def _curves(self) -> Curves:
        """By operator and group; those of all-reduces that are exchanged apart, as another algorithm's."""
        table, exchange = self.cluster.profile.tables.collective, self.library.exchange
        if table is None:
            return {}
        most = exchange.value if exchange else 0.0
        points: dict[str, dict[Group, list[tuple[float, float]]]] = {}
        for operator, ranks, nodes, size, seconds in profiles.read_table(table, 'collective'):
            name = EXCHANGE if operator == 'all_reduce' and size <= most else operator
            points.setdefault(name, {}).setdefault((int(ranks), int(nodes)), []).append((size, seconds))
        # Where an algorithm begins at some size, its quickest message is long: latency lies below.
        begins = {'all_reduce'} if EXCHANGE in points else set()
        return {
            name: {group: Curve(curve, line=name in begins) for group, curve in groups.items()}
            for name, groups in points.items()
        }


def _equal_rows(groups: NDArray[np.int32]) -> list[NDArray[np.int64]]:
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


def _message(op: OpClass) -> tuple[object, ...]:
    """What tells a message's cost from others' in one group."""
    once = tuple(op.dims.items()) if 'once' in op.dims else ()
    return ('send' if op.kind != 'collective' else op.operator, op.bytes, op.dtype, once)


GRID: Final = 1024
"""Demands are multiples of 1 / GRID, so that sums of them are exact."""


def demand(load: float, transfer: float) -> float:
    """What a collective takes of a channel: bytes over it / its bandwidth / transfer, in 1 / 1024, above 0, at most 1.

    Arguments: ``load``, seconds that the channel needs for the bytes; ``transfer``, seconds that the collective takes
    when alone, more than 0.
    """
    # At least one part: what uses a link at all must be seen by those that share it.
    return min(max(round(load / transfer * GRID), 1), GRID) / GRID


def demands(topology: hardware.Topology, loads: Sequence[float], transfer: float) -> Asked:
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
