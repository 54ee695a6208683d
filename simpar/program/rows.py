"""Rows that are made when they are asked for: tables of thousands of op classes or tensors, of which few are looked at.

Most rows of a large program are equal but for the layer in their names. ``like`` tells which: what depends on all else,
as a price or a size, is worked out once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, overload

import numpy as np
from numpy.typing import NDArray

Row = TypeVar('Row')


class LazyRows(Sequence[Row]):
    """A table whose rows are made on demand, each once.

    Arguments: ``make``, a row by its number; ``like``, shape [rows], for each row the first that equals it but for
    names.
    """

    def __init__(self, make: Callable[[int], Row], like: NDArray[np.int64]) -> None:
        self._make = make
        self._made: dict[int, Row] = {}
        self.like = like

    def __len__(self) -> int:
        return len(self.like)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Row, ...]: ...
    def __getitem__(self, index: int | slice) -> Row | tuple[Row, ...]:
        if isinstance(index, slice):
            return tuple(self[one] for one in range(*index.indices(len(self))))
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        number = index % len(self)
        if number not in self._made:
            self._made[number] = self._make(number)
        return self._made[number]

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, Sequence) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))


def alike(rows: Sequence[object]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows that stand for all others, and for each row which of these it equals but for names."""
    if not isinstance(rows, LazyRows):
        every = np.arange(len(rows))
        return every, every
    first, which = np.unique(rows.like, return_inverse=True)
    return first, which
