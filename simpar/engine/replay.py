"""Replay: where nothing slows anything, times are a recurrence over the graph, and no clock is needed."""

from __future__ import annotations

import numpy as np

from simpar.engine.graph import Graph
from simpar.engine.node_costs import NodeCosts
from simpar.trace import Times


def replay(graph: Graph, costs: NodeCosts) -> Times:
    """When each node ends, shape [steps, N]; undefined at the numbers of ops that are no node's.

    A node starts when all that its ops come after has ended and the host has issued them, and lasts its isolated
    seconds. Times are sums of multiples of 2⁻⁴⁰ s, so they are the event loop's to the bit.
    """
    order = graph.order.tolist()
    # A meeting starts when the last host has issued its op.
    issued = graph.latest(costs.issued)[:, order]
    lasts = (costs.alpha + costs.seconds)[order].tolist()
    end = np.zeros_like(costs.issued)
    ends = [0.0] * len(order)
    for step, ready in enumerate(issued.tolist()):
        for issue, before, seconds in zip(ready, graph.places_before, lasts, strict=True):
            start = issue
            for place in before:
                # This is most of the time of a replay, and `max` takes twice as long.
                if ends[place] > start:  # noqa: PLR1730
                    start = ends[place]
            ends.append(start + seconds)
        # Only the step before can be carried from.
        ends = ends[len(order) :]
        end[step, order] = ends
    return end
