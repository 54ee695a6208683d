"""Roles: the slots of a rank, with their needs as compressed rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from simpar.kernels import Array, kernel

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
        row, item = (np.ascontiguousarray(each, dtype=np.int32) for each in (row, item))
        start, into = np.zeros(rows + 1, dtype=np.int32), np.empty(len(self.item) + len(item), dtype=np.int32)
        merge_into_rows(self.start, self.item, row, item, start, into)
        return Csr(start, into)

    def fits(self, rows: int, items: int) -> bool:
        """Whether it has so many rows, of numbers from 0 and below ``items``."""
        bounds = len(self.start) == rows + 1 and self.start[0] == 0 and self.start[-1] == len(self.item)
        return bool(bounds and (self.count >= 0).all() and ((self.item >= 0) & (self.item < items)).all())

    def without(self, index: int) -> Csr:
        """The lists less the item of this index."""
        count = self.count
        # ``row`` is taken before the count changes: both are of the list as it was.
        count[self.row[index]] -= 1
        return Csr.counted(count, np.delete(self.item, index))

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
        found: list[int] = self.own(row).tolist()
        return found

    def rows(self) -> list[tuple[int, ...]]:
        """Every row as a tuple."""
        flat = self.item.tolist()
        return [tuple(flat[begin:end]) for begin, end in pairwise(self.start.tolist())]


@kernel
def merge_into_rows(first: Array, old: Array, row: Array, item: Array, start: Array, into: Array) -> None:
    """Write where each row begins and, row by row, its old items and those that are new, in the order they came.

    Arguments: ``first`` and ``old`` as of ``Csr``; ``row`` of each new item; ``start``, zeros at first.
    """
    for one in row:
        start[one + 1] += 1
    total = 0
    for one in range(1, len(start)):
        begin, kept = 0, 0
        if one < len(first):
            begin = first[one - 1]
            kept = first[one] - begin
        count = kept + start[one]
        for place in range(kept):
            into[total + place] = old[begin + place]
        # From here on where the next new item goes, and at last where the next row begins.
        start[one] = total + kept
        total += count
    for place in range(len(row)):
        at = start[row[place] + 1]
        into[at] = item[place]
        start[row[place] + 1] = at + 1


def ranges(first: NDArray[np.integer[Any]], lengths: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Whole numbers from each first on, so many of each, behind one another."""
    end = np.cumsum(lengths)
    return np.asarray(np.arange(end[-1] if len(end) else 0) + np.repeat(first - (end - lengths), lengths))


# A role: the op list that a set of ranks shares, as arrays in issue order.

# Templates: runs of slots that a role issues many times, each time for other micro-batches.


Ints = NDArray[np.int64]
Integer = TypeVar('Integer', bound=np.integer[Any])
EMPTY: Ints = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """A run of slots, in issue order; columns of shape [slots].

    Arguments:
        op_class: index into the table of op classes.
        stream: number of the stream.
        part: which of the micro-batches that the run is issued for.
        copy: of the micro-batch.
    """

    op_class: Ints
    stream: Ints
    part: Ints
    copy: Ints

    def __len__(self) -> int:
        return len(self.op_class)


class Columns(NamedTuple):
    """What slots are, in issue order; each of shape [slots]."""

    op_class: NDArray[np.uint32]
    micro_batch: NDArray[np.uint16]
    copy: NDArray[np.uint16]
    stream: NDArray[np.uint16]


@dataclass(frozen=True, eq=False)
class Slots:
    """The slots of a role in issue order, before their needs are known: templates, block after block.

    Arguments:
        templates: each is issued at least once.
        which: shape [blocks], the template of each block.
        micro_batches: shape [blocks, parts], the micro-batch of each part of a block's template, -1 where it has fewer
            parts; no two parts of one block have the same.
        after: shape [k, 2], pairs (slot, an earlier one that must have finished too, whatever the tensors say), equal
            inside of all blocks of a template.
    """

    templates: Sequence[Template]
    which: Ints
    micro_batches: Ints
    after: Ints

    def __len__(self) -> int:
        return int(self.start[-1])

    @cached_property
    def base(self) -> Ints:
        """Shape [templates + 1], where each begins if all stand behind one another, and at last how long they are."""
        return _sums(np.array([len(template) for template in self.templates], dtype=np.int64))

    @cached_property
    def start(self) -> Ints:
        """Shape [blocks + 1], the first slot of each block, and at last the number of slots."""
        return _sums((self.base[1:] - self.base[:-1])[self.which])

    @cached_property
    def place(self) -> Ints:
        """Shape [slots], the place of each slot among those of all templates."""
        shift = self.base[self.which] - self.start[:-1]
        return np.arange(len(self)) + np.repeat(shift, self.start[1:] - self.start[:-1])

    @cached_property
    def columns(self) -> Columns:
        """What a role keeps of them."""
        return Columns(
            self.column(lambda template: template.op_class, np.uint32),
            self.micro_batch(np.uint16),
            self.column(lambda template: template.copy, np.uint16),
            self.column(lambda template: template.stream, np.uint16),
        )

    def column(self, of: Callable[[Template], Ints], kind: type[Integer]) -> NDArray[Integer]:
        """A column of all slots from that of each template, as whole numbers of some size."""
        # One gather over all slots, where a loop over blocks would run in Python.
        return np.concatenate([of(template) for template in self.templates]).astype(kind)[self.place]

    def micro_batch(self, kind: type[Integer]) -> NDArray[Integer]:
        """Shape [slots]."""
        blocks, parts = self.micro_batches.shape
        first = np.repeat(np.arange(blocks) * parts, self.start[1:] - self.start[:-1])
        part = self.column(lambda template: template.part, np.int64)
        return self.micro_batches.astype(kind).ravel()[first + part]

    def spread(self, columns: Sequence[Ints]) -> Ints:
        """What each template has, block after block."""
        return np.concatenate([columns[template] for template in self.which.tolist()] or [EMPTY])


def _sums(counts: Ints) -> Ints:
    """The sums of all before each, and at last of all."""
    found = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=found[1:])
    return found


def plain_slots(op_class: Ints, stream: Ints, micro_batch: Ints, copy: Ints, after: Ints) -> Slots:
    """Slots of one block, whose parts are the micro-batches themselves."""
    # Part i is micro-batch i, so that slots name micro-batches directly.
    parts = np.arange(int(micro_batch.max(initial=0)) + 1)[None]
    return Slots((Template(op_class, stream, micro_batch, copy),), np.zeros(1, dtype=np.int64), parts, after)


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
