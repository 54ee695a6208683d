"""The mesh of a plan: its degrees, the ranks on them, and the names of their partitions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simpar.errors import Infeasible
from simpar.plan import Plan
from simpar.program import Partition, grid

DATA = 'data'
TENSOR = 'tensor'
WORLD = 'world'


@dataclass(frozen=True, slots=True)
class Mesh:
    """Degrees of data and tensor parallelism and the number of copies."""

    data: int
    tensor: int
    copies: int

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.data * self.tensor

    def partitions(self) -> dict[str, Partition]:
        """Tensor ranks are neighbours; ``world`` holds all ranks in one group where both degrees are above 1."""
        partitions = grid(self.world, {DATA: self.data, TENSOR: self.tensor})
        if self.data > 1 and self.tensor > 1:
            partitions[WORLD] = Partition(WORLD, np.arange(self.world, dtype=np.int32).reshape(1, -1))
        return partitions

    def summing(self, *, over_tensor: bool) -> str:
        """The partition that a parameter's gradient is summed over, or nothing where no one else has a part of it."""
        if over_tensor and self.tensor > 1:
            return WORLD if self.data > 1 else TENSOR
        return DATA if self.data > 1 else ''


def mesh_of(plan: Plan, world: int, batch: int) -> Mesh:
    """The mesh of ``plan`` on ``world`` ranks.

    Raises ``Infeasible`` where degrees and ranks, or batch and slices, do not divide.
    """
    data = plan.data or max(1, world // plan.tensor)
    if data * plan.tensor != world:
        raise Infeasible(
            f'data {data} × tensor {plan.tensor} = {data * plan.tensor} ranks, but the cluster has {world}; '
            f'choose degrees whose product is {world}'
        )
    if batch % (data * plan.copies):
        raise Infeasible(
            f'a batch of {batch} cannot be cut into data {data} × copies {plan.copies} equal slices; '
            f'choose a multiple of {data * plan.copies}'
        )
    return Mesh(data=data, tensor=plan.tensor, copies=plan.copies)
