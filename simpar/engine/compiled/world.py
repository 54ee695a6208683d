"""The world of the event loop at time 0: a graph and its costs as records, and room for all that it keeps."""

from __future__ import annotations

from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simpar.engine.compiled.kernels import arrange_meetings, arrange_ops
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
    kept = len(graph) <= KEPT
    same = Same(graph, costs.row, costs.rows.beside, costs.rows.kind)
    still = _known.get(same, lambda: _still(graph, costs)) if kept else None
    # The loop uses up what it is given; what is kept stays as it is.
    if still:
        still = still.copied()
        rows = costs.row.take(still.meetings['op'])
        still.ops['seconds'], still.meetings['alpha'] = costs.rows.seconds.take(costs.row), costs.rows.alpha.take(rows)
    else:
        still = _still(graph, costs)
    ops, meetings = still.ops, still.meetings
    count = len(still.streams)
    loop = np.zeros(1, dtype=LOOP)
    loop['ready'] = np.count_nonzero(still.streams['op'] != NONE)
    on_links = np.zeros(links, dtype=LINK)
    on_links['head'] = NONE
    loads = _loads(costs.loads) if kept else _of_loads(costs.loads)
    widest = loads.widest
    begun, touched, flowing = (np.zeros(count, dtype=np.uint32) for _ in range(3))
    return World(
        len(costs.issued), per_step_of(graph), costs.waiting_slows, np.uint64(widest),
        ops, meetings, still.members, still.needs,
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
    """What of a world depends neither on seconds nor on steps; kept of the last few graphs that are not large."""

    ops: NDArray[np.void]
    meetings: NDArray[np.void]
    members: NDArray[np.uint32]
    needs: NDArray[np.uint32]
    devices: NDArray[np.void]
    beside: NDArray[np.uint32]
    streams: NDArray[np.void]
    ready: NDArray[np.uint32]

    def copied(self) -> _Still:
        """The same with what the loop writes to in arrays of its own."""
        return self._replace(
            ops=self.ops.copy(),
            meetings=self.meetings.copy(),
            devices=self.devices.copy(),
            streams=self.streams.copy(),
            ready=self.ready.copy(),
        )


_known: Final[Kept[Same, _Still]] = Kept(4)


def _still(graph: Graph, costs: NodeCosts) -> _Still:
    """Before anything has begun."""
    ops, needs, heads = _ops(graph, costs)
    meetings, members, devices, beside = _meetings(graph, costs, ops)
    streams = np.zeros(len(heads), dtype=STREAM)
    streams['op'], streams['device'] = heads, np.repeat(np.arange(len(devices)), np.diff(graph.ops.first_stream))
    for name in ('place', 'lead', 'behind'):
        streams[name] = NONE
    ready = np.zeros(len(heads), dtype=np.uint32)
    busy = np.flatnonzero(heads != NONE)
    ready[: len(busy)] = busy
    return _Still(ops, meetings, members, needs, devices, beside, streams, ready)


def _ops(graph: Graph, costs: NodeCosts) -> tuple[NDArray[np.void], NDArray[np.uint32], NDArray[np.uint32]]:
    """Ops, their lists of needs, and the first op of each stream."""
    of = graph.ops
    several = of.need.count + of.carry.count
    several = several[several > 1]
    ops = np.empty(len(graph), dtype=OP)
    needs = np.empty(several.sum() + len(several), dtype=np.uint32)
    heads = np.empty(of.first_stream[-1], dtype=np.uint32)
    # Streams behind the last that has ops have no rows.
    rows = np.full(len(heads) + 1, of.streams.start[-1])
    rows[: len(of.streams.start)] = of.streams.start
    arrange_ops(
        _narrow(graph.node), of.leads, of.computes, of.need.start, of.need.item, of.carry.start, of.carry.item,
        rows, of.streams.item, costs.row, costs.rows.seconds, costs.rows.beside, np.zeros(len(graph), dtype=bool), ops,
        needs, heads,
    )  # fmt: skip
    return ops, needs, heads


def _meetings(
    graph: Graph, costs: NodeCosts, ops: NDArray[np.void]
) -> tuple[NDArray[np.void], NDArray[np.uint32], NDArray[np.void], NDArray[np.uint32]]:
    """Meetings, the streams of all, devices, and their streams."""
    of = graph.ops
    first_stream = of.first_stream.astype(np.int32)
    meetings = np.zeros(np.count_nonzero(of.leads), dtype=MEETING)
    members = np.empty(len(graph) - np.count_nonzero(of.computes), dtype=np.uint32)
    devices = np.zeros(len(of.roles), dtype=DEVICE)
    # A stream may compute and communicate.
    beside = np.empty(2 * first_stream[-1], dtype=np.uint32)
    arrange_meetings(
        ops, _narrow(graph.node), _narrow(of.stream), costs.row, costs.rows.alpha, costs.rows.kind, first_stream,
        np.zeros(first_stream[-1], dtype=np.uint8), meetings, members, devices, beside,
    )  # fmt: skip
    return meetings, members, devices, beside


def _narrow(numbers: NDArray[np.integer]) -> NDArray[np.int32]:
    """Numbers as the kernels take them, whatever type they have."""
    return numbers.astype(np.int32, copy=False)
