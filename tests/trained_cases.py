"""What trains on four ranks over gloo: the table trained.yaml, whose workloads and plans are sections of schedules."""

from functools import cache
from pathlib import Path

import yaml

from simpar.schedule import load_schedule

GROUPS = yaml.load((Path(__file__).parent / 'trained.yaml').read_text(encoding='utf-8'), yaml.CSafeLoader)
WORKLOADS = GROUPS.pop('workloads')
ROWS = {name: row for rows in GROUPS.values() for name, row in rows.items()}


@cache
def workload_of(name):
    """A workload of the table."""
    return _read(WORKLOADS[name], {}).workload


@cache
def trained_case(name):
    """Workload and plan of a row."""
    schedule = _read(WORKLOADS[ROWS[name]['train']], ROWS[name].get('plan', {}))
    return schedule.workload, schedule.plan


def _read(workload, plan):
    return load_schedule({'simpar': 1, 'cluster': 'cpu-gloo', 'workload': workload, 'plan': plan})
