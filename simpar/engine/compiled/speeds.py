"""Max-min fair speeds of flows that share links, as ``links.fair_speeds``, to the bit: no sum depends on an order."""

from __future__ import annotations

import numpy as np

from simpar.engine.compiled.jit import Array, inner


@inner
def fill(
    flows: Array,
    count: int,
    head: Array,
    entry_next: Array,
    entry_stream: Array,
    entries: Array,
    entry_link: Array,
    entry_demand: Array,
    links: Array,
    on_link: Array,
    in_flows: Array,
    left: Array,
    share: Array,
    demands: Array,
    top: Array,
    speeds: Array,
) -> int:
    """Find all that share links with some flows, and their max-min fair speeds, as ``fair_speeds``.

    Return how many flows there are. The first flows of ``flows`` are rising, those behind them have their speed.
    """
    found_links = 0
    for place in range(count):
        in_flows[flows[place]] = True
    # The list grows while it is walked: a breadth-first search.
    place = 0
    while place < count:
        stream = flows[place]
        place += 1
        for entry in range(entries[stream], entries[stream + 1]):
            link = entry_link[entry]
            if link < 0:
                break
            if on_link[link]:
                continue
            on_link[link] = True
            links[found_links] = link
            found_links += 1
            other = head[link]
            while other >= 0:
                neighbour = entry_stream[other]
                if not in_flows[neighbour]:
                    in_flows[neighbour] = True
                    flows[count] = neighbour
                    count += 1
                other = entry_next[other]
    for place in range(found_links):
        link = links[place]
        left[link] = 1.0
        on_link[link] = False
    rising = count
    while rising:
        for place in range(found_links):
            demands[links[place]] = 0.0
        level = np.inf
        for place in range(rising):
            stream = flows[place]
            level = min(level, top[stream])
            for entry in range(entries[stream], entries[stream + 1]):
                link = entry_link[entry]
                if link < 0:
                    break
                demands[link] += entry_demand[entry]
        for place in range(found_links):
            link = links[place]
            if demands[link] > 0.0:
                share[link] = left[link] / demands[link]
                level = min(level, share[link])
            else:
                share[link] = np.inf
            demands[link] = 0.0
        kept = 0
        for place in range(rising):
            stream = flows[place]
            fixed = top[stream] <= level
            for entry in range(entries[stream], entries[stream + 1]):
                link = entry_link[entry]
                if link < 0 or fixed:
                    break
                # No tolerance: the level is one of these shares, to the bit.
                fixed = share[link] <= level
            if fixed:
                speeds[stream] = level
                for entry in range(entries[stream], entries[stream + 1]):
                    link = entry_link[entry]
                    if link < 0:
                        break
                    demands[link] += entry_demand[entry]
            else:
                flows[place] = flows[kept]
                flows[kept] = stream
                kept += 1
        for place in range(found_links):
            link = links[place]
            # Once a level, so that no result depends on the order of flows.
            if demands[link] > 0.0:
                left[link] -= level * demands[link]
        rising = kept
    for place in range(count):
        in_flows[flows[place]] = False
    return count
