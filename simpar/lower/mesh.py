"""The mesh of a plan: its degrees, the ranks on them, and the names of their partitions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simpar.errors import Infeasible
from simpar.plan import Plan
from simpar.program import Partition, grid

PIPELINE = 'pipeline'
DATA = 'data'
TENSOR = 'tensor'
STAGE = 'stage'
"""All data and tensor ranks of one pipeline rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Degrees of parallelism, and how often the batch is cut.

    Arguments: ``placement``, stage → pipeline rank.
    """

    data: int
    tensor: int
    copies: int
    pipeline: int = 1
    micro_batches: int = 1
    placement: tuple[int, ...] = (0,)

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.pipeline * self.data * self.tensor

    def partitions(self) -> dict[str, Partition]:
        """Tensor ranks are neighbours, pipeline ranks blocks; ``stage`` joins the data and tensor ranks of a block."""
        partitions = grid(self.world, {PIPELINE: self.pipeline, DATA: self.data, TENSOR: self.tensor})
        if self.data > 1 and self.tensor > 1:
            partitions[STAGE] = Partition(STAGE, np.arange(self.world, dtype=np.int32).reshape(self.pipeline, -1))
        return partitions

    def pipeline_rank(self, stage: int) -> int:
        """The pipeline rank that a stage is on."""
        return self.placement[stage]

    def summing(self, *, over_tensor: bool) -> str:
        """The partition that a parameter's gradient is summed over, or nothing where no one else has a part of it."""
        if over_tensor and self.tensor > 1:
            return STAGE if self.data > 1 else TENSOR
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
