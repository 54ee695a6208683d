"""``simpar resolve FILE``: the schedule with every choice made, as YAML that one can save, review and commit."""

from __future__ import annotations

import argparse
import json
import sys

import yaml

from simpar.clocks import at_full_clocks
from simpar.commands.waiting import case_waited_for, waiting
from simpar.written_out import written_out


def command(options: argparse.Namespace) -> int:
    """Print the schedule; relative paths in it are from the current folder."""
    case = case_waited_for(options)
    with waiting('writing choices'):
        tree = written_out(case)
    if options.json:
        print(json.dumps(tree, ensure_ascii=False))
    else:
        yaml.safe_dump(tree, sys.stdout, sort_keys=False, allow_unicode=True, width=120)
    limit = case.cluster.profile.device.sustained
    if limit is not None and at_full_clocks(case.cluster) is not case.cluster:
        print(
            f'what is left open is priced at the sustained clock, {limit.value:g} of the full one; '
            'run takes the clock of its step',
            file=sys.stderr,
        )
    if case.schedule.sweep is not None:
        print('the sweep of the file is left out: every row has choices of its own', file=sys.stderr)
    return 0
