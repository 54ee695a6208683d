"""``simpar plan FILE``: the best plan of a space, with a proven gap."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Final

from simpar.budget import parse_budget
from simpar.commands.module import graph_of
from simpar.errors import Infeasible, Problem, ScheduleError
from simpar.files import write_atomically
from simpar.planner import Answer, Planning, load_planning
from simpar.planner.plain import to_dict
from simpar.planner.render import render
from simpar.planner.saving import saved
from simpar.planner.sizes import render_sizes, sizes, sizes_to_dict
from simpar.planner.verb import Planned, explained
from simpar.units import format_time

FORMATS: Final = ('.png', '.svg', '.pdf')
_OFTEN: Final = 0.5
"""Seconds between two lines of progress."""


def command(options: argparse.Namespace) -> int:
    """Print the answer; write what is asked for; raise ``Infeasible`` where no plan fits."""
    _check(options)
    planning = load_planning(options.file, options.set, module=graph_of(options))
    for path in (options.save, options.journal, options.plot):
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
    if options.devices:
        return _sizes(options, planning)
    answer = _searched(options, planning)
    found = Planned(answer=answer) if options.brief else _explained(options, answer)
    written = _write(options, planning, answer)
    if options.json:
        print(json.dumps(to_dict(answer, found.why, found.robustness), ensure_ascii=False, allow_nan=False))
    else:
        sys.stdout.write(render(answer, found.why, found.robustness))
        sys.stdout.write(''.join(f'wrote {path}\n' for path in written))
    sys.stdout.flush()
    if answer.best is None and answer.complete:
        raise Infeasible(f'no plan of {answer.plans} fits; the rules above say why')
    return 0


def _check(options: argparse.Namespace) -> None:
    """Raise ``ScheduleError`` with every flag that does not go with another."""
    problems = []
    if options.scheduler and options.jobs:
        problems.append(Problem('--jobs', 'and --scheduler at once', 'start as many workers as you want'))
    if options.save and options.save.suffix not in ('.yaml', '.yml'):
        problems.append(Problem('--save', f'not a schedule (got {options.save})', 'write a name that ends in .yaml'))
    if options.save and options.devices:
        what = 'and --devices at once: each number of devices has a plan of its own'
        problems.append(Problem('--save', what, 'save one of them, with --set cluster.nodes=N'))
    if options.brief and options.devices:
        what = 'changes nothing with --devices, which tells neither why nor what may be worse'
        problems.append(Problem('--brief', what, 'leave it out'))
    if options.plot and options.plot.suffix not in FORMATS:
        problems.append(Problem('--plot', f'not a picture (got {options.plot})', f'write {", ".join(FORMATS)}'))
    if options.train and not options.devices:
        problems.append(
            Problem('--train', 'changes nothing without --devices', 'leave it out, or write e.g. --devices 64,128')
        )
    try:
        if options.train:
            parse_budget(options.train)
    except ValueError as error:
        problems.append(Problem('--train', str(error)))
    if problems:
        raise ScheduleError(problems)


def _searched(options: argparse.Namespace, planning: Planning) -> Answer:
    with _Progress() as progress:
        return planning.search(
            jobs=options.jobs,
            journal=options.journal,
            scheduler=options.scheduler or '',
            seconds=options.seconds or float('inf'),
            gap=options.gap,
            tell=progress,
            note=progress.note,
        )


def _explained(options: argparse.Namespace, answer: Answer) -> Planned:
    return explained(answer, jobs=options.jobs, scheduler=options.scheduler or '')


def _sizes(options: argparse.Namespace, planning: Planning) -> int:
    """Plan on several numbers of devices."""
    budget = parse_budget(options.train) if options.train else None
    found = sizes(planning, options.devices, budget, lambda one: _searched(options, one))
    if options.plot and found.front:
        from simpar.plot.frame import write_figure

        write_figure(options.plot, found.plot())
    if options.json:
        print(json.dumps(sizes_to_dict(found), ensure_ascii=False, allow_nan=False))
    else:
        sys.stdout.write(render_sizes(found))
        if options.plot and found.front:
            print(f'wrote {options.plot}')
    sys.stdout.flush()
    if not found.front and all(one.answer.complete for one in found.found):
        raise Infeasible('no plan fits on any of these numbers of devices')
    return 0


def _write(options: argparse.Namespace, planning: Planning, answer: Answer) -> list[Path]:
    """The schedule and the picture, where a plan is known; what was written."""
    if answer.choice is None:
        return []
    if options.save:
        text = saved(answer.choice, planning.schedule, options.file, options.set, options.save)
        write_atomically(options.save, text)
    if options.plot:
        from simpar.planner.picture import front_picture
        from simpar.plot.frame import write_figure

        write_figure(options.plot, front_picture(answer))
    return [path for path in (options.save, options.plot) if path]


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
