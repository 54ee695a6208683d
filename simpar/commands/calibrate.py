"""``simpar calibrate PROFILE.yaml``: measure this machine with the executor's bench and write its profile."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from simpar.calibrate import Calibration, calibrate, load_record, require_profile_path, write_profile
from simpar.calibrate.figures import peak_of
from simpar.commands.executor import need_torch
from simpar.errors import Problem, ScheduleError
from simpar.profiles import load_profile
from simpar.units import format_rate, format_time

BENCH = (sys.executable, '-m', 'executor.bench')


def command(options: argparse.Namespace) -> int:
    """Measure, write the profile and its tables, and say what was not measured well."""
    # Before minutes of measuring.
    require_profile_path(options.output)
    if options.ranks < 2:
        raise ScheduleError(Problem('--ranks', 'a profile needs collectives', 'write 2 or more'))
    need_torch()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / 'bench.json'
        flags = ['--ranks', str(options.ranks), '--net', options.net, '--compute', options.compute]
        flags += ['--device', options.device, '--dtype', options.dtype]
        # Beside the profile: a calibration that was broken off goes on there.
        flags += ['--output', str(file), '--journal', f'{options.output}.journal']
        # In a process of its own, since simpar never imports torch.
        code = subprocess.run([*BENCH, *flags, *(['--quick'] if options.quick else [])], check=False).returncode
        if code:
            return code
        found = calibrate(load_record(file))
    written = write_profile(options.output, found)
    # Read back at once: a profile that cannot be used should fail here, not in the next run.
    load_profile(options.output)
    if options.json:
        print(json.dumps(to_dict(found, written), ensure_ascii=False, allow_nan=False))
    else:
        sys.stdout.write(render(found, written))
    return 0


def to_dict(found: Calibration, written: list[Path]) -> dict[str, object]:
    """The answer as one object; times in seconds, rates in bytes and operations a second."""
    return {
        'profile': str(written[0]),
        # A stack, which devices have, comes behind them.
        'tables': {kind: str(path) for kind, path in zip(found.tables, written[1:], strict=False)},
        'stack': str(written[-1]) if found.record.launches else None,
        'source': found.source,
        'net': found.record.net,
        'numbers': {
            key: {'value': number.value, 'grade': number.grade, 'source': number.source, 'flags': list(number.flags)}
            for key, number in found.numbers.items()
        },
        'grades': {kind: table.grade for kind, table in found.tables.items()},
        'flags': list(found.flags),
        'notes': list(found.record.notes),
    }


def render(found: Calibration, written: list[Path]) -> str:
    """The answer for a person."""
    value = {key: number.value for key, number in found.numbers.items()}
    emulated = found.record.compute == 'emulated'
    alpha = f'{format_time(value["links.latency"])} a step and {format_time(value["library.start"])} a collective'
    tables = ', '.join(f'{kind} {len(table.lines)} lines ({table.grade})' for kind, table in found.tables.items())
    compute = ', emulated compute' if emulated else ''
    lines = [
        f'{found.record.ranks} ranks of a {found.record.machine}, network {found.record.net}{compute}',
        *([] if emulated else _computing(value, peak_of(found.record))),
        f'  network          {format_rate(value["links.bandwidth"])}, {alpha}',
        f'  spread           {_spread(found)}',
        *([] if emulated else [_beside(value)]),
        f'  tables           {tables}',
    ]
    wrong = list(found.summary())
    lines += ['uncertain, and therefore of grade estimate:', *(f'  {line}' for line in wrong)] if wrong else []
    lines += [f'wrote {path}' for path in written]
    return '\n'.join(lines) + '\n'


def _computing(value: dict[str, float], peak: str) -> list[str]:
    return [
        f'  matrix products  up to {value[peak] / 1e9:.4g} GFLOP/s in {peak.rpartition(".")[2]}',
        f'  memory           up to {format_rate(value["device.memory.bandwidth"])}',
    ]


def _spread(found: Calibration) -> str:
    return ', '.join(f'{kind} {table.spread:.1%}' for kind, table in found.tables.items()) + ' (median of the CVs)'


def _beside(value: dict[str, float]) -> str:
    speeds = ', '.join(f'{what} {value[f"slow_down.{what}"]:.2f}' for what in ('matrix', 'memory', 'collective'))
    return f'  speed beside one another: {speeds}'
