"""Graph: who waits for whom in a step of all lanes, known without a clock.

Streams are in order, and what communicates meets by its order in a step. A node is a compute op, or all the ops that
meet in a communication.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simpar.engine.lanes import Lanes, groups_of
from simpar.program import OpClass, Program, Role
from simpar.trace import Times

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
NONE: Final = -1
CHAINED: Final = 15
"""How many ops a chain holds besides its first."""


@dataclass(frozen=True, eq=False)
class Graph:
    """One step of all lanes; its N ops are numbered lane by lane, in issue order.

    Arguments:
        first: shape [lanes + 1], the number of each lane's first op, and at last N.
        lane, op_class, computes: shape [N].
        node: shape [N]; a node has the number of its op that has the costs.
        op, before, carried: shape [edges], sorted by op: an op comes after a node, of the step before where carried.
            Every op comes after one at least: the op before it on its stream.
        order: the nodes, each behind all that it comes after in its step.
    """

    first: Ints
    lane: Ints
    op_class: Ints
    computes: Flags
    node: Ints
    op: Ints
    before: Ints
    carried: Flags
    order: list[int]

    def __len__(self) -> int:
        return len(self.node)

    @cached_property
    def others(self) -> Ints:
        """The ops that are not their node's number."""
        return np.flatnonzero(self.node != np.arange(len(self)))

    @cached_property
    def lanes(self) -> list[tuple[int, ...]]:
        """For each node the lanes of its ops."""
        return _rows(self.node, self.lane, len(self))

    @cached_property
    def after(self) -> list[tuple[int, ...]]:
        """For each node the ops that come after it, as distances from its number; + N where in the next step."""
        return _rows(self.before, self.op - self.before + len(self) * self.carried, len(self))

    @cached_property
    def chain(self) -> list[tuple[int, ...]]:
        """For each op the distances to the next few compute ops that run right behind it, one after the other.

        Each waits for the one before alone, and is all that waits for it: so they stand behind each other on a stream.
        """
        waits = np.bincount(self.op, minlength=len(self))[self.op]
        lets_go = np.bincount(self.before, minlength=len(self))[self.before]
        inside = (waits == 1) & (lets_go == 1) & ~self.carried & self.computes[self.op] & self.computes[self.before]
        chain: list[tuple[int, ...]] = [()] * len(self)
        for op, behind in sorted(
            zip(self.before[inside].tolist(), self.op[inside].tolist(), strict=True), reverse=True
        ):
            chain[op] = (behind - op, *[behind - op + more for more in chain[behind][: CHAINED - 1]])
        return chain

    @cached_property
    def waits(self) -> tuple[list[int], list[int]]:
        """For each op how many nodes it comes after, in the first step and in any other."""
        first = np.bincount(self.op[~self.carried], minlength=len(self))
        return first.tolist(), np.bincount(self.op, minlength=len(self)).tolist()

    @cached_property
    def places_before(self) -> list[tuple[int, ...]]:
        """For each node in order the places in it of what it comes after, those of the step before counted first."""
        place = np.zeros(len(self), dtype=np.int64)
        place[self.order] = np.arange(len(self.order))
        before = place[self.before] + np.where(self.carried, 0, len(self.order))
        return _rows(place[self.node[self.op]], before, len(self.order))

    def latest(self, times: Times) -> Times:
        """For each node, at its number, the latest time of its ops; shape [steps, N]."""
        latest = times.copy()
        for into, own in zip(latest, times, strict=True):
            np.maximum.at(into, self.node[self.others], own[self.others])
        return latest

    def ready(self, end: Times) -> Times:
        """When all that an op comes after has ended, given the ends of nodes; shape [steps, N]."""
        ready = np.empty_like(end)
        edges = self.before + np.where(self.carried, 0, len(self))
        first = np.searchsorted(self.op, np.arange(len(self)))
        before = np.zeros(len(self))
        for step, now in enumerate(end):
            ready[step] = np.maximum.reduceat(np.concatenate((before, now))[edges], first)
            before = now
        return ready


def _rows(keys: Ints, values: Ints, count: int) -> list[tuple[int, ...]]:
    """The values of each key from 0 to ``count`` - 1."""
    order = np.argsort(keys, kind='stable')
    flat = values[order].tolist()
    bounds = np.searchsorted(keys[order], np.arange(count + 1)).tolist()
    return [tuple(flat[begin:end]) for begin, end in pairwise(bounds)]


@lru_cache(maxsize=4)
def graph_of(program: Program, of_rank: tuple[int, ...]) -> Graph | None:
    """The graph of a program's lanes; None where not all meet in a step that should, or where needs go in a circle.

    Arguments: ``of_rank``, the lane of each rank.
    """
    lanes = Lanes(groups_of(program), list(of_rank))
    roles = [program.role(ranks[0]) for ranks in lanes.ranks]
    first = np.cumsum([0, *map(len, roles)])
    node = _nodes(program, lanes, roles, first.tolist())
    if node is None:
        return None
    op, before, carried = _edges(roles, first)
    order = _order(node, op[~carried], node[before[~carried]])
    if order is None:
        return None
    op_class = np.concatenate([role.op_class for role in roles]).astype(np.int64)
    return Graph(
        first=first,
        lane=np.repeat(np.arange(len(roles)), np.diff(first)),
        op_class=op_class,
        computes=~_communicates(program)[op_class],
        node=node,
        op=op,
        before=node[before],
        carried=carried,
        order=order,
    )


class _Channel(NamedTuple):
    """Where ops of a lane meet others by their order.

    Arguments: ``name``, equal for those that meet; ``expected``, how many meet; ``leads``: the lane's op has the costs.
    """

    name: tuple[object, ...]
    expected: int
    leads: bool


def _channel(lanes: Lanes, lane: int, op: OpClass, stream: str) -> _Channel:
    if op.kind == 'collective':
        among = lanes.among(op.partition, lane)
        return _Channel((op.partition, stream, among), len(among), lane == among[0])
    peer, size = lanes.peer(op.partition, lane, op.peer), lanes.groups[op.partition].size
    sends = op.kind == 'send'
    ends = (lane, peer, op.peer % size) if sends else (peer, lane, -op.peer % size)
    return _Channel((op.partition, stream, *ends), 2, sends)


def _nodes(program: Program, lanes: Lanes, roles: list[Role], first: list[int]) -> Ints | None:
    """For each op the number of its node; None where not all meet that should."""
    node = np.arange(first[-1])
    numbers: dict[tuple[object, ...], int] = {}
    expected: list[int] = []
    found = []
    for lane, role in enumerate(roles):
        slots, channels, of_slot = _communications(program, lanes, lane, role)
        for channel in channels:
            if numbers.setdefault(channel.name, len(numbers)) == len(expected):
                expected.append(channel.expected)
        number = np.array([numbers[channel.name] for channel in channels], dtype=np.int64)[of_slot]
        leads = np.array([channel.leads for channel in channels], dtype=bool)[of_slot]
        found.append((slots + first[lane], number, leads, _count(2 * number + leads)))
    op, on, leads, place = (np.concatenate(column) for column in zip(*found, strict=True))
    _, one, meeting, count = np.unique(
        on * len(node) + place, return_index=True, return_inverse=True, return_counts=True
    )
    if (count != np.array(expected, dtype=np.int64)[on[one]]).any():
        return None
    leader = np.zeros(len(one), dtype=np.int64)
    leader[meeting[leads]] = op[leads]
    node[op] = leader[meeting]
    return node


def _communications(program: Program, lanes: Lanes, lane: int, role: Role) -> tuple[Ints, list[_Channel], Ints]:
    """A lane's communication ops: their slots, the channels that there are, and which of them is each op's."""
    slots = np.flatnonzero(_communicates(program)[role.op_class])
    streams = len(role.streams)
    kinds, of_slot = np.unique(
        role.op_class[slots].astype(np.int64) * streams + role.stream[slots], return_inverse=True
    )
    split = [divmod(kind, streams) for kind in kinds.tolist()]
    return slots, [_channel(lanes, lane, program.op_classes[op], role.streams[on]) for op, on in split], of_slot


def _count(keys: Ints) -> Ints:
    """How many equal ones stand before each."""
    order = np.argsort(keys, kind='stable')
    heads = np.flatnonzero(np.diff(keys[order], prepend=NONE) != 0)
    count = np.empty_like(keys)
    count[order] = np.arange(len(keys)) - np.repeat(heads, np.diff(heads, append=len(keys)))
    return count


def _communicates(program: Program) -> Flags:
    return np.array([op.kind != 'compute' for op in program.op_classes], dtype=bool)


def _edges(roles: list[Role], first: Ints) -> tuple[Ints, Ints, Flags]:
    """What each op comes after: the op before it on its stream, its needs, and what it carries; sorted by op."""
    pairs, carried = [], []
    for role, begin in zip(roles, first.tolist(), strict=False):
        order = np.argsort(role.stream, kind='stable')
        heads = np.diff(role.stream[order], prepend=NONE) != 0
        inside, ends = ~heads, np.roll(heads, -1)
        same = [role.need.pairs(), np.column_stack((order[inside], np.roll(order, 1)[inside]))]
        before = [role.carry.pairs(), np.column_stack((order[heads], order[ends]))]
        pairs += [part.astype(np.int64) + begin for part in (*same, *before)]
        carried += [np.full(sum(map(len, parts)), flag) for parts, flag in ((same, False), (before, True))]
    op, node = np.concatenate(pairs).T
    by_op = np.argsort(op, kind='stable')
    return op[by_op], node[by_op], np.concatenate(carried)[by_op]


def _order(node: Ints, op: Ints, before: Ints) -> list[int] | None:
    """Nodes, each behind all that it comes after; None where they go in a circle."""
    after = _rows(before, node[op], len(node))
    left = np.bincount(node[op], minlength=len(node)).tolist()
    order = [number for number in np.flatnonzero(node == np.arange(len(node))).tolist() if not left[number]]
    for number in order:
        for later in after[number]:
            left[later] -= 1
            if not left[later]:
                order.append(later)
    return None if any(left) else order
