"""Models that are kept: what one has worked out for a cluster serves every program that is priced there."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Final

from simpar.cost.collective import ClusterCollectives
from simpar.cost.compute import DeviceCompute
from simpar.hardware import Cluster, Profile

_MOST: Final = 4
Stamps = tuple[int, ...]
_devices: Final[list[tuple[Profile, Stamps, DeviceCompute]]] = []
_clusters: Final[list[tuple[Cluster, Stamps, ClusterCollectives]]] = []


def device_compute(profile: Profile) -> DeviceCompute:
    """The compute model of a profile."""
    stamps = _stamps(profile)
    for known, then, model in _devices:
        # The very profile: reading a file twice gives the same one as long as it does not change.
        if known is profile and then == stamps:
            return model
    model = DeviceCompute(profile)
    _devices.append((profile, stamps, model))
    del _devices[:-_MOST]
    return model


def cluster_collectives(cluster: Cluster) -> ClusterCollectives:
    """The model of collectives on a cluster."""
    stamps = _stamps(cluster.profile)
    for known, then, model in _clusters:
        if known.profile is cluster.profile and then == stamps and known == cluster:
            return model
    model = ClusterCollectives(cluster)
    _clusters.append((cluster, stamps, model))
    del _clusters[:-_MOST]
    return model


def _stamps(profile: Profile) -> Stamps:
    """When the tables of a profile were written: one that is written again is read again."""
    tables = (getattr(profile.tables, field.name) for field in fields(profile.tables))
    return tuple(Path(table.file).stat().st_mtime_ns for table in tables if table and Path(table.file).is_file())
