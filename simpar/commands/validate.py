"""``simpar validate``: predictions against published steps, a set at a time, beside a null model."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from simpar.commands.progress import Progress
from simpar.errors import Problem, ScheduleError
from simpar.shipped import measured_folder
from simpar.size import parse_limit
from simpar.validate.memory import known_facts, memory_pairs
from simpar.validate.memory_text import memory_to_dict, render_memory
from simpar.validate.rows import other_files, read_rows
from simpar.validate.run import SetAnswer, answers, outcomes
from simpar.validate.text import render, to_dict

FORMATS = ('.png', '.pdf', '.svg')


def command(options: argparse.Namespace) -> int:
    """Predict every row, print the scores, draw where asked."""
    problems = list(_useless(options))
    if problems:
        raise ScheduleError(problems)
    if options.memory:
        return _memory(options)
    rows = read_rows(options.data or measured_folder(), options.only or '')
    if options.data and not options.only:
        _tell_others(options.data)
    with Progress() as progress:
        found = answers(outcomes(rows, options.jobs, progress, parse_limit(options.limit)))
    if options.plot:
        _draw(options.plot, found)
    if options.json:
        print(json.dumps(to_dict(found), ensure_ascii=False, allow_nan=False))
    else:
        sys.stdout.write(render(found))
        if options.plot:
            print(f'wrote {options.plot}')
    return 0


def _useless(options: argparse.Namespace) -> Iterator[Problem]:
    """Flags that would change nothing."""
    if options.without and not options.memory:
        yield Problem('--without', 'steps are predicted with all facts', 'write --memory too, or leave it out')
    if options.memory and options.plot:
        yield Problem('--plot', 'there is no picture of memory', 'leave it out, or write --json')
    if options.memory and options.jobs > 1:
        yield Problem('--jobs', 'memory is predicted in one process', 'leave it out')
    if options.memory and options.limit:
        yield Problem('--limit', 'memory is predicted without simulating', 'leave it out')


def _tell_others(folder: Path) -> None:
    """Files that are no sets of steps are left out, but not in silence."""
    for path, lacks in other_files(folder):
        print(f'{path.name} is left out, as it is no set of steps: {lacks.what}', file=sys.stderr)


def _memory(options: argparse.Namespace) -> int:
    """The same of bytes."""
    without = known_facts(name.strip() for name in options.without.split(',') if name.strip())
    rows = read_rows(options.data or measured_folder() / 'memory', options.only or '')
    with Progress() as progress:
        pairs, skipped = memory_pairs(rows, without, progress)
    if options.json:
        print(json.dumps(memory_to_dict(pairs, skipped), ensure_ascii=False, allow_nan=False))
    else:
        sys.stdout.write(render_memory(pairs, skipped))
    return 0


def _draw(path: Path, found: list[SetAnswer]) -> None:
    from simpar.plot import write_figure
    from simpar.validate.picture import scatter

    write_figure(path, scatter(found))
