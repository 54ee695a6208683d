"""Rows that are made when they are asked for: tables of thousands of op classes or tensors, of which few are looked at.

Most rows of a large program are equal but for the layers in their names, and how many names they list. What depends on
all else, as a price or a size, is worked out once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import Any, Final, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from simpar.kept import Facts
from simpar.program.csr import Csr

Ints = NDArray[np.int64]
Row = TypeVar('Row')
Value = TypeVar('Value', bound=np.generic)


class LazyRows(Sequence[Row]):
    """A table whose rows are made on demand, each once.

    Arguments:
        make: a row by its number.
        stand: the same, or a row that equals it but for its name and those that it lists, which costs less to make.
        like: shape [rows], for each row the first that equals it but for names.
        named: of op classes, rows of another table and, for each op class, four lists of those that it reads, writes,
            accumulates to and frees.
    """

    def __init__(
        self,
        make: Callable[[int], Row],
        stand: Callable[[int], Row],
        like: Ints,
        named: tuple[Sequence[object], Csr] | None = None,
    ) -> None:
        self._make = make
        self._made: dict[int, Row] = {}
        self._stand = stand
        self.like = like
        self.named = named
        self._kept: dict[Hashable, NDArray[Any]] = {}

    @cached_property
    def distinct(self) -> tuple[list[Row], Ints]:
        """The rows that differ in more than names, as ``stand`` gives them, and for each row which of them it is."""
        # A row that is the first of its kind is like itself: so they are numbered without sorting.
        is_first = self.like == np.arange(len(self.like))
        which = (np.cumsum(is_first) - 1)[self.like]
        return [self._stand(one) for one in np.flatnonzero(is_first).tolist()], which

    def stand(self, index: int) -> Row:
        """A row that equals the one of this number but for names and how many it lists."""
        rows, which = self.distinct
        found: Row = rows[which.item(index)]
        return found

    def keep(self, name: Hashable, make: Callable[[], NDArray[Value]]) -> NDArray[Value]:
        """A column that is worked out once: programs of a sweep share tables.

        Arguments: ``name``, of the column, and all that it depends on besides these rows.
        """
        if name not in self._kept:
            self._kept[name] = make()
        found: NDArray[Value] = self._kept[name]
        return found

    def __len__(self) -> int:
        return len(self.like)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Row, ...]: ...
    def __getitem__(self, index: int | slice) -> Row | tuple[Row, ...]:
        if isinstance(index, slice):
            return tuple([self[one] for one in range(*index.indices(len(self)))])
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


def like_of(rows: Sequence[object]) -> Ints:
    """Shape [rows], for each row one that equals it but for names, the same for all that do; itself where unknown."""
    return rows.like if isinstance(rows, LazyRows) else np.arange(len(rows))


def distinct_rows(rows: Sequence[Row]) -> tuple[Sequence[Row], Ints | slice]:
    """Rows that differ in more than names, as ``stand`` gives them, and which of them each row is."""
    return rows.distinct if isinstance(rows, LazyRows) else (rows, slice(None))


def column(rows: Sequence[Row], of: Callable[[Row], Any], kind: type[Value]) -> NDArray[Value]:
    """Shape [rows], what each row says. Arguments: ``of``, a number of a row that does not depend on names."""
    if not isinstance(rows, LazyRows):
        return np.array([of(row) for row in rows], dtype=kind)
    distinct, which = rows.distinct
    return np.array([of(row) for row in distinct], dtype=kind)[which]


def kept_column(rows: Sequence[Row], of: Callable[[Row], Any], kind: type[Value]) -> NDArray[Value]:
    """The same, worked out once for a table: each of its roles asks.

    Arguments: ``of``, a function of a module, for one that is made anew would be another each time.
    """
    if isinstance(rows, LazyRows):
        return rows.keep((of, kind), lambda: column(rows, of, kind))
    # Of a list somebody might change the rows.
    if not isinstance(rows, tuple):
        return column(rows, of, kind)
    known = _columns(rows)
    if (of, kind) not in known:
        known[of, kind] = column(rows, of, kind)
    return known[of, kind]


_columns: Final[Facts[tuple[Any, ...], dict[Hashable, NDArray[Any]]]] = Facts(lambda rows: {}, 8)
"""The columns of a few tables: those of a plan and of its baseline, op classes and tensors."""


def stand(rows: Sequence[Row], index: int) -> Row:
    """A row, or one that equals it but for names and how many it lists."""
    return rows.stand(index) if isinstance(rows, LazyRows) else rows[index]
