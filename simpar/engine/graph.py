"""Graph: who waits for whom in a step of all representatives, known without a clock.

Streams are in order, and what communicates meets by its order in a step. A node is a compute op, or all the ops that
meet in a communication.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simpar.engine.hosts import with_hosts
from simpar.engine.ops import NONE, Flags, Ints, Ops, ops_of
from simpar.engine.queues import with_queues
from simpar.program import Csr, Program
from simpar.trace import Times

CHAINED: Final = 15
"""How many ops a chain holds besides its first."""


class Edges(NamedTuple):
    """What ops come after, sorted by op; shape [edges].

    Arguments: ``op`` comes after the node ``before``, of the step before where ``carried``. Every op comes after one at
    least: the op before it on its stream.
    """

    op: Ints
    before: Ints
    carried: Flags


@dataclass(frozen=True, eq=False)
class Graph:
    """One step of all representatives; its N ops are numbered by representative, and then in issue order.

    Arguments:
        ops: of the step.
        node: shape [N]; a node has the number of its op that has the costs.
        order: the nodes, each behind all that it comes after in its step.
        listed: what lists the edges, where they are asked for.
    """

    ops: Ops
    node: Ints
    order: Ints
    listed: Callable[[], Edges]

    @cached_property
    def edges(self) -> Edges:
        """What ops come after."""
        return self.listed()

    @property
    def op(self) -> Ints:
        """As of ``Edges``."""
        return self.edges.op

    @property
    def before(self) -> Ints:
        """As of ``Edges``."""
        return self.edges.before

    @property
    def carried(self) -> Flags:
        """As of ``Edges``."""
        return self.edges.carried

    def __len__(self) -> int:
        return len(self.node)

    @cached_property
    def others(self) -> Ints:
        """The ops that are not their node's number."""
        # Nearly all ops are their own node; only these need a maximum.
        return np.flatnonzero(self.node != np.arange(len(self)))

    @cached_property
    def members(self) -> Csr:
        """For each node its ops."""
        return Csr.of(self.node, np.arange(len(self)), len(self))

    @cached_property
    def followers(self) -> Csr:
        """For each node the ops that come after it, by number; + N where in the next step."""
        return Csr.of(self.before, self.op + np.int32(len(self)) * self.carried, len(self))

    @cached_property
    def representatives(self) -> list[tuple[int, ...]]:
        """For each node the representatives of its ops."""
        return Csr.of(self.node, self.ops.representative, len(self)).rows()

    @cached_property
    def after(self) -> list[tuple[int, ...]]:
        """For each node the ops that come after it, as distances from its number; + N where in the next step."""
        return Csr.of(self.before, self.op - self.before + len(self) * self.carried, len(self)).rows()

    @cached_property
    def chain(self) -> list[tuple[int, ...]]:
        """For each op the distances to the next few compute ops that run right behind it, one after the other.

        Each waits for the one before alone, and is all that waits for it: so they stand behind each other on a stream.
        """
        # By edge: how many edges lead to its op, and how many lead away from its node.
        waits = np.bincount(self.op, minlength=len(self))[self.op]
        lets_go = np.bincount(self.before, minlength=len(self))[self.before]
        inside = (
            (waits == 1) & (lets_go == 1) & ~self.carried & self.ops.computes[self.op] & self.ops.computes[self.before]
        )
        chain: list[tuple[int, ...]] = [()] * len(self)
        # From the last on, so that the chain behind is known; it is cut at CHAINED, or a long stream would take n²
        # memory.
        for op, behind in sorted(
            zip(self.before[inside].tolist(), self.op[inside].tolist(), strict=True), reverse=True
        ):
            # Distances, not numbers, so that one list serves every step.
            chain[op] = (behind - op, *[behind - op + more for more in chain[behind][: CHAINED - 1]])
        return chain

    @cached_property
    def waits(self) -> tuple[list[int], list[int]]:
        """For each op how many nodes it comes after, in the first step and in any other."""
        first, other = self.waiting
        return first.tolist(), other.tolist()

    @property
    def waiting(self) -> tuple[Ints, Ints]:
        """The same as arrays."""
        first = np.bincount(self.op[~self.carried], minlength=len(self))
        return first, np.bincount(self.op, minlength=len(self))

    @cached_property
    def places_before(self) -> list[tuple[int, ...]]:
        """For each node in order the places in it of what it comes after, those of the step before counted first."""
        return self.before_in_order.rows()

    @cached_property
    def before_in_order(self) -> Csr:
        """The same as arrays."""
        place = np.zeros(len(self), dtype=np.int32)
        place[self.order] = np.arange(len(self.order))
        # ``replay`` keeps the ends of two steps behind each other: first those of the step before.
        before = place[self.before] + np.where(self.carried, 0, len(self.order)).astype(np.int32)
        return Csr.of(place[self.node[self.op]], before, len(self.order))

    def latest(self, times: Times) -> Times:
        """For each node, at its number, the latest time of its ops; shape [steps, N]."""
        latest = times.copy()
        # maximum.at and not a fancy assignment, which would keep one of several ops of a node.
        for into, own in zip(latest, times, strict=True):
            np.maximum.at(into, self.node[self.others], own[self.others])
        return latest

    def arrivals(self, issued: Times, end: Times) -> Times:
        """When ops arrive: their hosts have issued them, and all that they come after has ended; shape [steps, N].

        Arguments: ``end``, of nodes.
        """
        ready = np.empty_like(end)
        first, carried, before = self._edges
        for step, now in enumerate(end):
            ended = now.take(self.before)
            # Before the first step everything has ended.
            ended[carried] = end[step - 1].take(before) if step else 0.0
            np.maximum.reduceat(ended, first, out=ready[step])
        return np.maximum(issued, ready)

    @cached_property
    def _edges(self) -> tuple[NDArray[np.int64], NDArray[np.int64], Ints]:
        """The first edge of each op; the edges that are carried, and what these come after."""
        # Every op has an edge at least, so that no range of reduceat is empty; edges are sorted by op.
        first = np.append(0, np.flatnonzero(np.diff(self.op)) + 1)
        carried = np.flatnonzero(self.carried)
        return first, carried, self.before[carried]


def hosted(program: Program, of_rank: tuple[int, ...], waits: tuple[str, ...], queues: int = 0) -> Ops:
    """The ops of a program's representatives, of their hosts where these wait for anything, and of work queues."""
    ops = ops_of(program, of_rank)
    devices = len(ops.roles)
    if waits:
        ops = with_hosts(ops, program, waits)
    return with_queues(ops, queues, devices) if queues else ops


@lru_cache(maxsize=4)
def graph_of(
    program: Program, of_rank: tuple[int, ...], *, waits: tuple[str, ...] = (), queues: int = 0, compiled: bool = False
) -> Graph | None:
    """The graph of a program's representatives.

    Returns None where not all meet in a step that should, or where needs go in a circle.

    Arguments: ``of_rank``, the representative of each rank; ``waits`` of hosts and ``queues``, as of ``Costs``;
    ``compiled``, whether numba puts the nodes in order.
    """
    ops = hosted(program, of_rank, waits, queues)
    node = _nodes(ops)
    if node is None:
        return None
    if ops.alone and (ops.need.item < ops.need.row).all():
        # What needs nothing but what was issued before it is in order, and few ask for more.
        return Graph(ops, node, np.arange(len(ops)), partial(_edges_of, ops, node, compiled=compiled))
    edges = _edges_of(ops, node, compiled=compiled)
    order = _order(node, *edges, compiled=compiled)
    # None sends the program to the reference, which draws the deadlock.
    return None if order is None else Graph(ops, node, order, lambda: edges)


def _edges_of(ops: Ops, node: Ints, *, compiled: bool) -> Edges:
    op, before, carried = _listed_edges(ops) if compiled else _edges(ops)
    return Edges(op, node[before], carried)


def _nodes(ops: Ops) -> Ints | None:
    """For each op the number of its node; None where not all meet that should."""
    node = np.arange(len(ops), dtype=np.int32)
    if ops.alone:
        return node
    channel, turn, _, expected = ops.meetings
    meets = np.flatnonzero(~ops.computes)
    on = channel[meets]
    _, one, meeting, count = np.unique(
        on.astype(np.int64) * len(ops) + turn[meets], return_index=True, return_inverse=True, return_counts=True
    )
    # Someone waits for a peer that never comes.
    if (count != expected[on[one]]).any():
        return None
    leads = ops.leads[meets]
    leader = np.zeros(len(one), dtype=np.int64)
    leader[meeting[leads]] = meets[leads]
    node[meets] = leader[meeting]
    return node


def _edges(ops: Ops) -> tuple[Ints, Ints, Flags]:
    """What each op comes after: the op before it on its stream, its needs, and what it carries; sorted by op."""
    order, stream = ops.streams.item, ops.streams.row
    # Streams lie behind one another: where the number changes, a stream begins.
    heads = np.diff(stream, prepend=NONE) != 0
    # The slot before a head is the end of another stream; rolled around, the last slot of all is an end too.
    inside, ends = ~heads, np.roll(heads, -1)
    pairs = [_pairs(ops.need), (order[inside], np.roll(order, 1)[inside])]
    same = sum(len(op) for op, _ in pairs)
    # The first op of a stream follows the last one of the step before.
    pairs += [_pairs(ops.carry), (order[heads], order[ends])]
    op, node = (np.concatenate(column) for column in zip(*pairs, strict=True))
    # Of every rank of a thousand these arrays are what memory goes into.
    del pairs, inside, ends, heads
    by_op = np.argsort(op, kind='stable')
    return op[by_op], node[by_op], by_op >= same


def _listed_edges(ops: Ops) -> tuple[Ints, Ints, Flags]:
    """The same by numba."""
    from simpar.engine.compiled.kernels import list_edges

    count = len(ops.need.item) + len(ops.carry.item) + len(ops)
    behind = np.empty(len(ops), dtype=np.int32)
    op, before, carried = np.empty(count, dtype=np.int32), np.empty(count, dtype=np.int32), np.empty(count, dtype=bool)
    given = ops.need.start, ops.need.item, ops.carry.start, ops.carry.item, ops.streams.start, ops.streams.item
    list_edges(*given, behind, op, before, carried)
    return op, before, carried


def _pairs(needs: Csr) -> tuple[Ints, Ints]:
    """Ops, and what they need."""
    return np.repeat(np.arange(len(needs), dtype=np.int32), needs.count), needs.item


def _order(node: Ints, op: Ints, before: Ints, carried: Flags, *, compiled: bool) -> Ints | None:
    """Nodes, each behind all that it comes after; None where they go in a circle."""
    own = node == np.arange(len(node), dtype=np.int32)
    count = int(np.count_nonzero(own))
    if compiled:
        order, found = _walked_in_order(node, op, before, carried, count)
        return order if found == count else None
    mine = node[op[~carried]]
    left = np.bincount(mine, minlength=len(node))
    after = Csr.of(before[~carried], mine, len(node))
    order = _kahn(after.rows(), left.tolist(), np.flatnonzero(own & (left == 0)).tolist())
    return order if len(order) == count else None


def _walked_in_order(node: Ints, op: Ints, before: Ints, carried: Flags, count: int) -> tuple[Ints, int]:
    """The order by numba, and how many of so many nodes have come into it."""
    from simpar.engine.compiled.kernels import arrange_after, topological

    # Half as wide as numpy's own: of every rank of a thousand these arrays are what memory goes into.
    left, start = np.zeros(len(node), dtype=np.int32), np.zeros(len(node) + 1, dtype=np.int32)
    after, order = np.empty(len(op), dtype=np.int32), np.empty(count, dtype=np.int64)
    arrange_after(node, op, before, carried, left, start, after)
    return order, topological(start, after, left, order)


def _kahn(after: list[tuple[int, ...]], left: list[int], order: list[int]) -> Ints:
    """The order, as far as it comes. Arguments: ``order``, what comes after nothing."""
    for number in order:
        for later in after[number]:
            left[later] -= 1
            # Kahn's order: the list grows while it is walked.
            if not left[later]:
                order.append(later)
    return np.array(order, dtype=np.int64)
