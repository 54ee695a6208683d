"""``simpar plan FILE``: the best plan of a space, with a proven gap."""

from __future__ import annotations

import argparse
import json
import sys
from time import monotonic
from types import TracebackType
from typing import Final

import yaml

from simpar.commands.module import graph_of
from simpar.errors import Infeasible, Problem, ScheduleError
from simpar.files import write_atomically
from simpar.planner import Answer, load_planning
from simpar.planner.render import render, saved, to_dict
from simpar.units import format_time

_OFTEN: Final = 0.5
"""Seconds between two lines of progress."""


def command(options: argparse.Namespace) -> int:
    """Print the answer; write the schedule where asked; raise ``Infeasible`` where no plan fits."""
    if options.scheduler and options.jobs:
        raise ScheduleError(Problem('--jobs', 'and --scheduler at once', 'start as many workers as you want'))
    if options.save and options.save.suffix not in ('.yaml', '.yml'):
        raise ScheduleError(
            Problem('--save', f'not a schedule (got {options.save})', 'write a name that ends in .yaml')
        )
    planning = load_planning(options.file, options.set, module=graph_of(options))
    for path in (options.save, options.journal):
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
    with _Progress() as progress:
        answer = planning.search(
            jobs=options.jobs,
            journal=options.journal,
            scheduler=options.scheduler or '',
            seconds=options.seconds or float('inf'),
            gap=options.gap,
            tell=progress,
            note=progress.note,
        )
    if options.save and answer.choice:
        text = yaml.safe_dump(saved(answer.choice), sort_keys=False, allow_unicode=True, width=120)
        write_atomically(options.save, text)
    if options.json:
        print(json.dumps(to_dict(answer), ensure_ascii=False, allow_nan=False))
    else:
        sys.stdout.write(render(answer))
        if options.save and answer.choice:
            print(f'wrote {options.save}')
    sys.stdout.flush()
    if answer.best is None and answer.complete:
        raise Infeasible(f'no plan of {answer.plans} fits; the rules above say why')
    return 0


class _Progress:
    """A line on standard error with the best so far, on a terminal only."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._told = 0.0

    def __enter__(self) -> _Progress:
        return self

    def __call__(self, answer: Answer) -> None:
        if not self._shown or monotonic() - self._told < _OFTEN:
            return
        self._told = monotonic()
        best = f'best {format_time(answer.best.step)}, gap {answer.gap:.1%}' if answer.best else 'no plan yet'
        text = f'{best}; {len(answer.ranking) + answer.infeasible} predicted, {answer.nodes} nodes'
        print(f'\r\x1b[K{text}', end='', file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        """Say a sentence on a line of its own."""
        print(f'Note: {text}', file=sys.stderr, flush=True)

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._shown:
            print('\r\x1b[K', end='', file=sys.stderr, flush=True)
