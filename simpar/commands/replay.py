"""``simpar replay``: a recorded job again, and what its stragglers cost."""

from __future__ import annotations

import argparse
import json
import sys

from simpar.commands.progress import Progress
from simpar.recording import chosen_ops, read_job, straggling
from simpar.recording.text import render, to_dict


def command(options: argparse.Namespace) -> int:
    """Read the recorded ops, replay them, tell what is lost."""
    job = read_job(options.file)
    scale = chosen_ops(job, options.scale)
    with Progress() as progress:
        found = straggling(job, scale, progress)
    if options.json:
        print(json.dumps(to_dict(found), ensure_ascii=False, allow_nan=False))
    else:
        sys.stdout.write(render(found))
    return 0
