"""Models that are kept: what one has worked out for a cluster serves every program that is priced there."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from functools import lru_cache
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from simpar.cost.collective import ClusterCollectives
from simpar.cost.compute import MATRIX, NO_WORK, DeviceCompute
from simpar.cost.costs import Array
from simpar.cost.model import ComputeCost
from simpar.cost.tail import slowest
from simpar.hardware import Cluster, Profile
from simpar.kept import Facts, Kept
from simpar.program import Program
from simpar.units import quantise

Stamps = tuple[int, ...]
_devices: Final[Kept[tuple[Profile, Stamps], DeviceCompute]] = Kept(4)
_clusters: Final[Kept[tuple[object, ...], ClusterCollectives]] = Kept(4)


def device_compute(profile: Profile) -> DeviceCompute:
    """The compute model of a profile."""
    return _devices.get((profile, _stamps(profile)), lambda: DeviceCompute(profile))


def cluster_collectives(cluster: Cluster) -> ClusterCollectives:
    """The model of collectives on a cluster; the same for all devices that may stand behind its links."""
    profile, table = cluster.profile, cluster.profile.tables.collective
    key = (
        cluster.links, cluster.nodes, cluster.devices, _written(table.file) if table else 0,
        profile.devices, profile.links, profile.library, table,
    )  # fmt: skip
    return _clusters.get(key, lambda: ClusterCollectives(cluster))


@lru_cache(maxsize=4)
def computed(program: Program, compute: DeviceCompute) -> dict[int, ComputeCost]:
    """What each cost key that computes costs, by its number; no link of the cluster changes it."""
    return {kind: compute.seconds(op) for kind, op in enumerate(program.cost_kinds[1]) if op.kind == 'compute'}


@lru_cache(maxsize=8)
def computed_seconds(program: Program, compute: DeviceCompute, best: bool) -> NDArray[np.float64]:
    """The same as seconds on the engine's grid, 0 of what communicates. Arguments: ``best``, at full efficiency."""
    seconds = np.zeros(len(program.cost_kinds[1]))
    for kind, cost in computed(program, compute).items():
        seconds[kind] = quantise(cost.best if best else cost.seconds)
    seconds.flags.writeable = False
    return seconds


@lru_cache(maxsize=8)
def beside_others(program: Program, matrix: float, memory: float, collective: float) -> tuple[Array, Array]:
    """By op class, speeds of what computes beside communication, and of what communicates beside computing.

    Arguments: the speeds of what runs on matrix units, of what is bound by memory, and of collectives.
    """
    kinds, ops = program.cost_kinds
    computes = np.array([op.kind == 'compute' for op in ops])
    slowed = np.where(computes, [matrix if op.operator in MATRIX else memory for op in ops], 1.0)[kinds]
    slows = np.where(computes, 1.0, collective)[kinds]
    return _still(slowed), _still(slows)


@lru_cache(maxsize=8)
def issued_alike(program: Program, seconds: float) -> Array:
    """By op class, what the host takes to issue it where each takes as long. Arguments: ``seconds``."""
    kinds, ops = program.cost_kinds
    each = quantise(seconds)
    # A view launches no kernel.
    return _still(np.array([0.0 if op.operator in NO_WORK else each for op in ops])[kinds])


@lru_cache(maxsize=8)
def rank_speeds(world: int, slow: tuple[tuple[int, float], ...], spread: float = 0.0) -> Array:
    """Of all ranks. Arguments: ``slow``, pairs (rank, speed); ``spread`` of devices, as of ``Cluster``."""
    speeds = np.full(world, 1.0 / slowest(world, spread))
    for rank, speed in slow:
        if rank < world:
            speeds[rank] *= speed
    return _still(speeds)


def _still(values: Array) -> Array:
    """The same, which nobody may change."""
    values.flags.writeable = False
    return values


def _later_stages(program: Program) -> NDArray[np.int64]:
    found: dict[int, int] = {}
    for role in program.roles:
        classes, at = np.unique(role.op_class, return_index=True)
        for index in classes[np.argsort(at)].tolist():
            op = program.op_classes[index]
            if op.stage and op.kind == 'compute' and op.part == 'F':
                found.setdefault(op.stage, index)
    return np.array([*found.values()], dtype=np.int64)


later_stages: Final[Facts[Program, NDArray[np.int64]]] = Facts(_later_stages, 4)
"""The op classes that begin the forward of a stage, of each but the first."""


@lru_cache(maxsize=4)
def slots_of_first(program: Program) -> list[int]:
    """How many slots of the first rank have each cost key."""
    kinds, ops = program.cost_kinds
    found: list[int] = np.bincount(kinds[program.role(0).op_class], minlength=len(ops)).tolist()
    return found


class Local(NamedTuple):
    """Costs that no link changes: ``columns`` of ``Costs``; ``seconds`` of computing by cost key."""

    columns: dict[str, NDArray[np.float64]]
    seconds: list[float]


_local: Final[WeakKeyDictionary[Program, Kept[tuple[object, ...], Local]]] = WeakKeyDictionary()
"""Of each program the last few: as many as its prediction has states."""


def locally(program: Program, key: tuple[object, ...], make: Callable[[], Local]) -> Local:
    """What ``make`` returns, or returned for an equal key."""
    return _local.setdefault(program, Kept(6)).get(key, make)


def _stamps(profile: Profile) -> Stamps:
    """When the tables of a profile's device were written: one that is written again is read again."""
    return tuple(map(_written, _files(profile)))


def _files_of(profile: Profile) -> list[str]:
    # That of collectives belongs to the links.
    names = [field.name for field in fields(profile.tables) if field.name != 'collective']
    return [table.file for name in names if (table := getattr(profile.tables, name))]


_files: Final[Facts[Profile, list[str]]] = Facts(_files_of, 8)
"""The files of the tables of a profile's device."""


def _written(file: str) -> int:
    """When a file was written; 0 where there is none."""
    try:
        return os.stat(file).st_mtime_ns
    except OSError:
        return 0
