"""What a file or a folder is, by its content, and the reader of it; what is not read is refused by its name."""

import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from simpar.errors import Problem, ScheduleError, refusal
from simpar.traces import ascend, databases, flight, kineto
from simpar.traces.table import RankTrace

OUTPUT: Final = 'ASCEND_PROFILER_OUTPUT'
"""The folder of a rank's exports."""
READ: Final = (
    'Kineto JSON (torch.profiler); of torch_npu, MindSpore and msprof a rank folder, a folder of ranks, '
    'kernel_details.csv, op_summary_*.csv, trace_view.json, step_trace_time.csv or the database; '
    "the SQLite export of Nsight Systems; a dump of torch's flight recorder"
)
_PREFERRED: Final = (
    'kernel_details*.csv*',
    'op_summary*.csv*',
    '*profiler_*.db',
    'trace_view.json*',
    'msprof*.db',
    'msprof*.json*',
    'step_trace_time.csv*',
)
"""Of a rank's exports the first that is there: rows of kernels are exact, the others are rounded or totals."""
_RANK_FOLDERS: Final = ('*_ascend_pt', '*_ascend_ms')
_DEEPEST: Final = 3
_HEAD: Final = 2**16
# What a recording of another tool is, by what stands in its beginning or by a table: its name, and what to do.
_OTHERS: Final = (
    (re.compile(rb'"schema"\s*:\s*"\d+\.\d+\.\d+(-chakra)?'), 'an execution trace of PyTorch, without device times',
     'record with torch.profiler.profile, and give its Kineto JSON'),
    (re.compile(rb'"p2p"|"Communication Time Info"'), "Ascend's communication.json, which has sizes alone",
     'give the folder of the rank, which also holds kernel_details.csv'),
    (re.compile(rb'"rocprofiler-sdk-tool"'), 'JSON of rocprofv3',
     'record with torch.profiler.profile, and give its Kineto JSON'),
    (re.compile(rb'\x12.{1,2}/(host|device):'), 'an XPlane of XLA (JAX, TensorFlow)',
     'record the job in torch with torch.profiler; XPlanes are not read'),
)  # fmt: skip
_TABLES: Final = (
    ('StepTraceTime', "Ascend's analysis.db, which has totals alone", 'give ascend_pytorch_profiler_*.db beside it'),
)


def is_trace(path: Path) -> bool:
    """Whether a file or a folder is what a profiler wrote, of any kind that has a name here."""
    if path.is_dir():
        return any(_folders(path)) or any(is_trace(file) for file in _files(path))
    head = _head(path)
    return _format(path, head) != '' or _refusal(path, head) is not None


def read_traces(path: Path, extra: re.Pattern[str] | None = None, *, host: bool = False) -> list[RankTrace]:
    """The recordings of a file, of a rank's folder, or of a folder of ranks, by rank.

    Arguments: ``extra``, further names of communication; ``host``, whether to keep what threads did, which is much.
    Raises ``ScheduleError`` for what cannot be read, and where two recordings are of one rank.
    """
    if not path.exists():
        raise refusal(path, 'is not there', 'check the path')
    each = _of_folder(path, extra) if path.is_dir() else _of_file(path, extra)
    # One after the other, so that of one rank alone all is held at once.
    recordings = [trace if host else replace(trace, host=None) for trace in each]
    if not recordings:
        raise refusal(path, 'holds no recording', f'give {READ}')
    ranks = [trace.rank for trace in recordings]
    twice = [trace.source for trace in recordings if ranks.count(trace.rank) > 1]
    if twice:
        raise refusal(path, f'{", ".join(twice[:4])} are of one rank', 'keep one recording for each rank')
    return sorted(recordings, key=lambda trace: trace.rank)


def _of_folder(path: Path, extra: re.Pattern[str] | None) -> Iterator[RankTrace]:
    folders = list(_folders(path))
    for place, folder in enumerate(folders):
        traces, rank = _of_rank(folder, extra), ascend.rank_of(folder)
        for trace in traces:
            # A folder without a rank's number keeps its place among the others; of several devices each has its own.
            number = trace.rank if len(traces) > 1 else rank if rank is not None else trace.rank or place
            yield replace(trace, rank=number, world=trace.world or ascend.world_of(folder))
    if not folders:
        for file in _files(path):
            if _format(file, _head(file)):
                yield from _of_file(file, extra)


def _folders(path: Path) -> Iterator[Path]:
    """The folders of ranks in a folder, which may be one itself."""
    if path.name == OUTPUT:
        yield path.parent
    elif (path / OUTPUT).is_dir() or (path / 'mindstudio_profiler_output').is_dir():
        yield path
    else:
        levels = ['/'.join(['*'] * depth) for depth in range(_DEEPEST)]
        folders = {
            folder
            for level in levels
            for name in _RANK_FOLDERS
            for folder in path.glob(f'{level}/{name}' if level else name)
            if folder.is_dir()
        }
        yield from sorted(folders)


def _files(path: Path) -> list[Path]:
    return sorted(file for file in path.iterdir() if file.is_file())


def _of_rank(folder: Path, extra: re.Pattern[str] | None) -> list[RankTrace]:
    """The recording of a rank's folder: its first export in the order of preference; of several, the newest."""
    for inner in (OUTPUT, 'mindstudio_profiler_output'):
        for pattern in _PREFERRED:
            files = sorted((folder / inner).glob(pattern))
            if any('_slice_' in file.name for file in files):
                what = f'{files[0].name} and others are slices of one table'
                raise refusal(folder, what, 'join them into one CSV, or export the database')
            for file in files[-1:]:
                return _of_file(file, extra)
    what = f'has none of {", ".join(_PREFERRED)} in {OUTPUT}'
    raise refusal(folder, what, "run the profiler's analyse() on it first")


def _of_file(path: Path, extra: re.Pattern[str] | None) -> list[RankTrace]:
    head = _head(path)
    kind = _format(path, head)
    if kind == 'kineto':
        return [kineto.read_kineto(path, extra)]
    if kind == 'kernels':
        return ascend.read_kernel_details(path)
    if kind == 'steps':
        return ascend.read_step_times(path)
    if kind == 'view':
        return [ascend.read_trace_view(path)]
    try:
        if kind == 'database':
            return databases.read_database(path)
        if kind == 'nsys':
            return databases.read_nsys(path, extra)
    except (TypeError, ValueError, OverflowError) as error:
        raise refusal(path, f'holds a row without times: {error}', 'export it again') from None
    if kind == 'dump':
        return [flight.read_dump(path)]
    raise ScheduleError(_refusal(path, head) or Problem(str(path), 'is no recording that is read', f'give {READ}'))


def _head(path: Path) -> bytes:
    try:
        with gzip.open(path) if path.name.endswith('.gz') else path.open('rb') as file:
            return file.read(_HEAD)
    except (OSError, EOFError, zlib.error):
        return b''


def _format(path: Path, head: bytes) -> str:
    """Which reader takes a file; empty for none."""
    first = head.lstrip(b'\xef\xbb\xbf').split(b'\n', 1)[0]
    if head.startswith(b'SQLite format 3'):
        tables = databases.tables_of(path)
        return 'nsys' if databases.NSYS in tables else 'database' if 'COMPUTE_TASK_INFO' in tables else ''
    if b'Ascend Hardware' in head:
        return 'view'
    if any(key in head for key in (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"')):
        return 'kineto'
    if flight.KEY.search(head) and head.lstrip()[:1] in (b'{', b'\x80'):
        return 'dump'
    if set(ascend.NEEDED) <= set(ascend.columns_of(first.decode('utf-8', 'replace').replace('"', '').split(','))[0]):
        return 'kernels'
    if b'Communication(Not Overlapped)' in first and b'Stage' in first:
        return 'steps'
    return 'view' if head.lstrip().startswith(b'[') and b'"ph"' in head else ''


def _refusal(path: Path, head: bytes) -> Problem | None:
    """Why a file of a known tool is not read; None for a file of which nothing is known."""
    if head.startswith(b'SQLite format 3'):
        tables = databases.tables_of(path)
        reasons: Sequence[tuple[str, str]] = [(what, instead) for table, what, instead in _TABLES if table in tables]
    elif head.startswith(b'\x80') and b'\n' not in head[:2]:
        reasons = [('a pickle, and no dump of a flight recorder', 'record by torch.profiler, and give its Kineto JSON')]
    else:
        reasons = [(what, instead) for pattern, what, instead in _OTHERS if pattern.search(head)]
    return Problem(str(path), f'is {reasons[0][0]}', reasons[0][1]) if reasons else None
