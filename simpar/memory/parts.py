"""Parts: the lives of the instances that a role touches, one row a life, in order of instances and of issue."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from simpar.memory.touches import FREE, WRITE, Flags, Ints, Touches

NONE: Final = -1
NEVER: Final = np.iinfo(np.int64).max


class Parts(NamedTuple):
    """The touches of an instance, split behind its frees: one row a life.

    ``write`` is its first write, ``NEVER`` without; ``before``: that write is of the step before.
    """

    tensor: Ints
    micro_batch: Ints
    copy: Ints
    first: Ints
    last: Ints
    write: Ints
    freed: Flags
    before: Flags

    def some(self, wanted: Flags | Ints) -> Parts:
        """Some of the lives, or all in another order."""
        return Parts(
            self.tensor[wanted], self.micro_batch[wanted], self.copy[wanted], self.first[wanted], self.last[wanted],
            self.write[wanted], self.freed[wanted], self.before[wanted],
        )  # fmt: skip

    @classmethod
    def of(cls, touches: Touches) -> Parts:
        """All lives, by instance and in issue order."""
        slot, cell, does, cells = touches
        count = len(cells)
        frees = does == FREE
        first, last = first_of(slot, cell, count), _last(slot, cell, count)
        freed = first_of(slot[frees], cell[frees], count)
        # Nearly every instance has one life, that ends with its last touch or never; the others are split apart.
        several = (freed != NEVER) & (freed != last)
        writes = does == WRITE
        write = first_of(slot[writes], cell[writes], count)
        one = np.flatnonzero((first != NEVER) & ~several)
        no = np.zeros(len(one), dtype=bool)
        simple = cls(*cells.names(one), first[one], last[one], write[one], freed[one] != NEVER, no)
        if not several.any():
            return simple
        cells_of_split, split = cls._split(touches.some(several[cell]))
        both = cls(*(np.concatenate(columns) for columns in zip(simple, split, strict=True)))
        # Cells are numbered by tensor, micro-batch and copy. Stable: the lives of one instance stay in order.
        return both.some(np.argsort(np.append(one, cells_of_split), kind='stable'))

    @classmethod
    def _split(cls, touches: Touches) -> tuple[Ints, Parts]:
        """The cell of each life; what a step writes behind an instance's last free is joined to its first part."""
        # Stable: the touches of one instance stay in issue order.
        order = np.argsort(touches.cell, kind='stable')
        slot, cell, does = (column[order] for column in touches[:3])
        instances = np.diff(cell, prepend=NONE) != 0
        frees = does == FREE
        at = np.flatnonzero(instances | np.concatenate(([False], frees[:-1])))
        last = np.append(at[1:], len(frees)) - 1
        # The first write of each life; ``NEVER`` is larger than any slot.
        write = np.minimum.reduceat(np.where(does == WRITE, slot, NEVER), at)
        freed, opens = frees[last], instances[at]
        # For each life the first life of the same instance.
        head = np.maximum.accumulate(np.where(opens, np.arange(len(at)), 0))
        tails = np.flatnonzero(~freed & ~opens)
        before = np.zeros(len(at), dtype=bool)
        # Written behind the last free of a step: in the steady state this is what the first life of the next step
        # begins with.
        carried = tails[write[tails] != NEVER]
        write[head[carried]] = write[carried]
        before[head[carried]] = True
        kept = np.ones(len(at), dtype=bool)
        kept[tails] = False
        own = cell[at][kept]
        named = touches.cells.names(own)
        return own, cls(*named, slot[at][kept], slot[last][kept], write[kept], freed[kept], before[kept])


def first_of(slot: Ints, cell: Ints, count: int) -> Ints:
    """The first slot that touches each cell, or ``NEVER``; slots are in order."""
    found = np.full(count, NEVER)
    # Of equal places the last one assigned stays.
    found[cell[::-1]] = slot[::-1]
    return found


def _last(slot: Ints, cell: Ints, count: int) -> Ints:
    """The last slot that touches each cell, or -1."""
    found = np.full(count, NONE)
    found[cell] = slot
    return found
