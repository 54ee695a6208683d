"""What ``python -m executor.bench`` has written, read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field

from simpar.errors import Problem, ScheduleError
from simpar.files import read_regular

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails

FORMAT: Final = 'simpar bench 1'
EXPECTED: Final = f'expected a record of format "{FORMAT}"'
_MOST_PROBLEMS = 12
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

    @property
    def per_host(self) -> int:
        """Ranks of a host."""
        return self.ranks // self.hosts


def load_record(path: Path) -> Record:
    """Read the record of a bench.

    Raises ``ScheduleError`` with what is wrong, one screen of it, if it is no such file or is cut short.
    """
    from pydantic import ValidationError

    try:
        return _whole(path, _adapter().validate_json(read_regular(path, _MOST_BYTES), strict=True))
    except OSError as error:
        raise ScheduleError(Problem(str(path), f'cannot be read: {error.strerror}')) from error
    except ValidationError as error:
        # The input may be a whole table, which would fill the screen.
        found = error.errors(include_url=False, include_input=False)
        problems = [_problem(path, one) for one in found[:_MOST_PROBLEMS]]
        if len(found) > _MOST_PROBLEMS:
            problems.append(Problem(str(path), f'and {len(found) - _MOST_PROBLEMS} more'))
        raise ScheduleError(problems) from error


def _whole(path: Path, record: Record) -> Record:
    """The record, if it has rows of every table that it needs, and hosts with as many ranks each."""
    if record.ranks % record.hosts:
        what = f'hosts: {record.ranks} ranks are not as many on each of {record.hosts}'
        raise ScheduleError(Problem(str(path), what, EXPECTED))
    missing = [name for name in ('matmul', 'attention', 'operator') if not getattr(record.tables, name)]
    if record.compute == 'real' and missing:
        raise ScheduleError([Problem(str(path), f'tables.{name}: no rows', EXPECTED) for name in missing])
    return record


def _adapter() -> TypeAdapter[Record]:
    from pydantic import TypeAdapter

    return TypeAdapter(Record)


def _problem(path: Path, error: ErrorDetails) -> Problem:
    """What pydantic found, in our words; a file that is no JSON has one error and no place."""
    place = '.'.join(str(part) for part in error['loc'])
    what = error['msg'][0].lower() + error['msg'][1:]
    return Problem(str(path), f'{place}: {what}' if place else what, EXPECTED)
