"""Spread: whether the difference between devices that was written changes anything."""

from __future__ import annotations

from collections.abc import Iterator

from simpar.hardware import Cluster
from simpar.schedule import Schedule
from simpar.schedule.without_effect import WithoutEffect


def unused_spread(schedule: Schedule, cluster: Cluster) -> Iterator[WithoutEffect]:
    """The key of the spread, where there is one device alone."""
    if cluster.spread and cluster.world == 1:
        yield WithoutEffect('cluster.spread', schedule.cluster.spread, 'one device waits for no other')
