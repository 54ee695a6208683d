"""What profilers export as SQLite: Ascend's (torch_npu, MindSpore, msprof), and Nsight Systems'."""

import re
import sqlite3
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from simpar.errors import refusal
from simpar.traces import ascend, kineto
from simpar.traces.table import COMMUNICATION, COMPUTE, COPY, NO_STEP, Ints, Kernels, Listed, RankTrace

NEEDED: Final = ('TASK', 'COMPUTE_TASK_INFO', 'STRING_IDS')
# A column of text may hold a blob in any row.
_COMPUTE: Final = """
select task.deviceId, task.startNs, task.endNs, cast(name.value as text), cast(type.value as text), task.streamId,
    cast(core.value as text), cast(shapes.value as text), cast(results.value as text)
from COMPUTE_TASK_INFO info join TASK task on task.globalTaskId = info.globalTaskId
left join STRING_IDS name on name.id = info.name left join STRING_IDS type on type.id = {opType}
left join STRING_IDS core on core.id = {taskType} left join STRING_IDS shapes on shapes.id = {inputShapes}
left join STRING_IDS results on results.id = {outputShapes}
"""
NO_DEVICE: Final = -1
_OPTIONAL: Final = ('opType', 'taskType', 'inputShapes', 'outputShapes')
"""Columns that older databases lack."""
_COMMUNICATION: Final = """
select {device}, op.startNs, op.endNs, cast(name.value as text), op.groupName, groups.value
from COMMUNICATION_OP op left join STRING_IDS name on name.id = op.opName
left join STRING_IDS groups on groups.id = op.groupName
"""


Ask = Callable[..., Iterator[tuple[Any, ...]]]
"""Rows that answer a question; none of a table that is named behind it and is not there."""


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Ask, frozenset[str]]]:
    """A SQLite file, and the names of its tables. Read only: nothing is written beside the file either."""

    def ask(question: str, table: str = '') -> Iterator[tuple[Any, ...]]:
        try:
            yield from data.execute(question) if not table or table in tables else ()
        # Of a page that a broken file says is huge, sqlite3 asks for more memory than there is.
        except (sqlite3.Error, UnicodeDecodeError, MemoryError, OverflowError) as error:
            raise refusal(path, f'cannot be read: {str(error) or "it is broken"}', 'export it again') from None

    try:
        data = sqlite3.connect(f'{path.resolve().as_uri()}?mode=ro&immutable=1', uri=True)
    except sqlite3.Error as error:
        raise refusal(path, f'cannot be read: {error}') from None
    with closing(data):
        tables = frozenset(name for (name,) in ask("select name from sqlite_master where type = 'table'"))
        yield ask, tables


def tables_of(path: Path) -> frozenset[str]:
    """The tables of a SQLite file. Raises ``ScheduleError`` where it is none."""
    with _opened(path) as (_, tables):
        return tables


def read_database(path: Path) -> list[RankTrace]:
    """The kernels and steps of a rank's database; of msprof's, which has all devices of a host, those of each device.

    Raises ``ScheduleError`` where several devices have collectives, which do not say whose they are.
    """
    strange: set[str] = set()
    by_device: dict[int, Listed] = defaultdict(Listed)

    def add(device: int, begin: int, end: int, kind: int, *told: str) -> None:
        # Collectives come last; those that name no device are of the only one.
        rows = by_device[next(iter(by_device)) if device == NO_DEVICE and len(by_device) == 1 else device]
        # Without steps that is NO_STEP.
        rows.add(begin, end, rows.code(kind, bisect_right(begins, begin) - 1, *told))

    with _opened(path) as (ask, tables):
        if lacking := [name for name in NEEDED if name not in tables]:
            raise refusal(path, f'has no table {", ".join(lacking)}', 'export it again with CANN')
        steps = list(ask('select id, startNs from STEP_TIME order by startNs', 'STEP_TIME'))
        rank = list(ask('select rankId from RANK_DEVICE_MAP', 'RANK_DEVICE_MAP'))
        begins = [int(begin) for _, begin in steps]
        there = {name for _, name, *_ in ask('pragma table_info(COMPUTE_TASK_INFO)')}
        question = _COMPUTE.format(**{name: f'info.{name}' if name in there else 'null' for name in _OPTIONAL})
        for device, begin, end, name, kind, stream, core, shapes, results in ask(question):
            if core is None or core in ascend.COMPUTING:
                which = NO_DEVICE if device is None else int(device)
                add(which, begin, end, COMPUTE, name or '', kind or '', str(stream), '', shapes or '', results or '')
            else:
                strange.add(str(core))
        has = any(name == 'deviceId' for _, name, *_ in ask('pragma table_info(COMMUNICATION_OP)'))
        question = _COMMUNICATION.format(device='op.deviceId' if has else NO_DEVICE)
        for device, begin, end, name, group, named in ask(question, 'COMMUNICATION_OP'):
            add(int(device), begin, end, COMMUNICATION, name or '', '', '', str(named or group), '', '')
    devices = sorted(device for device in by_device if device >= 0)
    if not by_device:
        raise refusal(path, 'has no task of a device', 'record at least one step on the device')
    if len(devices) > 1 and NO_DEVICE in by_device:
        what = f'has collectives of devices {", ".join(map(str, devices))} together'
        raise refusal(path, what, 'give op_summary_*.csv, or export each device by itself')
    return [
        RankTrace(
            source=str(path),
            format='database',
            rank=device if len(devices) > 1 else int(rank[0][0]) if rank else 0,
            kernels=by_device[device].kernels(),
            steps=tuple(str(name) for name, _ in steps),
            notes=ascend.not_known(strange),
        )
        for device in devices or [NO_DEVICE]
    ]


# Nsight Systems (nsys export --type sqlite): docs.nvidia.com/nsight-systems, SQLite Export Schema Reference.

NSYS: Final = 'CUPTI_ACTIVITY_KIND_KERNEL'
"""The table by which such a database is told."""
_GPU: Final = """
select deviceId, globalPid, start, "end", correlationId, {bytes}, streamId, {name}, {shapes} from {table}
where "end" > 0
"""
# Times of 0 are those that could not be collected (CUPTI, CUpti_ActivityKernel).
_RUNS: Final = (
    # Of each table of a device: which columns hold bytes, a name and a grid.
    (NSYS, '0', 'demangledName', "'[' || gridX || ', ' || gridY || ', ' || gridZ || ']'"),
    ('CUPTI_ACTIVITY_KIND_MEMCPY', 'bytes', "'memcpy'", "''"),
    ('CUPTI_ACTIVITY_KIND_MEMSET', 'bytes', "'memset'", "''"),
    ('CUPTI_ACTIVITY_KIND_GRAPH_TRACE', '0', "'CUDA graph'", "''"),
)
_COPIES: Final = frozenset({'memcpy', 'memset'})
_RANGES: Final = """
select range.start, range."end", range.globalTid, coalesce(range.text, name.value) from NVTX_EVENTS range
left join StringIds name on name.id = range.textId where range."end" is not null order by range.start
"""
_CALLS: Final = (
    'select correlationId, globalTid, start from CUPTI_ACTIVITY_KIND_RUNTIME where correlationId is not null'
)
_STEP = re.compile(r'(?:ProfilerStep#|iteration|step)\W*(\d+)', re.IGNORECASE)
_IN_NAME = re.compile(r'rank[_-]?(\d+)', re.IGNORECASE)
_PROCESS: Final = 2**24
"""Of an id of a thread the lower 24 bits are the thread's own; the rest is its process."""


def read_nsys(path: Path, extra: re.Pattern[str] | None = None) -> list[RankTrace]:
    """The kernels of each process and device of a database of Nsight Systems; steps are NVTX ranges ``step 3``.

    Arguments: ``extra``, further names of communication.
    Does not model which group a collective is of, which the database does not say.
    """
    found: dict[tuple[int, int], Listed] = defaultdict(lambda: Listed('correlation', 'bytes'))
    with _opened(path) as (ask, _):
        texts: dict[int, str] = dict(ask('select id, value from StringIds'))
        gpus: dict[int, str] = dict(ask('select id, name from TARGET_INFO_GPU', 'TARGET_INFO_GPU'))
        calls = np.array([*ask(_CALLS, 'CUPTI_ACTIVITY_KIND_RUNTIME')], dtype=np.int64).reshape(-1, 3)
        ranges = list(ask(_RANGES, 'NVTX_EVENTS'))
        for table, size, name, grid in _RUNS:
            question = _GPU.format(table=table, bytes=size, name=name, shapes=grid)
            for device, process, *numbers, stream, named, shapes in ask(question, table):
                called = str(texts.get(named, named))
                kind = COPY if called in _COPIES else kineto.kind_of_kernel(called, extra)
                mine = found[process or 0, device]
                code = mine.code(kind, NO_STEP, called, '', str(stream), '', str(shapes))
                mine.add(*numbers[:2], code, *numbers[2:])
    # A process may set memory of a device on which it runs no kernel.
    places = sorted(place for place, mine in found.items() if {row[2] for row in mine.known} - _COPIES)
    if not places:
        raise refusal(path, 'has no kernel of a device', 'record with nsys profile --trace=cuda')
    devices = [device for _, device in places]
    # A file of one rank alone may say its number in its name.
    several, in_name = len(places) > 1, _IN_NAME.search(path.name)
    traces = []
    for at, (process, device) in enumerate(places):
        marks = _marks([one for one in ranges if one[2] - one[2] % _PROCESS == process])
        by_place = device if len(set(devices)) == len(devices) else at
        kernels = found[process, device].kernels()
        kernels.launch[:] = _launched(kernels, calls[calls[:, 1] - calls[:, 1] % _PROCESS == process])
        kernels.step[:] = _step_of(kernels.launch, [mark[1:] for mark in marks])
        graph = 'CUDA graph' in kernels.name
        graphs = ('a CUDA graph is one kernel here: record with --cuda-graph-trace=node',) if graph else ()
        by_device = ('the database does not say ranks: they are numbered by device',) if several else ()
        traces.append(RankTrace(
            source=str(path),
            format='Nsight Systems',
            rank=by_place if several else int(in_name[1]) if in_name else 0,
            world=len(places) if several else 0,
            device=str(gpus.get(device, '')),
            kernels=kernels,
            steps=tuple(step for step, _, _ in marks),
            marks=tuple((start, until) for _, start, until in marks),
            notes=(*graphs, *by_device),
        ))  # fmt: skip
    return traces


def _launched(kernels: Kernels, calls: Ints) -> Ints:
    """When the host launched each row; its begin where nothing tells it. Arguments: ``calls`` of its process."""
    if not len(calls):
        return kernels.begin
    calls = calls[np.argsort(calls[:, 0], kind='stable')]
    at = np.minimum(np.searchsorted(calls[:, 0], kernels.correlation), len(calls) - 1)
    return np.where(calls[at, 0] == kernels.correlation, calls[at, 2], kernels.begin)


def _marks(ranges: Sequence[tuple[Any, ...]]) -> list[tuple[str, int, int]]:
    """Number, begin and end of each step, each once."""
    marks: dict[str, tuple[str, int, int]] = {}
    for begin, end, _, text in ranges:
        if step := _STEP.fullmatch(str(text).strip()):
            marks.setdefault(step[1], (step[1], begin, end))
    return list(marks.values())


def _step_of(launch: Ints, marks: Sequence[tuple[int, int]]) -> Ints:
    """The step that each kernel was launched in; ``NO_STEP`` between them."""
    if not marks:
        return np.full(len(launch), NO_STEP)
    begin, end = np.array(marks, dtype=np.int64).T
    at = np.searchsorted(begin, launch, side='right') - 1
    return np.where((at >= 0) & (launch < end[at]), at, NO_STEP)
