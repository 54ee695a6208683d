"""Waiting: a line on standard error while something works of which nobody can count the parts, as lowering."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from time import monotonic
from typing import Final

from simpar.case import Case, case_of, cluster_of
from simpar.commands.module import graph_of
from simpar.schedule import Schedule, load_schedule
from simpar.size import at_most, parse_limit
from simpar.units import format_duration

SHORT: Final = 2.0
"""Seconds of which nothing is told."""
_OFTEN: Final = 0.5
_SELDOM: Final = 10.0
"""Seconds between two lines, on a terminal and without one, where lines stay."""


@dataclass(slots=True)
class Waiting:
    """What is told of a work that goes on.

    Arguments: ``most``, seconds that it takes at most, from its begin; 0: nobody knows.
    """

    what: str
    most: float = 0.0

    def text(self, passed: float) -> str:
        """The line after so many seconds."""
        left = self.most - passed
        known = f', {format_duration(left)} left at most' if left > 0 else ''
        return f'{self.what}: {format_duration(passed)} so far{known}'


@contextmanager
def waiting(what: str, *, after: float = SHORT) -> Iterator[Waiting]:
    """Tell from ``after`` seconds on that the body still works; on a terminal the line is gone in the end."""
    told, done = Waiting(what), Event()
    terminal = sys.stderr.isatty() and os.environ.get('TERM') != 'dumb'
    # A thread, since the work itself has no place to tell it from. It sleeps, and never touches the work.
    teller = Thread(target=_tell, args=(told, done, terminal, after), daemon=True)
    teller.start()
    try:
        yield told
    finally:
        done.set()
        teller.join()


def _tell(told: Waiting, done: Event, terminal: bool, after: float) -> None:
    began = monotonic()
    shown = False
    # Without a terminal lines stay, and what is quick says nothing, as of other progress.
    pause = after if terminal else _SELDOM / SHORT * after
    while not done.wait(pause):
        text = told.text(monotonic() - began)
        print(f'\r{text}\x1b[K' if terminal else text, end='' if terminal else '\n', file=sys.stderr, flush=True)
        shown, pause = True, _OFTEN if terminal else _SELDOM
    if shown and terminal:
        print('\r\x1b[K', end='', file=sys.stderr, flush=True)


def case_waited_for(options: argparse.Namespace) -> Case:
    """The case of a verb's file and flags; where it takes long, it is told for how long."""
    with waiting('preparing') as told:
        schedule = load_schedule(options.file, options.set, module=graph_of(options))
        limit = parse_limit(options.limit)
        most = most_seconds(schedule)
        # A bound above the limit is a coarse one: whether it is refused is found out now.
        told.most = most if most <= limit.seconds else 0.0
        return case_of(schedule, limit=limit)


def most_seconds(schedule: Schedule) -> float:
    """A bound on the seconds of a prediction; 0 where a search of strategies comes first, whose length nobody knows."""
    if schedule.plan.search != 'none':
        return 0.0
    baseline = schedule.baseline()
    ranks = cluster_of(schedule).world
    return sum(at_most(one, ranks).seconds for one in (schedule, *([baseline] if baseline else [])))
