"""``simpar diff OLD NEW``: what changed between two saved answers, in simpar, the profile or the schedule."""

from __future__ import annotations

import argparse
import json
import sys

from simpar.saved_answer import difference, difference_to_dict, render_difference
from simpar.trace_files import load_trace


def command(options: argparse.Namespace) -> int:
    """Print what changed; raises ``ScheduleError`` where a file is no saved answer."""
    found = difference(load_trace(options.old), load_trace(options.new), (str(options.old), str(options.new)))
    if options.json:
        print(json.dumps(difference_to_dict(found), ensure_ascii=False, allow_nan=False))
    else:
        sys.stdout.write(render_difference(found))
    return 0
