"""The cheapest sequence: a shortest path over the places where axes can stand.

An axis stands on the part that it cuts before, on the one that it is to cut, nowhere, or still has a pending sum. A
step moves several axes at once. Slicing costs nothing and makes all that follows smaller, so it is done at once.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import combinations
from math import prod

from simpar.layout.axis import Axis, size_of
from simpar.layout.frame import Frame, State
from simpar.layout.moves import NOWHERE, Walk, places
from simpar.layout.step import Step, StepKind

PENDING = -2
"""The place of an axis with a pending sum."""
Places = tuple[int, ...]
"""For each axis of a frame that is to move, where it stands."""
Move = tuple[StepKind, tuple[int, ...]]
"""A step's kind and which of the axes move."""
Cost = tuple[int, int]
"""Elements received × ranks of the frame, so that it is whole; collectives."""


def steps(frame: Frame, begin: State, end: State, sums: tuple[Axis, ...], *, all_to_all: bool) -> tuple[Step, ...]:
    """The steps with the fewest elements received, and of those the fewest collectives.

    Arguments: ``sums``, axes whose pending sums are to be taken.
    """
    search = _Search(frame, begin, end, sums, all_to_all)
    walk = Walk.start(frame, begin)
    for kind, which in search.path():
        axes = [search.axes[index] for index in which]
        lands = kind in ('slice', 'all_to_all', 'reduce_scatter')
        walk.go(kind, axes, [search.target[index] for index in which] if lands else ())
    return tuple(walk.steps)


class _Search:
    """One search; ``axes`` are those that do not stand where they are to stand."""

    def __init__(self, frame: Frame, begin: State, end: State, sums: tuple[Axis, ...], all_to_all: bool) -> None:
        source, target = places(frame.atoms, begin), places(frame.atoms, end)
        source.update(dict.fromkeys(sums, PENDING))
        self.axes = [axis for axis in frame.atoms if source[axis] != target[axis]]
        self.source: Places = tuple(source[axis] for axis in self.axes)
        self.target: Places = tuple(target[axis] for axis in self.axes)
        self.all_to_all = all_to_all
        kept = size_of(axis for axis in frame.atoms if source[axis] == target[axis] != NOWHERE)
        self.elements = prod(frame.shape) // kept
        self.scale = size_of(self.axes)

    def path(self) -> list[Move]:
        """The moves of the cheapest path (Dijkstra 1959)."""
        best: dict[Places, Cost] = {self.source: (0, 0)}
        via: dict[Places, tuple[Places, Move]] = {}
        queue: list[tuple[Cost, Places]] = [((0, 0), self.source)]
        while queue:
            cost, here = heapq.heappop(queue)
            if here == self.target:
                break
            if cost > best[here]:
                continue
            for move in self._moves(here):
                there = self._after(here, move)
                total = (cost[0] + self._cost(here, move), cost[1] + (move[0] != 'slice'))
                if there not in best or total < best[there]:
                    best[there] = total
                    via[there] = (here, move)
                    heapq.heappush(queue, (total, there))
        moves: list[Move] = []
        while here != self.source:
            here, move = via[here]
            moves.append(move)
        return moves[::-1]

    def _moves(self, here: Places) -> Iterator[Move]:
        occupied = set(here)
        free = [place not in occupied and place != NOWHERE for place in self.target]
        for index, place in enumerate(here):
            if place == NOWHERE and free[index]:
                yield 'slice', (index,)
                return
        held = [index for index, place in enumerate(here) if place >= 0 and place != self.target[index]]
        pending = [index for index, place in enumerate(here) if place == PENDING]
        for which in _subsets(pending):
            yield 'all_reduce', which
        for which in _subsets([index for index in pending if free[index]]):
            yield 'reduce_scatter', which
        if self.all_to_all:
            for which in _subsets([index for index in held if free[index]]):
                yield 'all_to_all', which
        for which in _subsets(held):
            yield 'all_gather', which

    def _after(self, here: Places, move: Move) -> Places:
        kind, which = move
        there = list(here)
        for index in which:
            there[index] = NOWHERE if kind in ('all_gather', 'all_reduce') else self.target[index]
        return tuple(there)

    def _cost(self, here: Places, move: Move) -> int:
        """Elements received × the ranks along all axes that move."""
        kind, which = move
        size = prod(self.axes[index].size for index in which)
        cut = prod(axis.size for axis, place in zip(self.axes, here, strict=True) if place >= 0)
        held = self.elements * (self.scale // cut)
        if kind == 'all_gather':
            return (size - 1) * held
        passes = {'all_reduce': 2, 'reduce_scatter': 1, 'all_to_all': 1}.get(kind, 0)
        return passes * (size - 1) * held // size


def _subsets(items: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for count in range(len(items), 0, -1):
        yield from combinations(items, count)
