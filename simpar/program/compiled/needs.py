"""The kernel that finds needs: one walk over the slots of two steps, in issue order."""

from __future__ import annotations

from typing import Final

from simpar.jit import Array, kernel

HELPERS: Final = 'c2ca1a8d1f7409ff'
"""Of the files without this line, as a test says it: numba's cache on disk looks at a kernel's own file alone."""
_NONE: Final = -1


@kernel
def find_needs(
    op_class: Array, stream: Array, instance: Array, start: Array, tensor: Array, changes: Array, per_rank: Array,
    waits: Array, waited: Array, instances: int, change: Array, read: Array, latest: Array, clock: Array, known: Array,
    kept: Array, need_start: Array, need: Array, carry_start: Array, carry: Array,
) -> int:  # fmt: skip
    """Write needs and carry needs of every slot, in the order of ``derive``; return how many needs there are.

    Arguments:
        op_class, stream: of slots; ``instance``, the number of the micro-batch and copy, of so many ``instances``.
        start to per_rank: as of ``Touches``.
        waits, waited: the two columns of ``Slots.after``.
        change: of each buffer the last slot that changed it, -1 at first.
        read: shape [buffers, streams], the last slot of each stream that has read it since, -1 at first.
        latest: shape [slots of two steps, streams], the latest slot of each that a slot must come after, -1 at first.
        clock: of the same shape, what a slot knows to have finished.
        known: shape [streams, streams], what the last slot of each stream knows, -1 at first.
        kept: shape [slots of two steps, streams], whether a need is implied by nothing.
        need_start to carry: as of ``Csr``.
    """
    slots, streams = len(op_class), known.shape[0]
    for pair in range(len(waits)):
        later, before = waits[pair], waited[pair]
        on = stream[before]
        if on != stream[later] and before > latest[later, on]:
            latest[later, on] = before
            latest[later + slots, on] = before + slots
    for slot in range(2 * slots):
        own = slot % slots
        mine = stream[own]
        for touch in range(start[op_class[own]], start[op_class[own] + 1]):
            buffer = tensor[touch] * instances
            if not per_rank[tensor[touch]]:
                buffer += instance[own]
            last = change[buffer]
            if last != _NONE and last > latest[slot, stream[last % slots]]:
                latest[slot, stream[last % slots]] = last
            if changes[touch]:
                change[buffer] = slot
                for on in range(streams):
                    latest[slot, on] = max(latest[slot, on], read[buffer, on])
                    read[buffer, on] = _NONE
            else:
                read[buffer, mine] = slot
        # A stream is in order, so that no slot needs another of its own.
        latest[slot, mine] = _NONE
        for on in range(streams):
            # What other needs know, and the slot before on the stream.
            told = known[mine, on]
            for other in range(streams):
                if latest[slot, other] != _NONE and clock[latest[slot, other], on] > told:
                    told = clock[latest[slot, other], on]
            kept[slot, on] = latest[slot, on] > told
            clock[slot, on] = max(told, latest[slot, on])
        for on in range(streams):
            known[mine, on] = clock[slot, on]
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
