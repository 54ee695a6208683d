"""The order in which MindSpore's compiler goes over what it still has to do.

It numbers the parts of a frame, keeps the layout of each under its number in a hash table, and goes over the table as
it lies in memory (``RedistributionOperatorMap`` is ``mindspore::HashMap``: robin-hood-hashing 3.11.5). Three numbers or
fewer lie there in order, seven as 0, 4, 3, 1, 5, 6, 2.

Does not model: entries that move up while the compiler goes over the table and removes them. With six parts or more it
may so lose or repeat a step, and its own sequence would not arrive.
"""

from __future__ import annotations

from functools import cache
from typing import Final

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
