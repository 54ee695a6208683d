"""A profile with what a recording measured: tables of another profile, with the recorded rows in their place."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml

from simpar.cost.formula import share, steps
from simpar.cost.tables import is_grid
from simpar.files import read_regular, write_atomically
from simpar.hardware import Profile
from simpar.profiles import COLUMNS, Row, load_profile, profile_path, read_table
from simpar.recording.join import OPERATOR, Join, Joined

MOST_BYTES: Final = 2**22
NOTHING: Final = 1e-9
"""Seconds of an op whose time lies in others; rows must be above 0."""
APART: Final = 4.0
"""How many times the smallest message the largest must be, to tell latency from rate."""
SAME: Final = {'matmul': 3, 'operator': 2, 'collective': 3}
"""How many leading columns tell which rows of the other profile a recorded row stands for."""


def write_measured(path: Path, base: str, found: Join, source: str, dtype: str) -> list[Path]:
    """Write a profile and its tables, each whole or not at all, the profile last.

    Arguments:
        base: name or path of the profile that the rest is from.
        source: where the recorded rows are from, in one line. dtype: of the recorded products.
    Returns the files. Raises ``ProfileError``, ``OSError``.
    """
    profile = load_profile(base)
    tree: dict[str, Any] = yaml.safe_load(read_regular(profile_path(base), MOST_BYTES))
    tables: dict[str, Any] = {}
    written = []
    path.parent.mkdir(parents=True, exist_ok=True)
    for kind in COLUMNS:
        rows, told = _table(profile, kind, _rows(kind, found, profile), source, dtype)
        if rows:
            file = path.with_name(f'{path.stem}.{kind}.csv')
            write_atomically(file, _text(kind, rows, told['source']))
            tables[kind] = {'file': file.name, **told}
            written.append(file)
    tree |= {'name': path.stem, 'description': f'{profile.name}, with {source}', 'tables': tables}
    if factor := _backward(found):
        tree['device']['attention']['backward'] = {'value': factor, 'source': source, 'grade': 'measured'}
    if 'links' in tree and (fitted := _link(found, profile.devices)):
        # What was recorded in one node tells the innermost link, for kinds and sizes that were not.
        tree['links'][0] |= {
            name: {'value': value, 'source': f'{source}: fitted to its collectives', 'grade': 'estimate'}
            for name, value in fitted.items()
        }
    if not found.host:
        # What was recorded in steps of a training ran at the clock that the device keeps under that load.
        tree['device']['sustained'] = {'value': 1.0, 'source': f'{source}: at its clock', 'grade': 'measured'}
    head = f'# {profile.name} with the ops of a recording: {source}.\n'
    write_atomically(path, head + yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=120))
    return [path, *written]


def _rows(kind: str, found: Join, profile: Profile) -> list[Row]:
    """The recorded rows of a table."""
    rows = [row for line in found.lines for row in _row(kind, line, profile.devices)]
    if kind == 'operator' and found.host:
        # On a thread an op lasts until the next known one: the time of those between is in it already.
        rows += [(*key[1:], NOTHING) for key, _ in found.missing if key[0] == OPERATOR]
    return rows


def _row(kind: str, line: Joined, devices: int) -> Iterator[Row]:
    name, *key = line.key
    if name != kind or not line.seconds or (kind == 'attention' and key[-1] != 'F'):
        return
    if kind == 'attention':
        yield (*key[:-1], line.seconds)
    elif kind == 'collective':
        operator, ranks, size = key
        # Neighbouring ranks are on one node, as launchers place them.
        yield (operator, ranks, -(-int(ranks) // devices), size, line.seconds)
    else:
        yield (*key, line.seconds)


def _table(
    profile: Profile, kind: str, recorded: list[Row], source: str, dtype: str
) -> tuple[list[Row], dict[str, Any]]:
    """The rows of a table, and what the profile says of it."""
    table = getattr(profile.tables, kind)
    rows = list(read_table(table, kind)) if table else []
    told = (
        {'source': table.source, 'grade': table.grade} | ({'dtype': str(table.dtype)} if table.dtype else {})
        if table
        else {}
    )
    mine = {'source': source, 'grade': 'measured'} | ({'dtype': dtype} if kind in {'matmul', 'attention'} else {})
    if not recorded:
        return rows, told
    if kind == 'attention':
        # It is read as a grid, which rows of another place would break.
        return (recorded, mine) if is_grid(recorded) else (rows, told)
    if kind == 'matmul' and table and str(table.dtype) != dtype:
        return recorded, mine
    same = {row[: SAME[kind]] for row in recorded}
    kept = [row for row in rows if row[: SAME[kind]] not in same]
    return [*kept, *recorded], mine | ({'source': f'{source}; other rows: {table.source}'} if kept else {})


def _link(found: Join, devices: int) -> dict[str, Any]:
    """Latency and rate of a ring that takes what was recorded; empty where nothing tells them.

    Of least relative squares of t = α · steps + β · bytes over a link. Where sizes lie within a factor of 4 they do not
    tell α from β, and both stay as the profile has them.
    """
    rows = [
        (steps('ring', str(operator), int(ranks)), share('ring', str(operator), int(ranks)) * int(size), line.seconds)
        for line in found.lines
        if line.key[0] == 'collective' and line.seconds
        for _, operator, ranks, size in [line.key]
        if int(ranks) <= devices
    ]
    if not rows or max(row[1] for row in rows) < APART * min(row[1] for row in rows):
        return {}
    table = np.array(rows)
    scaled = table[:, :2] / table[:, 2:]
    (alpha, beta), *_ = np.linalg.lstsq(scaled, np.ones(len(rows)), rcond=None)
    if alpha < 0 or beta <= 0:
        alpha, beta = 0.0, float((scaled[:, 1] @ np.ones(len(rows))) / (scaled[:, 1] @ scaled[:, 1]))
    return {'latency': f'{alpha * 1e6:.6g} us', 'bandwidth': f'{1e-9 / beta:.6g} GB/s', 'share': 1.0}


def _backward(found: Join) -> float:
    """How many forwards a backward of attention takes; 0 where it was not recorded."""
    seconds = {line.key: line.seconds for line in found.lines if line.key[0] == 'attention'}
    pairs = [(seconds[key], seconds.get((*key[:-1], 'F'), 0.0)) for key in seconds if key[-1] == 'I']
    factors = [backward / forward for backward, forward in pairs if forward]
    return round(sum(factors) / len(factors), 3) if factors else 0.0


def _text(kind: str, rows: Sequence[Row], source: str) -> str:
    out = io.StringIO()
    out.write(f'# {source}\n')
    writer = csv.writer(out, lineterminator='\n')
    writer.writerow(COLUMNS[kind])
    writer.writerows((*row[:-1], f'{row[-1]:.6g}') for row in sorted(rows, key=lambda row: tuple(map(str, row))))
    return out.getvalue()
