"""What it moves to get a tensor from one layout to another: a quick count of what ``simpar.layout``'s cheapest sequence
moves, without the sequence.

It stands apart from that one's search, for exact search asks for ten thousands of pairs: without collectives to count,
pending sums or axes of other sizes than two it has fewer states and fewer ways to go, and takes under half the time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from functools import lru_cache
from math import inf, prod

from simpar.strategy_search.bits import Bits
from simpar.strategy_search.graph import Shape

Place = tuple[int, int]
"""A dim and how deep in it a bit cuts: 0 cuts it in halves, 1 the halves."""
State = tuple[Place | None, ...]
"""Where each bit stands; None: nowhere, it cuts nothing."""


def redistribution_bytes(
    source: Bits, target: Bits, shape: Shape, itemsize: int = 4, *, all_to_all: bool = True
) -> float:
    """Bytes that a device receives while a tensor goes from one layout to another, by the cheapest sequence.

    A slice moves nothing, an all-gather what it adds, an all-to-all over g devices (g − 1) / g of a slice. The backward
    moves as much: an all-gather's is a reduce-scatter, and a slice's moves nothing, where gradients stay partial sums.

    Arguments: ``all_to_all``: may be used. Does not model: latency, permutations of devices.
    """
    return 0.0 if source == target else _share(*_renamed(source, target), all_to_all) * prod(shape) * itemsize


def _renamed(source: Bits, target: Bits) -> tuple[Bits, Bits]:
    """The same pair with bits named in the order in which they come up: pairs alike are counted once."""
    names: dict[int, int] = {}
    for dim in (*source, *target):
        for bit in dim:
            names.setdefault(bit, len(names))
    first, second = (tuple(tuple(names[bit] for bit in dim) for dim in layout) for layout in (source, target))
    return first, second


@lru_cache(maxsize=1 << 18)
def _share(source: Bits, target: Bits, all_to_all: bool) -> float:
    """Received, as a share of the whole tensor: the shortest path over where bits stand (Dijkstra 1959)."""
    begin, end = _places(source), _places(target)
    moving = [bit for bit in {**begin, **end} if begin.get(bit) != end.get(bit)]
    goal: State = tuple(end.get(bit) for bit in moving)
    start = _sliced(tuple(begin.get(bit) for bit in moving), goal)
    best, heap, count = {start: 0.0}, [(0.0, 0, start)], 0
    while heap:
        cost, _, state = heapq.heappop(heap)
        if state == goal:
            return cost * 0.5 ** (len(begin) - sum(bit in begin for bit in moving))
        if cost > best[state]:
            continue
        local = 0.5 ** sum(place is not None for place in state)
        for moved, after in _steps(state, goal, all_to_all):
            if cost + local * moved < best.get(after, inf):
                best[after], count = cost + local * moved, count + 1
                heapq.heappush(heap, (best[after], count, after))
    return inf


def _places(layout: Bits) -> dict[int, Place]:
    return {bit: (dim, depth) for dim, bits in enumerate(layout) for depth, bit in enumerate(bits)}


def _steps(state: State, goal: State, all_to_all: bool) -> Iterator[tuple[float, State]]:
    """What each next step moves, as a share of a slice, and where bits stand behind it.

    All bits that an all-to-all can take to their goals go at once: together they move less than apart, none comes to
    stand where another wants to be, and behind a gather, which doubles the slice, they move as much or more.
    """
    taken = {place for place in state if place is not None}
    wrong = [bit for bit, place in enumerate(state) if place is not None and place != goal[bit]]
    free = {bit for bit in wrong if goal[bit] is not None and goal[bit] not in taken}
    if free and all_to_all:
        moved = tuple(goal[bit] if bit in free else place for bit, place in enumerate(state))
        yield 1 - 0.5 ** len(free), _sliced(moved, goal)
        return
    for bit in wrong:
        yield 1.0, _sliced((*state[:bit], None, *state[bit + 1 :]), goal)


def _sliced(state: State, goal: State) -> State:
    """Slicing moves nothing and makes all that follows smaller: it is done at once."""
    taken = {place for place in state if place is not None}
    return tuple(
        wanted if place is None and wanted is not None and wanted not in taken else place
        for place, wanted in zip(state, goal, strict=True)
    )
