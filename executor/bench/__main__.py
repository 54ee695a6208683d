"""``python -m executor.bench``: micro-benchmarks of this machine, written as JSON for ``simpar calibrate``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from executor.cluster import detect, is_launched
from executor.host import keep_memory
from executor.options import DTYPES, TIME, add_device_flags, guarded, leave, parsed
from simpar.hardware.net import USAGE, parse_net


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(prog='python -m executor.bench', description=__doc__, allow_abbrev=False)
    top.add_argument('--ranks', type=int, default=0, metavar='N', help='processes to start, 2 or more (default: 2)')
    top.add_argument('--net', type=parsed(_net), default='none', metavar='NET', help=f'{USAGE} (default: none)')
    top.add_argument(
        '--compute',
        choices=('real', 'emulated'),
        default='real',
        help='emulated: measure the messages of emulated compute alone (default: real)',
    )
    top.add_argument('--quick', action='store_true', help='fewer sizes and repeats: a minute instead of five')
    top.add_argument('--sizes', choices=('least', 'tiny', 'quick', 'full'), default='', help=argparse.SUPPRESS)
    top.add_argument('--output', type=Path, metavar='JSON', help='where the record goes')
    top.add_argument('--profile', type=Path, metavar='YAML', help='where the profile goes, with its tables and stack')
    top.add_argument(
        '--journal', type=Path, metavar='DIR', help='where finished runs are kept (default: beside what is written)'
    )
    top.add_argument(
        '--for',
        dest='schedule',
        type=Path,
        metavar='SCHEDULE',
        help='measure the exact ops of this schedule too, in 1, 2 and 4 copies',
    )
    top.add_argument('--seed', type=int, default=0, help='of the shuffled orders (default: 0)')
    top.add_argument('--favour-communication', action='store_true', help='schedule it first where cores are scarce')
    add_device_flags(top)
    top.add_argument('--dtype', choices=DTYPES, default='fp32', help='of products and all else (default: fp32)')
    top.add_argument(
        '--meet', type=TIME, default=60.0, metavar='TIME', help='in which launched ranks must come (default: 60s)'
    )
    top.add_argument(
        '--timeout', type=TIME, default=60.0, metavar='TIME', help='give up when nothing finishes (default: 60s)'
    )
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the record; returns the exit code."""
    options = parser().parse_args(arguments)
    # Set before torch is imported, which reads it once. One rank has one core, as in `simpar measure`.
    os.environ['OMP_NUM_THREADS'] = '1'
    return guarded('executor.bench', 'file', lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    # ``--ranks`` says that ranks are started here, whatever a batch system has put into the environment.
    launch = None if options.ranks else detect(os.environ)
    if launch is None or not launch.idle:
        from executor.bench.bench import run

        run(options, launch)
    return 0


def _net(text: str) -> str:
    """The text of a network, if it is one."""
    parse_net(text)
    return text


if __name__ == '__main__':
    if is_launched(os.environ):
        keep_memory()
    leave(main())
