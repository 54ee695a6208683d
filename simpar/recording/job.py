"""Recorded jobs: when every op of some steps started and ended, worker by worker; read from CSV or Parquet."""

import csv
import gzip
import io
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from simpar.errors import Problem, refusal, refuse
from simpar.files import read_csv, read_regular

Takes = Literal['worker', 'data', 'world', 'ends', 'send', 'recv']
"""Who takes part: the worker alone, its data ranks, all workers, the first and the last stage, or a pair of stages."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of recorded op.

    Arguments: ``name`` in files; ``takes``, who takes part; ``communicates``, whether its usual time is a median
    (of communication) or a mean (of compute); ``family``, the name that answers count it under.
    """

    name: str
    takes: Takes
    communicates: bool
    family: str


KINDS: Final = {
    row['name']: Kind(row['name'], cast('Takes', row['takes']), bool(row['communicates']), row['family'] or row['name'])
    for row in read_csv(Path(__file__).with_name('kinds.csv'))
}
"""Those of ByteDance's StragglerAnalysis traces, in the order that a step without overlapped gradients runs them.

The all-reduce of norms is among tensor ranks, of which one is recorded."""

TAIL: Final = tuple(KINDS)[tuple(KINDS).index('gc') :]
"""What runs behind the last backward, one after the other."""


# A recorded job: when every op of some steps started and ended, worker by worker.

Array = NDArray[np.float64]
Ints = NDArray[np.int64]


class RecordedOp(NamedTuple):
    """One op of one worker, in every step: ``number`` counts the ops of its kind on its worker."""

    data: int
    stage: int
    kind: str
    number: int

    @property
    def of(self) -> Kind:
        """Its kind."""
        return KINDS[self.kind]

    @property
    def text(self) -> str:
        """Its name, as of an op class."""
        return f'data{self.data}.stage{self.stage}.{self.kind}.{self.number}'


@dataclass(frozen=True, eq=False)
class RecordedJob:
    """The ops of some steps of a training job; all steps and all data ranks do the same.

    Arguments:
        ops: the N ops of a step, by worker, kind and number.
        steps: the K numbers of the steps.
        start_KN, end_KN: seconds, shape [steps, ops].
    """

    ops: tuple[RecordedOp, ...]
    steps: tuple[int, ...]
    start_KN: Array
    end_KN: Array

    @cached_property
    def data(self) -> int:
        """Data ranks."""
        return 1 + max(op.data for op in self.ops)

    @cached_property
    def stages(self) -> int:
        """Pipeline stages."""
        return 1 + max(op.stage for op in self.ops)

    @cached_property
    def number(self) -> dict[RecordedOp, int]:
        """Where an op stands among the ops."""
        return {op: number for number, op in enumerate(self.ops)}

    @cached_property
    def step_seconds(self) -> Array:
        """Seconds of each step, from its first start to its last end."""
        return np.asarray(self.end_KN.max(axis=1) - self.start_KN.min(axis=1))

    @cached_property
    def of_worker(self) -> dict[tuple[int, int], list[RecordedOp]]:
        """The ops of each worker, by data rank and stage."""
        by_worker: dict[tuple[int, int], list[RecordedOp]] = {}
        for op in self.ops:
            by_worker.setdefault((op.data, op.stage), []).append(op)
        return by_worker

    @cached_property
    def meetings(self) -> Ints:
        """Shape [ops]: the first of those that take part in an op; its own number where it is alone."""
        first: dict[tuple[object, ...], int] = {}
        return np.array([first.setdefault(_meeting(op, self.stages), at) for at, op in enumerate(self.ops)])

    def families(self) -> list[str]:
        """The names that answers count kinds under, as they run."""
        names = {op.kind for op in self.ops}
        return list(dict.fromkeys(kind.family for kind in KINDS.values() if kind.name in names))

    def where(self, chosen: Sequence[bool]) -> Ints:
        """The numbers of the chosen ops."""
        return np.flatnonzero(np.asarray(chosen))


def _meeting(op: RecordedOp, stages: int) -> tuple[object, ...]:
    """What is equal for all that take part in an op."""
    takes = op.of.takes
    if takes == 'data':
        return (op.kind, op.number, op.stage)
    if takes == 'world':
        return (op.kind, op.number)
    if takes == 'ends' and stages > 1:
        return (op.kind, op.number, op.data)
    if takes in {'send', 'recv'}:
        # A message is told by its direction, the stage that sends it, and its turn.
        forward = op.kind.startswith('forward')
        sender = op.stage if takes == 'send' else op.stage + (-1 if forward else 1)
        return ('forward' if forward else 'backward', op.number, op.data, sender)
    return (op,)


# Recorded jobs in files: CSV, also packed by gzip, or Parquet where pyarrow is installed.

COLUMNS: Final = ('dp_rank', 'stage', 'step', 'optype', 'seq_id', 'start_ts', 'duration')
"""What a file must have; ``mc``, the chunk of a stage, must be 0 or -1 where a file has it."""
MOST_BYTES: Final = 2**28
MOST_OPS: Final = 2_000_000
_Table = Mapping[str, Sequence[Any]]


def read_job(path: Path) -> RecordedJob:
    """The recorded job of a file.

    Arguments: ``path``, a CSV file with a line for each op of each step, ``.csv`` or ``.csv.gz``; or ``.parquet``.
    Raises ``ScheduleError`` that says what the file lacks.
    Does not model chunks of interleaved pipelines, nor gradients that are reduced beside the backward: it refuses them.
    """
    try:
        table = _parquet(path) if path.suffix == '.parquet' else _csv(path)
    except OSError as error:
        raise refusal(path, f'cannot be read: {error.strerror or error}') from None
    rows = _rows(path, table)
    return _regular(path, rows)


def _csv(path: Path) -> _Table:
    data = read_regular(path, MOST_BYTES)
    if path.suffix == '.gz':
        data = _unpacked(path, data)
    try:
        lines = list(csv.reader(io.StringIO(data.decode())))
    except (UnicodeDecodeError, csv.Error) as error:
        raise refusal(path, f'is no CSV file: {error}') from None
    header, *body = lines or [[]]
    uneven = next((at for at, line in enumerate(body, 2) if line and len(line) != len(header)), None)
    if uneven is not None:
        got = len(body[uneven - 2])
        raise refusal(f'{path}:{uneven}', f'{got} cells, and the first line names {len(header)} columns')
    return dict(zip(header, zip(*filter(None, body), strict=True), strict=False)) or dict.fromkeys(header, ())


def _unpacked(path: Path, data: bytes) -> bytes:
    """What a gzip file holds, up to a bound: a small file may hold an endless one."""
    try:
        with gzip.open(io.BytesIO(data)) as packed:
            content = packed.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise refusal(path, f'is no gzip file: {error}') from None
    if len(content) > MOST_BYTES:
        raise refusal(path, f'holds more than {MOST_BYTES} bytes', 'write fewer steps')
    return content


def _parquet(path: Path) -> _Table:
    if find_spec('pyarrow') is None:
        raise refusal(path, 'Parquet is read by pyarrow, which is not installed', 'pip install pyarrow, or write CSV')
    from pyarrow import ArrowException, BufferReader, parquet

    try:
        table = parquet.read_table(BufferReader(read_regular(path, MOST_BYTES)))
    except ArrowException as error:
        raise refusal(path, f'is no Parquet file: {error}') from None
    return {name: table.column(name).to_pylist() for name in table.column_names}


def _rows(path: Path, table: _Table) -> list[tuple[int, RecordedOp, float, float]]:
    """(step, op, start, end) of every line."""
    lacks = [name for name in COLUMNS if name not in table]
    if lacks:
        has = ', '.join(list(table)[:12]) or 'nothing'
        raise refusal(path, f'lacks the columns {", ".join(lacks)} (got {has})', _SAY_COLUMNS)
    columns = [table[name] for name in COLUMNS]
    if not len(columns[0]):
        raise refusal(path, 'holds no op', _SAY_COLUMNS)
    if len(columns[0]) > MOST_OPS:
        raise refusal(path, f'holds {len(columns[0])} ops', f'write at most {MOST_OPS}')
    problems = []
    if any(str(chunk) not in {'', '0', '-1', 'None'} for chunk in table.get('mc', ())):
        what = 'stages of several chunks are not replayed'
        problems.append(Problem(f'{path}: mc', what, 'record a job with one chunk a stage'))
    rows = []
    for line, cells in enumerate(zip(*columns, strict=True), 2):
        try:
            rows.append(_row(*cells))
        except ValueError as error:
            problems.append(Problem(f'{path}:{line}', str(error)))
        if len(problems) >= MOST_TOLD:
            break
    refuse(problems)
    return rows


_SAY_COLUMNS: Final = f'write one line for each op of each step, with the columns {", ".join(COLUMNS)}'
MOST_TOLD: Final = 20


def _row(*cells: Any) -> tuple[int, RecordedOp, float, float]:
    data, stage, step, kind, number, start, lasts = cells
    if kind not in KINDS:
        raise ValueError(f'optype: no kind of recorded op (got {str(kind)[:40]!r}); write one of {", ".join(KINDS)}')
    places = [_whole(*pair) for pair in (('dp_rank', data), ('stage', stage), ('step', step), ('seq_id', number))]
    begin, seconds = _seconds('start_ts', start), _seconds('duration', lasts)
    if seconds < 0:
        raise ValueError(f'duration: below 0 (got {lasts}); write seconds')
    return places[2], RecordedOp(places[0], places[1], kind, places[3]), begin, begin + seconds


def _whole(column: str, cell: Any) -> int:
    try:
        number = int(cell)
    except (TypeError, ValueError):
        number = -1
    if not 0 <= number < 2**31:
        raise ValueError(f'{column}: no whole number from 0 on (got {str(cell)[:40]!r})')
    return number


def _seconds(column: str, cell: Any) -> float:
    try:
        seconds = float(cell)
    except (TypeError, ValueError):
        seconds = float('nan')
    # Beyond that the clock's grid no longer holds a double.
    if not abs(seconds) < 2**40:
        raise ValueError(f'{column}: no number of seconds (got {str(cell)[:40]!r})')
    return seconds


def _regular(path: Path, rows: list[tuple[int, RecordedOp, float, float]]) -> RecordedJob:
    """The job, where every step has the same ops, and every data rank."""
    steps = {step: at for at, step in enumerate(sorted({row[0] for row in rows}))}
    # As a step runs them, so that every answer lists them alike.
    turn = {kind: at for at, kind in enumerate(KINDS)}
    ops = sorted({row[1] for row in rows}, key=lambda op: (op.data, op.stage, turn[op.kind], op.number))
    number = {op: at for at, op in enumerate(ops)}
    start = np.full((len(steps), len(ops)), np.nan)
    end = start.copy()
    for step, op, begin, finish in rows:
        start[steps[step], number[op]] = begin
        end[steps[step], number[op]] = finish
    missing = np.argwhere(np.isnan(start))
    problems = list(_uneven(path, ops))
    if len(missing):
        (step, place), such = missing[0], f'which other steps have ({len(missing)} such)'
        what = f'step {[*steps][step]} lacks {ops[place].text}, {such}'
        problems.insert(0, Problem(str(path), what, 'leave out steps that are not whole'))
    if len(rows) > start.size - len(missing):
        instead = 'write one line for each step, worker, optype and seq_id'
        problems.append(Problem(str(path), 'has an op twice', instead))
    refuse(problems)
    return RecordedJob(tuple(ops), tuple(steps), start, end)


def _uneven(path: Path, ops: Sequence[RecordedOp]) -> Iterator[Problem]:
    """Workers that are not there, data ranks that do other things, and messages that nobody takes."""
    op_set = set(ops)
    data, stages = 1 + max(op.data for op in ops), 1 + max(op.stage for op in ops)
    if data * stages > len(ops):
        yield Problem(str(path), f'{data} data ranks × {stages} stages, and {len(ops)} ops', 'count both from 0')
        return
    for op in ops:
        first = op._replace(data=0)
        if first not in op_set or op._replace(data=data - 1) not in op_set:
            yield Problem(str(path), f'{op.text}: other data ranks have no such op', 'record all data ranks')
            return
        peer = peer_of(op, stages)
        if peer is not None and peer not in op_set:
            yield Problem(str(path), f'{op.text}: nobody takes part in it; {peer.text} is missing')
            return


def peer_of(op: RecordedOp, stages: int) -> RecordedOp | None:
    """Who else takes part in a message."""
    takes = op.of.takes
    if takes == 'ends' and stages > 1:
        return op._replace(stage=stages - 1 - op.stage)
    if takes not in {'send', 'recv'}:
        return None
    step = 1 if op.kind in {'forward-send', 'backward-recv'} else -1
    words = ('send', 'recv') if takes == 'send' else ('recv', 'send')
    return op._replace(stage=op.stage + step, kind=op.kind.replace(*words))
