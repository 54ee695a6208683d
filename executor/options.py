"""The executor's command line: ``python -m executor [VERB] JOB ...``; without a verb, it runs the job."""

import argparse
import contextlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from executor.devices import KINDS, in_threads
from simpar import files, size, units
from simpar.errors import Problem, RunFailed, SimparError, refuse
from simpar.hardware.net import Net, parse_net

WRONG_USE, INTERNAL, INTERRUPTED = 2, 70, 130
Value = TypeVar('Value')
TRANSPORTS = ('native', 'gloo')


UNSAID: Final[Mapping[str, Any]] = {
    'issue': 'eager', 'order': None, 'compute': 'real', 'favour_communication': False, 'device_memory': 0,
    'time_ops': None, 'net': Net(),
}  # fmt: skip
"""Flags of a run as they are where a call does not have them."""


def run_options(
    device: str, transport: str, launched: str, *, processes: bool = True, **more: object
) -> argparse.Namespace:
    """What a call asks to train on, as flags. Raises as ``check_device``.

    Arguments: ``processes``, whether ranks may have processes of their own; ``more``, other flags.
    """
    choices = (('device', device, tuple(KINDS)), ('transport', transport, ('', *TRANSPORTS)))
    problems = [
        Problem(name, f'is {value!r}', f'write one of {", ".join(map(repr, names))}')
        for name, value, names in choices
        if value not in names
    ]
    options = argparse.Namespace(**{**UNSAID, 'device': device, 'transport': transport, **more})
    if not problems and not processes and not (in_one_process(options) or in_threads(device, transport)):
        problems.append(
            Problem('processes', f'ranks on {device} have processes of their own', 'leave out processes=False')
        )
    refuse(problems)
    check_device(options, launched)
    return options


def in_one_process(options: argparse.Namespace) -> bool:
    """Whether all ranks are devices of one process."""
    return bool(options.device == 'virtual' and options.transport != 'gloo')


def check_device(options: argparse.Namespace, launched: str) -> None:
    """Raises ``ScheduleError`` naming every flag that cannot be followed, ``RunFailed`` where there is no device.

    Arguments: ``launched``, who has started this process as a rank; empty: nobody.
    """
    refuse(_problems(options, launched))
    # It imports torch, which the command line alone does not need.
    from executor.devices.open import require

    require(options.device)


def _problems(options: argparse.Namespace, launched: str) -> Iterator[Problem]:
    kind, threads = KINDS[options.device], in_threads(options.device, options.transport)
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
    if options.time_ops and (launched or not threads or options.compute != 'real'):
        what = 'only ops that ranks of this machine compute on its CPUs are timed'
        yield Problem('--time-ops', what, 'leave it out, or write --compute real --device cpu without a launcher')
    if threads:
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
        add_flags(verbs.add_parser(name, help=text, description=text, allow_abbrev=False), name)
    # What a run takes besides, and hosts need not agree on.
    verbs.choices['preflight'].set_defaults(**UNSAID, steps=1, save_state=None, costs='', save_baseline=None)
    return top


def add_flags(verb: argparse.ArgumentParser, name: str) -> None:
    """Add the flags that ``flags.csv`` has for a verb, or for ``bench``; what a row leaves empty is its kind's."""
    for flag in _flags_of(name):
        hidden = {'help': argparse.SUPPRESS} if flag['help'] == '-' else {}
        verb.add_argument(flag['flag'], **{**_KINDS[flag['kind']], **files.flag_options(flag), **hidden})


def check_outputs(options: argparse.Namespace, name: str) -> None:
    """Raise ``ScheduleError`` with every output of a verb, or of ``bench``, that cannot be written."""
    files.check_outputs(_flags_of(name), options)


def _flags_of(name: str) -> Iterator[dict[str, str]]:
    rows = files.read_csv(Path(__file__).with_name('flags.csv'))
    return (row for row in rows if name in row['verbs'].split())


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
    size.parse_limit([text])
    return text


def _time(text: str) -> float:
    seconds = units.parse(text, 'time')
    if not seconds:
        raise ValueError('nothing can be waited for in no time; write e.g. 30s')
    return seconds


def _net(text: str) -> str:
    """The text of a network, if it is one."""
    parse_net(text)
    return text


_MANY: Final[Mapping[str, Any]] = {'action': 'append', 'default': []}
_KINDS: Final[Mapping[str, Mapping[str, Any]]] = {
    'plain': {},
    'switch': {'action': 'store_true'},
    'text': {'default': ''},
    'required': {'required': True},
    **{kind: {'type': Path} for kind in ('path', 'output', 'output folder')},
    'integer': {'type': int},
    'positive': {'type': _positive},
    # So many steps that count, of `simpar measure`, in turns with the baseline where that has a file; 0: it is none.
    'measured': {'type': _positive, 'default': 0},
    'time': {'type': parsed(_time)},
    'size': {'type': parsed(lambda text: int(units.parse(text, 'size'))), 'default': 0},
    'net': {'type': parsed(parse_net)},
    'net text': {'type': parsed(_net)},
    'texts': _MANY,
    'limits': {**_MANY, 'type': parsed(_limit)},
    'dtype': {'choices': ('fp64', 'fp32', 'fp16', 'bf16'), 'default': ''},
    'transport': {'choices': TRANSPORTS, 'default': ''},
    'device': {'choices': tuple(KINDS)},
    'absent device': {'choices': [name for name, kind in KINDS.items() if not kind.module.startswith('executor.')]},
}
"""What argparse is told of each kind of flag; texts and limits may be repeated."""


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
