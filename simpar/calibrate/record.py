"""What ``python -m executor.bench`` has written, read and checked; and the tables of a profile that its rows become."""

import csv
import io
import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from simpar import errors, hardware, profiles
from simpar.document.load import read_json
from simpar.hardware.net import parse_net

FORMAT: Final = 'simpar bench 1'
EXPECTED: Final = f'expected a record of format "{FORMAT}"'
_MOST_BYTES = 2**26
Count = Annotated[int, Field(ge=1, le=2**53)]
# What is beyond these bounds is no time of anything, and fits would overflow.
Positive = Annotated[float, Field(ge=1e-12, le=1e9, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Word = Annotated[str, Field(max_length=200, pattern=r'^[^\n]*$')]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Repeats of one number: how many, their median, 10th percentile, inter-quartile range and CV.

    Arguments: ``low``, of an op in steps: its mean over the quickest steps.
    """

    n: Count
    median: Positive
    p10: Positive
    iqr: NotNegative
    cv: NotNegative
    low: Positive | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One item: seconds by the clock and of CPU time; ``weight`` in the mean of all rows with its key."""

    wall: Figures
    cpu: Figures
    weight: Count = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulRow(Row):
    """A product of ``m`` × ``k`` by ``k`` × ``n``."""

    m: Count
    n: Count
    k: Count
    phase: Literal['F', 'I', 'W']


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRow(Row):
    """Attention of ``pairs`` heads over all samples, ``queries`` of them for each key head."""

    queries: Count
    head_dim: Count
    sequence: Count
    pairs: Count
    phase: Literal['F', 'I']


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRow(Row):
    """Any other operator, by the bytes that it moves."""

    operator: Word
    phase: Literal['F', 'I', 'W', 'U']
    bytes: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRow(Row):
    """A collective, or a send, of ``bytes`` among ``ranks`` in ``nodes``."""

    operator: Literal['all_reduce', 'all_gather', 'reduce_scatter', 'all_to_all', 'send_recv', 'send']
    ranks: Annotated[int, Field(ge=2)]
    nodes: Count
    bytes: Count
    algorithm: Literal['ring', 'exchange', 'pairwise', 'direct']


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRow:
    """``streams`` all-reduces of ``ranks`` at once: ``bytes`` of each stream, and seconds until all are through."""

    streams: Annotated[int, Field(ge=2)]
    ranks: Annotated[int, Field(ge=2)]
    bytes: Count
    seconds: Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossingRow:
    """``groups`` all-reduces of ``bytes`` at once, each of ``ranks`` on as many hosts: seconds of one of them."""

    groups: Count
    ranks: Annotated[int, Field(ge=2)]
    bytes: Count
    seconds: Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRow:
    """What the host takes to issue an ``op`` in a phase, one by one or captured, and a ``step`` beside its ops."""

    mode: Literal['eager', 'graph']
    phase: Literal['F', 'I']
    op: Figures
    step: Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Sustained:
    """A product of ``size`` cubed, at the beginning and at the end of ``seconds`` of nothing else."""

    size: Count
    seconds: Positive
    early: Figures
    late: Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRow:
    """A copy of ``bytes`` to the host, or back."""

    way: Literal['host.out', 'host.in']
    bytes: Count
    seconds: Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The rows of every table; of emulated compute, of collectives alone."""

    collective: Annotated[list[CollectiveRow], Field(min_length=1)]
    matmul: list[MatmulRow] = field(default_factory=list)
    attention: list[AttentionRow] = field(default_factory=list)
    operator: list[OperatorRow] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """How many times as long something takes beside something else; no figures where it was never beside it."""

    what: Literal['matrix', 'memory', 'collective']
    beside: Word
    factor: Figures | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A bench: when, on what, with what, and what it found.

    Arguments:
        machine: the kind of machine, without names.
        memory: bytes of the machine, 0 if not known.
        net: the network as the user wrote it.
        compute: with ``emulated`` messages alone were measured, those of emulated compute.
        hosts: how many, with as many ranks each.
        device: the kind of device; ``dtype`` of what it computed, ``library`` of its messages.
    """

    format: Literal['simpar bench 1']
    date: Word
    machine: Word
    cores: Count
    memory: Annotated[int, Field(ge=0)]
    software: Mapping[str, Word]
    ranks: Annotated[int, Field(ge=2)]
    net: Word
    tables: Measured
    overlap: list[Stretch]
    notes: list[Word]
    compute: Literal['real', 'emulated'] = 'real'
    streams: list[StreamRow] = field(default_factory=list)
    hosts: Count = 1
    crossing: list[CrossingRow] = field(default_factory=list)
    device: Word = 'cpu'
    dtype: Literal['fp32', 'fp64', 'bf16', 'fp16'] = 'fp32'
    library: Word = 'gloo'
    launches: list[LaunchRow] = field(default_factory=list)
    sustained: Sustained | None = None
    copies: list[CopyRow] = field(default_factory=list)

    @property
    def per_host(self) -> int:
        """Ranks of a host."""
        return self.ranks // self.hosts


def load_record(path: Path) -> Record:
    """Read the record of a bench.

    Raises ``ScheduleError`` with what is wrong, one screen of it, if it is no such file or is cut short.
    """
    return _whole(path, read_json(path, Record, _MOST_BYTES, 'the record of a bench', EXPECTED))


def _whole(path: Path, record: Record) -> Record:
    """The record, if it has rows of every table that it needs, and hosts with as many ranks each."""
    try:
        parse_net(record.net)
    except ValueError as wrong:
        raise errors.refusal(path, f'net: {wrong}') from None
    if record.ranks % record.hosts:
        raise errors.refusal(path, f'hosts: {record.ranks} ranks are not as many on each of {record.hosts}', EXPECTED)
    missing = [name for name in ('matmul', 'attention', 'operator') if not getattr(record.tables, name)]
    if record.compute == 'real' and missing:
        raise errors.ScheduleError([errors.Problem(str(path), f'tables.{name}: no rows', EXPECTED) for name in missing])
    return record


# Tables of a profile: rows of a record with one key become one line, with its grade and what is wrong with it.

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
    def grade(self) -> hardware.Grade:
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
    def grade(self) -> hardware.Grade:
        """``measured`` if the lines that are not hold little of the seconds."""
        doubtful = sum(line.seconds for line in self.flagged)
        return 'measured' if doubtful <= MOST_FLAGGED * sum(line.seconds for line in self.lines) else 'estimate'

    @property
    def spread(self) -> float:
        """The median of the lines' coefficients of variation."""
        return statistics.median(line.cv for line in self.lines)

    def text(self, source: str) -> str:
        """The CSV file."""
        out = io.StringIO()
        out.write(f'# {source}\n')
        writer = csv.writer(out, lineterminator='\n')
        phases = sorted({phase for line in self.lines for phase in line.phases}) if self.kind == 'matmul' else []
        writer.writerow([*profiles.COLUMNS[self.kind], 'grade', 'n', 'median', 'p10', 'iqr', 'cv', *phases, 'flags'])
        for line in self.lines:
            spread = [line.n, *map(_short, (line.median, line.p10, line.iqr, line.cv))]
            by_phase = [_short(line.phases[phase]) if phase in line.phases else '' for phase in phases]
            writer.writerow([*line.key, _short(line.seconds), line.grade, *spread, *by_phase, '; '.join(line.flags)])
        return out.getvalue()


_NAMES: Final = {
    'matmul': '{}×{}×{}',
    'attention': '{3} heads of {1} over {2}',
    'operator': '{0}.{1} of {2} B',
    'collective': '{0} of {3} B among {1}',
}


def named(kind: str, key: Key) -> str:
    """A line as a person calls it."""
    return _NAMES[kind].format(*key)


def tables_of(record: Record) -> dict[str, Table]:
    """The tables of a profile; of attention the forward alone, from which the backward is priced."""
    entries: dict[str, list[Row]] = {kind: getattr(record.tables, kind) for kind in profiles.COLUMNS}
    # The backward is priced as a multiple of the forward.
    entries['attention'] = [row for row in record.tables.attention if row.phase == 'F']
    takes = {kind: of_messages(record) if kind == 'collective' else low for kind in entries}
    return {kind: Table(kind, _rising(kind, _lines(kind, rows, takes[kind]))) for kind, rows in entries.items() if rows}


def counted(row: Row) -> Figures:
    """Choose the time that counts: a kernel's CPU time hardly grows when others want the processor too.

    In steps the clock counts: a core that wakes up for an op takes time in which nothing runs.
    """
    return row.wall if isinstance(row, CollectiveRow) or row.wall.low is not None else row.cpu


def low(figures: Figures) -> float:
    """The number that is used of repeats: others on the machine only ever add time."""
    return figures.p10 if figures.low is None else figures.low


def usual(figures: Figures) -> float:
    """The middle of the repeats: a step waits for many messages, one after the other, the slow ones too."""
    return figures.median


def of_messages(record: Record) -> Take:
    """What counts of the repeats of a message: the middle one where the network paces it, or no kernel disturbs it.

    On a network that is not paced, gloo's threads want the processor, and others on the machine only ever add time.
    """
    return low if record.compute == 'real' and parse_net(record.net).kind == 'none' else usual


def _lines(kind: str, entries: Iterable[Row], take: Take) -> list[Line]:
    groups: dict[Key, list[Row]] = {}
    for row in entries:
        groups.setdefault(tuple(getattr(row, column) for column in profiles.COLUMNS[kind][:-1]), []).append(row)
    return [_line(key, rows, take) for key, rows in sorted(groups.items())]


def _line(key: Key, rows: Sequence[Row], take: Take) -> Line:
    """The weighted mean of rows that have one key."""
    figures = [counted(row) for row in rows]
    weights = [row.weight for row in rows]
    phases: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        phases.setdefault(getattr(row, 'phase', ''), []).append((row.weight, low(counted(row))))
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
        phases={phase: _mean(mine) for phase, mine in phases.items()},
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
