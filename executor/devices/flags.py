"""The flags that choose a device: what does not go together is refused before anything starts."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field

from executor.devices.kinds import KINDS, in_threads
from simpar.errors import Problem, ScheduleError
from simpar.hardware.net import Net

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
    fault: tuple[()] = ()
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
    """``--device`` and what belongs to it."""
    verb.add_argument('--device', choices=tuple(KINDS), default='cpu', help='what computes (default: cpu)')
    verb.add_argument(
        '--transport', choices=TRANSPORTS, default='', help='what carries messages (default: native on devices)'
    )
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
    if options.fault:
        yield Problem('--fault', 'faults are made in the threads of CPUs', 'leave it out')
    if options.net.shaped and options.transport != 'gloo':
        yield Problem('--net', 'only messages of gloo can be held back', 'leave it out, or add --transport gloo')
