"""``simpar import FILE``: the file of another launcher as a schedule, and what became of each of its settings."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict, replace
from typing import Any, Final

from simpar.commands import import_trace
from simpar.commands.question import with_baseline
from simpar.document import override
from simpar.document.tree import parse
from simpar.errors import Problem, ScheduleError
from simpar.files import write_atomically
from simpar.importing.mapping import Imported
from simpar.importing.read import imported
from simpar.importing.settings import MAPPED
from simpar.importing.write import listing, schedule_text
from simpar.kineto.read import is_recording
from simpar.schedule import load_schedule

_OF_RECORDINGS: Final = {'--for': 'leave it out', '--save': 'write --output FILE for the schedule'}


def command(options: argparse.Namespace) -> int:
    """Write the schedule, and list the settings; of a profiler's recording, see ``import_trace``."""
    if is_recording(options.file):
        return import_trace.command(options)
    useless = [flag for flag, given in (('--for', options.schedule), ('--save', options.save)) if given]
    if useless:
        what = f'is of recordings of a profiler, and {options.file} is none'
        raise ScheduleError([Problem(flag, what, _OF_RECORDINGS[flag]) for flag in useless])
    given, over = _given(options.set)
    made = imported(options.file, given=given, profile=options.cluster or '', model=options.model or '')
    if options.model and options.output:
        # Paths in a schedule are from its folder.
        over['workload.model'] = os.path.relpath(options.model, options.output.parent)
    made = replace(made, values={**made.values, **over}, comments={**made.comments, **dict.fromkeys(over, '--set')})
    _read_back(schedule_text(made, options.file.name), options)
    text = with_baseline(
        made.values, lambda question: schedule_text(made, options.file.name, question), _beside(options)
    )
    if options.json:
        print(json.dumps(_json(made, text), ensure_ascii=False))
    else:
        print(listing(made, full=options.full), file=sys.stderr)
    if options.output:
        write_atomically(options.output, text)
    elif not options.json:
        sys.stdout.write(text)
    return 0


def _beside(options: argparse.Namespace) -> list[str]:
    """What the schedule says where it is read from this folder, not from its own."""
    return [f'workload.model={options.model}'] if options.model else []


def _read_back(text: str, options: argparse.Namespace) -> None:
    """Read what was written; what does not fit is told of the file that it comes from."""
    try:
        load_schedule(text, _beside(options))
    except ScheduleError as error:
        what = 'in the schedule that it comes to, '
        told = [
            Problem(f'{options.file}', f'{what}{_of_line(text, one.place)}{one.what}', one.instead)
            for one in error.problems
        ]
        raise ScheduleError(told) from None


def _of_line(text: str, place: str) -> str:
    """What a line of the schedule comes from, by its comment."""
    number = place.rpartition(':')[2]
    line = text.splitlines()[int(number) - 1] if number.isdecimal() and int(number) <= text.count('\n') else ''
    return f'of {line.partition("# ")[2].strip()}: ' if '# ' in line else ''


def _given(settings: list[str]) -> tuple[dict[str, str], dict[str, Any]]:
    """What ``--set`` says of the file, and what of the schedule: keys of that begin with a part of it."""
    given: dict[str, str] = {}
    over: dict[str, Any] = {}
    for setting in settings:
        name, sign, value = setting.partition('=')
        if not sign or not name.strip():
            raise ScheduleError(Problem(f'--set {setting[:60]}', 'not a name and a value', 'write e.g. --set NNODES=8'))
        if name.split('.')[0] in ('workload', 'plan', 'cluster'):
            over[name.strip()] = override(parse('{}', setting), [setting]).get(tuple(name.strip().split('.')))
        else:
            given[name.strip()] = value
    return given, over


def _json(made: Imported, text: str) -> dict[str, Any]:
    mapped = sum(line.outcome == MAPPED for line in made.lines)
    return {
        'kind': made.kind, 'schedule': text, 'mapped': mapped, 'listed': len(made.lines) - mapped,
        'settings': [asdict(line) for line in made.lines], 'assumed': list(made.assumed), 'notes': list(made.notes),
    }  # fmt: skip
