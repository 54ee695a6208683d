"""A partition of the ranks into groups that communicate among themselves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ranks = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """Ranks → (group, position), as one array.

    Arguments: ``name``; ``groups_GP``, shape [groups, size]: row g lists the ranks of group g by position.
    Every rank stands in exactly one group.
    """

    name: str
    groups_GP: Ranks

    @property
    def size(self) -> int:
        """Ranks in a group."""
        return int(self.groups_GP.shape[1])

    def place(self, rank: int) -> tuple[int, int]:
        """The group of a rank and its position there."""
        # Every rank stands in exactly one group, so that the first hit is the only one.
        group, position = np.argwhere(self.groups_GP == rank)[0]
        return int(group), int(position)

    def members(self, rank: int) -> tuple[int, ...]:
        """The ranks of this rank's group, by position."""
        return tuple(int(r) for r in self.groups_GP[self.place(rank)[0]])


def grid(world: int, degrees: dict[str, int]) -> dict[str, Partition]:
    """Partitions of ``world`` ranks laid out on a mesh.

    Arguments: ``degrees``, axis name → size, outermost first, as in torch's DeviceMesh: the last axis is that of
    neighbouring ranks. Their product must be ``world``. Axes of size 1 give no partition.
    """
    mesh = np.arange(world, dtype=np.int32).reshape(tuple(degrees.values()))
    partitions = {}
    for axis, (name, size) in enumerate(degrees.items()):
        if size > 1:
            # With its axis last, each row of the flattened mesh is one group by position.
            partitions[name] = Partition(name, np.moveaxis(mesh, axis, -1).reshape(-1, size))
    return partitions
