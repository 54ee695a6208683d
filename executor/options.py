"""The executor's command line: ``python -m executor [VERB] JOB ...``; without a verb, it runs the job."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn, TypeVar

from executor.devices import KINDS, in_threads
from simpar.errors import Problem, RunFailed, ScheduleError, SimparError
from simpar.hardware.net import Net, parse_net
from simpar.size import parse_limit
from simpar.units import parse

WRONG_USE, INTERNAL, INTERRUPTED = 2, 70, 130
Value = TypeVar('Value')
ISSUES = ('eager', 'graph')
TRANSPORTS = ('native', 'gloo')


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a call asks to train on, with the flags that it does not have as they are without them."""

    device: str = 'cpu'
    transport: str = ''
    issue: str = 'eager'
    order: int | None = None
    compute: str = 'real'
    favour_communication: bool = False
    net: Net = field(default_factory=Net)

    @property
    def in_one_process(self) -> bool:
        """Whether all ranks are devices of one process."""
        return in_one_process(self)

    def check(self, launched: str, *, processes: bool) -> None:
        """Raises as ``check_device``.

        Arguments: ``processes``, whether ranks may have processes of their own.
        """
        known = (('device', self.device, tuple(KINDS)), ('transport', self.transport, ('', *TRANSPORTS)))
        problems = [
            Problem(name, f'is {value!r}', f'write one of {", ".join(map(repr, names))}')
            for name, value, names in known
            if value not in names
        ]
        if not problems and not processes and not (self.in_one_process or in_threads(self.device, self.transport)):
            problems.append(
                Problem('processes', f'ranks on {self.device} have processes of their own', 'leave out processes=False')
            )
        if problems:
            raise ScheduleError(problems)
        check_device(self, launched)


def add_device_flags(verb: argparse.ArgumentParser) -> None:
    """``--device`` and ``--transport``."""
    verb.add_argument('--device', choices=tuple(KINDS), default='cpu', help='what computes (default: cpu)')
    verb.add_argument(
        '--transport', choices=TRANSPORTS, default='', help='what carries messages (default: native on devices)'
    )


def _issue(verb: argparse.ArgumentParser) -> None:
    verb.add_argument('--issue', choices=ISSUES, default='eager', help='op by op, or as captured graphs')
    verb.add_argument(
        '--order', type=int, metavar='SEED', help='virtual: run streams in a random one of the legal orders'
    )


def in_one_process(options: argparse.Namespace | Wanted) -> bool:
    """Whether all ranks are devices of one process."""
    return bool(options.device == 'virtual' and options.transport != 'gloo')


def check_device(options: argparse.Namespace | Wanted, launched: str) -> None:
    """Raises ``ScheduleError`` naming every flag that cannot be followed, ``RunFailed`` where there is no device.

    Arguments: ``launched``, who has started this process as a rank; empty: nobody.
    """
    problems = list(_problems(options, launched))
    if problems:
        raise ScheduleError(problems)
    # It imports torch, which the command line alone does not need.
    from executor.devices.open import require

    require(options.device)


def _problems(options: argparse.Namespace | Wanted, launched: str) -> Iterator[Problem]:
    kind = KINDS[options.device]
    if options.issue == 'graph' and not kind.graphs:
        yield Problem('--issue graph', f'is not possible on {kind.name}, which captures none', 'write --issue eager')
    elif options.issue == 'graph' and options.transport == 'gloo':
        what = 'messages by gloo wait for the host, which a graph cannot'
        yield Problem('--issue graph', what, 'leave out --transport gloo')
    if options.order is not None and not in_one_process(options):
        yield Problem(
            '--order', 'only virtual accelerators of one process run in another order', 'add --device virtual'
        )
    if in_one_process(options) and launched:
        what = f'virtual accelerators are all in one process, but {launched} has started one for each rank'
        yield Problem('--device virtual', what, 'start it once, or add --transport gloo')
    if in_threads(options.device, options.transport):
        return
    if options.compute == 'emulated':
        yield Problem('--compute emulated', 'it burns no device', 'write --device cpu, or --compute real')
    if options.favour_communication:
        yield Problem('--favour-communication', 'it concerns the threads of CPUs', 'leave it out')
    if options.net.shaped and options.transport != 'gloo':
        yield Problem('--net', 'only messages of gloo can be held back', 'leave it out, or add --transport gloo')


VERBS: Final = {
    'run': 'run a schedule for some steps, one process a rank',
    'preflight': 'one process a host, before the ranks: who is missing, what hosts lack, who does not reach whom',
    'numerics': 'train in process and compare with the unsharded model',
    'dry-run': 'issue what ranks would ask of devices that are not there',
}
DTYPES: Final = ('fp64', 'fp32', 'fp16', 'bf16')


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(
        prog='python -m executor',
        description='Run schedules for real, with torch.distributed. Starts its ranks itself, or is one of the ranks '
        'that torchrun, srun, mpirun or msrun start.',
        # An abbreviation that works today is ambiguous when an option is added.
        allow_abbrev=False,
    )
    verbs = top.add_subparsers(dest='verb', required=True, metavar='VERB')
    for name, text in VERBS.items():
        verb = verbs.add_parser(name, help=text, description=text, allow_abbrev=False)
        verb.add_argument('job', metavar='JOB', help='schedule.yaml')
        verb.add_argument(
            '--set', action='append', default=[], metavar='a.b=v', help='replace one value; may be repeated'
        )
        verb.add_argument('--json', action='store_true', help='print one JSON object and nothing else')
        verb.add_argument('--seed', type=int, default=0, help='of weights and data (default: 0)')
        verb.add_argument(
            '--limit', action='append', default=[], type=parsed(_limit), metavar='SIZE|TIME', help='as of `simpar run`'
        )
        verb.add_argument(
            '--module', default='', metavar='PKG:FUNCTION', help='the torch module that is trained, as of `simpar run`'
        )
        verb.add_argument('--lifeline', action='store_true', help=argparse.SUPPRESS)
        _ARGUMENTS[name](verb)
    return top


def _run(verb: argparse.ArgumentParser) -> None:
    verb.add_argument('--nproc', type=_positive, metavar='N', help='start so many ranks; must be what the job needs')
    verb.add_argument('--steps', type=_positive, default=3, metavar='N', help='steps, back to back (default: 3)')
    verb.add_argument('--compute', choices=('real', 'emulated'), default='real', help='default: real')
    verb.add_argument(
        '--net', type=parsed(parse_net), default=Net(), metavar='NET', help='none, paced:RATE,LATENCY or netns:RATE'
    )
    _meeting(verb)
    verb.add_argument('--no-preflight', action='store_true', help='do not compare hosts with what the ranks need')
    verb.add_argument(
        '--timeout', type=TIME, default=30.0, metavar='TIME', help='give up when nothing finishes (default: 30s)'
    )
    _dtype(verb)
    verb.add_argument('--port', type=int, default=0, help="of rank 0's store (default: any that is free)")
    verb.add_argument('--favour-communication', action='store_true', help='schedule it first where cores are scarce')
    verb.add_argument('--save', type=Path, metavar='JSON', help='write the trace for `simpar compare`')
    verb.add_argument(
        '--save-state', type=Path, metavar='PT', help='write losses, parameters and gradients, for torch.load'
    )
    verb.add_argument('--checkpoint', type=Path, metavar='DIR', help='train, and keep checkpoints in this folder')
    verb.add_argument('--every', type=_positive, default=10, metavar='N', help='steps between two (default: 10)')
    verb.add_argument('--resume', action='store_true', help='go on from the last checkpoint there, if there is one')
    add_device_flags(verb)
    _issue(verb)
    verb.add_argument('--costs', default='', help=argparse.SUPPRESS)
    # Of `simpar measure`: so many steps that count, in turns with the baseline where that has a file.
    verb.add_argument('--measured', type=_positive, default=0, help=argparse.SUPPRESS)
    verb.add_argument('--save-baseline', type=Path, help=argparse.SUPPRESS)
    verb.add_argument('--against-itself', action='store_true', help=argparse.SUPPRESS)


def _preflight(verb: argparse.ArgumentParser) -> None:
    verb.add_argument('--hosts', required=True, metavar='A,B,...', help='all hosts, that of rank 0 first')
    verb.add_argument('--node-rank', type=int, metavar='N', help='which of them this is (default: told by its name)')
    verb.add_argument('--port', type=int, default=29400, help='where they meet on the first (default: 29400)')
    _meeting(verb)
    _dtype(verb)
    add_device_flags(verb)
    _issue(verb)
    # What a run takes besides, and hosts need not agree on.
    verb.set_defaults(
        compute='real',
        net=Net(),
        steps=1,
        save_state=None,
        favour_communication=False,
        costs='',
        save_baseline=None,
    )


def _meeting(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        '--meet', type=TIME, default=60.0, metavar='TIME', help='in which all must have come (default: 60s)'
    )


def _dtype(verb: argparse.ArgumentParser) -> None:
    verb.add_argument('--dtype', choices=DTYPES, default='', help='in place of every floating dtype of the job')


def _numerics(verb: argparse.ArgumentParser) -> None:
    verb.add_argument('--steps', type=_positive, default=2, metavar='N', help='steps (default: 2)')


def _dry_run(verb: argparse.ArgumentParser) -> None:
    devices = [name for name, kind in KINDS.items() if not kind.module.startswith('executor.')]
    verb.add_argument('--device', choices=devices, default='cuda', help='what would compute (default: cuda)')
    _dtype(verb)


_ARGUMENTS: Final = {'run': _run, 'preflight': _preflight, 'numerics': _numerics, 'dry-run': _dry_run}


def with_verb(arguments: list[str]) -> list[str]:
    """The arguments, ``run`` put before them where they begin with a job."""
    if not arguments:
        return ['--help']
    # ``python -m executor JOB`` was there before the verbs; it still runs the job.
    return arguments if arguments[0] in VERBS or arguments[0].startswith('-') else ['run', *arguments]


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f'{text} is not a whole number from 1')
    return number


def parsed(read: Callable[[str], Value]) -> Callable[[str], Value]:
    """The type of a flag whose ``ValueError`` says in words what is wrong."""

    def value(text: str) -> Value:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return value


def _limit(text: str) -> str:
    parse_limit([text])
    return text


TIME: Final = parsed(lambda text: parse(text, 'time'))


def guarded(name: str, unnamed: str, work: Callable[[], int]) -> int:
    """The exit code of some work that needs torch; errors in words, and never a traceback.

    Arguments: ``unnamed``, what a file without a name is called.
    """
    # gloo warns about every peer that leaves; the watchdog says it better, and once.
    os.environ.setdefault('TORCH_CPP_LOG_LEVEL', 'ERROR')
    try:
        # Only looked up: importing torch takes seconds, and the work imports it where it needs it.
        if importlib.util.find_spec('torch') is None:
            raise RunFailed('torch is not installed; install the extra: pip install "simpar-parallel[torch]"')  # noqa: TRY301
        code = work()
        sys.stdout.flush()
    except SimparError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f'{name}: interrupted', file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        # Files are written whole, with their names.
        print(f'{name}: {error.filename or unnamed}: {error.strerror or error}', file=sys.stderr)
        return WRONG_USE
    except Exception as error:
        # An internal error is ours, not the user's: a traceback is for those who ask for one.
        if os.environ.get('SIMPAR_DEBUG'):
            raise
        print(f'{name}: internal error: {type(error).__name__}: {error}; SIMPAR_DEBUG=1 shows where', file=sys.stderr)
        return INTERNAL
    return code


def leave(code: int) -> NoReturn:
    """End the process at once: destructors of process groups whose peers have gone would abort."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
