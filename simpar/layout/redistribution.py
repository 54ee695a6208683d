"""Redistribution: the steps that bring a tensor from one layout into another, the cheapest or those of a framework."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, lru_cache
from itertools import pairwise
from math import prod
from typing import Final, Literal

from simpar.errors import Infeasible
from simpar.layout.layout import NOWHERE, Axis, Frame, State, Step, StepKind, TensorLayout, Walk, frame, places

# The cheapest sequence: a shortest path over the places where axes can stand.
#
# An axis stands on the part that it shards before, on the one that it is to shard, nowhere, or has a pending sum. A
# step moves several axes at once. Slicing costs nothing and makes all that follows smaller, so it is done at once.
#
# Axes are moved unsplit first, on the coarsest frame. In prime parts they may receive less: two axes of four ranks
# that change places do so by halves, and only one half is gathered at a time. Such a sequence is taken where it is
# cheaper, and only what moves apart in it is parted. Without all-to-all axes move unsplit: in parts every axis that
# moves would be gathered by halves and copied in between, which for small tensors takes longer than the bytes that it
# saves. Does not model: an axis that stands on a third part for a while.

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


def cheapest_steps(frame: Frame, sums: tuple[Axis, ...], *, all_to_all: bool) -> tuple[Frame, tuple[Step, ...]]:
    """The steps with the fewest elements received, and of those the fewest collectives; and the frame that they are on.

    Arguments: ``frame``, the coarsest; ``sums``, axes whose pending sums are to be taken.
    """
    coarse = _Search(frame, sums, all_to_all)
    cost, moves = coarse.path()
    steps = [(kind, coarse.named(which)) for kind, which in moves]
    # The search in parts is the costly one (its states grow as 3 to the number of parts), so it is left out where it
    # cannot win: where nothing stands behind the first collective.
    if all_to_all and any(kind != 'slice' for kind, _ in moves[:-1]):
        finest = frame.finest()
        parted = _Search(finest, finest.split(sums), all_to_all)
        # The finest frame may have no more axes that move than the coarsest; then both searches are the same.
        if len(coarse.axes) < len(parted.axes) <= MOST_PARTS:
            less, moves = parted.path()
            # Equal costs stay with the coarse moves: fewer, larger collectives.
            if less < cost:
                frame, steps = _joined(frame, finest, [(kind, parted.named(which)) for kind, which in moves])
    return frame, _walked(frame, steps)


def _joined(
    coarse: Frame, fine: Frame, moves: Sequence[tuple[StepKind, list[Axis]]]
) -> tuple[Frame, list[tuple[StepKind, list[Axis]]]]:
    """The same moves on the coarsest frame that has them: neighbours that always move together are one axis."""
    uses = {atom.stride: [place for place, (_, axes) in enumerate(moves) if atom in axes] for atom in fine.atoms}
    apart = [high.stride for high, low in pairwise(fine.atoms) if uses[high.stride] != uses[low.stride]]
    frame = coarse.parted(apart) or fine
    return frame, [
        (kind, [atom for atom in frame.atoms if place in uses[atom.stride]]) for place, (kind, _) in enumerate(moves)
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


# The sequences of MindSpore's compiler, as its recorded outputs show them.
#
# A part is *wanted* by the axis that shards it in the target layout. The compiler goes over the parts in the order of
# its hash table (``table_order``): what is wanted by an axis that shards nothing is sliced; what is wanted by an axis
# that still shards another part takes it from there, by an all-to-all or else by an all-gather and a slice; then axes
# that are to shard nothing are gathered; where all parts wait for each other, the first is gathered.
#
# Version 2.10 goes over a sequence without all-to-all once more: gathers stand first, that of the last part first,
# then slices. Where only parts of one element stand before it, a gather becomes one along the outermost dim. Of these
# such as follow one another over axes that count on become one; a gather of the first part itself stays alone. Its
# source has this in ``TensorTransform::ReorderAndMergeRedistributionOp``.

# The order in which MindSpore's compiler goes over what it still has to do.
#
# It numbers the parts of a frame, keeps the layout of each under its number in a hash table, and goes over the table
# as it lies in memory (``RedistributionOperatorMap`` is ``mindspore::HashMap``: robin-hood-hashing 3.11.5). Three
# numbers or fewer lie there in order, seven as 0, 4, 3, 1, 5, 6, 2.
#
# Does not model: entries that move up while the compiler goes over the table and removes them. With six parts or more
# it may so lose or repeat a step, and its own sequence would not arrive.


FEWEST_SLOTS: Final = 8
FULL_PERCENT: Final = 80
"""The table doubles before it is fuller."""
MIXERS: Final = (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53)
"""What a number is multiplied by, in turn, modulo 2⁶⁴ (MurmurHash3's finalizer)."""
TIE_BITS: Final = 5
"""Bits of the hash below those that choose the slot: of two numbers in one slot the one with the greater goes first."""


@cache
def table_order(count: int) -> tuple[int, ...]:
    """The numbers 0 … ``count`` − 1 as a table that holds them all lists them."""
    slots = FEWEST_SLOTS
    # robin_hood doubles from 8 slots whenever one more would fill more than 80 of 100.
    while count > slots * FULL_PERCENT // 100:
        slots *= 2
    return tuple(sorted(range(count), key=lambda number: _place(number, slots)))


def _place(number: int, slots: int) -> tuple[int, int]:
    """The slot of a number, and what decides between it and others of this slot."""
    mixed = _mixed(number)
    # Numbers that find their slot taken go on to the next: by slot is the order in which they come to lie.
    return (mixed >> TIE_BITS) % slots, -(mixed % (1 << TIE_BITS))


def _mixed(number: int) -> int:
    for factor in MIXERS:
        number = (number ^ number >> 33) * factor % (1 << 64)
    return number ^ number >> 33


def compat_steps(
    frame: Frame, begin: State, end: State, sums: tuple[Axis, ...], *, all_to_all: bool, last_first: bool
) -> tuple[Step, ...]:
    """The steps from one state to another.

    Arguments: ``sums``, axes whose pending sums are taken first (the compiler has none); ``last_first``: version 2.10's
    way.
    """
    walk = _start(frame, begin, sums)
    _Parts(walk, end, all_to_all).settle()
    # 2.10 reorders only what it would otherwise do without all-to-all, so the first walk decides and is thrown away.
    if last_first and all(step.kind != 'all_to_all' for step in walk.steps):
        walk = _start(frame, begin, sums)
        _gather_and_slice(walk, end)
    return tuple(walk.steps)


def _start(frame: Frame, begin: State, sums: tuple[Axis, ...]) -> Walk:
    walk = Walk.start(frame, begin)
    if sums:
        walk.go('all_reduce', sums)
    return walk


def _gather_and_slice(walk: Walk, end: State) -> None:
    """What any sequence without all-to-all comes to: every part that changes is gathered, then sliced anew."""
    changed = [part for part, axis in enumerate(walk.state) if axis != end[part]]
    for axes in _together(walk, changed):
        walk.go('all_gather', axes)
    for part in changed:
        axis = end[part]
        if axis is not None:
            walk.go('slice', (axis,), (part,))


def _together(walk: Walk, parts: list[int]) -> list[list[Axis]]:
    """The axes on these parts by gather, the last part first."""
    local = walk.frame.local(tuple(walk.state))
    groups: list[list[Axis]] = []
    # Dims of length 1 do not count, as the compiler squeezes shapes.
    outer = next((part for part, length in enumerate(walk.frame.shape) if length > 1), 0)
    inner = 0
    for part in reversed(parts):
        axis = walk.state[part]
        if axis is None:
            continue
        outermost = part > outer and prod(local[:inner]) == 1
        # Only along the outermost dim can two gathers be one: along an inner one, the slices would have to be
        # reordered.
        if groups and outermost and axis.stride == groups[-1][-1].size * groups[-1][-1].stride:
            groups[-1].append(axis)
        else:
            groups.append([axis])
        inner = part
    return groups


class _Parts:
    """The parts that are not yet as wanted."""

    def __init__(self, walk: Walk, end: State, all_to_all: bool) -> None:
        self.walk = walk
        self.end = end
        self.all_to_all = all_to_all
        # Dims of length 1 have no number, as the compiler squeezes shapes.
        numbered = [part for part, length in enumerate(walk.frame.shape) if length > 1]
        self.order = [numbered[number] for number in table_order(len(numbered))]

    @property
    def open(self) -> list[int]:
        return [part for part in self.order if self.walk.state[part] != self.end[part]]

    def settle(self) -> None:
        while self.open:
            done = len(self.walk.steps)
            # The compiler slices and takes until nothing moves before it gives anything up: recorded sequences show it.
            while self._slice_and_take():
                pass
            self._pass(self._give_up)
            # A circle of parts that wait for each other: the compiler opens it at the first part that holds anything.
            if len(self.walk.steps) == done:
                self.walk.go('all_gather', [next(filter(None, map(self.walk.state.__getitem__, self.open)))])

    def _slice_and_take(self) -> bool:
        """Slices once, then whatever is taken; whether it did anything."""
        done = len(self.walk.steps)
        self._pass(self._slice)
        while self._pass(self._take):
            pass
        return len(self.walk.steps) > done

    def _pass(self, rule: Callable[[int], None]) -> bool:
        """Try a rule on every open part in turn; whether it did anything."""
        done = len(self.walk.steps)
        for part in self.open:
            # A rule may settle parts that come later in this pass.
            if self.walk.state[part] != self.end[part]:
                rule(part)
        return len(self.walk.steps) > done

    def _slice(self, part: int) -> None:
        wanted = self.end[part]
        if self.walk.state[part] is None and wanted is not None and wanted not in self.walk.state:
            self.walk.go('slice', (wanted,), (part,))

    def _take(self, part: int) -> None:
        wanted = self.end[part]
        if self.walk.state[part] is not None or wanted is None or wanted not in self.walk.state:
            return
        # Without all-to-all the compiler gathers the axis and slices it elsewhere at once, though a later gather could
        # join.
        if self.all_to_all:
            self.walk.go('all_to_all', (wanted,), (part,))
        else:
            self.walk.go('all_gather', (wanted,))
            self.walk.go('slice', (wanted,), (part,))

    def _give_up(self, part: int) -> None:
        held = self.walk.state[part]
        if held is not None and held not in self.end:
            self.walk.go('all_gather', (held,))


# Redistribution: the steps that bring a tensor from one layout into another, forward and backward.
#
# Bytes are what one rank receives (and sends) in ring or pairwise form, of a message over g ranks: all-gather (g − 1)
# · slice, all-to-all and reduce-scatter (g − 1) / g · slice, all-reduce twice that; slicing nothing.

Method = Literal['cheapest', 'mindspore-2.0', 'mindspore-2.10']


@dataclass(frozen=True, slots=True)
class Part:
    """Steps on one view of the tensor.

    Arguments:
        shape: full lengths of the view's dims.
        dim_of: for each of them, the tensor dim that it is a part of.
        begin, end: the axis that shards each of them before and after.
    """

    shape: tuple[int, ...]
    dim_of: tuple[int, ...]
    begin: State
    end: State
    steps: tuple[Step, ...]

    def backward(self) -> Part:
        """The transposed steps from the last to the first."""
        steps = tuple(step.transposed() for step in reversed(self.steps))
        return replace(self, begin=self.end, end=self.begin, steps=steps)


@dataclass(frozen=True, slots=True)
class Redistribution:
    """What brings a tensor of ``shape`` from ``source`` to ``target``: parts one after the other.

    Backward, ``source`` and ``target`` are the layouts of the gradient: where the tensor is replicated, it has pending
    sums.
    """

    shape: tuple[int, ...]
    source: TensorLayout
    target: TensorLayout
    parts: tuple[Part, ...]

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps in order."""
        return tuple(step for part in self.parts for step in part.steps)

    @property
    def elements(self) -> Fraction:
        """Elements that one rank receives."""
        return sum((step.elements for step in self.steps), Fraction(0))

    def backward(self) -> Redistribution:
        """The transposed map, which takes the gradient back: gathers scatter sums, slices are filled up with zeros.

        A replicated tensor's gradient has pending sums over all ranks that have the same, as MindSpore keeps it.
        """
        return Redistribution(
            self.shape,
            _gradient(self.target),
            _gradient(self.source),
            # The transpose of a product of maps is the product of the transposes in reverse.
            tuple(part.backward() for part in reversed(self.parts)),
        )


def _gradient(layout: TensorLayout) -> TensorLayout:
    return layout.with_partial(layout.replicated_axes)


@lru_cache(maxsize=4096)
def redistribute(
    shape: tuple[int, ...],
    source: TensorLayout,
    target: TensorLayout,
    method: Method = 'cheapest',
    all_to_all: bool = True,
) -> Redistribution:
    """The steps from one layout to another.

    Arguments: ``shape`` of the full tensor; ``method``: ``cheapest``, the fewest bytes, and of those the fewest
    collectives (without all-to-all of axes that move unsplit); or the sequence of MindSpore's compiler; ``all_to_all``:
    may be used. Pending sums of ``source`` that ``target`` has not are summed. Raises ``Infeasible`` where a layout
    does not fit the shape or sums would have to be undone. Does not model: latency, links, memory of what is gathered
    on the way.
    """
    # Called for their checks: both layouts must fit the shape.
    source.slice_shape(shape), target.slice_shape(shape)
    if source.world != target.world:
        raise Infeasible(f'a layout on {source.world} ranks cannot become one on {target.world} ranks')
    if source == target:
        return Redistribution(shape, source, target, ())
    common = frame(shape, source, target)
    if common is not None:
        return Redistribution(shape, source, target, (_part(common, method, all_to_all),))
    # No common parts: all is gathered, then sliced.
    # Pending sums that the target keeps are kept on the way, so that nothing is summed twice.
    middle = TensorLayout(source.world, ((),) * len(shape), target.partial)
    halves = [redistribute(shape, *ends, method, all_to_all) for ends in ((source, middle), (middle, target))]
    return Redistribution(shape, source, target, tuple(part for half in halves for part in half.parts))


def _part(common: Frame, method: Method, all_to_all: bool) -> Part:
    pending, left = common.split(common.source.partial), set(common.split(common.target.partial))
    # A pending sum could be made from a replicated value by zeros on all ranks but one; no compiler does so.
    if not left <= set(pending):
        raise Infeasible('a full value cannot become a pending sum')
    sums = tuple(axis for axis in pending if axis not in left)
    if method == 'cheapest':
        common, steps = cheapest_steps(common, sums, all_to_all=all_to_all)
    else:
        last_first = method == 'mindspore-2.10'
        steps = compat_steps(common, common.begin, common.end, sums, all_to_all=all_to_all, last_first=last_first)
    return Part(common.shape, common.dim_of, common.begin, common.end, steps)
