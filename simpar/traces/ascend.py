"""What torch_npu's, MindSpore's and CANN's profilers export; docs/proofs/ascend_recordings.md has the columns."""

import csv
import io
import json
import re
import zlib
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from gzip import GzipFile
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, Final, cast

import msgspec
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from simpar.errors import refusal
from simpar.files import read_regular
from simpar.traces.stream import Plain, Stream, opened
from simpar.traces.table import COMMUNICATION, COMPUTE, NO_STEP, Ints, Kernels, Listed, RankTrace

MOST_BYTES: Final = 2**31
COMPUTING: Final = frozenset({
    'AI_CORE', 'AI_VECTOR_CORE', 'MIX_AIC', 'MIX_AIV', 'AI_CPU', 'DSA_SQE', 'N/A', 'AIV_SQE', 'KERNEL_AICORE',
    'KERNEL_AIVEC', 'KERNEL_AICPU', 'KERNEL_MIX_AIC', 'KERNEL_MIX_AIV',
})  # fmt: skip
"""Cores whose tasks compute; at Level0 no core is told, and what is no collective computes."""
TALKING: Final = frozenset({'HCCL', 'COMMUNICATION'})
COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    # What is read: its name in kernel_details.csv, then in msprof's op_summary.csv, whatever its case; units behind it.
    'device': ('Device_id', 'Device Id'),
    'name': ('Name', 'Op Name', 'Kernel Name'),
    'type': ('Type', 'Op Type'),
    'core': ('Accelerator Core', 'Task Type'),
    'begin': ('Start Time', 'Task Start Time'),
    'lasts': ('Duration', 'Task Duration'),
    'stream': ('Stream Id',),
    'step': ('Step Id', 'Step'),
    'shapes': ('Input Shapes', 'Input Shape'),
    'results': ('Output Shapes', 'Output Shape'),
}
NEEDED: Final = ('name', 'begin', 'lasts')
_TIMES: Final = ('begin', 'lasts')
_ALIKE: Final = tuple(key for key in COLUMNS if key not in _TIMES)
TOTALS: Final[Mapping[str, str]] = {
    # A figure of ours: its column in step_trace_time.csv.
    'span': 'Stage',
    'computing': 'Computing',
    'communication': 'Communication',
    'overlapped': 'Overlapped',
    'exposed': 'Communication(Not Overlapped)',
    'idle': 'Free',
}
UNITS: Final = {'': 1000, 'us': 1000, 'ns': 1, 'ms': 1_000_000}
"""Nanoseconds of the units that stand in brackets behind a column of times."""
_MOST_DIGITS: Final = 16
"""Of microseconds since 1970, until the year 2286."""
_MOST: Final = 2**62
"""Nanoseconds, of which two are an integer of 64 bits: until the year 2116."""
_PLACES: Final = {1: 0, 1000: 3, 1_000_000: 6}
"""Decimal places that tell nanoseconds, by unit."""
_POINT, _TAB, _ZERO = b'.\t0'
_LEFT_OUT: Final = -1
_NEW: Final = -2
_NO_STEPS: Final = frozenset({'', 'N/A'})
_GROUP = re.compile(r'__(\d+)_\d+(?:_\d+)?$')
_RANK = re.compile(r'_(\d+)$')


def nanoseconds(text: str, unit: int = 1000) -> int:
    """Microseconds as exports write them, ``1700000000881410.320<TAB>``, exactly: a double would lose 0.25 us.

    Arguments: ``unit``, nanoseconds of what the text counts. Raises ``ValueError`` for what is no number.
    """
    whole, _, part = text.strip().partition('.')
    both, digits = whole + part, whole.removeprefix('-')
    if unit == 1000 and len(part) == 3 and len(whole) <= _MOST_DIGITS and both.isdecimal():
        number = int(both)
    elif not digits.isdecimal() or len(digits) > _MOST_DIGITS + 3 * (unit == 1) or (part and not part.isdecimal()):
        raise ValueError(f'no number of microseconds: {text!r}')
    else:
        number = int(whole) * unit + int((part + '0' * 9)[:9]) * unit // 10**9 * (-1 if whole.startswith('-') else 1)
    if abs(number) >= _MOST:
        raise ValueError(f'no time before the year 2116: {text!r}')
    return number


def duration(text: str, unit: int = 1000) -> int:
    """The same of what lasts. Raises ``ValueError`` for what is below 0, too."""
    lasts = nanoseconds(text, unit)
    if lasts < 0:
        raise ValueError(f'a duration below 0: {text!r}')
    return lasts


def columns_of(head: Sequence[str]) -> tuple[dict[str, int], dict[str, int]]:
    """Where each column that is read stands, and the nanoseconds of its unit."""
    named: dict[str, tuple[int, int]] = {}
    for at, cell in enumerate(head):
        name, _, unit = cell.strip().rstrip(')').partition('(')
        named.setdefault(name.strip().lower(), (at, UNITS.get(unit.strip().lower(), 0)))
    candidates = {
        key: next((named[one.lower()] for one in names if one.lower() in named), None) for key, names in COLUMNS.items()
    }
    columns = {key: one for key, one in candidates.items() if one and (one[1] or key not in NEEDED)}
    return {key: at for key, (at, _) in columns.items()}, {key: unit for key, (_, unit) in columns.items()}


@contextmanager
def rows_of(path: Path) -> Iterator[tuple[list[str], Iterator[list[str]]]]:
    """Head and rows of a CSV file, ``.gz`` or not, row by row; without the byte order mark that some exports have."""
    with _table(path) as file, io.TextIOWrapper(cast('IO[bytes]', file), encoding='utf-8-sig', newline='') as text:
        lines = filter(None, csv.reader(text))
        head, first = next(lines, []), next(lines, None)
        if first is None:
            raise refusal(path, 'has no row', 'record at least one step')
        yield [cell.strip() for cell in head], chain([first], lines)


@contextmanager
def _table(path: Path) -> Iterator[IO[bytes] | GzipFile]:
    """A file that is read as CSV; what is none is refused."""
    try:
        with opened(path) as file:
            yield file
    except csv.Error as error:
        raise refusal(path, f'is no table: {error}', 'export it again') from None
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise refusal(path, f'cannot be read: {error}', 'export it again') from None


# Cells of a CSV file, some megabytes at a time, as places in its bytes: of a wide table few columns are read.


BLOCK: Final = 2**20
_ROWS: Final = 2**12
_COMMA, _QUOTE, _FEED, _RETURN = b',"\n\r'
_MARKS: Final = np.isin(np.arange(256), list(b',"\r\n'))
_BEFORE: Final = b'\n' * 24
"""A blank row, so that there is a byte before each cell, and of times more of them."""
_BEHIND: Final = bytes(8)
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

    def keys(self, columns: Sequence[tuple[int, int]]) -> list[tuple[bytes, ...]]:
        """Columns, from one to another, as they are written: alike of rows in which they are alike."""
        parts = []
        for first, last in columns:
            places = (edge.tolist() for edge in self.places(first, last))
            parts.append([self.data[begin:end] for begin, end in zip(*places, strict=True)])
        return list(zip(*parts, strict=True))


def cells_of(file: IO[bytes] | GzipFile) -> Iterator[Cells]:
    """The rows of a file behind its head, as ``csv`` reads them.

    From a block on in which quotes are not as ``csv`` writes them, or that is no UTF-8, ``csv`` reads the file itself.
    Raises ``csv.Error``, ``UnicodeDecodeError`` and what reading of the file raises.
    """
    head = True
    for cells in _blocks(file):
        yield replace(cells, first=cells.first[1:], last=cells.last[1:]) if head else cells
        head = head and not len(cells)


def _blocks(file: IO[bytes] | GzipFile) -> Iterator[Cells]:
    begin, rest = 0, b''
    while True:
        block = file.read(BLOCK)
        rest += block
        if not begin and rest.startswith(_BOM):
            begin, rest = len(_BOM), rest[len(_BOM) :]
        cells = _scanned(rest if block else rest + b'\n')
        if cells is None:
            break
        yield cells
        if not block:
            return
        begin, rest = begin + cells.size, rest[cells.size :]
    file.seek(begin)
    with io.TextIOWrapper(cast('IO[bytes]', file), encoding='utf-8', newline='') as text:
        lines = filter(None, csv.reader(text))
        while rows := list(islice(lines, _ROWS)):
            plain = io.StringIO(newline='')
            csv.writer(plain).writerows(rows)
            cells = _scanned(plain.getvalue().encode())
            assert cells is not None, 'csv writes quotes as they are read here'
            yield cells


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


# kernel_details.csv and op_summary_*.csv: rows of kernels.


def read_kernel_details(path: Path) -> list[RankTrace]:
    """Of ``kernel_details.csv``, or of msprof's ``op_summary_*.csv``: a row a kernel.

    A rank's, or, where rows of several devices are in one table, as msprof has them, a recording of each device.
    """
    steps: dict[str, int] = {}
    strange: set[str] = set()
    with rows_of(path) as (head, _):
        place, unit = _places(path, head)
    tables = _ranks(path, _listed(path, place, unit, steps, strange), strange)
    stepless = sum(int((table.step == NO_STEP).sum()) for _, table in tables)
    left = (f'{stepless} tasks of no step are left out',) if steps and stepless else ()
    return [
        RankTrace(
            source=str(path),
            format='kernel_details.csv',
            rank=rank,
            kernels=table,
            steps=tuple(steps),
            notes=(*not_known(strange), *left),
        )
        for rank, table in tables
    ]


def _listed(
    path: Path, place: Mapping[str, int], unit: Mapping[str, int], steps: dict[str, int], strange: set[str]
) -> Listed:
    """The rows of all devices. Arguments: as ``_places`` has them; ``steps`` and ``strange`` are filled."""
    listing, number = Listed(), 2
    columns = [place.get(key) for key in _ALIKE]
    parts = _side_by_side([column for column in columns if column is not None])
    # The code of rows that differ by their times alone, by what is written in their other columns.
    codes: dict[tuple[bytes, ...], int] = {}
    with _table(path) as file:
        for cells in cells_of(file):
            alike = cells.keys(parts)
            code = np.array([codes.get(one, _NEW) for one in alike], dtype=np.int64)
            new = np.flatnonzero(code == _NEW)
            texts = ([''] * len(new) if column is None else cells.texts(column, new) for column in columns)
            for row, one in zip(new.tolist(), zip(*texts, strict=True), strict=True):
                if alike[row] not in codes:
                    codes[alike[row]] = _code(one, steps, listing, strange)
                code[row] = codes[alike[row]]
            rows = code != _LEFT_OUT
            (begin, plain), (lasts, also) = (_plain(cells, place[key], unit[key]) for key in _TIMES)
            odd = np.flatnonzero(rows & ~(plain & also))
            written = (cells.texts(place[key], odd) for key in _TIMES)
            try:
                for row, since, lasting in zip(odd.tolist(), *written, strict=True):
                    begin[row] = nanoseconds(since, unit['begin'])
                    lasts[row] = duration(lasting, unit['lasts'])
            except ValueError as error:
                raise refusal(f'{path}:{number + row}', f'{error}; write it as the export has it') from None
            listing.extend(begin[rows], (begin + lasts)[rows], code[rows])
            number += len(cells)
    return listing


def _side_by_side(places: Collection[int]) -> list[tuple[int, int]]:
    """The first and the last of columns that stand side by side."""
    spans: list[tuple[int, int]] = []
    for place in sorted(places):
        first = spans.pop()[0] if spans and spans[-1][1] == place - 1 else place
        spans.append((first, place))
    return spans


def _plain(cells: Cells, column: int, unit: int) -> tuple[Ints, NDArray[np.bool_]]:
    """Nanoseconds of a column of times, and which of them are digits with a point or without, a TAB behind them."""
    places = _PLACES[unit]
    whole = _MOST_DIGITS + 3 - places
    begin, end = cells.places(column, column)
    end = end - (cells.text[end - 1] == _TAB)
    point = end
    for back in range(1, places + 2):
        point = np.where(cells.text[end - back] == _POINT, end - back, point)
    # As many bytes before each point, and behind it.
    near = sliding_window_view(cells.text, whole + 1 + places)[point - whole]
    at = np.arange(whole + 1 + places)
    digit = (at >= (whole - point + begin)[:, None]) & (at < (whole - point + end)[:, None]) & (at != whole)
    digits = np.where(digit, near - _ZERO, 0)
    plain = (point > begin) & (point - begin <= whole) & (digits <= 9).all(axis=1)
    powers = 10 ** (whole + places - at - (at < whole)).astype(np.uint64)
    numbers = digits.astype(np.uint64) @ powers
    return numbers.astype(np.int64), plain & (numbers < _MOST)


def _code(texts: Sequence[str], steps: dict[str, int], rows: Listed, strange: set[str]) -> int:
    """The number of what a row says but for its times; ``_LEFT_OUT`` where it is of neither kind.

    Arguments: ``texts``, the cells of ``_ALIKE``; ``steps``, ``rows`` and ``strange`` are filled.
    """
    device, name, kind, core, stream, step, shapes, results = map(str.strip, texts)
    core = core.upper()
    talks = core in TALKING or name.startswith('hcom_') or kind.startswith('hcom_')
    if not talks and core and core not in COMPUTING:
        strange.add(core)
        return _LEFT_OUT
    at = steps.setdefault(step, len(steps)) if step not in _NO_STEPS else NO_STEP
    group = _GROUP.search(name) if talks else None
    what = COMMUNICATION if talks else COMPUTE
    # The device is none of a table's columns.
    return rows.code(what, at, name, kind, stream, group[1] if group else '', shapes, results, device)


def _places(path: Path, head: Sequence[str]) -> tuple[dict[str, int], dict[str, int]]:
    """Where each column stands, and the nanoseconds of its unit; those that are needed once."""
    place, unit = columns_of(head)
    if lacking := [COLUMNS[key][0] for key in NEEDED if key not in place]:
        raise refusal(path, f'has no column {", ".join(lacking)}', 'export it again with CANN')
    if twice := [head[place[key]] for key in NEEDED if head.count(head[place[key]]) > 1]:
        what = f'has more than one column {", ".join(twice)}'
        raise refusal(path, what, 'leave the one out that is not of the export')
    return place, unit


def _ranks(path: Path, rows: Listed, strange: Collection[str]) -> list[tuple[int, Kernels]]:
    """The kernels of each device, by its number; of one device alone, rank 0."""
    if not rows.known:
        what = f'has no task that computes or communicates, but {", ".join(sorted(strange))}'
        raise refusal(path, what, 'record at least one step on the device')
    device_of = np.array([device for *_, device in rows.known], dtype=np.object_)
    devices = set(device_of.tolist())
    if len(devices - {''}) < 2:
        # What says no device is of the only one.
        return [(0, rows.kernels())]
    if not all(device.isdecimal() for device in devices):
        raise refusal(path, 'has several devices, and rows that name none', 'export it again')
    return [(int(device), rows.kernels(device_of == device)) for device in sorted(devices, key=int)]


def not_known(cores: Collection[str]) -> tuple[str, ...]:
    """What is said of tasks of cores that are not known to compute."""
    return (f'tasks of {", ".join(sorted(cores))} neither compute nor communicate',) if cores else ()


def read_step_times(path: Path) -> list[RankTrace]:
    """Of ``step_trace_time.csv``: the profiler's own totals, a rank's or, of a cluster's analysis, each rank's."""
    ranks: dict[int, list[tuple[str, dict[str, float]]]] = {}
    with rows_of(path) as (head, rows):
        lines = list(rows)
    lacking = [column for column in TOTALS.values() if column not in head]
    if lacking:
        raise refusal(path, f'has no column {", ".join(lacking)}', 'export it again with CANN')
    device = head.index('Device_id') if 'Device_id' in head else None
    several = device is not None and len({line[device] for line in lines if len(line) > device}) > 1
    for number, line in enumerate(lines, 2):
        cells = dict(zip(head, line, strict=False))
        if cells.get('Type', 'rank').strip() != 'rank':
            continue
        try:
            rank = int(cells.get('Index') or (cells['Device_id'] if several else 0))
            total = {key: float(cells[column]) * 1000 for key, column in TOTALS.items()}
        except (KeyError, ValueError):
            raise refusal(f'{path}:{number}', 'has no numbers where times should be') from None
        ranks.setdefault(rank, []).append((cells.get('Step', '').strip(), {**total, 'copies': 0.0}))
    return [
        RankTrace(
            source=str(path),
            format='step_trace_time.csv',
            rank=rank,
            steps=tuple(name for name, _ in steps),
            totals=tuple(total for _, total in steps),
            notes=('the profiler wrote totals alone: no kernel is known',),
        )
        for rank, steps in sorted(ranks.items())
    ]


# Tasks of trace_view.json by the process that they are shown in.

_HARDWARE: Final = 'Ascend Hardware'
_HCCL: Final = frozenset({'HCCL', 'Communication'})
_STEP = re.compile(r'ProfilerStep#(\d+)')


class _Arguments(msgspec.Struct, gc=False):
    name: Any = ''
    task: Any = msgspec.field(default='', name='Task Type')


class _Task(msgspec.Struct, gc=False):
    ph: Plain = ''
    name: Plain = ''
    pid: Plain = None
    tid: Plain = None
    ts: Any = None
    dur: Any = None
    args: _Arguments | list[Any] | Plain = None

    @property
    def told(self) -> _Arguments:
        """Its arguments, also where it has none."""
        return self.args if isinstance(self.args, _Arguments) else _BARE


_BARE: Final = _Arguments()


def read_trace_view(path: Path) -> RankTrace:
    """Of ``trace_view.json`` or msprof's ``msprof_*.json``: tasks of the hardware, and a lane for each group."""
    process: dict[Any, str] = {}
    lanes: dict[tuple[Any, Any], str] = {}
    lasting: list[_Task] = []
    for batch in Stream(path, _Task).batches():
        for event in batch:
            if event.ph == 'X':
                lasting.append(event)
            elif event.name == 'process_name':
                process[event.pid] = str(event.told.name)
            elif event.name == 'thread_name':
                lanes[event.pid, event.tid] = str(event.told.name)
    hardware = [pid for pid, name in process.items() if name == _HARDWARE]
    if len(hardware) > 1:
        what = f'shows {len(hardware)} devices in one file'
        raise refusal(path, what, 'give op_summary_*.csv, or export each device by itself')
    marked = sorted(
        (_lasting(path, event)[0], match[1]) for event in lasting if (match := _STEP.fullmatch(str(event.name)))
    )
    rows, steps = Listed(), [begin for begin, _ in marked]
    for event in lasting:
        where, lane = process.get(event.pid, ''), lanes.get((event.pid, event.tid), '')
        core, name = str(event.told.task), str(event.name)
        talks = where in _HCCL and lane.startswith('Group')
        # Waits, records and copies of the hardware are neither.
        if not talks and not (where == _HARDWARE and core in COMPUTING - {'N/A'}):
            continue
        begin, end = _lasting(path, event)
        group, kind = _GROUP.search(name) if talks else None, COMMUNICATION if talks else COMPUTE
        step = bisect_right(steps, begin) - 1
        rows.add(begin, end, rows.code(kind, step, name, '', lane, group[1] if group else '', '', ''))
    if not rows.known:
        raise refusal(path, 'has no task of a device', 'record at least one step on the device')
    return RankTrace(
        source=str(path),
        format='trace_view.json',
        rank=0,
        kernels=rows.kernels(),
        steps=tuple(name for _, name in marked),
    )


def _lasting(path: Path, event: _Task) -> tuple[int, int]:
    try:
        begin = nanoseconds(str(event.ts))
        return begin, begin + duration(f'{float(event.dur):.3f}')
    except (TypeError, ValueError):
        raise refusal(path, f'{event.name!r} has no times ts and dur') from None


def rank_of(folder: Path) -> int | None:
    """The rank that a folder is of, by its ``profiler_info_<rank>.json``; None where there is none."""
    numbers = (_RANK.search(path.stem) for path in sorted(folder.glob('profiler_info*.json')))
    return next((int(number[1]) for number in numbers if number), None)


def world_of(folder: Path) -> int:
    """Ranks of the job by ``profiler_metadata.json``; 0 where it does not say."""
    try:
        metadata = json.loads(read_regular(folder / 'profiler_metadata.json', MOST_BYTES))
        return int(metadata.get('distributed_args', {}).get('world_size', 0))
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return 0
