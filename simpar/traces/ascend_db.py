"""What Ascend's profilers export as SQLite: ``ascend_pytorch_profiler_*.db``, MindSpore's, and ``msprof_*.db``."""

import sqlite3
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from simpar.errors import Problem, ScheduleError
from simpar.traces.ascend import COMPUTING
from simpar.traces.table import COMMUNICATION, COMPUTE, RankTrace, kernels_of

NEEDED: Final = ('TASK', 'COMPUTE_TASK_INFO', 'STRING_IDS')
_COMPUTE: Final = """
select task.startNs, task.endNs, name.value, type.value, task.streamId, core.value, shapes.value,
    results.value
from COMPUTE_TASK_INFO info join TASK task on task.globalTaskId = info.globalTaskId
left join STRING_IDS name on name.id = info.name left join STRING_IDS type on type.id = {opType}
left join STRING_IDS core on core.id = {taskType} left join STRING_IDS shapes on shapes.id = {inputShapes}
left join STRING_IDS results on results.id = {outputShapes}
"""
_OPTIONAL: Final = ('opType', 'taskType', 'inputShapes', 'outputShapes')
"""Columns that older databases lack."""
_COMMUNICATION: Final = """
select op.startNs, op.endNs, name.value, op.groupName, groups.value
from COMMUNICATION_OP op left join STRING_IDS name on name.id = op.opName
left join STRING_IDS groups on groups.id = op.groupName
"""


def tables_of(path: Path) -> frozenset[str]:
    """The tables of a SQLite file. Raises ``ScheduleError`` where it is none."""
    with closing(_open(path)) as data:
        return frozenset(name for (name,) in _asked(path, data, "select name from sqlite_master where type = 'table'"))


def read_database(path: Path) -> RankTrace:
    """The kernels and steps of a rank's database."""
    tables = tables_of(path)
    lacking = [name for name in NEEDED if name not in tables]
    if lacking:
        raise ScheduleError(Problem(str(path), f'has no table {", ".join(lacking)}', 'export it again with CANN'))
    with closing(_open(path)) as data:
        steps = (
            _asked(path, data, 'select id, startNs from STEP_TIME order by startNs') if 'STEP_TIME' in tables else []
        )
        rank = _asked(path, data, 'select rankId from RANK_DEVICE_MAP') if 'RANK_DEVICE_MAP' in tables else []
        begins = [int(begin) for _, begin in steps]
        rows = list(_rows(path, data, begins, 'COMMUNICATION_OP' in tables))
    if not rows:
        raise ScheduleError(Problem(str(path), 'has no task of a device', 'record at least one step on the device'))
    return RankTrace(
        source=str(path),
        format='database',
        rank=int(rank[0][0]) if rank else 0,
        kernels=kernels_of(rows),
        steps=tuple(str(name) for name, _ in steps),
    )


def _rows(
    path: Path, data: sqlite3.Connection, begins: list[int], talks: bool
) -> Iterator[tuple[int, int, int, int, str, str, str, str, str, str]]:
    def step(begin: int) -> int:
        # Without steps that is NO_STEP.
        return bisect_right(begins, begin) - 1

    there = {name for _, name, *_ in _asked(path, data, 'pragma table_info(COMPUTE_TASK_INFO)')}
    question = _COMPUTE.format(**{name: f'info.{name}' if name in there else 'null' for name in _OPTIONAL})
    for begin, end, name, kind, stream, core, shapes, results in _asked(path, data, question):
        if core is None or core in COMPUTING:
            yield begin, end, COMPUTE, step(begin), name or '', kind or '', str(stream), '', shapes or '', results or ''
    for begin, end, name, group, named in _asked(path, data, _COMMUNICATION) if talks else ():
        yield begin, end, COMMUNICATION, step(begin), name or '', '', '', str(named or group), '', ''


def _open(path: Path) -> sqlite3.Connection:
    """Read only: nothing is written beside the file either."""
    try:
        return sqlite3.connect(f'{path.resolve().as_uri()}?mode=ro&immutable=1', uri=True)
    except sqlite3.Error as error:
        raise ScheduleError(Problem(str(path), f'cannot be read: {error}')) from None


def _asked(path: Path, data: sqlite3.Connection, question: str) -> list[tuple[Any, ...]]:
    try:
        return data.execute(question).fetchall()
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise ScheduleError(Problem(str(path), f'cannot be read: {error}', 'export it again')) from None
