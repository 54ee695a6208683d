"""Schedule: what the user writes, a workload, a plan and a cluster; every fault with file:line and a remedy."""

from simpar.schedule.contents import ClusterReference
from simpar.schedule.fit import check_against_cluster
from simpar.schedule.schedule import Row, Schedule, load_rows, load_schedule, schedule_of, schedule_schema, written
from simpar.schedule.without_effect import WithoutEffect

__all__ = [
    'ClusterReference',
    'Row',
    'Schedule',
    'WithoutEffect',
    'check_against_cluster',
    'load_rows',
    'load_schedule',
    'schedule_of',
    'schedule_schema',
    'written',
]
