"""The event loop on a heap: what ``reference`` does on a SimPy clock, with numbers in the place of objects.

At one instant all completions and arrivals come first, then the speeds of what they touched are solved anew. A speed
that does not change bitwise keeps its completion. Compute ops that only wait for one another are one event, a *run*:
when each of them ends is known as soon as the run begins, and worked out anew if the speed changes before it is over.
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
OVER: Final = -2.0
"""When an op is due that has ended."""
ROUND: Final = 2.0**52 / GRID
"""Added and taken away again, it rounds a lesser time to the grid, ties to the even: a double has 53 bits."""


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

    def __init__(self, links: Load) -> None:
        self.node = 0
        self.links = links
        # Most flows have their links to themselves; then this is all that max-min fairness comes to.
        self.alone = min([1.0 / demand for _, demand in links])
        self.top = UNSOLVED


class _EventLoop:
    """Lists are by the numbers of ops and nodes, those of step k being k · N further; a run has that of its first op.

    An event is (time, what): the number of a node or run that ends; ``latent`` + that of one whose latency ends;
    ``issuing`` + that of an op that the host has issued.
    """

    def __init__(self, graph: Graph, costs: NodeCosts, links: int) -> None:
        steps, count = costs.issued.shape
        # One integer names event and kind, as tuples of two compare faster in the heap than objects would.
        self.latent, self.issuing = steps * count, 2 * steps * count
        self.heap: list[tuple[float, int]] = []
        # what is known of ops and nodes
        self.computes = graph.ops.computes.tolist() * steps
        self.representative = graph.ops.representative.tolist() * steps
        self.to_node = (graph.node - np.arange(count)).tolist() * steps
        self.representatives = graph.representatives * steps
        self.after = graph.after * steps
        self.chain = graph.chain * steps
        self.alpha = costs.alpha.tolist() * steps
        self.beside: list[float] = costs.beside.tolist() * steps
        self.flow = [_Flow(load) if load else None for load in costs.links] * steps
        self.issued = costs.issued.ravel().tolist()
        self.waiting_slows = costs.waiting_slows
        # what they wait for; nothing comes after the last step
        first, other = graph.waits
        # More than any op can wait for, all ops of a step and the one before on its stream: so ops behind the last step
        # never start.
        self.waits = [*first, *other * (steps - 1), *[self.issuing + 1] * count]
        self.missing = [len(representatives) for representatives in graph.representatives] * steps
        # how far they are
        self.remaining: list[float] = costs.seconds.tolist() * steps
        # What an op lasts beside communication is divided once here, so that a plan only adds.
        self.slowly: list[float] = (costs.seconds / costs.beside).tolist() * steps
        self.speed, self.since = [0.0] * self.latent, [0.0] * self.latent
        self.due, self.end = ([PENDING] * self.latent for _ in range(2))
        # of runs: the last op; since when the speeds of now hold, for which op first, and whether communication slows
        self.last = [0] * self.latent
        self.planned: list[tuple[float, int, bool] | None] = [None] * self.latent
        # what goes on, by representative
        self.computing: list[set[int]] = [set() for _ in graph.ops.first[1:]]
        self.transferring: list[set[int]] = [set() for _ in graph.ops.first[1:]]
        self.communicating = [0 for _ in graph.ops.first[1:]]
        self.on_links: Links[_Flow] = Links(links)
        self.begun: list[int] = []
        self.touched: list[int] = []

    def run(self) -> list[float]:
        """The end of every node."""
        heap, due, begun, touched = self.heap, self.due, self.begun, self.touched
        latent, issuing = self.latent, self.issuing
        # A list first: what arrives changes ``waits``.
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
                self.transfer(what - latent)
            else:
                self.arrive(what - issuing, now)
            # Speeds are solved when the instant is over: what ends and begins at once must not look like a change in
            # between.
            if (touched or begun) and not (heap and heap[0][0] == now):
                self.solve(now)
        return self.end

    def complete(self, node: int, now: float) -> None:
        """End a node or run, and let go on what comes after it."""
        self.due[node] = OVER
        computes = self.computes[node]
        if computes:
            op = self.last[node]
        else:
            op = node
            self.end[node] = now
            self.leave(node)
        waits = self.waits
        for distance in self.after[op]:
            later = op + distance
            left = waits[later] - 1
            if left:
                waits[later] = left
            else:
                self.arrive(later, now)
        if computes:
            # What follows on the stream has started, so that op after op does not look like a change to the device.
            representative = self.representative[node]
            computing = self.computing[representative]
            computing.discard(node)
            if not computing and self.transferring[representative]:
                self.touched += self.transferring[representative]

    def arrive(self, op: int, now: float) -> None:
        """Let the head of a stream arrive, once the host has issued it."""
        # The host may be behind the device: an op cannot start before it has been launched.
        if self.issued[op] > now:
            heappush(self.heap, (self.issued[op], self.issuing + op))
        elif not self.computes[op]:
            self.meet(op, now)
        # What takes no time still ends by an event, so that ten thousand in a row are no deep recursion.
        elif not self.remaining[op]:
            self.complete_at(op, now)
        else:
            representative = self.representative[op]
            computing = self.computing[representative]
            if not computing and self.transferring[representative]:
                self.touched += self.transferring[representative]
            computing.add(op)
            self.begun.append(op)

    def meet(self, op: int, now: float) -> None:
        """Let a communication op arrive at its node, and start that with its latency when all have arrived."""
        node = op + self.to_node[op]
        self.missing[node] -= 1
        # Kernels that spin while they wait for peers slow compute before they transfer anything.
        if self.waiting_slows:
            self.occupy(self.representative[op])
        if self.missing[node]:
            return
        if not self.waiting_slows:
            for representative in self.representatives[node]:
                self.occupy(representative)
        self.begin(node, now)

    def occupy(self, representative: int) -> None:
        """Let one more collective slow a device's compute."""
        self.communicating[representative] += 1
        if self.communicating[representative] == 1:
            self.touched += self.computing[representative]

    def begin(self, node: int, now: float) -> None:
        """Let a communication begin with its latency, and transfer after that."""
        self.since[node] = begins = now + self.alpha[node]
        if not self.remaining[node]:
            self.complete_at(node, begins)
        # Only what has links waits for its latency by an event: from then on others must share with it.
        elif self.flow[node] and begins > now:
            heappush(self.heap, (begins, self.latent + node))
        else:
            # Without links nobody minds when it transfers, and its end is known at once.
            self.transfer(node)

    def transfer(self, node: int) -> None:
        """Let a communication use its links and devices, which it does from ``since`` on."""
        flow = self.flow[node]
        if flow:
            flow.node, flow.top = node, UNSOLVED
            self.on_links.add(flow)
        # A collective that compute does not slow need not hear of it.
        if self.beside[node] < 1.0:
            for representative in self.representatives[node]:
                self.transferring[representative].add(node)
        self.touched.append(node)

    def complete_at(self, node: int, time: float) -> None:
        """Let what takes no time end at a time."""
        self.due[node] = self.end[node] = time
        self.last[node] = node
        heappush(self.heap, (time, node))

    def leave(self, node: int) -> None:
        """Take a communication off its links and devices."""
        flow = self.flow[node]
        # A flow without a speed never came onto its links: it had nothing to transfer.
        if flow and self.speed[node]:
            for neighbour in self.on_links.remove(flow):
                # Their ceilings are as before, but their shares are not: without this they would be taken for solved.
                neighbour.top = UNSOLVED
                self.touched.append(neighbour.node)
        for representative in self.representatives[node]:
            self.transferring[representative].discard(node)
            self.communicating[representative] -= 1
            if not self.communicating[representative]:
                self.touched += self.computing[representative]

    def solve(self, now: float) -> None:
        """Solve the speeds of what began at this instant, and anew of what may now go faster or must go slower."""
        for first in self.begun:
            self.plan(first, first, now, slowed=self.communicating[self.representative[first]] > 0)
        self.begun.clear()
        if self.touched:
            self.review(now)

    def review(self, now: float) -> None:
        """Look at the speeds of what was touched."""
        flows: list[_Flow] = []
        for node in self.touched:
            # Touched and ended at the same instant.
            if self.due[node] == OVER:
                continue
            if self.computes[node]:
                self.replan(node, now)
                continue
            ceiling = self.ceiling(node)
            flow = self.flow[node]
            if flow is None:
                if ceiling != self.speed[node]:
                    self.set_speed(node, ceiling, now)
            elif ceiling != flow.top:
                flow.top = ceiling
                flows.append(flow)
        self.touched.clear()
        for flow, speed in self.fair_speeds(flows) if flows else ():
            if speed != self.speed[flow.node]:
                self.set_speed(flow.node, speed, now)

    def ceiling(self, node: int) -> float:
        """The highest speed that its devices allow a communication now."""
        for representative in self.representatives[node]:
            if self.computing[representative]:
                return self.beside[node]
        return 1.0

    def fair_speeds(self, flows: list[_Flow]) -> Iterable[tuple[_Flow, float]]:
        """Speeds of flows and of all that share links with them."""
        # The general solution gives the same to the bit, by a longer way.
        if len(flows) == 1 and self.on_links.alone(flows[0]):
            return [(flows[0], min(flows[0].top, flows[0].alone))]
        return fair_speeds(self.on_links.component(flows)).items()

    def set_speed(self, node: int, speed: float, now: float) -> None:
        """Settle the work done of a communication, and schedule its completion."""
        if now > self.since[node]:
            # Rounding may leave a tiny negative rest, and no op may end before now.
            self.remaining[node] = max(self.remaining[node] - self.speed[node] * (now - self.since[node]), 0.0)
            self.since[node] = now
        self.speed[node] = speed
        # Ends lie on the grid of times, so that sums of them are exact and ties are real ties. The old event stays in
        # the heap and is known by its time.
        self.due[node] = due = self.since[node] + self.remaining[node] / speed + ROUND - ROUND
        heappush(self.heap, (due, node))

    def plan(self, first: int, op: int, now: float, *, slowed: bool) -> None:
        """Work out when the ops of a run end, from one of them on, and schedule the completion of the last."""
        self.planned[first] = now, op, slowed
        lasts = self.slowly if slowed else self.remaining
        end, chain, last = self.end, self.chain[op], op
        end[op] = time = now + lasts[op] + ROUND - ROUND
        # A chain is planned as a whole only if the host has issued all of it: its last op is the last issued.
        if chain and self.issued[op + chain[-1]] <= now:
            for distance in chain:
                last = op + distance
                end[last] = time = time + lasts[last] + ROUND - ROUND
        self.last[first], self.due[first] = last, time
        heappush(self.heap, (time, first))

    def replan(self, first: int, now: float) -> None:
        """Settle the work done of a run and plan the rest, if its speed changes."""
        slowed = self.communicating[self.representative[first]] > 0
        planned = self.planned[first]
        # Bitwise the same speed: the plan holds, and so does its event.
        if planned is None or planned[2] == slowed:
            return
        since, op, _ = planned
        # Ops of the run that have ended keep their ends; the one in progress is settled, the rest planned anew.
        while self.end[op] <= now:
            since = self.end[op]
            op += self.chain[op][0]
        speed = 1.0 if slowed else self.beside[op]
        self.remaining[op] = left = max(self.remaining[op] - speed * (now - since), 0.0)
        self.slowly[op] = left / self.beside[op]
        self.plan(first, op, now, slowed=slowed)
