"""Max-min fair speeds of flows that share links, as ``links.fair_speeds``, to the bit: no sum depends on an order."""

from __future__ import annotations

import numpy as np

from simpar.engine.compiled.records import NONE
from simpar.jit import Array, part


@part
def component(
    flowing: Array, count: int, found: Array, widest: np.uint64, flows: Array, entries: Array, links: Array
) -> tuple[int, int]:
    """Find all that share links with some flows, directly or through others; return how many flows and links.

    Arguments:
        flowing: streams that lead flows, ``count`` of them at first; written behind them.
        found: where links are written.
    """
    found_links = 0
    for place in range(count):
        flows[flowing[place]].solved = 1
    # The list grows while it is walked: a breadth-first search.
    place = 0
    while place < count:
        begin = flowing[place] * widest
        for at in range(begin, begin + flows[flowing[place]].links):
            link = links[entries[at].link]
            if link.seen:
                continue
            link.seen, link.left = 1, 1.0
            found[found_links] = entries[at].link
            found_links += 1
            other = link.head
            while other != NONE:
                neighbour = entries[other].stream
                if not flows[neighbour].solved:
                    flows[neighbour].solved = 1
                    flowing[count] = neighbour
                    count += 1
                other = entries[other].behind
        place += 1
    for place in range(found_links):
        links[found[place]].seen = 0
    for place in range(count):
        flows[flowing[place]].solved = 0
    return count, found_links


@part
def fill(
    flowing: Array, rising: int, found: Array, widest: np.uint64, flows: Array, entries: Array, links: Array
) -> int:
    """Let flows rise until one meets its top or a link is full, and fix the speeds of those; return how many rise on.

    Arguments: ``rising``, how many of ``flowing`` rise, in front; ``found``, the links of all, and no others.
    """
    for place in range(len(found)):
        links[found[place]].demand = 0.0
    level = np.inf
    for place in range(rising):
        begin = flowing[place] * widest
        level = min(level, flows[flowing[place]].top)
        for at in range(begin, begin + flows[flowing[place]].links):
            links[entries[at].link].demand += entries[at].demand
    for place in range(len(found)):
        link = links[found[place]]
        link.share = np.inf
        if link.demand > 0.0:
            link.share = link.left / link.demand
            level = min(level, link.share)
        link.demand = 0.0
    kept = 0
    for place in range(rising):
        stream = flowing[place]
        flow, begin = flows[stream], stream * widest
        fixed = flow.top <= level
        for at in range(begin, begin + flow.links):
            # No tolerance: the level is one of these shares, to the bit.
            fixed = fixed or links[entries[at].link].share <= level
        if fixed:
            flow.speed = level
            for at in range(begin, begin + flow.links):
                links[entries[at].link].demand += entries[at].demand
        else:
            flowing[place] = flowing[kept]
            flowing[kept] = stream
            kept += 1
    for place in range(len(found)):
        link = links[found[place]]
        # Once a level, so that no result depends on the order of flows.
        if link.demand > 0.0:
            link.left -= level * link.demand
    return kept
