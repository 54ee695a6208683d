"""``simpar replay``: a recorded job again, and what its stragglers cost."""

from __future__ import annotations

import argparse
import json
import sys

from simpar.chakra import is_chakra
from simpar.commands.progress import Progress
from simpar.commands.waiting import waiting
from simpar.errors import Problem, ScheduleError
from simpar.recording import chosen_ops, read_job, straggling
from simpar.recording.text import render, to_dict


def command(options: argparse.Namespace) -> int:
    """Read the recorded ops, replay them, tell what is lost."""
    if is_chakra(options.file):
        return _chakra(options)
    if options.file.is_dir():
        what = 'a folder without Chakra traces, NAME.RANK.et'
        raise ScheduleError(Problem(str(options.file), what, 'name a file of recorded ops, or another folder'))
    job = read_job(options.file)
    scale = chosen_ops(job, options.scale)
    with Progress() as progress:
        found = straggling(job, scale, progress)
    if options.json:
        print(json.dumps(to_dict(found), ensure_ascii=False, allow_nan=False))
    else:
        sys.stdout.write(render(found))
    return 0


def _chakra(options: argparse.Namespace) -> int:
    """Chakra's files: the step that their nodes make, and what it goes to."""
    from simpar.chakra.text import render, to_dict
    from simpar.chakra.told import replayed

    if options.scale:
        raise ScheduleError(Problem('--scale', 'it knows no ops of Chakra traces', 'leave it out'))
    with waiting('replaying Chakra traces'):
        found = replayed(options.file)
    if options.json:
        print(json.dumps(to_dict(found), ensure_ascii=False, allow_nan=False))
    else:
        sys.stdout.write(render(found))
    return 0
