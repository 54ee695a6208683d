"""Mode: whether the library's mode of expansion that was written changes anything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simpar.cost.beside import speeds_beside
from simpar.hardware import Cluster
from simpar.program import Program
from simpar.schedule import Schedule
from simpar.schedule.without_effect import WithoutEffect


def unused_mode(schedule: Schedule, program: Program, cluster: Cluster) -> Iterator[WithoutEffect]:
    """The key of the mode, where it is in use anyway, or collectives take the same of a device without it."""
    asked = schedule.cluster.expansion_mode
    if asked is None:
        return
    without = replace(cluster, expansion_mode='')
    if asked == without.mode:
        yield WithoutEffect('cluster.expansion_mode', asked, 'it is the mode without the key, too')
    elif speeds_beside(cluster, program) == speeds_beside(without, program):
        why = f'collectives of this plan, if any, take the same of a device as with {without.mode}'
        yield WithoutEffect('cluster.expansion_mode', asked, why)
