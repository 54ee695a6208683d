"""The world of the event loop at time 0: a graph and its costs as records, and room for all that it keeps."""

from __future__ import annotations

from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simpar.engine.compiled.kernels import arrange
from simpar.engine.compiled.records import (
    DEVICE,
    ENTRY,
    EVENT,
    FLOW,
    LINK,
    LOOP,
    MEETING,
    NONE,
    OP,
    STREAM,
    World,
    per_step_of,
)  # fmt: skip
from simpar.engine.device import Load
from simpar.engine.graph import Graph
from simpar.engine.node_costs import KEPT, NodeCosts
from simpar.kept import Facts, Kept, Same


def world_of(graph: Graph, costs: NodeCosts, links: int) -> World:
    """What the event loop works on; it is used up.

    Arguments: ``links``, how many there are.
    Raises ``SimparError`` where a step has more ops than a record can number.
    """
    still = _arranged(graph, costs)
    count = len(still.streams)
    loop = np.zeros(1, dtype=LOOP)
    loop['ready'] = still.busy
    on_links = np.zeros(links, dtype=LINK)
    on_links['head'] = NONE
    loads = _loads(costs.loads) if len(graph) <= KEPT else _of_loads(costs.loads)
    widest = loads.widest
    begun, touched, flowing = np.zeros((3, count), dtype=np.uint32)
    return World(
        len(costs.issued), per_step_of(graph), costs.waiting_slows, np.uint64(widest),
        still.ops, still.meetings, still.members, still.needs,
        loads.start, loads.link, loads.demand, still.devices, still.beside,
        costs.issued.ravel(), np.full(costs.issued.size, -1.0),
        still.streams, np.zeros(count + 1, dtype=EVENT), np.zeros(count, dtype=FLOW),
        np.zeros(count * widest, dtype=ENTRY), on_links,
        still.ready, begun, touched, flowing, np.zeros(links, dtype=np.uint32), loop,
    )  # fmt: skip


class _Loads(NamedTuple):
    """What communications ask of links, in arrays; ``widest``, of how many links one of them does at most."""

    start: NDArray[np.int64]
    link: NDArray[np.uint32]
    demand: NDArray[np.float64]
    widest: int


def _of_loads(loads: list[Load]) -> _Loads:
    pairs = [pair for load in loads for pair in load]
    return _Loads(
        np.array([*accumulate(map(len, loads), initial=0)], dtype=np.int64),
        np.array([link for link, _ in pairs], dtype=np.uint32),
        np.array([demand for _, demand in pairs], dtype=float),
        max(map(len, loads), default=0),
    )


_loads: Final[Facts[list[Load], _Loads]] = Facts(_of_loads, 4)
"""Of messages that are the very same; the loop only reads them."""


class _Still(NamedTuple):
    """What a world begins with but for links; of it the same graph has all but seconds at any prices and steps.

    Arguments: as of ``World``; ``busy``, how many streams have ops.
    """

    ops: NDArray[np.void]
    meetings: NDArray[np.void]
    members: NDArray[np.uint32]
    needs: NDArray[np.uint32]
    devices: NDArray[np.void]
    beside: NDArray[np.uint32]
    streams: NDArray[np.void]
    ready: NDArray[np.uint32]
    busy: int

    def at(self, costs: NodeCosts) -> _Still:
        """The same at other costs, with what the loop writes to in arrays of its own."""
        found = self._replace(
            ops=self.ops.copy(),
            meetings=self.meetings.copy(),
            devices=self.devices.copy(),
            streams=self.streams.copy(),
            ready=self.ready.copy(),
        )
        rows = costs.row.take(found.meetings['op'])
        found.ops['seconds'], found.meetings['alpha'] = costs.rows.seconds.take(costs.row), costs.rows.alpha.take(rows)
        return found


class _Kept:
    """That of a graph which is not large; mutable. Rows of other plans ask but once, so that is for the second time."""

    def __init__(self) -> None:
        self._asked = False
        self._still: _Still | None = None

    def at(self, graph: Graph, costs: NodeCosts) -> _Still:
        """That of the graph, for the caller to use up."""
        if not self._asked:
            self._asked = True
            return _still(graph, costs)
        if self._still is None:
            self._still = _still(graph, costs)
        return self._still.at(costs)


_known: Final[Kept[Same, _Kept]] = Kept(4)


def _arranged(graph: Graph, costs: NodeCosts) -> _Still:
    """What a world begins with, for the caller to use up."""
    if len(graph) > KEPT:
        return _still(graph, costs)
    return _known.get(Same(graph, costs.row, costs.rows.beside, costs.rows.kind), _Kept).at(graph, costs)


def _still(graph: Graph, costs: NodeCosts) -> _Still:
    """Before anything has begun."""
    of, count = graph.ops, len(graph)
    on_all = int(of.first_stream[-1])
    listed = len(of.need.item) + len(of.carry.item)
    streams, ready = np.zeros(on_all, dtype=STREAM), np.zeros(on_all, dtype=np.uint32)
    made = (
        np.empty(count, dtype=OP),
        # A list has two needs at least, and its length.
        np.empty(listed + listed // 2, dtype=np.uint32),
        np.zeros(np.count_nonzero(of.leads), dtype=MEETING),
        np.empty(count - np.count_nonzero(of.computes), dtype=np.uint32),
        np.zeros(len(of.roles), dtype=DEVICE),
        # A stream may compute and communicate.
        np.empty(2 * on_all, dtype=np.uint32),
    )
    busy = arrange(
        _narrow(graph.node), of.leads, of.computes, of.need.start, of.need.item, of.carry.start, of.carry.item,
        _narrow(of.stream), of.streams.start, of.streams.item, of.first_stream, costs.row, costs.rows.seconds,
        costs.rows.beside, costs.rows.alpha, costs.rows.kind, np.zeros(count, dtype=bool),
        np.zeros(on_all, dtype=np.uint8), *made, streams, ready,
    )  # fmt: skip
    ops, needs, meetings, members, devices, beside = made
    return _Still(ops, meetings, members, needs, devices, beside, streams, ready, busy)


def _narrow(numbers: NDArray[np.integer]) -> NDArray[np.int32]:
    """Numbers as the kernels take them, whatever type they have."""
    return numbers.astype(np.int32, copy=False)
