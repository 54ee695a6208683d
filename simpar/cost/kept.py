"""Models that are kept: what one has worked out for a cluster serves every program that is priced there."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import Final

from simpar.cost.collective import ClusterCollectives
from simpar.cost.compute import DeviceCompute
from simpar.hardware import Cluster, Profile
from simpar.kept import Kept

Stamps = tuple[int, ...]
_devices: Final[Kept[tuple[Profile, Stamps], DeviceCompute]] = Kept(4)
_clusters: Final[Kept[tuple[Cluster, Stamps], ClusterCollectives]] = Kept(4)


def device_compute(profile: Profile) -> DeviceCompute:
    """The compute model of a profile."""
    return _devices.get((profile, _stamps(profile)), lambda: DeviceCompute(profile))


def cluster_collectives(cluster: Cluster) -> ClusterCollectives:
    """The model of collectives on a cluster."""
    return _clusters.get((cluster, _stamps(cluster.profile)), lambda: ClusterCollectives(cluster))


def _stamps(profile: Profile) -> Stamps:
    """When the tables of a profile were written: one that is written again is read again."""
    tables = (getattr(profile.tables, field.name) for field in fields(profile.tables))
    return tuple([_written(table.file) for table in tables if table])


def _written(file: str) -> int:
    """When a file was written; 0 where there is none."""
    try:
        return os.stat(file).st_mtime_ns
    except OSError:
        return 0
