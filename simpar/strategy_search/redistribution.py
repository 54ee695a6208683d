"""What it moves to get a tensor from one layout to another: a quick count of what ``simpar.layout``'s cheapest sequence
moves, without the sequence.

It stands apart from that one's search, for exact search asks for ten thousands of pairs: without collectives to count,
pending sums or axes of other sizes than two it has fewer states and fewer ways to go, and takes under half the time.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf, prod

from simpar.model.primitive import Shape
from simpar.strategy_search.bits import Bits

Place = tuple[int, int]
"""A dim and how deep in it a run of bits splits: of single bits, 0 splits it in halves, 1 the halves."""
State = tuple[Place | None, ...]
"""Where each run stands; None: nowhere, it splits nothing."""
Sizes = tuple[int, ...]
"""Devices along each run."""


def redistribution_bytes(
    source: Bits, target: Bits, shape: Shape, itemsize: int = 4, *, all_to_all: bool = True
) -> float:
    """Bytes that a device receives while a tensor goes from one layout to another, by the cheapest sequence.

    A slice moves nothing, an all-gather what it adds, an all-to-all over g devices (g − 1) / g of a slice. The backward
    moves as much: an all-gather's is a reduce-scatter, and a slice's moves nothing, where gradients stay partial sums.

    Arguments: ``all_to_all``: may be used; without it bits that are neighbours before and after move together, in runs,
    as ``simpar.layout`` has it. Does not model: latency, permutations of devices.
    """
    return 0.0 if source == target else _moved(source, target, all_to_all) * prod(shape) * itemsize


@lru_cache(maxsize=1 << 18)
def _moved(source: Bits, target: Bits, all_to_all: bool) -> float:
    """Received, as a share of the full tensor."""
    # Two caches: this one by pairs as asked, ``_share`` by pairs up to the names of bits, which are far fewer.
    bits = sorted({bit for dim in (*source, *target) for bit in dim})
    first = set(bits) if all_to_all else _first_of_runs(source, target, bits)
    return _share(*_renamed(source, target, _runs(bits, first)), all_to_all)


def _first_of_runs(source: Bits, target: Bits, bits: Sequence[int]) -> set[int]:
    """Bits that begin a run: the one before stands elsewhere in a layout, or another run begins at their place."""
    layouts = [{bit: place for place, bit in _stands(layout)} for layout in (source, target)]

    def together(bit: int, places: Mapping[int, Place]) -> bool:
        """Whether a bit follows on the one before it, or both stand nowhere."""
        dim, depth = places.get(bit, (-1, 1))
        # The defaults follow on each other, so two bits that stand nowhere are together.
        return places.get(bit - 1, (-1, 0)) == (dim, depth - 1)

    known = set(bits)
    found = {bit for bit in bits if bit - 1 not in known or not all(together(bit, places) for places in layouts)}
    before = 0
    # Each beginning may break a run of the other layout at the same place, and that one another.
    while before != len(found):
        before = len(found)
        begun = {places[bit] for places in layouts for bit in found if bit in places}
        found |= {bit for places in layouts for bit, place in places.items() if place in begun}
    return found


def _stands(layout: Bits) -> Iterator[tuple[Place, int]]:
    for dim, bits in enumerate(layout):
        for depth, bit in enumerate(bits):
            yield (dim, depth), bit


def _runs(bits: Sequence[int], first: Collection[int]) -> dict[int, int]:
    """Devices along each run, by its first bit."""
    sizes: dict[int, int] = {}
    head = bits[0]
    for bit in bits:
        head = bit if bit in first else head
        sizes[head] = 2 * sizes.get(head, 1)
    return sizes


def _renamed(source: Bits, target: Bits, runs: Mapping[int, int]) -> tuple[Bits, Bits, Sizes]:
    """The same pair in runs, named in the order in which they come up: pairs alike are counted once."""
    names: dict[int, int] = {}
    before, after = (
        tuple(tuple(names.setdefault(bit, len(names)) for bit in dim if bit in runs) for dim in layout)
        for layout in (source, target)
    )
    return before, after, tuple(runs[bit] for bit in names)


@lru_cache(maxsize=1 << 18)
def _share(source: Bits, target: Bits, sizes: Sizes, all_to_all: bool) -> float:
    """Received, as a share of the full tensor: the shortest path over where runs stand (Dijkstra 1959)."""
    begin, end = ({run: place for place, run in _stands(layout)} for layout in (source, target))
    moving = [run for run in {**begin, **end} if begin.get(run) != end.get(run)]
    # Runs that stay only make the tensor smaller: the search leaves them out.
    kept = prod(sizes[run] for run in begin if run not in moving)
    goal: State = tuple(end.get(run) for run in moving)
    moves = _Moves(goal, tuple(sizes[run] for run in moving), all_to_all)
    start = moves.sliced(tuple(begin.get(run) for run in moving))
    # The count breaks ties: states hold None, which cannot be compared.
    best, heap, count = {start: 0.0}, [(0.0, 0, start)], 0
    while heap:
        cost, _, state = heapq.heappop(heap)
        if state == goal:
            return cost / kept
        # Reached more cheaply since it was pushed.
        if cost > best[state]:
            continue
        for moved, after in moves.of(state):
            if cost + moved < best.get(after, inf):
                best[after], count = cost + moved, count + 1
                heapq.heappush(heap, (best[after], count, after))
    return inf


@dataclass(frozen=True, slots=True)
class _Moves:
    """What can be done next on the way to a goal.

    Arguments:
        goal: where runs are to stand.
        sizes: devices along each run.
        all_to_all: whether one may be used.
    """

    goal: State
    sizes: Sizes
    all_to_all: bool

    def of(self, state: State) -> Iterator[tuple[float, State]]:
        """What each next step moves, as a share of the tensor, and where runs stand behind it.

        All bits that an all-to-all can take to their goals go at once: together they move less than apart, none comes
        to stand where another wants to be, and behind a gather, which doubles the slice, they move as much or more.
        """
        local = 1 / prod([size for size, place in zip(self.sizes, state, strict=True) if place is not None])
        taken = {place for place in state if place is not None}
        wrong = [run for run, place in enumerate(state) if place is not None and place != self.goal[run]]
        free = {run for run in wrong if self.goal[run] is not None and self.goal[run] not in taken}
        if free and self.all_to_all:
            moved = tuple(self.goal[run] if run in free else place for run, place in enumerate(state))
            yield local * (1 - 0.5 ** len(free)), self.sliced(moved)
            return
        for run in wrong:
            yield local * (self.sizes[run] - 1), self.sliced((*state[:run], None, *state[run + 1 :]))

    def sliced(self, state: State) -> State:
        """Slicing moves nothing and makes all that follows smaller: it is done at once."""
        taken = {place for place in state if place is not None}
        return tuple(
            [
                wanted if place is None and wanted is not None and wanted not in taken else place
                for place, wanted in zip(state, self.goal, strict=True)
            ]
        )
