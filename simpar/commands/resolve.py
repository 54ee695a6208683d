"""``simpar resolve FILE``: the schedule with every choice made, as YAML that one can save, review and commit."""

from __future__ import annotations

import argparse
import json
import sys

import yaml

from simpar.case import load_case
from simpar.commands.module import graph_of
from simpar.size import parse_limit
from simpar.written_out import written_out


def command(options: argparse.Namespace) -> int:
    """Print the schedule; relative paths in it are from the current folder."""
    case = load_case(options.file, options.set, limit=parse_limit(options.limit), module=graph_of(options))
    tree = written_out(case)
    if options.json:
        print(json.dumps(tree, ensure_ascii=False))
    else:
        yaml.safe_dump(tree, sys.stdout, sort_keys=False, allow_unicode=True, width=120)
    if case.schedule.sweep is not None:
        print('the sweep of the file is left out: every row has choices of its own', file=sys.stderr)
    return 0
