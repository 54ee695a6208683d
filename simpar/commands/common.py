"""What verbs share: the case of a file, networks, pictures, lines of progress, the executor.

The executor, ``python -m executor``, runs in a process of its own: simpar itself never imports torch.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Final

from simpar import errors, size, units
from simpar.case import Case, case_of, cluster_of
from simpar.hardware.net import Net, parse_net
from simpar.schedule import Schedule, load_schedule

if TYPE_CHECKING:
    from typing_extensions import Self


def schedule_text(options: argparse.Namespace) -> str:
    """The file of a verb with what replaces values of it, as a page shows it."""
    words = ''.join(f'# --set {word}\n' for word in options.set)
    return f'{words}{options.file.read_text(encoding="utf-8")}'


def about(case: Case) -> str:
    """What a page of a case is of: the model, and today."""
    return f'{case.about} · {date.today():%Y-%m-%d}'


def case_waited_for(options: argparse.Namespace) -> Case:
    """The case of a verb's file and flags; where it takes long, it is told for how long."""
    with waiting('preparing') as notice:
        schedule = load_schedule(options.file, options.set, module=graph_of(options))
        limit = size.parse_limit(options.limit)
        most = most_seconds(schedule)
        # A bound above the limit is a coarse one: whether it is refused is found out now.
        notice.most = most if most <= limit.seconds else 0.0
        return case_of(schedule, limit=limit)


def most_seconds(schedule: Schedule) -> float:
    """A bound on the seconds of a prediction; 0 where a search of strategies comes first, whose length nobody knows."""
    if schedule.plan.search != 'none':
        return 0.0
    baseline = schedule.baseline()
    ranks = cluster_of(schedule).world
    return sum(size.at_most(one, ranks).seconds for one in (schedule, *([baseline] if baseline else [])))


def graph_of(options: argparse.Namespace) -> str:
    """The graph of the module that the flag names; empty: there is no flag."""
    if not options.module:
        if options.op:
            what = 'says the kind of an operator of a module, and there is none'
            raise errors.refusal('--op', what, 'write --module PKG:FUNCTION too')
        return ''
    # Torch takes seconds, so nothing of it is imported without the flag.
    from simpar.torch_module.from_module import imported

    return imported(options.module, ops=options.op).model.graph_text


def executor_flags(options: argparse.Namespace) -> list[str]:
    """Flags that the executor has, too, as it takes them."""
    module = ['--module', options.module] if options.module else []
    module += [word for own in options.op for word in ('--op', own)]
    return [*module, *(word for limit in options.limit for word in ('--limit', limit))]


def named_values(words: Sequence[str], flag: str) -> Iterator[tuple[str, str]]:
    """The names and values of a flag that is given as ``NAME=VALUE``, often."""
    for word in words:
        name, sign, value = word.partition('=')
        if not sign or not name.strip():
            raise errors.refusal(f'{flag} {word[:60]}', 'not a name and a value', f'write e.g. {flag} NNODES=8')
        yield name.strip(), value


def net_of(options: argparse.Namespace) -> Net:
    """The network; what is wrong with it stands at its flag."""
    try:
        return parse_net(options.net)
    except ValueError as error:
        raise errors.refusal('--net', str(error)) from None


def predicted_net(case: Case, net: Net) -> str:
    """The network that a prediction is for, as ``--net`` writes it: the shaped one, else the profile's."""
    if net.shaped:
        return net.flag
    try:
        return parse_net(case.cluster.profile.net or 'none').flag
    # A profile may say anything of a network that is none of ours.
    except ValueError:
        return ''


def start(verb: str, file: Path, overrides: Sequence[str], flags: Sequence[str] = (), *, silent: bool = False) -> int:
    """Run one of the executor's verbs on a schedule file and return its exit code.

    Arguments: ``silent`` drops its standard output, so that ours can be one JSON object. Raises ``RunFailed`` where
    torch is not installed.
    """
    need_torch()
    settings = [word for override in overrides for word in ('--set', override)]
    command = [sys.executable, '-m', 'executor', verb, str(file), *settings, *flags, '--lifeline']
    output = subprocess.DEVNULL if silent else None
    # The executor ends with its standard input: the kernel closes it if this process is killed. So does the end of the
    # block, on Ctrl-C, and waits.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output) as process:
        return process.wait()


def need_torch() -> None:
    """Raise ``RunFailed`` where torch is not installed."""
    # Looked up without importing it.
    if importlib.util.find_spec('torch') is None:
        raise errors.RunFailed('torch is not installed; install the extra: pip install "simpar-parallel[torch]"')


SHORT: Final = 2.0
"""Seconds of which nothing is told."""
_OFTEN: Final = 0.1
"""Seconds between two lines of parts at least: more often nobody reads it."""
_ALIVE: Final = 0.5
"""Seconds between two lines of a work that goes on."""
_SELDOM: Final = 10.0
"""Seconds between two lines where there is no terminal: they stay in the file that takes them."""
_RECENT: Final = 64
"""Rows of which the pace is taken: those in processes come faster than the first, which are predicted before."""


class Line:
    """A line on standard error that is written over, and gone in the end; without a terminal lines stay."""

    def __init__(self) -> None:
        # Whether it can be written over.
        self.is_shown = sys.stderr.isatty() and os.environ.get('TERM') != 'dumb'
        # Without a terminal what is quick says nothing.
        self._told = 0.0 if self.is_shown else monotonic()
        self._width = 0

    def __enter__(self) -> Self:
        return self

    def say(self, text: str, now: float) -> None:
        """Write the line anew, at a time."""
        self._told = now
        if not self.is_shown:
            print(text, file=sys.stderr, flush=True)
            return
        # Blanks, so that nothing stays of a longer line before.
        print(f'\r{text.ljust(self._width)}', end='', file=sys.stderr, flush=True)
        self._width = len(text)

    def note(self, text: str) -> None:
        """Say a sentence on a line of its own, on a terminal or not."""
        self._clear()
        print(f'Note: {text}', file=sys.stderr, flush=True)

    def _clear(self) -> None:
        if self._width:
            print('\r\x1b[K', end='', file=sys.stderr, flush=True)
            self._width = 0

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._clear()


class Progress(Line):
    """How many are done; without a terminal a line every 10 seconds.

    Arguments: ``what`` is done to each; ``after``, seconds that are short enough to say nothing.
    It has ``done`` and ``of``, how many are done, of how many; both 0 until it is told.
    """

    def __init__(self, what: str = 'predicted', *, after: float = 0.0) -> None:
        self._what = what
        self._silent_until = monotonic() + after
        super().__init__()
        self.done = self.of = 0
        self._recent: deque[tuple[float, int]] = deque(maxlen=_RECENT)

    def __call__(self, done: int, of: int) -> None:
        """Take how many are done, of how many; tell it."""
        self.done, self.of = done, of
        now = monotonic()
        self._recent.append((now, done))
        # The last line is left out, for it would be cleared at once.
        if done < of and now >= self._silent_until and now - self._told >= (_OFTEN if self.is_shown else _SELDOM):
            self.say(f'{done} of {of} {self._what}{self._left()}', now)

    def _left(self) -> str:
        """The time that the others take, as the recent ones did; nothing as long as that is not known."""
        (begin, first), (end, last) = self._recent[0], self._recent[-1]
        if last == first:
            return ''
        return f', {units.format_duration((end - begin) / (last - first) * (self.of - last))} left'


@dataclass(slots=True)
class Waiting:
    """What is told of a work that goes on, of which nobody can count the parts, as lowering.

    Arguments: ``most``, seconds that it takes at most, from its begin; 0: nobody knows.
    """

    what: str
    most: float = 0.0

    def text(self, passed: float) -> str:
        """The line after so many seconds."""
        left = self.most - passed
        rest = f', {units.format_duration(left)} left at most' if left > 0 else ''
        return f'{self.what}: {units.format_duration(passed)} so far{rest}'


@contextmanager
def waiting(what: str, *, after: float = SHORT) -> Iterator[Waiting]:
    """Tell from ``after`` seconds on that the body still works; on a terminal the line is gone in the end."""
    notice, done = Waiting(what), Event()
    # A thread, since the work itself has no place to tell it from. It sleeps, and never touches the work.
    teller = Thread(target=_tell, args=(notice, done, after), daemon=True)
    teller.start()
    try:
        yield notice
    finally:
        done.set()
        teller.join()


def _tell(notice: Waiting, done: Event, after: float) -> None:
    began = monotonic()
    with Line() as line:
        # Without a terminal lines stay, and what is quick says nothing, as of other progress.
        pause = after if line.is_shown else _SELDOM / SHORT * after
        while not done.wait(pause):
            line.say(notice.text(monotonic() - began), monotonic())
            pause = _ALIVE if line.is_shown else _SELDOM
