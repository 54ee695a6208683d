"""The sequences of MindSpore's compiler, as its recorded outputs show them.

A part is *wanted* by the axis that shards it in the target layout. The compiler goes over the parts in the order of its
hash table (``table_order``): what is wanted by an axis that shards nothing is sliced; what is wanted by
an axis that still shards another part takes it from there, by an all-to-all or else by an all-gather and a slice; then
axes that are to shard nothing are gathered; where all parts wait for each other, the first is gathered.

Version 2.10 goes over a sequence without all-to-all once more: gathers stand first, that of the last part first, then
slices. Where only parts of one element stand before it, a gather becomes one along the outermost dim. Of these such as
follow one another over axes that count on become one; a gather of the first part itself stays alone. Its source has
this in ``TensorTransform::ReorderAndMergeRedistributionOp``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from typing import Final

from simpar.layout.frame import Frame, State, Step, Walk
from simpar.layout.layout import Axis

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


def steps(
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
    found: list[list[Axis]] = []
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
        if found and outermost and axis.stride == found[-1][-1].size * found[-1][-1].stride:
            found[-1].append(axis)
        else:
            found.append([axis])
        inner = part
    return found


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
                part = next(part for part in self.open if self.walk.state[part] is not None)
                self._gather(part)

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

    def _gather(self, part: int) -> None:
        axis = self.walk.state[part]
        if axis is not None:
            self.walk.go('all_gather', (axis,))
