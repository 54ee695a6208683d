"""A profile from a record: numbers, tables, what is wrong with them, and the files that hold them."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from simpar import document, files
from simpar.calibrate.figures import Number, numbers_of, per
from simpar.calibrate.record import Record, Table, named, tables_of
from simpar.errors import ScheduleError, refusal
from simpar.profiles import FILE, profile_path

SHOWN: Final = 3
"""Lines of a table that are named on the screen."""
SUFFIXES: Final = ('.yaml', '.yml')
GIVEN: Final = 'cpu-gloo'
PREFIXES: Final = {
    'flops': ((1e12, 'TFLOP/s'), (1e9, 'GFLOP/s'), (1e6, 'MFLOP/s'), (1.0, 'FLOP/s')),
    'rate': ((1e9, 'GB/s'), (1e6, 'MB/s'), (1.0, 'B/s')),
    'size': ((1e9, 'GB'), (1e6, 'MB'), (1.0, 'B')),
    'time': ((1.0, 's'), (1e-3, 'ms'), (1e-6, 'us'), (1e-9, 'ns')),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Calibration:
    """What a record says of a machine.

    Arguments:
        numbers: the numbers by their dotted key in the profile.
        tables: the tables by their kind.
    """

    record: Record
    numbers: dict[str, Number]
    tables: dict[str, Table]

    @property
    def flags(self) -> Iterator[str]:
        """Every uncertain number and line of a table, in words."""
        for key, number in self.numbers.items():
            for flag in number.flags:
                yield f'{key}: {flag}'
        for kind, table in self.tables.items():
            for line in table.flagged:
                yield f'{kind} {named(kind, line.key)}: {"; ".join(line.flags)}'

    @property
    def source(self) -> str:
        """Where all numbers are from, in one line."""
        software = ', '.join(f'{name} {version}' for name, version in self.record.software.items())
        return f'simpar calibrate, {self.record.date}, {self.record.machine}, {software}'

    def summary(self) -> Iterator[str]:
        """Tell what is uncertain, a line for each number and table."""
        yield from self.record.notes
        alike: dict[tuple[str, ...], list[str]] = {}
        for key, number in self.numbers.items():
            if number.flags:
                alike.setdefault(number.flags, []).append(key)
        yield from (f'{", ".join(keys)}: {"; ".join(flags)}' for flags, keys in alike.items())
        for kind, table in self.tables.items():
            if lines := sorted(table.flagged, key=lambda line: -line.cv):
                worst = ', '.join(f'{named(kind, line.key)} ({", ".join(line.flags)})' for line in lines[:SHOWN])
                yield f'{kind} table: {len(lines)} of {len(table.lines)} lines are uncertain, e.g. {worst}'


def calibrate(record: Record) -> Calibration:
    """Numbers and tables of a profile from the record of a bench.

    Numbers that were not measured well (a spread above 10 %, a fit that misses by more than 5 %, an alpha below zero,
    more work in less time) carry flags and the grade ``estimate``.
    """
    tables = tables_of(record)
    return Calibration(record=record, numbers=numbers_of(record, tables), tables=tables)


def require_profile_path(path: Path) -> None:
    """Raises ``ScheduleError`` where a path is none that a profile can be written to."""
    if path.suffix not in SUFFIXES:
        raise refusal(path, 'not the name of a profile', f'write a name that ends in {SUFFIXES[0]}')
    if path.is_dir():
        raise refusal(path, 'is a folder', f'write the name of a file, e.g. {path.stem}/{FILE}')
    # What cannot be read is no schedule of anybody's.
    root = None
    with suppress(ScheduleError):
        root = document.read(path).root if path.is_file() else None
    if isinstance(root, dict) and 'workload' in root:
        what = 'is a schedule, and the profile would be written over it'
        raise refusal(path, what, f'write the name of a new file, e.g. {path.stem}-profile.yaml')


def write_profile(path: Path, calibration: Calibration) -> list[Path]:
    """Write a profile and, beside it, its tables, each file whole or not at all; the profile last.

    Returns the files, the profile first. Raises ``ScheduleError`` for a path that is none, ``OSError``.
    """
    require_profile_path(path)
    written = [path]
    for kind, table in calibration.tables.items():
        written.append(path.with_name(_table_name(path, kind)))
        files.write_atomically(written[-1], table.text(calibration.source))
    if calibration.record.launches:
        written.append(path.with_name(f'{path.stem}.stack.yaml'))
        files.write_atomically(written[-1], stack_text(path, calibration))
    # The profile last: a reader that finds it finds its tables too.
    files.write_atomically(path, profile_text(path, calibration))
    return written


def _table_name(path: Path, kind: str) -> str:
    return f'{path.stem}.{kind}.csv'


def profile_text(path: Path, calibration: Calibration) -> str:
    """The YAML of a profile that is written to ``path``."""
    head = [
        f'# Written by {calibration.source}.',
        '# Each number: value, source, grade. docs/calibrate.md says how they were measured.',
    ]
    wrong = list(calibration.summary())
    head += ['# Uncertain, and therefore of grade estimate:', *(f'#   {line}' for line in wrong)] if wrong else []
    body = yaml.dump(_tree(path, calibration), Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)
    return '\n'.join(head) + '\n' + body


def stack_text(path: Path, calibration: Calibration) -> str:
    """The YAML of a stack: what the executor's host takes to issue; only devices have such a host."""
    figure = {key: _figure(number, calibration) for key, number in calibration.numbers.items()}
    tree = {
        'format': 1,
        'name': f'{path.stem}.stack',
        'description': "simpar's executor, op by op, as it was measured",
        'source': calibration.source,
        'host': _under(figure, 'stack'),
    }
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    """Figures on one line each; no references."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


class _Leaf(dict[Any, Any]):
    """A mapping that is written on one line."""


_Dumper.add_representer(
    _Leaf, lambda dumper, leaf: dumper.represent_mapping('tag:yaml.org,2002:map', leaf, flow_style=True)
)


def _tree(path: Path, calibration: Calibration) -> dict[str, Any]:
    record = calibration.record
    # ``folder/profile.yaml`` is called by its folder, as the profiles that come with simpar are.
    name = path.parent.resolve().name if path.name == FILE else path.stem
    figure = {key: _figure(number, calibration) for key, number in calibration.numbers.items()}
    # Emulated compute takes the device of the shipped profile as it is.
    is_given = record.compute == 'emulated'
    defaults: dict[str, Any] = yaml.safe_load(profile_path(GIVEN).read_text(encoding='utf-8')) if is_given else {}
    compute = ', emulated compute' if defaults else ''
    where = f' on {record.hosts} hosts' if record.hosts > 1 else ''
    ranks = f'{record.ranks} ranks{where} over {record.library}'
    rows = record.tables.collective if record.library == 'gloo' else []
    # Up to how many bytes all-reduces were exchanged.
    most = max((row.bytes for row in rows if row.algorithm == 'exchange'), default=0)
    longest = 'the largest all-reduce that was measured so; longer ones go around a ring'
    exchange = {'exchange': _Leaf(value=f'{most} B', source=longest, grade='measured')} if most else {}
    library = {'nccl': 'NCCL', 'hccl': 'HCCL'}.get(record.library, record.library)
    return {
        'format': 1,
        'name': name,
        'description': f'{ranks}, network {record.net}{compute}: {calibration.source}',
        # Of one node; a schedule tells how many nodes it has.
        'devices': record.per_host,
        'device': defaults.get('device') or _device(record, figure),
        'host': defaults.get('host') or {'mode': 'eager', 'issue': _under(figure, 'host.issue')},
        'links': _links(record, figure),
        # Where copies to the host were measured.
        **({'host_link': {'name': 'host', **_reached(figure, 'host_link')}} if 'host_link.latency' in figure else {}),
        'library': {'name': library, 'across': 'flat', 'start': figure['library.start'], **exchange},
        'slow_down': {
            **defaults.get('slow_down', {}),
            **_under(figure, 'slow_down'),
            # The kernels of these libraries hold their multiprocessors while they wait; a thread that waits sleeps.
            'waiting': record.library != 'gloo',
        },
        'tables': {kind: _table(path, table, calibration) for kind, table in calibration.tables.items()},
        'net': record.net,
    }


def _device(record: Record, figure: dict[str, _Leaf]) -> dict[str, Any]:
    of = {
        prefix: _under(figure, f'device.{prefix}') for prefix in ('vector', 'memory', 'kernel', 'matmul', 'attention')
    }
    under_load = {'sustained': figure['device.sustained'], 'power_bound': True} if record.sustained else {}
    return {
        'name': 'CPU core' if record.device == 'cpu' else record.machine,
        # A CPU core has no matrix unit of its own; products run at the vector rates.
        'matrix': _Leaf(_under(figure, 'device.matrix')),
        **of,
        **under_load,
    }


def _links(record: Record, figure: dict[str, _Leaf]) -> list[dict[str, Any]]:
    """One link, or that inside of a host and that between hosts."""
    if 'across.bandwidth' not in figure:
        near = 'loopback' if record.net == 'none' and record.hosts == 1 else 'wire'
        return [_link(near, 0, 'device', figure, 'links')]
    inside = _link('host', record.per_host, 'device', figure, 'links')
    return [inside, _link('network', 0, per(record), figure, 'across')]


def _link(name: str, devices: int, per: str, figure: dict[str, _Leaf], of: str) -> dict[str, Any]:
    return {'name': name, 'devices': devices, 'per': per, **_reached(figure, of), 'algorithm': _Leaf({2: 'ring'})}


def _reached(figure: dict[str, _Leaf], of: str) -> dict[str, _Leaf]:
    bandwidth = figure[f'{of}.bandwidth']
    share = _Leaf(value=1, source='all of what was measured', grade=bandwidth['grade'])
    return {'bandwidth': bandwidth, 'share': share, 'latency': figure[f'{of}.latency']}


def _under(figures: dict[str, _Leaf], prefix: str) -> dict[str, _Leaf]:
    return {key.removeprefix(f'{prefix}.'): leaf for key, leaf in figures.items() if key.startswith(f'{prefix}.')}


def _figure(number: Number, calibration: Calibration) -> _Leaf:
    record = calibration.record
    wrong = f'; but {"; ".join(number.flags)}' if number.flags else ''
    source = f'{number.source}{wrong}; {record.date}, {record.machine}'
    return _Leaf(value=quantity(number.value, number.kind), source=source, grade=number.grade)


def _table(path: Path, table: Table, calibration: Calibration) -> dict[str, Any]:
    doubtful = f', {len(table.flagged)} of them uncertain' if table.flagged else ''
    dtype = {'dtype': calibration.record.dtype} if table.kind in ('matmul', 'attention') else {}
    source = f'{len(table.lines)} lines{doubtful}, spread {table.spread:.1%}; {calibration.source}'
    return {'file': _table_name(path, table.kind), 'source': source, 'grade': table.grade, **dtype}


def quantity(value: float, kind: str) -> str | float:
    """A number as a profile holds it, to four digits: with its unit, or bare where it has none."""
    if not kind:
        return float(f'{value:.4g}')
    for factor, unit in PREFIXES[kind]:
        if value >= factor:
            return f'{value / factor:.4g} {unit}'
    return f'{value / factor:.4g} {unit}'
