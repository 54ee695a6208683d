"""``simpar resolve FILE``: the schedule with every choice made, as YAML that one can save, review and commit."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace

import yaml

from simpar.case import choices, cluster_of
from simpar.schedule import load_schedule, written


def command(options: argparse.Namespace) -> int:
    """Print the schedule; relative paths in it are from the current folder."""
    schedule = load_schedule(options.file, options.set)
    found, plan = choices(schedule, cluster_of(schedule))
    tree = written(replace(schedule, workload=found.workload, plan=plan))
    if options.json:
        print(json.dumps(tree, ensure_ascii=False))
    else:
        yaml.safe_dump(tree, sys.stdout, sort_keys=False, allow_unicode=True, width=120)
    return 0
