"""Lists of numbers by slot, as two arrays (compressed sparse rows)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simpar.kernels import Array, kernel


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
