"""Queues: whether the number of work queues that was written changes anything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simpar.hardware import Cluster
from simpar.program import Program
from simpar.schedule import Schedule
from simpar.schedule.without_effect import WithoutEffect


def unused_queues(schedule: Schedule, program: Program, cluster: Cluster) -> Iterator[WithoutEffect]:
    """The key of work queues, where every stream has one for itself, or there would be as many without the key."""
    asked = schedule.cluster.work_queues
    if asked is None:
        return
    streams = max(len(role.streams) for role in program.roles)
    without = replace(cluster, work_queues=0).queues
    if asked >= streams and not 0 < without < streams:
        why = f'no device has more than {_counted(streams)}, and each has a work queue for itself'
        yield WithoutEffect('cluster.work_queues', asked, why)
    elif asked == without:
        yield WithoutEffect('cluster.work_queues', asked, 'the stack or the device says so already')


def _counted(streams: int) -> str:
    return f'{streams} streams' if streams > 1 else 'one stream'
