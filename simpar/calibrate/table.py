"""Tables of a profile: rows of a record with one key become one line, with its grade and what is wrong with it."""

from __future__ import annotations

import csv
import io
import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from simpar.calibrate.record import CollectiveRow, Figures, Record, Row
from simpar.hardware import Grade
from simpar.profiles import COLUMNS

MOST_SPREAD: Final = 0.1
"""A coefficient of variation above which a number is uncertain."""
FALLING: Final = 0.1
"""A larger operator may seem quicker than a smaller one by this share, of noise."""
MOST_FLAGGED: Final = 0.1
"""A table is measured if uncertain lines hold at most this share of its seconds."""
SIZES: Final[Mapping[str, tuple[int, ...]]] = {
    'matmul': (0, 1, 2),
    'attention': (2, 3),
    'operator': (2,),
    'collective': (3,),
}
"""Places in the key along which more is more work."""
Key = tuple[str | int, ...]
Take = Callable[[Figures], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a table.

    Arguments:
        seconds: what is used.
        n, median, p10, iqr, cv: of the repeats behind it, the widest spread where several rows are behind it.
        phases: seconds of each.
        flags: what is wrong, in words.
    """

    key: Key
    seconds: float
    n: int
    median: float
    p10: float
    iqr: float
    cv: float
    phases: Mapping[str, float]
    flags: tuple[str, ...] = ()

    @property
    def grade(self) -> Grade:
        """``estimate`` where something is wrong with it."""
        return 'estimate' if self.flags else 'measured'


@dataclass(frozen=True, slots=True)
class Table:
    """One kind of measurements.

    Arguments:
        kind: a key of ``COLUMNS``.
        lines: the lines in the order of their keys.
    """

    kind: str
    lines: tuple[Line, ...]

    @property
    def flagged(self) -> tuple[Line, ...]:
        """Lines that are uncertain."""
        return tuple(line for line in self.lines if line.flags)

    @property
    def grade(self) -> Grade:
        """``measured`` if the lines that are not hold little of the seconds."""
        doubtful = sum(line.seconds for line in self.flagged)
        return 'measured' if doubtful <= MOST_FLAGGED * sum(line.seconds for line in self.lines) else 'estimate'

    @property
    def spread(self) -> float:
        """The median of the lines' coefficients of variation."""
        return statistics.median(line.cv for line in self.lines)

    def name(self, line: Line) -> str:
        """A line as a person calls it."""
        return named(self.kind, line.key)

    def text(self, source: str) -> str:
        """The CSV file."""
        out = io.StringIO()
        out.write(f'# {source}\n')
        writer = csv.writer(out, lineterminator='\n')
        phases = sorted({phase for line in self.lines for phase in line.phases}) if self.kind == 'matmul' else []
        writer.writerow([*COLUMNS[self.kind], 'grade', 'n', 'median', 'p10', 'iqr', 'cv', *phases, 'flags'])
        for line in self.lines:
            spread = [line.n, *map(_short, (line.median, line.p10, line.iqr, line.cv))]
            by_phase = [_short(line.phases[phase]) if phase in line.phases else '' for phase in phases]
            writer.writerow([*line.key, _short(line.seconds), line.grade, *spread, *by_phase, '; '.join(line.flags)])
        return out.getvalue()


def named(kind: str, key: Key) -> str:
    """A line as a person calls it."""
    if kind == 'matmul':
        return '×'.join(map(str, key))
    if kind == 'attention':
        return f'{key[3]} heads of {key[1]} over {key[2]}'
    if kind == 'operator':
        return f'{key[0]}.{key[1]} of {key[2]} B'
    return f'{key[0]} of {key[3]} B among {key[1]}'


def tables_of(record: Record) -> dict[str, Table]:
    """The tables of a profile; of attention the forward alone, from which the backward is priced."""
    rows = record.tables
    # A step of many messages takes the sum of what they take usually; kernels are told by CPU time, where others on
    # the machine only ever add.
    take = usual if record.compute == 'emulated' else low
    # The backward is priced as a multiple of the forward.
    forward = [row for row in rows.attention if row.phase == 'F']
    keyed: dict[str, list[tuple[Key, Row, str]]] = {
        'matmul': [((row.m, row.n, row.k), row, row.phase) for row in rows.matmul],
        'attention': [((row.queries, row.head_dim, row.sequence, row.pairs), row, row.phase) for row in forward],
        'operator': [((row.operator, row.phase, row.bytes), row, row.phase) for row in rows.operator],
        'collective': [((row.operator, row.ranks, row.nodes, row.bytes), row, '') for row in rows.collective],
    }
    return {kind: Table(kind, _rising(kind, _lines(found, take))) for kind, found in keyed.items() if found}


def counted(row: Row) -> Figures:
    """Choose the time that counts: a kernel's CPU time hardly grows when others want the processor too.

    In steps the clock counts: a core that wakes up for an op takes time in which nothing runs.
    """
    return row.wall if isinstance(row, CollectiveRow) or row.wall.low is not None else row.cpu


def low(figures: Figures) -> float:
    """The number that is used of repeats: others on the machine only ever add time."""
    return figures.p10 if figures.low is None else figures.low


def usual(figures: Figures) -> float:
    """The number that is used of messages of emulated compute: a step waits for many, one after the other."""
    return figures.median


def _lines(found: Iterable[tuple[Key, Row, str]], take: Take) -> list[Line]:
    groups: dict[Key, list[tuple[Row, str]]] = {}
    for key, row, phase in found:
        groups.setdefault(key, []).append((row, phase))
    return [_line(key, rows, take) for key, rows in sorted(groups.items())]


def _line(key: Key, rows: Sequence[tuple[Row, str]], take: Take) -> Line:
    """The weighted mean of rows that have one key."""
    figures = [counted(row) for row, _ in rows]
    weights = [row.weight for row, _ in rows]
    phases = {phase: _mean([(row.weight, low(counted(row))) for row, its in rows if its == phase]) for _, phase in rows}
    # The widest spread: a mean would hide one bad row among good ones.
    cv = max(one.cv for one in figures)
    return Line(
        key=key,
        seconds=_mean(zip(weights, map(take, figures), strict=True)),
        n=sum(one.n for one in figures),
        median=_mean(zip(weights, [one.median for one in figures], strict=True)),
        p10=_mean(zip(weights, [one.p10 for one in figures], strict=True)),
        iqr=max(one.iqr for one in figures),
        cv=cv,
        phases=phases,
        flags=(f'varies by {cv:.0%}',) if cv > MOST_SPREAD else (),
    )


def _mean(weighted: Iterable[tuple[int, float]]) -> float:
    pairs = list(weighted)
    return sum(weight * value for weight, value in pairs) / sum(weight for weight, _ in pairs)


def _rising(kind: str, lines: Sequence[Line]) -> tuple[Line, ...]:
    """Flag the lines that are quicker than a line of less work."""
    fallen: dict[Key, Key] = {}
    for axis in SIZES[kind]:
        for smaller, larger in _neighbours(lines, axis):
            # More work cannot take less time, so one of the two is wrong; noise is allowed for.
            if larger.seconds < (1 - FALLING) * smaller.seconds:
                fallen.setdefault(larger.key, smaller.key)
    return tuple(
        replace(line, flags=(*line.flags, f'quicker than {named(kind, fallen[line.key])}'))
        if line.key in fallen
        else line
        for line in lines
    )


def _neighbours(lines: Sequence[Line], axis: int) -> Iterator[tuple[Line, Line]]:
    """Pairs of lines that differ along one axis alone, by one place."""
    rows: dict[Key, list[tuple[int, Line]]] = {}
    for line in lines:
        rows.setdefault((*line.key[:axis], *line.key[axis + 1 :]), []).append((int(line.key[axis]), line))
    for row in rows.values():
        ordered = [line for _, line in sorted(row, key=lambda pair: pair[0])]
        yield from itertools.pairwise(ordered)


def _short(value: float) -> str:
    return f'{value:.5g}'
