"""Op tables of programs: recorded once, compared after every change of how programs are made.

``python -m tests.op_tables compare`` makes the programs again and tells every difference; ``record`` writes the tables
of now. They are of examples, and of 200 schedules that were drawn once and are kept beside their tables.
"""

import argparse
import hashlib
import json
import lzma
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import MISSING, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from simpar.case import load_case
from simpar.errors import SimparError
from simpar.program import OpClass, Program, Role, Tensor

HERE = Path(__file__).parent
ROOT = HERE.parent
RECORDED = HERE / 'recorded' / 'op_tables' / 'tables.json.xz'
VERSION = 1
CHUNK = 64
"""Slots whose needs share one hash."""
SHOWN = 6
"""Differing rows of a schedule that are shown."""
CONTEXT = 2
"""Equal slots that are shown before and behind the first that differ."""
OP = ('kind', 'operator', 'phase', 'dims', 'flops', 'bytes', 'dtype', 'partition', 'peer', 'reduce', 'reads', 'writes',
      'accumulates', 'frees', 'attributes', 'stage')  # fmt: skip
TENSOR = ('kind', 'shape', 'dtype', 'splits', 'partial', 'batch_dim', 'initial', 'like')
Table = dict[str, Any]


# Tables of programs


def table(program: Program) -> Table:
    """All that a program says, as JSON has it; rows leave out what is as by default."""
    return {
        'program': {'world': program.world, 'micro_batches': program.micro_batches, 'copies': program.copies},
        'notes': list(program.notes),
        'partitions': {name: part.groups_GP.tolist() for name, part in program.partitions.items()},
        'tensors': {tensor.name: _row(tensor, TENSOR) for tensor in program.tensors},
        'ops': {op.name: _row(op, OP) for op in program.op_classes},
        'roles': [_role(program, number) for number in range(len(program.roles))],
    }


def _row(of: OpClass | Tensor, keys: tuple[str, ...]) -> Table:
    known = _defaults(type(of))
    return {key: _plain(getattr(of, key)) for key in keys if getattr(of, key) != known.get(key, MISSING)}


@lru_cache
def _defaults(kind: type) -> Table:
    return {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(kind)
    }


def _plain(value: Any) -> Any:
    """A value as JSON gives it back; a cut is a dim and a partition."""
    if hasattr(value, 'partition') and hasattr(value, 'dim'):
        return [value.dim, value.partition]
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


def _role(program: Program, number: int) -> Table:
    role = program.roles[number]
    return {
        'name': role.name,
        'ranks': [rank for rank, of in enumerate(program.role_of_rank.tolist()) if of == number],
        'streams': list(role.streams),
        'op': role.op_class.tolist(),
        'stream': role.stream.tolist(),
        'micro_batch': role.micro_batch.tolist(),
        'copy': role.copy.tolist(),
        'needs': [_digest(chunk) for chunk in _chunks(_needs(role))],
    }


def _needs(role: Role) -> list[tuple[list[int], list[int]]]:
    """For each slot the earlier slots that it needs, of this step and of the step before."""
    return [(sorted(one), sorted(other)) for one, other in zip(role.needs(), role.carried(), strict=True)]


def _chunks(rows: list[Any]) -> Iterator[list[Any]]:
    return (rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK))


def _digest(rows: Any) -> str:
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:10]


def slots(of: Table, number: int) -> list[str]:
    """A role's issue order, one line a slot."""
    role, names = of['roles'][number], list(of['ops'])
    columns = (role['op'], role['stream'], role['micro_batch'], role['copy'])
    return [
        f'{names[op]} on {role["streams"][stream]}, micro-batch {micro_batch}, copy {copy}'
        for op, stream, micro_batch, copy in zip(*columns, strict=True)
    ]


# Schedules, by the path that `simpar check` and `simpar run` take


def tables(path: Path) -> dict[str, Table]:
    """The table of a schedule's program, and of its baseline's."""
    # As devices alone run it: what a framework decides changes more often than how programs are made.
    case = load_case(path, ['cluster.stack=none'])
    of = {'plan': case.program, **({'baseline': case.baseline.program} if case.baseline else {})}
    return {name: table(program) for name, program in of.items()}


def tables_of_tree(tree: Table) -> dict[str, Table]:
    """The same of what a schedule file holds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'schedule.yaml'
        path.write_text(json.dumps(tree), encoding='utf-8')
        return tables(path)


def record(path: Path) -> None:
    """Write the tables of what was recorded as they are made now."""
    found = {name: {**one, 'tables': again(name, one)} for name, one in recorded().items()}
    text = json.dumps({'version': VERSION, 'schedules': found}, separators=(',', ':'), ensure_ascii=False)
    path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def recorded(path: Path = RECORDED) -> dict[str, Table]:
    """What was recorded, by name of the schedule."""
    found = json.loads(lzma.decompress(path.read_bytes()))
    if found['version'] != VERSION:
        raise SystemExit(f'{path}: version {found["version"]}, but this reads {VERSION}; record again')
    return dict(found['schedules'])


def again(name: str, one: Table) -> dict[str, Table]:
    """The tables of a recorded schedule as they are made now."""
    made = tables_of_tree(one['schedule']) if 'schedule' in one else tables(ROOT / name)
    return dict(json.loads(json.dumps(made)))


# Comparison


class Difference(NamedTuple):
    """One difference: in which table, of which row and field, and the lines that show it."""

    table: str
    row: str
    field: str
    lines: tuple[str, ...]


def differences(old: Table, new: Table) -> Iterator[Difference]:
    """All that two tables differ in; of an issue order the first place."""
    if old == new:
        return
    for name in ('program', 'partitions'):
        yield from _values(name, old[name], new[name])
    yield from _values('notes', dict.fromkeys(old['notes'], True), dict.fromkeys(new['notes'], True))
    for name in ('tensors', 'ops'):
        yield from _rows(name, old[name], new[name])
    yield from _roles(old, new)


def _values(name: str, old: Table, new: Table) -> Iterator[Difference]:
    for key in (*old, *(key for key in new if key not in old)):
        if old.get(key) != new.get(key):
            lines = [f'{sign} {name} {key}: {of[key]}' for sign, of in (('-', old), ('+', new)) if key in of]
            yield Difference(name, key, '', tuple(lines))


def _rows(name: str, old: Table, new: Table) -> Iterator[Difference]:
    """Rows that are missing or new, and fields of the others."""
    for key, row in old.items():
        if key not in new:
            yield Difference(name, key, '', (f'- {name} {key}: {_told(row)}',))
            continue
        for field in dict.fromkeys((*row, *new[key])):
            was, now = row.get(field), new[key].get(field)
            if was != now:
                lines = (f'- {name} {key}: {field} {was}', f'+ {name} {key}: {field} {now}')
                yield Difference(name, key, field, lines)
    for key, row in new.items():
        if key not in old:
            yield Difference(name, key, '', (f'+ {name} {key}: {_told(row)}',))


def _told(row: Table) -> str:
    return ', '.join(f'{key} {value}' for key, value in row.items())


def _roles(old: Table, new: Table) -> Iterator[Difference]:
    if len(old['roles']) != len(new['roles']):
        counts = (f'- roles: {len(old["roles"])}', f'+ roles: {len(new["roles"])}')
        yield Difference('roles', '', '', counts)
        return
    for number, (one, other) in enumerate(zip(old['roles'], new['roles'], strict=True)):
        for key in ('name', 'ranks', 'streams'):
            if one[key] != other[key]:
                lines = (f'- role {one["name"]}: {key} {one[key]}', f'+ role {one["name"]}: {key} {other[key]}')
                yield Difference('roles', one['name'], key, lines)
        was, now = slots(old, number), slots(new, number)
        if was != now:
            yield Difference('roles', one['name'], 'order', _first(one['name'], was, now))
        elif one['needs'] != other['needs']:
            yield Difference('roles', one['name'], 'needs', _needs_differ(one, other))


def _first(role: str, was: list[str], now: list[str]) -> tuple[str, ...]:
    """The first place where two orders part, with slots around it."""
    at = next((at for at, (one, other) in enumerate(zip(was, now, strict=False)) if one != other), None)
    at = min(len(was), len(now)) if at is None else at
    head = [f'@@ role {role}: slot {at} of {len(was)} and {len(now)} @@']
    head += [f'  {line}' for line in was[max(0, at - CONTEXT) : at]]
    end = at + CONTEXT + 1
    return (*head, *(f'- {line}' for line in was[at:end]), *(f'+ {line}' for line in now[at:end]))


def _needs_differ(one: Table, other: Table) -> tuple[str, ...]:
    pairs = enumerate(zip(one['needs'], other['needs'], strict=True))
    at = next(at for at, (was, now) in pairs if was != now)
    return (f'@@ role {one["name"]}: needs of slots {at * CHUNK} to {(at + 1) * CHUNK - 1} @@',)


def compare_one(name: str, one: Table) -> list[Difference]:
    """All that a recorded schedule differs in now."""
    try:
        now = again(name, one)
    except SimparError as error:
        return [Difference('program', '', 'refused', (f'+ refused: {" ".join(str(error).split())[:400]}',))]
    except Exception as error:  # one that fails must not hide the others
        return [Difference('program', '', 'failed', (f'+ failed: {error!r}'[:400],))]
    was = one['tables']
    found = [
        Difference('program', part, '', (f'{"-" if part in was else "+"} {part}: a program',))
        for part in {*was} ^ {*now}
    ]
    for part in (part for part in was if part in now):
        found += differences(was[part], now[part])
    return found


def compare(path: Path, only: str = '', shown: int = SHOWN) -> int:
    """Tell every schedule that differs, and a count; the exit code."""
    chosen = {name: one for name, one in recorded(path).items() if only in name}
    wrong = 0
    for name, one in chosen.items():
        found = compare_one(name, one)
        wrong += bool(found)
        if found:
            print(f'{name}: {len(found)} differences')
            for difference in found[:shown]:
                print(*(f'    {line[:400]}' for line in difference.lines), sep='\n')
    print(f'{len(chosen) - wrong} of {len(chosen)} schedules are equal, {wrong} differ')
    return 1 if wrong or not chosen else 0


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog='python -m tests.op_tables', description='Record and compare op tables.')
    parser.add_argument('verb', choices=('record', 'compare'))
    parser.add_argument('file', type=Path, nargs='?', default=RECORDED, metavar='FILE')
    parser.add_argument('--only', default='', metavar='TEXT', help='schedules with this in their name')
    parser.add_argument('--shown', type=int, default=SHOWN, metavar='N', help='differences shown of a schedule')
    options = parser.parse_args(arguments)
    began = time.process_time()
    if options.verb == 'compare':
        code = compare(options.file, options.only, options.shown)
    else:
        record(options.file)
        code = 0
    print(f'{time.process_time() - began:.1f} s CPU')
    return code


if __name__ == '__main__':
    sys.exit(main())
