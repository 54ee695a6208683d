"""The event loop on a heap: what ``reference`` does on a SimPy clock, with numbers in the place of objects.

At one instant all completions and arrivals come first, then the speeds of what they touched are solved anew. A speed
that does not change bitwise keeps its completion.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Final

import numpy as np

from simpar.engine.device import UNSOLVED, Load
from simpar.engine.graph import Graph
from simpar.engine.links import Links, fair_speeds
from simpar.engine.node_costs import NodeCosts
from simpar.trace import Times
from simpar.units import GRID

PENDING: Final = -1.0
"""The time of what has not happened yet."""


def run_events(graph: Graph, costs: NodeCosts, links: int) -> Times:
    """When each node ends, shape [steps, N]; `PENDING` at the numbers of ops that are no node's.

    Arguments: ``links``, how many there are.
    """
    return np.array(_EventLoop(graph, costs, links).run()).reshape(costs.issued.shape)


class _Flow:
    """A communication that transfers over links.

    Arguments: ``alone``, its speed if no other is on its links; ``top``, the ceiling when its speed was last solved.
    """

    __slots__ = ('alone', 'links', 'node', 'top')

    def __init__(self, node: int, links: Load) -> None:
        self.node = node
        self.links = links
        self.alone = min([1.0 / demand for _, demand in links])
        self.top = UNSOLVED


class _EventLoop:
    """One run. Lists are by the numbers of ops and nodes, those of step k being k · N further.

    An event is (time, what): the number of a node that ends; ``latent`` + that of one whose latency ends; ``issuing`` +
    that of an op that the host has issued.
    """

    def __init__(self, graph: Graph, costs: NodeCosts, links: int) -> None:
        steps, count = costs.issued.shape
        self.latent, self.issuing = steps * count, 2 * steps * count
        self.heap: list[tuple[float, int]] = []
        # what is known of ops and nodes
        self.computes = graph.computes.tolist() * steps
        self.lane = graph.lane.tolist() * steps
        self.to_node = (graph.node - np.arange(count)).tolist() * steps
        self.lanes = graph.lanes * steps
        self.after = graph.after * steps
        self.alpha = costs.alpha.tolist() * steps
        self.beside: list[float] = costs.beside.tolist() * steps
        self.links = costs.links * steps
        self.issued = costs.issued.ravel().tolist()
        self.waiting_slows = costs.waiting_slows
        # what they wait for; nothing comes after the last step
        first, other = graph.waits
        self.waits = [*first, *other * (steps - 1), *[self.issuing] * count]
        self.missing = [len(lanes) for lanes in graph.lanes] * steps
        # how far they are
        self.remaining = costs.seconds.tolist() * steps
        self.speed, self.since = ([0.0] * self.latent for _ in range(2))
        self.due, self.end = ([PENDING] * self.latent for _ in range(2))
        # what goes on, by lane
        self.computing: list[set[int]] = [set() for _ in graph.first[1:]]
        self.transferring: list[set[int]] = [set() for _ in graph.first[1:]]
        self.communicating = [0 for _ in graph.first[1:]]
        self.on_links: Links[_Flow] = Links(links)
        self.flows: dict[int, _Flow] = {}
        self.touched: list[int] = []

    def run(self) -> list[float]:
        """The end of every node."""
        heap, due, touched, latent, issuing = self.heap, self.due, self.touched, self.latent, self.issuing
        for op in [op for op, waits in enumerate(self.waits) if not waits]:
            self.arrive(op, 0.0)
        self.solve(0.0)
        while heap:
            now, what = heappop(heap)
            if what < latent:
                # Where its speed has changed since, it is due at another time.
                if due[what] == now:
                    self.complete(what, now)
            elif what < issuing:
                self.transfer(what - latent, now)
            else:
                self.arrive(what - issuing, now)
            if touched and not (heap and heap[0][0] == now):
                self.solve(now)
        return self.end

    def complete(self, node: int, now: float) -> None:
        """End a node, and let go on what comes after it."""
        self.due[node] = PENDING
        self.end[node] = now
        if not self.computes[node]:
            self.leave_links(node)
        waits = self.waits
        for distance in self.after[node]:
            op = node + distance
            waits[op] -= 1
            if not waits[op]:
                self.arrive(op, now)
        if self.computes[node]:
            # What follows on the stream has started, so that op after op does not look like a change to the device.
            lane = self.lane[node]
            self.computing[lane].discard(node)
            if not self.computing[lane]:
                self.touched += self.transferring[lane]

    def arrive(self, op: int, now: float) -> None:
        """Let the head of a stream arrive, once the host has issued it."""
        if self.issued[op] > now:
            heappush(self.heap, (self.issued[op], self.issuing + op))
        elif not self.computes[op]:
            self.meet(op, now)
        elif not self.remaining[op]:
            self.complete_now(op, now)
        else:
            lane = self.lane[op]
            if not self.computing[lane]:
                self.touched += self.transferring[lane]
            self.computing[lane].add(op)
            self.touched.append(op)

    def meet(self, op: int, now: float) -> None:
        """Let a communication op arrive at its node, and start that with its latency when all have arrived."""
        node = op + self.to_node[op]
        self.missing[node] -= 1
        if self.waiting_slows:
            self.occupy(self.lane[op])
        if self.missing[node]:
            return
        if not self.waiting_slows:
            for lane in self.lanes[node]:
                self.occupy(lane)
        if self.alpha[node]:
            heappush(self.heap, (now + self.alpha[node], self.latent + node))
        else:
            self.transfer(node, now)

    def occupy(self, lane: int) -> None:
        """Let one more collective slow a device's compute."""
        self.communicating[lane] += 1
        if self.communicating[lane] == 1:
            self.touched += self.computing[lane]

    def transfer(self, node: int, now: float) -> None:
        """Let a communication transfer after its latency."""
        if not self.remaining[node]:
            self.complete_now(node, now)
            return
        if self.links[node]:
            flow = self.flows[node] = _Flow(node, self.links[node])
            self.on_links.add(flow)
        if self.beside[node] < 1.0:
            for lane in self.lanes[node]:
                self.transferring[lane].add(node)
        self.touched.append(node)

    def complete_now(self, node: int, now: float) -> None:
        """Let what takes no time end at this instant."""
        self.due[node] = now
        heappush(self.heap, (now, node))

    def leave_links(self, node: int) -> None:
        """Take a communication off its links and devices."""
        flow = self.flows.pop(node, None)
        if flow:
            for neighbour in self.on_links.remove(flow):
                neighbour.top = UNSOLVED
                self.touched.append(neighbour.node)
        for lane in self.lanes[node]:
            self.transferring[lane].discard(node)
            self.communicating[lane] -= 1
            if not self.communicating[lane]:
                self.touched += self.computing[lane]

    def solve(self, now: float) -> None:
        """Solve the speeds anew of what was touched at this instant and may now go faster or must go slower."""
        flows: list[_Flow] = []
        for node in self.touched:
            if self.end[node] != PENDING:
                continue
            ceiling = self.ceiling(node)
            if self.links[node]:
                flow = self.flows[node]
                if ceiling != flow.top:
                    flow.top = ceiling
                    flows.append(flow)
            elif ceiling != self.speed[node]:
                self.set_speed(node, ceiling, now)
        self.touched.clear()
        for flow, speed in self.fair_speeds(flows) if flows else ():
            if speed != self.speed[flow.node]:
                self.set_speed(flow.node, speed, now)

    def ceiling(self, node: int) -> float:
        """The highest speed that its devices allow now."""
        if self.computes[node]:
            return self.beside[node] if self.communicating[self.lane[node]] else 1.0
        for lane in self.lanes[node]:
            if self.computing[lane]:
                return self.beside[node]
        return 1.0

    def fair_speeds(self, flows: list[_Flow]) -> Iterable[tuple[_Flow, float]]:
        """Speeds of flows and of all that share links with them."""
        if len(flows) == 1 and self.on_links.alone(flows[0]):
            return [(flows[0], min(flows[0].top, flows[0].alone))]
        return fair_speeds(self.on_links.component(flows)).items()

    def set_speed(self, node: int, speed: float, now: float) -> None:
        """Settle the work done, and schedule the completion."""
        left = self.remaining[node]
        if self.speed[node]:
            left = max(left - self.speed[node] * (now - self.since[node]), 0.0)
            self.remaining[node] = left
        self.speed[node], self.since[node] = speed, now
        self.due[node] = due = round((now + left / speed) * GRID) / GRID
        heappush(self.heap, (due, node))
