"""``python -m executor.bench``: micro-benchmarks of this machine, written as JSON for ``simpar calibrate``."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from simpar.errors import RunFailed, SimparError
from simpar.hardware.net import USAGE, parse_net

WRONG_USE = 2
INTERNAL = 70
INTERRUPTED = 130


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(prog='python -m executor.bench', description=__doc__, allow_abbrev=False)
    top.add_argument('--ranks', type=int, default=2, metavar='N', help='processes, 2 or more (default: 2)')
    top.add_argument('--net', type=_net, default='none', metavar='NET', help=f'{USAGE} (default: none)')
    top.add_argument(
        '--compute',
        choices=('real', 'emulated'),
        default='real',
        help='emulated: measure the messages of emulated compute alone (default: real)',
    )
    top.add_argument('--quick', action='store_true', help='fewer sizes and repeats: a minute instead of five')
    top.add_argument('--sizes', choices=('tiny', 'quick', 'full'), default='', help=argparse.SUPPRESS)
    top.add_argument('--output', type=Path, required=True, metavar='JSON', help='where the record goes')
    top.add_argument(
        '--for',
        dest='schedule',
        type=Path,
        metavar='SCHEDULE',
        help='measure the exact ops of this schedule too, in 1, 2 and 4 copies',
    )
    top.add_argument('--seed', type=int, default=0, help='of the shuffled orders (default: 0)')
    top.add_argument('--favour-communication', action='store_true', help='schedule it first where cores are scarce')
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
    from executor.bench.bench import bench, bench_messages
    from executor.bench.jobs import schedule_programs
    from executor.bench.progress import progress
    from executor.bench.sizes import NAMED
    from simpar.files import write_atomically

    programs = schedule_programs(options.schedule) if options.schedule else ()
    net, sizes = parse_net(options.net), NAMED[options.sizes or ('quick' if options.quick else 'full')]
    with progress() as reporter:
        if options.compute == 'emulated':
            record = bench_messages(options.ranks, net, sizes, reporter, net_name=options.net, seed=options.seed)
        else:
            record = bench(
                options.ranks,
                net,
                sizes,
                reporter,
                net_name=options.net,
                programs=programs,
                seed=options.seed,
                favour=options.favour_communication,
            )
    write_atomically(options.output, json.dumps(record) + '\n')


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
