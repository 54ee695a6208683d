"""Needs from dataflow: which slots must have finished before a slot may start, and no more of them than necessary.

A slot must come after the last writer of what it reads, and after the readers and the last writer of what it writes or
frees. A need that stream order or other needs imply is left out, so needs are the transitive reduction of that order.
Two steps are looked at: what the second needs of the first are the carry needs.

Streams are in order. So what a slot knows to have finished is one number for each stream: the latest slot there (a
vector clock).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray

from simpar.kernels import Array, kernel
from simpar.program.csr import Csr
from simpar.program.op import OpClass
from simpar.program.role import EMPTY, Slots
from simpar.program.tensor import PER_RANK, Tensor, is_per_rank

# Touches: which tensors op classes read and change, and which instances of them slots use.


Flags = NDArray[np.bool_]
Instance = tuple[str, int, int]


def instance(tensor: Tensor, micro_batch: int, copy: int) -> Instance:
    """The key of the buffer that a slot of this micro-batch and copy uses."""
    return (tensor.name, -1, -1) if tensor.kind in PER_RANK else (tensor.name, micro_batch, copy)


@dataclass(frozen=True, eq=False)
class Touches:
    """What op classes do to tensors.

    Arguments:
        named: as of ``named_by``.
        per_rank: by tensor: whether a rank has one of it, for all micro-batches and copies.
    """

    named: Csr
    per_rank: Flags


def named_by(op_classes: Iterable[OpClass], tensors: Sequence[Tensor]) -> Csr:
    """For each op class four lists: the numbers of the tensors that it reads, writes, accumulates to and frees."""
    number = {tensor.name: place for place, tensor in enumerate(tensors)}
    lists = [names for op in op_classes for names in (op.reads, op.writes, op.accumulates, op.frees)]
    item = np.array(list(map(number.__getitem__, chain.from_iterable(lists))), dtype=np.int64)
    return Csr.counted(np.array(list(map(len, lists)), dtype=np.int64), item)


def touches_of(named: Csr, tensors: Sequence[Tensor]) -> Touches:
    """The touches of op classes. Arguments: ``named``, as of ``named_by`` with these tensors."""
    return Touches(named, np.array([is_per_rank(tensor) for tensor in tensors], dtype=bool))


_NONE: Final = -1


def derive(slots: Slots, touches: Touches, streams: int) -> tuple[Csr, Csr]:
    """Needs by slot, the latest first; and carry needs by slot, slots of the step before, the earliest first.

    Arguments: ``touches`` of the op classes; ``streams``, how many streams there are.
    """
    count = len(slots)
    # On one stream, order implies every need.
    if not count or streams == 1:
        return (Csr.counted(np.zeros(count, dtype=np.int64), EMPTY),) * 2
    own, named = slots.columns, touches.named
    copies = int(own.copy.max()) + 1
    # A tensor has buffers only where a slot touches it.
    used = np.zeros(len(named) // 4, dtype=bool)
    used[own.op_class] = True
    buffers = np.zeros(len(touches.per_rank), dtype=np.int64)
    buffers[named.item[np.repeat(used, named.start[4::4] - named.start[:-4:4])]] = (
        int(own.micro_batch.max()) + 1
    ) * copies
    buffers[touches.per_rank & (buffers > 0)] = 1
    base = buffers.cumsum() - buffers
    # A buffer has the last touch of each stream and the last change; behind all slots, streams have what they know.
    shapes = (int(buffers.sum()), streams + 1), (2 * count, streams), (2 * count + streams, streams)
    touched, latest, clock = (np.full(shape, _NONE, dtype=np.int32) for shape in shapes)
    kept = np.empty((2 * count, streams), dtype=bool)
    starts, items = np.empty((2, count + 1), dtype=np.int32), np.empty((2, count * streams), dtype=np.int32)
    needs = find_needs(
        *own, named.start, named.item, touches.per_rank, slots.after.ravel(), copies, base, touched, latest, clock,
        kept, starts[0], items[0], starts[1], items[1],
    )  # fmt: skip
    carried = starts.item(-1)
    return Csr(starts[0].copy(), items[0, :needs].copy()), Csr(starts[1].copy(), items[1, :carried].copy())


@kernel
def find_needs(
    op_class: Array, micro_batch: Array, copy: Array, stream: Array, start: Array, tensor: Array, per_rank: Array,
    after: Array, copies: int, base: Array, touched: Array, latest: Array, clock: Array, kept: Array,
    need_start: Array, need: Array, carry_start: Array, carry: Array,
) -> int:  # fmt: skip
    """Write needs and carry needs of every slot, in the order of ``derive``; return how many needs there are.

    Arguments:
        op_class to stream: of slots; ``copies``, how many of a micro-batch.
        base: of each tensor the first of its buffers: one for each pair of a micro-batch and a copy, or one in all.
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
            buffer = base[tensor[touch]] + (0 if per_rank[tensor[touch]] else instance)
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
        # What the slot before on the stream knows, and the needs themselves.
        for on in range(streams):
            clock[slot, on] = clock[known + mine, on]
        for other in range(streams):
            before = latest[slot, other]
            if before != _NONE:
                for on in range(streams):
                    clock[slot, on] = max(clock[slot, on], clock[before, on])
        for on in range(streams):
            kept[slot, on] = latest[slot, on] > clock[slot, on]
            clock[slot, on] = clock[known + mine, on] = max(clock[slot, on], latest[slot, on])
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
