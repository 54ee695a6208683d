"""The flags that choose a device: what does not go together is refused before anything starts."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from executor.devices.kinds import KINDS, in_threads
from simpar.errors import Problem, ScheduleError

ISSUES = ('eager', 'graph')
TRANSPORTS = ('native', 'gloo')


def add_device_flags(verb: argparse.ArgumentParser) -> None:
    """``--device`` and what belongs to it."""
    verb.add_argument('--device', choices=tuple(KINDS), default='cpu', help='what computes (default: cpu)')
    verb.add_argument(
        '--transport', choices=TRANSPORTS, default='', help='what carries messages (default: native on devices)'
    )
    verb.add_argument('--issue', choices=ISSUES, default='eager', help='op by op, or as captured graphs')
    verb.add_argument(
        '--order', type=int, metavar='SEED', help='virtual: run streams in a random one of the legal orders'
    )


def in_one_process(options: argparse.Namespace) -> bool:
    """Whether all ranks are devices of one process."""
    return bool(options.device == 'virtual' and options.transport != 'gloo')


def check_device(options: argparse.Namespace, launched: str) -> None:
    """Raises ``ScheduleError`` naming every flag that cannot be followed, ``RunFailed`` where there is no device.

    Arguments: ``launched``, who has started this process as a rank; empty: nobody.
    """
    problems = list(_problems(options, launched))
    if problems:
        raise ScheduleError(problems)
    # It imports torch, which the command line alone does not need.
    from executor.devices.open import require

    require(options.device)


def _problems(options: argparse.Namespace, launched: str) -> Iterator[Problem]:
    kind = KINDS[options.device]
    if options.issue == 'graph':
        can = 'is not built yet' if kind.graphs else f'is not possible on {kind.name}, which captures none'
        yield Problem('--issue graph', can, 'write --issue eager')
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
    if options.fault:
        yield Problem('--fault', 'faults are made in the threads of CPUs', 'leave it out')
    if options.net.shaped and options.transport != 'gloo':
        yield Problem('--net', 'only messages of gloo can be held back', 'leave it out, or add --transport gloo')
