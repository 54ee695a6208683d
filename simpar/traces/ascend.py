"""What torch_npu's, MindSpore's and CANN's profilers export; docs/proofs/ascend_recordings.md has the columns."""

import csv
import gzip
import io
import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from simpar.errors import Problem, ScheduleError
from simpar.files import read_regular
from simpar.traces.stream import Plain, Stream
from simpar.traces.table import COMMUNICATION, COMPUTE, NO_STEP, RankTrace, kernels_of

MOST_BYTES: Final = 2**31
COMPUTING: Final = frozenset({
    'AI_CORE', 'AI_VECTOR_CORE', 'MIX_AIC', 'MIX_AIV', 'AI_CPU', 'DSA_SQE', 'N/A', 'AIV_SQE', 'KERNEL_AICORE',
    'KERNEL_AIVEC', 'KERNEL_AICPU', 'KERNEL_MIX_AIC', 'KERNEL_MIX_AIV',
})  # fmt: skip
"""Cores whose tasks compute; at Level0 no core is told, and what is no collective computes."""
TALKING: Final = frozenset({'HCCL', 'COMMUNICATION'})
COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    # What is read: its name in kernel_details.csv, then in msprof's op_summary.csv, whatever its case; units behind it.
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
"""Of microseconds since 1970, until the year 2286; nanoseconds of them are integers of 64 bits."""
_GROUP = re.compile(r'__(\d+)_\d+(?:_\d+)?$')
_RANK = re.compile(r'_(\d+)$')


def nanoseconds(text: str, unit: int = 1000) -> int:
    """Microseconds as exports write them, ``1700000000881410.320<TAB>``, exactly: a double would lose 0.25 us.

    Arguments: ``unit``, nanoseconds of what the text counts. Raises ``ValueError`` for what is no number.
    """
    whole, _, part = text.strip().partition('.')
    digits = whole.removeprefix('-')
    if not digits.isdecimal() or len(digits) > _MOST_DIGITS + 3 * (unit == 1) or (part and not part.isdecimal()):
        raise ValueError(f'no number of microseconds: {text!r}')
    return int(whole) * unit + int((part + '0' * 9)[:9]) * unit // 10**9 * (-1 if whole.startswith('-') else 1)


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
    found = {
        key: next((named[one.lower()] for one in names if one.lower() in named), None) for key, names in COLUMNS.items()
    }
    known = {key: one for key, one in found.items() if one and (one[1] or key not in NEEDED)}
    return {key: at for key, (at, _) in known.items()}, {key: unit for key, (_, unit) in known.items()}


def text_of(path: Path) -> str:
    """The text of a file, ``.gz`` or not, without the byte order mark that some exports have."""
    try:
        data = read_regular(path, MOST_BYTES)
        if path.name.endswith('.gz'):
            with gzip.open(io.BytesIO(data)) as packed:
                data = packed.read(MOST_BYTES + 1)
        return data.decode('utf-8-sig')
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ScheduleError(Problem(str(path), f'cannot be read: {error}', 'export it again')) from None


def rows_of(path: Path) -> tuple[list[str], list[list[str]]]:
    """Head and rows of a CSV file, each cell without blanks around it."""
    try:
        lines = list(csv.reader(io.StringIO(text_of(path), newline='')))
    except csv.Error as error:
        raise ScheduleError(Problem(str(path), f'is no table: {error}', 'export it again')) from None
    if len(lines) < 2:
        raise ScheduleError(Problem(str(path), 'has no row', 'record at least one step'))
    return [cell.strip() for cell in lines[0]], [line for line in lines[1:] if line]


def read_kernel_details(path: Path) -> RankTrace:
    """Of ``kernel_details.csv``, or of msprof's ``op_summary_*.csv``: a row a kernel."""
    head, lines = rows_of(path)
    place, unit = columns_of(head)
    lacking = [COLUMNS[key][0] for key in NEEDED if key not in place]
    if lacking:
        raise ScheduleError(Problem(str(path), f'has no column {", ".join(lacking)}', 'export it again with CANN'))
    steps: dict[str, int] = {}
    rows, strange = [], set[str]()
    for number, line in enumerate(lines, 2):
        cells = {key: line[place[key]].strip() if place.get(key, len(line)) < len(line) else '' for key in COLUMNS}
        try:
            begin, lasts = nanoseconds(cells['begin'], unit['begin']), duration(cells['lasts'], unit['lasts'])
        except ValueError as error:
            what = f'{error}; write it as the export has it'
            raise ScheduleError(Problem(f'{path}:{number}', what)) from None
        core, name = cells['core'], cells['name']
        talks = core in TALKING or name.startswith('hcom_') or cells['type'].startswith('hcom_')
        if not talks and core and core not in COMPUTING:
            strange.add(core)
            continue
        step = steps.setdefault(cells['step'], len(steps)) if cells['step'] else NO_STEP
        group = _GROUP.search(name)
        kind = COMMUNICATION if talks else COMPUTE
        own = (
            name,
            cells['type'],
            cells['stream'],
            group[1] if group and talks else '',
            cells['shapes'],
            cells['results'],
        )
        rows.append((begin, begin + lasts, kind, step, *own))
    notes = (f'tasks of {", ".join(sorted(strange))} neither compute nor communicate',) if strange else ()
    return RankTrace(
        source=str(path), format='kernel_details.csv', rank=0, kernels=kernels_of(rows), steps=tuple(steps), notes=notes
    )


def read_step_times(path: Path) -> list[RankTrace]:
    """Of ``step_trace_time.csv``: the profiler's own totals, a rank's or, of a cluster's analysis, each rank's."""
    head, lines = rows_of(path)
    lacking = [column for column in TOTALS.values() if column not in head]
    if lacking:
        raise ScheduleError(Problem(str(path), f'has no column {", ".join(lacking)}', 'export it again with CANN'))
    ranks: dict[int, list[tuple[str, dict[str, float]]]] = {}
    for number, line in enumerate(lines, 2):
        cells = dict(zip(head, line, strict=False))
        if cells.get('Type', 'rank').strip() != 'rank':
            continue
        try:
            rank = int(cells.get('Index') or 0)
            total = {key: float(cells[column]) * 1000 for key, column in TOTALS.items()}
        except (KeyError, ValueError):
            raise ScheduleError(Problem(f'{path}:{number}', 'has no numbers where times should be')) from None
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
    marked = sorted(
        (_lasting(path, event)[0], found[1]) for event in lasting if (found := _STEP.fullmatch(str(event.name)))
    )
    rows = list(_tasks(path, lasting, process, lanes, [begin for begin, _ in marked]))
    if not rows:
        raise ScheduleError(Problem(str(path), 'has no task of a device', 'record at least one step on the device'))
    return RankTrace(
        source=str(path),
        format='trace_view.json',
        rank=0,
        kernels=kernels_of(rows),
        steps=tuple(name for _, name in marked),
    )


def _lasting(path: Path, event: _Task) -> tuple[int, int]:
    try:
        begin = nanoseconds(str(event.ts))
        return begin, begin + duration(f'{float(event.dur):.3f}')
    except (TypeError, ValueError):
        raise ScheduleError(Problem(str(path), f'{event.name!r} has no times ts and dur')) from None


def _tasks(
    path: Path, events: Sequence[_Task], process: Mapping[Any, str], lanes: Mapping[Any, str], steps: Sequence[int]
) -> Iterator[tuple[int, int, int, int, str, str, str, str, str, str]]:
    for event in events:
        where, lane = process.get(event.pid, ''), lanes.get((event.pid, event.tid), '')
        core, name = str(event.told.task), str(event.name)
        talks = where in _HCCL and lane.startswith('Group')
        # Waits, records and copies of the hardware are neither.
        if not talks and not (where == _HARDWARE and core in COMPUTING - {'N/A'}):
            continue
        begin, end = _lasting(path, event)
        step = bisect_right(steps, begin) - 1
        group = _GROUP.search(name) if talks else None
        yield begin, end, COMMUNICATION if talks else COMPUTE, step, name, '', lane, group[1] if group else '', '', ''


def rank_of(folder: Path) -> int | None:
    """The rank that a folder is of, by its ``profiler_info_<rank>.json``; None where there is none."""
    found = sorted(folder.glob('profiler_info*.json'))
    for path in found:
        number = _RANK.search(path.stem)
        if number:
            return int(number[1])
    return None


def world_of(folder: Path) -> int:
    """Ranks of the job by ``profiler_metadata.json``; 0 where it does not say."""
    path = folder / 'profiler_metadata.json'
    if not path.is_file():
        return 0
    try:
        told = json.loads(text_of(path))
        return int(told.get('distributed_args', {}).get('world_size', 0))
    except (ValueError, TypeError, AttributeError, ScheduleError):
        return 0
