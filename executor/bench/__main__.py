"""``python -m executor.bench``: micro-benchmarks of this machine, written as JSON for ``simpar calibrate``."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from executor.cluster.launch import detect
from executor.devices.kinds import KINDS
from executor.options import DTYPES, TRANSPORTS
from simpar.errors import RunFailed, SimparError
from simpar.hardware.net import USAGE, parse_net
from simpar.units import parse

WRONG_USE = 2
INTERNAL = 70
INTERRUPTED = 130


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(prog='python -m executor.bench', description=__doc__, allow_abbrev=False)
    top.add_argument('--ranks', type=int, default=0, metavar='N', help='processes to start, 2 or more (default: 2)')
    top.add_argument('--net', type=_net, default='none', metavar='NET', help=f'{USAGE} (default: none)')
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
    top.add_argument('--device', choices=tuple(KINDS), default='cpu', help='what computes (default: cpu)')
    top.add_argument(
        '--transport', choices=TRANSPORTS, default='', help='what carries messages (default: native on devices)'
    )
    top.add_argument('--dtype', choices=DTYPES, default='fp32', help='of products and all else (default: fp32)')
    top.add_argument(
        '--meet', type=_time, default=60.0, metavar='TIME', help='in which launched ranks must come (default: 60s)'
    )
    top.add_argument(
        '--timeout', type=_time, default=60.0, metavar='TIME', help='give up when nothing finishes (default: 60s)'
    )
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the record; returns the exit code."""
    options = parser().parse_args(arguments)
    os.environ.setdefault('TORCH_CPP_LOG_LEVEL', 'ERROR')
    # Set before torch is imported, which reads it once. One rank has one core, as in `simpar measure`.
    os.environ['OMP_NUM_THREADS'] = '1'
    try:
        _run(options)
    except SimparError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print('executor.bench: interrupted', file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        print(f'executor.bench: {error.filename or "file"}: {error.strerror or error}', file=sys.stderr)
        return WRONG_USE
    except Exception as error:
        if os.environ.get('SIMPAR_DEBUG'):
            raise
        text = f'{type(error).__name__}: {error}; SIMPAR_DEBUG=1 shows where'
        print(f'executor.bench: internal error: {text}', file=sys.stderr)
        return INTERNAL
    return 0


def _run(options: argparse.Namespace) -> None:
    if importlib.util.find_spec('torch') is None:
        raise RunFailed('torch is not installed; install the extra: pip install "simpar-parallel[torch]"')
    # ``--ranks`` says that ranks are started here, whatever a batch system has put into the environment.
    launch = None if options.ranks else detect(os.environ)
    if launch is not None and launch.idle:
        return
    from executor.bench.bench import run

    run(options, launch)


def _time(text: str) -> float:
    """Seconds of a text with a unit."""
    try:
        return parse(text, 'time')
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _net(text: str) -> str:
    """The text of a network, if it is one."""
    try:
        parse_net(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


if __name__ == '__main__':
    exit_code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # As in ``executor.__main__``: destructors of process groups whose peers have gone would abort.
    os._exit(exit_code)
