"""Roles: the slots of a rank, and their needs as compressed rows, derived from what ops read and write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from simpar.kernels import Array, kernel, part
from simpar.program.op import PER_RANK, OpClass, Tensor

# Roles: the slots of a rank, with their needs as compressed rows.

# Lists of numbers by slot, as two arrays (compressed sparse rows).


@dataclass(frozen=True, slots=True, eq=False)
class Csr:
    """Row i holds ``item[start[i]:start[i + 1]]``.

    Arguments: ``start``, shape [rows + 1], int32; ``item``, shape [items], int32.
    """

    start: NDArray[np.int32]
    item: NDArray[np.int32]

    @staticmethod
    def of(row: NDArray[np.integer[Any]], item: NDArray[np.integer[Any]], rows: int) -> Csr:
        """From pairs (row, item) in any order; the items of a row keep theirs."""
        return Csr(np.zeros(1, dtype=np.int32), np.zeros(0, dtype=np.int32)).more(row, item, rows)

    @staticmethod
    def counted(count: NDArray[np.integer[Any]], item: NDArray[np.integer[Any]]) -> Csr:
        """From how many items each row has, and the items row by row."""
        # int32 halves the memory of needs; a role with 2³¹ of them would not fit otherwise either.
        start = np.zeros(len(count) + 1, dtype=np.int32)
        np.cumsum(count, out=start[1:])
        return Csr(start, item.astype(np.int32, copy=False))

    def __len__(self) -> int:
        return len(self.start) - 1

    @property
    def count(self) -> NDArray[np.int32]:
        """Shape [rows], how many items each has."""
        # np.diff does the same, and for a small role takes as long as all else that is done with it.
        return self.start[1:] - self.start[:-1]

    def more(self, row: NDArray[np.integer[Any]], item: NDArray[np.integer[Any]], rows: int) -> Csr:
        """The lists and more items behind them: pairs (row, item) in any order; the items of a row keep theirs."""
        every = np.concatenate((self.row, row))
        order = np.argsort(every, kind='stable')
        return Csr.counted(np.bincount(every, minlength=rows), np.concatenate((self.item, item))[order])

    def fits(self, rows: int, items: int) -> bool:
        """Whether it has so many rows, of numbers from 0 and below ``items``."""
        bounds = len(self.start) == rows + 1 and self.start[0] == 0 and self.start[-1] == len(self.item)
        return bool(bounds and (self.count >= 0).all() and ((self.item >= 0) & (self.item < items)).all())

    @property
    def row(self) -> NDArray[np.int64]:
        """Shape [items], the row of each item."""
        return np.repeat(np.arange(len(self)), self.count)

    def pairs(self) -> NDArray[np.int64]:
        """Shape [items, 2], (row, item)."""
        return np.column_stack((self.row, self.item))

    def own(self, row: int) -> NDArray[np.int32]:
        """One row."""
        return self.item[self.start.item(row) : self.start.item(row + 1)]

    def items(self, row: int) -> list[int]:
        """One row as a list."""
        numbers: list[int] = self.own(row).tolist()
        return numbers

    def rows(self) -> list[tuple[int, ...]]:
        """Every row as a tuple."""
        flat = self.item.tolist()
        return [tuple(flat[begin:end]) for begin, end in pairwise(self.start.tolist())]


def ranges(first: NDArray[np.integer[Any]], lengths: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Whole numbers from each first on, so many of each, behind one another."""
    end = np.cumsum(lengths)
    return np.asarray(np.arange(end[-1] if len(end) else 0) + np.repeat(first - (end - lengths), lengths))


# A role: the op list that a set of ranks shares, as arrays in issue order.

Ints = NDArray[np.int64]
EMPTY: Ints = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Slots:
    """The slots of a role in issue order, before their needs are known; columns of shape [slots].

    Arguments: ``after``, shape [k, 2], pairs (slot, an earlier one that must have finished too, whatever the tensors
    say).
    """

    op_class: NDArray[np.uint32]
    micro_batch: NDArray[np.uint16]
    copy: NDArray[np.uint16]
    stream: NDArray[np.uint16]
    after: Ints

    @staticmethod
    def of(op_class: Ints, micro_batch: Ints, copy: Ints, stream: Ints, after: Ints) -> Slots:
        """From columns of any whole numbers."""
        wide, short = np.uint32, np.uint16
        return Slots(op_class.astype(wide), micro_batch.astype(short), copy.astype(short), stream.astype(short), after)

    def __len__(self) -> int:
        return len(self.op_class)

    @property
    def columns(self) -> tuple[NDArray[np.uint32], NDArray[np.uint16], NDArray[np.uint16], NDArray[np.uint16]]:
        """What a role keeps of them."""
        return self.op_class, self.micro_batch, self.copy, self.stream


@dataclass(frozen=True, slots=True, eq=False)
class Role:
    """The slots of one role: 14 bytes each, and 4 for each need.

    Arguments:
        name: e.g. ``stage0``.
        streams: names of the role's in-order queues; ``compute`` or the name of a communication stream.
        op_class, micro_batch, copy, stream: shape [slots], in issue order.
        need: for each slot the slots of the same step that must have finished before it, the latest first.
        carry: for each slot those of the step before, the earliest first.
    """

    name: str
    streams: tuple[str, ...]
    op_class: NDArray[np.uint32]
    micro_batch: NDArray[np.uint16]
    copy: NDArray[np.uint16]
    stream: NDArray[np.uint16]
    need: Csr
    carry: Csr

    def __len__(self) -> int:
        return len(self.op_class)

    def needs(self) -> list[tuple[int, ...]]:
        """For each slot, the slots of the same step that it needs."""
        return self.need.rows()

    def carried(self) -> list[tuple[int, ...]]:
        """For each slot, the slots of the step before that it needs."""
        return self.carry.rows()

    def by_stream(self) -> Csr:
        """For each stream, its slots in issue order."""
        # Stable, since within a stream issue order is the order that counts.
        order = np.argsort(self.stream, kind='stable')
        return Csr.counted(np.bincount(self.stream, minlength=len(self.streams)), order)


# Needs from dataflow: which slots must have finished before a slot may start, and no more of them than necessary.
#
# A slot must come after the last writer of what it reads, and after the readers and the last writer of what it writes
# or frees. A need that stream order or other needs imply is left out, so needs are the transitive reduction of that
# order. Two steps are looked at: what the second needs of the first are the carry needs.
#
# Streams are in order. So what a slot knows to have finished is one number for each stream: the latest slot there (a
# vector clock).

# Touches: which tensors op classes read and change, and which instances of them slots use.


Flags = NDArray[np.bool_]
Instance = tuple[str, int, int]


def instance(tensor: Tensor, micro_batch: int, copy: int) -> Instance:
    """The key of the buffer that a slot of this micro-batch and copy uses."""
    return (tensor.name, -1, -1) if tensor.kind in PER_RANK else (tensor.name, micro_batch, copy)


def named_by(op_classes: Iterable[OpClass], tensors: Sequence[Tensor]) -> Csr:
    """For each op class four lists: the numbers of the tensors that it reads, writes, accumulates to and frees."""
    number = {tensor.name: place for place, tensor in enumerate(tensors)}
    lists = [names for op in op_classes for names in (op.reads, op.writes, op.accumulates, op.frees)]
    item = np.array(list(map(number.__getitem__, chain.from_iterable(lists))), dtype=np.int64)
    return Csr.counted(np.array(list(map(len, lists)), dtype=np.int64), item)


_NONE: Final = -1


def derive(slots: Slots, named: Csr, per_rank: Flags, streams: int) -> tuple[Csr, Csr]:
    """Needs by slot, the latest first; and carry needs by slot, slots of the step before, the earliest first.

    Arguments: ``named``, as of ``named_by``; ``per_rank``, by tensor whether a rank has one of it, for all
    micro-batches and copies; ``streams``, how many there are.
    """
    count = len(slots)
    # On one stream, order implies every need.
    if not count or streams == 1:
        return (Csr.counted(np.zeros(count, dtype=np.int64), EMPTY),) * 2
    copies = int(slots.copy.max()) + 1
    # A tensor has buffers only where a slot touches it.
    used = np.zeros(len(named) // 4, dtype=bool)
    used[slots.op_class] = True
    buffers = np.zeros(len(per_rank), dtype=np.int64)
    buffers[named.item[np.repeat(used, named.start[4::4] - named.start[:-4:4])]] = (
        int(slots.micro_batch.max()) + 1
    ) * copies
    buffers[per_rank & (buffers > 0)] = 1
    base = buffers.cumsum() - buffers
    # A buffer has the last touch of each stream and the last change; behind all slots, streams have what they know.
    touched = np.full((int(buffers.sum()), streams + 1), _NONE, dtype=np.int32)
    clock = np.full((2 * count + streams, streams), _NONE, dtype=np.int32)
    starts, items = np.empty((2, count + 1), dtype=np.int32), np.empty((2, count * streams), dtype=np.int32)
    after = slots.after[np.argsort(slots.after[:, 0], kind='stable')]
    needs = find_needs(
        *slots.columns, named.start, named.item, per_rank, after.ravel(), copies, base, touched,
        np.empty(streams, dtype=np.int32), clock, starts[0], items[0], starts[1], items[1],
    )  # fmt: skip
    carried = starts.item(-1)
    return Csr(starts[0].copy(), items[0, :needs].copy()), Csr(starts[1].copy(), items[1, :carried].copy())


@kernel
def find_needs(
    op_class: Array, micro_batch: Array, copy: Array, stream: Array, start: Array, tensor: Array, per_rank: Array,
    after: Array, copies: int, base: Array, touched: Array, latest: Array, clock: Array, need_start: Array,
    need: Array, carry_start: Array, carry: Array,
) -> int:  # fmt: skip
    """Write needs and carry needs of every slot, in the order of ``derive``; return how many needs there are.

    Arguments:
        op_class to stream: of slots; ``copies``, how many of a micro-batch.
        base: of each tensor the first of its buffers: one for each pair of a micro-batch and a copy, or one in all.
        start, tensor: for each op class four lists, as of ``named_by``; ``per_rank``, as of ``derive``.
        after: the pairs of ``Slots.after``, one behind the other, by their later slots.
        touched: shape [buffers, streams + 1], the last slot of each stream that has read it since it was changed, and
            at last the slot that changed it; -1 at first.
        latest: shape [streams], room for the latest slot of each that a slot must come after.
        clock: shape [slots of two steps, streams], the latest slot of each stream that a slot knows to have finished;
            and behind them what the last slot of each stream knows, -1 at first.
        need_start to carry: as of ``Csr``.
    """
    slots, streams = len(op_class), len(latest)
    offset, pair, needs, carried = 2 * slots, 0, 0, 0
    for slot in range(2 * slots):
        again = slot >= slots
        own = slot - slots if again else slot
        if own == 0:
            pair = 0
        mine, first = stream[own], 4 * op_class[own]
        for on in range(streams):
            latest[on] = _NONE
        while pair < len(after) and after[pair] == own:
            before = after[pair + 1]
            latest[stream[before]] = max(latest[stream[before]], before + slot - own)
            pair += 2
        instance = micro_batch[own] * copies + copy[own]
        for touch in range(start[first], start[first + 4]):
            buffer = base[tensor[touch]] + (0 if per_rank[tensor[touch]] else instance)
            last = touched[buffer, streams]
            if last != _NONE:
                on = stream[last if last < slots else last - slots]
                latest[on] = max(latest[on], last)
            # Reads stand before all else.
            if touch < start[first + 1]:
                touched[buffer, mine] = slot
            else:
                for on in range(streams):
                    latest[on] = max(latest[on], touched[buffer, on])
                    touched[buffer, on] = _NONE
                touched[buffer, streams] = slot
        # A stream is in order, so that no slot needs another of its own.
        latest[mine] = _NONE
        # What the slot before on the stream knows, and the needs themselves.
        for on in range(streams):
            clock[slot, on] = clock[offset + mine, on]
        for other in range(streams):
            if latest[other] != _NONE:
                for on in range(streams):
                    clock[slot, on] = max(clock[slot, on], clock[latest[other], on])
        for on in range(streams):
            if latest[on] <= clock[slot, on]:
                latest[on] = _NONE
            clock[slot, on] = clock[offset + mine, on] = max(clock[slot, on], latest[on])
        if again:
            carry_start[own] = carried
            carried = _in_order(latest, slots, False, carry, carried)
        else:
            need_start[own] = needs
            needs = _in_order(latest, slots, True, need, needs)
    need_start[slots], carry_start[slots] = needs, carried
    return needs


@part
def _in_order(latest: Array, below: int, falls: bool, into: Array, count: int) -> int:
    """Write the slots below a number, the latest or the earliest first; return how many are written in all."""
    begin = count
    for slot in latest:
        if slot != _NONE and slot < below:
            place = count
            while place > begin and (into[place - 1] < slot) == falls:
                into[place] = into[place - 1]
                place -= 1
            into[place] = slot
            count += 1
    return count
