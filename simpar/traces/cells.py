"""Cells of a CSV file, some megabytes at a time, as places in its bytes: of a wide table few columns are read."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from gzip import GzipFile
from itertools import islice
from typing import IO, Final, cast

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from simpar.traces.table import Ints

BLOCK: Final = 2**20
_ROWS: Final = 2**12
# Odd numbers: the fractions of square roots of primes.
_SPREAD: Final = np.array([[0x6A09E667F3BCC909], [0xBB67AE8584CAA73B]], np.uint64)
_AGAIN: Final = np.array([[0x3C6EF372FE94F82B], [0xA54FF53A5F1D36F1]], np.uint64)
_HALF: Final = np.uint64(32)
_ALL: Final = 2**64 - 1
_WIDE: Final = 128
_COMMA, _QUOTE, _FEED, _RETURN = b',"\n\r'
_MARKS: Final = np.isin(np.arange(256), list(b',"\r\n'))
_BEFORE: Final = b'\n' * 24
"""A blank row, so that there is a byte before each cell, and of times more of them."""
_BEHIND: Final = bytes(_WIDE)
_BOM: Final = b'\xef\xbb\xbf'


@dataclass(frozen=True, eq=False)
class Cells:
    """Rows of a table, without blank ones.

    Arguments: ``data``, bytes, and the same as ``text``; ``size``, how many of them the rows take; ``ends``, places of
    what ends each cell; ``first`` and ``last``, of each row, of its cells among them.
    """

    data: bytes
    text: NDArray[np.uint8]
    size: int
    ends: Ints
    first: Ints
    last: Ints

    def __len__(self) -> int:
        return len(self.first)

    def places(self, first: int, last: int, rows: Ints | slice = slice(None)) -> tuple[Ints, Ints]:
        """Where columns from one to another begin and end in rows; of rows without them the end comes first."""
        begin = self.ends[np.minimum(self.first[rows] + first - 1, self.last[rows])] + 1
        return begin, self.ends[np.minimum(self.first[rows] + last, self.last[rows])]

    def texts(self, column: int, rows: Ints) -> list[str]:
        """A column of some rows, without quotes; empty where a row is too short."""
        begin, end = self.places(column, column, rows)
        found = [self.data[since:until].decode() for since, until in zip(begin.tolist(), end.tolist(), strict=True)]
        return [text[1:-1].replace('""', '"') if text.startswith('"') else text for text in found]

    def digests(self, columns: Sequence[tuple[int, int]]) -> list[bytes]:
        """128 bits of columns, from one to another, as they are written: alike of rows in which they are alike."""
        found = np.zeros((2, len(self)), np.uint64)
        for first, last in columns:
            begin, end = self.places(first, last)
            long = np.maximum(end - begin, 0)
            wide = min(-(-int(long.max(initial=1)) // 8) * 8, _WIDE)
            near = sliding_window_view(self.text, wide)[begin] * (np.arange(wide) < long[:, None])
            beyond = np.zeros(len(self), np.uint64)
            for row in np.flatnonzero(long > wide).tolist():
                beyond[row] = hash(self.data[begin[row] : end[row]]) & _ALL
            for word in (long.astype(np.uint64), beyond, *near.view(np.uint64).T):
                # Each step loses nothing of what it is given, and spreads it.
                found = (found ^ word) * _SPREAD
                found ^= found >> _HALF
                found = found * _AGAIN
                found ^= found >> _HALF
        digests: list[bytes] = found.T.copy().view('V16').ravel().tolist()
        return digests


def cells_of(file: IO[bytes] | GzipFile) -> Iterator[Cells]:
    """The rows of a file behind its head, as ``csv`` reads them.

    From a block on in which quotes are not as ``csv`` writes them, or that is no UTF-8, ``csv`` reads the file itself.
    Raises ``csv.Error``, ``UnicodeDecodeError`` and what reading of the file raises.
    """
    head = True
    for found in _blocks(file):
        yield replace(found, first=found.first[1:], last=found.last[1:]) if head else found
        head = head and not len(found)


def _blocks(file: IO[bytes] | GzipFile) -> Iterator[Cells]:
    begin, rest = 0, b''
    while True:
        block = file.read(BLOCK)
        rest += block
        if not begin and rest.startswith(_BOM):
            begin, rest = len(_BOM), rest[len(_BOM) :]
        found = _scanned(rest if block else rest + b'\n')
        if found is None:
            break
        yield found
        if not block:
            return
        begin, rest = begin + found.size, rest[found.size :]
    file.seek(begin)
    with io.TextIOWrapper(cast('IO[bytes]', file), encoding='utf-8', newline='') as text:
        lines = filter(None, csv.reader(text))
        while rows := list(islice(lines, _ROWS)):
            plain = io.StringIO(newline='')
            csv.writer(plain).writerows(rows)
            found = _scanned(plain.getvalue().encode())
            assert found is not None, 'csv writes quotes as they are read here'
            yield found


def _scanned(data: bytes) -> Cells | None:
    """The whole rows of a text; None where it has none, or where csv may read another thing."""
    whole = _BEFORE + data + _BEHIND
    text = np.frombuffer(whole, np.uint8)
    at = np.flatnonzero((text == _COMMA) | (text == _QUOTE) | (text == _FEED) | (text == _RETURN))
    mark = text[at]
    quotes = mark == _QUOTE
    # Behind a mark; a quote within quotes, written twice, ends them and begins them again.
    within = (np.cumsum(quotes, dtype=np.uint8) & 1).view(np.bool_)
    apart = ~(quotes | within)
    ends = at[apart]
    last = np.flatnonzero(mark[apart] != _COMMA)
    until = int(ends[last[-1]]) + 1
    opens, closes = (at[quotes & (at < until) & (within == opening)] for opening in (True, False))
    size = until - len(_BEFORE)
    if (
        (data and not size)
        or not (_MARKS[text[opens - 1]].all() and _MARKS[text[closes + 1]].all())
        or np.diff(ends[last]).max() > csv.field_size_limit()
        or not _is_text(data[:size])
    ):
        return None
    first, last = last[:-1] + 1, last[1:]
    filled = ends[last] > ends[first - 1] + 1
    return Cells(whole, text, size, ends, first[filled], last[filled])


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
