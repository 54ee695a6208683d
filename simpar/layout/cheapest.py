"""The cheapest sequence: a shortest path over the places where axes can stand.

An axis stands on the part that it shards before, on the one that it is to shard, nowhere, or has a pending sum. A
step moves several axes at once. Slicing costs nothing and makes all that follows smaller, so it is done at once.

Axes are moved unsplit first, on the coarsest frame. In prime parts they may receive less: two axes of four ranks that
change places do so by halves, and only one half is gathered at a time. Such a sequence is taken where it is cheaper,
and only what moves apart in it is parted. Without all-to-all axes move unsplit: in parts every axis that moves would be
gathered by halves and copied in between, which for small tensors takes longer than the bytes that it saves.
Does not model: an axis that stands on a third part for a while.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from simpar.layout.frame import NOWHERE, Frame, Step, StepKind, Walk, places
from simpar.layout.layout import Axis

MOST_PARTS: Final = 10
"""Axes move in parts where at most so many parts have to move, those of 1024 ranks (50 ms); else they move unsplit."""
PENDING: Final = -2
"""The place of an axis with a pending sum."""
Axes = int
"""Some of the axes that are to move: bit i stands for axis i."""
Where = tuple[Axes, Axes, bool]
"""Axes that have not moved, axes that are where they are to be, and whether an all-gather may take more along."""
Move = tuple[StepKind, Axes]
"""A step's kind and which of the axes move."""
Cost = tuple[int, int]
"""Elements received, in a unit that makes them integers; number of collectives."""
LANDS: Final = ('slice', 'all_to_all', 'reduce_scatter')
"""Kinds of steps behind which the axes that move are where they are to be."""


def steps(frame: Frame, sums: tuple[Axis, ...], *, all_to_all: bool) -> tuple[Frame, tuple[Step, ...]]:
    """The steps with the fewest elements received, and of those the fewest collectives; and the frame that they are on.

    Arguments: ``frame``, the coarsest; ``sums``, axes whose pending sums are to be taken.
    """
    coarse = _Search(frame, sums, all_to_all)
    cost, moves = coarse.path()
    found = [(kind, coarse.named(which)) for kind, which in moves]
    # The search in parts is the costly one (its states grow as 3 to the number of parts), so it is left out where it
    # cannot win.
    if all_to_all and not _is_least(moves):
        finest = frame.finest()
        parted = _Search(finest, finest.split(sums), all_to_all)
        # The finest frame may have no more axes that move than the coarsest; then both searches are the same.
        if len(coarse.axes) < len(parted.axes) <= MOST_PARTS:
            less, moves = parted.path()
            # Equal costs stay with the coarse moves: fewer, larger collectives.
            if less < cost:
                frame, found = _joined(frame, finest, [(kind, parted.named(which)) for kind, which in moves])
    return frame, _walked(frame, found)


def _is_least(moves: Sequence[Move]) -> bool:
    """Whether axes in parts cannot need less: nothing stands behind the first collective."""
    return all(kind == 'slice' for kind, _ in moves[:-1])


def _joined(
    coarse: Frame, fine: Frame, moves: Sequence[tuple[StepKind, list[Axis]]]
) -> tuple[Frame, list[tuple[StepKind, list[Axis]]]]:
    """The same moves on the coarsest frame that has them: neighbours that always move together are one axis."""
    taken = {atom.stride: [place for place, (_, axes) in enumerate(moves) if atom in axes] for atom in fine.atoms}
    apart = [high.stride for high, low in pairwise(fine.atoms) if taken[high.stride] != taken[low.stride]]
    frame = coarse.parted(apart) or fine
    return frame, [
        (kind, [atom for atom in frame.atoms if place in taken[atom.stride]]) for place, (kind, _) in enumerate(moves)
    ]


def _walked(frame: Frame, moves: Sequence[tuple[StepKind, list[Axis]]]) -> tuple[Step, ...]:
    walk, target = Walk.start(frame, frame.begin), places(frame.atoms, frame.end)
    for kind, axes in moves:
        # Slices cost nothing, so each axis is sliced by itself; a collective takes all of its axes at once.
        for group in [[axis] for axis in axes] if kind == 'slice' else [axes]:
            walk.go(kind, group, [target[axis] for axis in group] if kind in LANDS else ())
    return tuple(walk.steps)


class _Search:
    """One search; ``axes`` are those that do not stand where they are to stand."""

    def __init__(self, frame: Frame, sums: tuple[Axis, ...], all_to_all: bool) -> None:
        source, target = places(frame.atoms, frame.begin), places(frame.atoms, frame.end)
        # A pending sum stands on no part, but unlike an axis that is nowhere it must be taken before it can land.
        source.update(dict.fromkeys(sums, PENDING))
        self.axes = [axis for axis in frame.atoms if source[axis] != target[axis]]
        self.all_to_all = all_to_all
        self.begin = _mask(source[axis] != NOWHERE for axis in self.axes)
        self.pending = _mask(source[axis] == PENDING for axis in self.axes)
        self.landing = _mask(target[axis] != NOWHERE for axis in self.axes)
        self.before = [_mask(source[other] == target[axis] >= 0 for other in self.axes) for axis in self.axes]
        """For each axis the one that stands where it is to stand."""
        # With equal sizes it never pays to land only some of the axes that can: see ``_moves``.
        self.even = len({axis.size for axis in self.axes}) < 2
        self.sizes = [1]
        """The ranks along any of the axes."""
        for axis in self.axes:
            self.sizes += [axis.size * size for size in self.sizes]

    def named(self, which: Axes) -> list[Axis]:
        """The axes of a mask."""
        return [axis for index, axis in enumerate(self.axes) if which >> index & 1]

    def path(self) -> tuple[Cost, list[Move]]:
        """The moves of the cheapest path (Dijkstra 1959), and what it costs."""
        start = self._sliced(self.begin, 0)
        best: dict[Where, Cost] = {(*start, False): (0, 0)}
        via: dict[Where, tuple[Where, Move]] = {}
        queue: list[tuple[Cost, Where]] = [((0, 0), (*start, False))]
        while queue:
            cost, here = heapq.heappop(queue)
            # Dijkstra: the first time that the goal is popped, no cheaper way to it is left.
            if here[:2] == (0, self.landing):
                break
            # A state that was pushed again at a lower cost leaves its old entry in the heap.
            if cost > best[here]:
                continue
            for move in self._moves(here):
                there = self._after(here, move)
                elements, collectives = self._cost(here, move)
                # Bytes decide and collectives break ties, as tuples compare from the left.
                total = (cost[0] + elements, cost[1] + collectives)
                if there not in best or total < best[there]:
                    best[there] = total
                    via[there] = (here, move)
                    heapq.heappush(queue, (total, there))
        return cost, self._moves_to(here, via)

    def _moves_to(self, here: Where, via: dict[Where, tuple[Where, Move]]) -> list[Move]:
        """The moves on the way, with all slices; an all-gather of several axes as one."""
        moves: list[Move] = []
        while here in via:
            before, (kind, which) = via[here]
            sliced = here[1] & ~before[1] & ~(which if kind in LANDS else 0)
            moves += [('slice', sliced)] if sliced else []
            # The search gathers axis by axis, for fewer states; neighbours are one collective in the end, as their cost
            # says.
            if kind == 'all_gather' and here[2] and moves and moves[-1][0] == 'all_gather':
                which |= moves.pop()[1]
            moves.append((kind, which))
            here = before
        if here[1]:
            moves.append(('slice', here[1]))
        return moves[::-1]

    def _moves(self, here: Where) -> Iterator[Move]:
        """The steps that can lead to the least.

        Of axes of one size, all that can land in a step do: apart they receive as much or more. One that can land is
        not gathered, and one whose sum can be scattered not summed. Of sums that stay nowhere all are taken at once.
        """
        left = here[0]
        free = _mask(bool(left >> i & 1 and not left & before) for i, before in enumerate(self.before)) & self.landing
        ready = free & self.pending
        for which in self._landing_together(ready):
            yield 'reduce_scatter', which
        # A sum that can be scattered must be, sooner or later: before all else everything that follows is smaller.
        if ready and self.even:
            return
        ready = free & ~self.pending if self.all_to_all else 0
        for which in self._landing_together(ready):
            yield 'all_to_all', which
        sums = left & self.pending
        # A sum whose place is taken may be all-reduced to break a circle; those that land nowhere join, as one
        # collective is free.
        for stuck in _subsets(sums & self.landing & ~free):
            for which in {stuck, stuck | sums & ~self.landing} - {0}:
                yield 'all_reduce', which
        # What can land by an all-to-all is not gathered: the gather would receive more.
        held = left & ~self.pending & ~ready
        for index in range(len(self.axes)):
            if held >> index & 1:
                yield 'all_gather', 1 << index

    def _landing_together(self, ready: Axes) -> Iterator[Axes]:
        yield from [which for which in _subsets(ready) if which] if not self.even else [ready] * bool(ready)

    def _after(self, here: Where, move: Move) -> Where:
        kind, which = move
        left, done = self._sliced(here[0] & ~which, here[1] | which if kind in LANDS else here[1])
        return left, done, kind == 'all_gather' and done == here[1]

    def _sliced(self, left: Axes, done: Axes) -> tuple[Axes, Axes]:
        """All that stand nowhere and can land have landed."""
        nowhere = self.landing & ~left & ~done
        return left, done | _mask(bool(nowhere >> i & 1 and not left & b) for i, b in enumerate(self.before))

    def _cost(self, here: Where, move: Move) -> Cost:
        (left, done, gathering), (kind, which) = here, move
        size, ranks = self.sizes[which], self.sizes[-1]
        # Elements of a slice in a unit of shape / ranks², which keeps every intermediate cost an integer.
        held = ranks * ranks // self.sizes[left & ~self.pending | done]
        if kind == 'all_gather':
            # Gathers in a row are one collective, so only the first of them counts.
            return (size - 1) * held, not gathering
        return (2 if kind == 'all_reduce' else 1) * (size - 1) * held // size, 1


def _mask(chosen: Iterable[bool]) -> Axes:
    return sum(1 << index for index, yes in enumerate(chosen) if yes)


def _subsets(mask: Axes) -> Iterator[Axes]:
    """All subsets, the largest first, the empty one last."""
    which = mask
    while which:
        yield which
        # The next smaller number with bits of the mask alone.
        which = which - 1 & mask
    yield 0
