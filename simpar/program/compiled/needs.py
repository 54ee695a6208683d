"""The kernel that finds needs: one walk over the slots of two steps, in issue order."""

from __future__ import annotations

from typing import Final

from simpar.jit import Array, kernel

HELPERS: Final = 'd08741290bae2600'
"""Of the files without this line, as a test says it: numba's cache on disk looks at a kernel's own file alone."""
_NONE: Final = -1


@kernel
def find_needs(
    op_class: Array, micro_batch: Array, copy: Array, stream: Array, start: Array, tensor: Array, per_rank: Array,
    after: Array, copies: int, instances: int, touched: Array, latest: Array, clock: Array, kept: Array,
    need_start: Array, need: Array, carry_start: Array, carry: Array,
) -> int:  # fmt: skip
    """Write needs and carry needs of every slot, in the order of ``derive``; return how many needs there are.

    Arguments:
        op_class to stream: of slots; ``instances``, how many pairs of a micro-batch and one of ``copies`` there are.
        start, tensor: for each op class four lists, as of ``Touches.named``; ``per_rank``, as there.
        after: the pairs of ``Slots.after``, one behind the other.
        touched: shape [buffers, streams + 1], the last slot of each stream that has read it since it was changed, and
            at last the slot that changed it; -1 at first.
        latest: shape [slots of two steps, streams], the latest slot of each that a slot must come after, -1 at first.
        clock: of the same shape, what a slot knows to have finished; and behind them what the last slot of each stream
            knows, -1 at first.
        kept: shape [slots of two steps, streams], whether a need is implied by nothing.
        need_start to carry: as of ``Csr``.
    """
    slots, streams = len(op_class), latest.shape[1]
    known = 2 * slots
    for pair in range(0, len(after), 2):
        later, before = after[pair], after[pair + 1]
        on = stream[before]
        if on != stream[later] and before > latest[later, on]:
            latest[later, on] = before
            latest[later + slots, on] = before + slots
    for slot in range(2 * slots):
        own = slot if slot < slots else slot - slots
        mine = stream[own]
        first = 4 * op_class[own]
        instance = micro_batch[own] * copies + copy[own]
        for touch in range(start[first], start[first + 4]):
            buffer = tensor[touch] * instances + (0 if per_rank[tensor[touch]] else instance)
            last = touched[buffer, streams]
            if last != _NONE:
                on = stream[last if last < slots else last - slots]
                latest[slot, on] = max(latest[slot, on], last)
            # Reads stand before all else.
            if touch < start[first + 1]:
                touched[buffer, mine] = slot
            else:
                for on in range(streams):
                    latest[slot, on] = max(latest[slot, on], touched[buffer, on])
                    touched[buffer, on] = _NONE
                touched[buffer, streams] = slot
        # A stream is in order, so that no slot needs another of its own.
        latest[slot, mine] = _NONE
        for on in range(streams):
            # What other needs know, and the slot before on the stream.
            told = clock[known + mine, on]
            for other in range(streams):
                if latest[slot, other] != _NONE and clock[latest[slot, other], on] > told:
                    told = clock[latest[slot, other], on]
            kept[slot, on] = latest[slot, on] > told
            clock[slot, on] = max(told, latest[slot, on])
        for on in range(streams):
            clock[known + mine, on] = clock[slot, on]
    needs = 0
    for slot in range(slots):
        need_start[slot] = needs
        # The latest first.
        bound = slots
        while True:
            found = _NONE
            for on in range(streams):
                if kept[slot, on] and found < latest[slot, on] < bound:
                    found = latest[slot, on]
            if found == _NONE:
                break
            need[needs] = found
            needs += 1
            bound = found
    need_start[slots] = needs
    carried = 0
    for slot in range(slots):
        carry_start[slot] = carried
        # The earliest first.
        bound = _NONE
        while True:
            found = slots
            for on in range(streams):
                if kept[slot + slots, on] and bound < latest[slot + slots, on] < found:
                    found = latest[slot + slots, on]
            if found == slots:
                break
            carry[carried] = found
            carried += 1
            bound = found
    carry_start[slots] = carried
    return needs
