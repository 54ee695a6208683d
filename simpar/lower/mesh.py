"""The mesh of a plan: its degrees, the ranks on them, and the names of their partitions."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from simpar.errors import Infeasible
from simpar.pipeline.zero_bubble import TWO_HOMES
from simpar.plans import Plan
from simpar.program import Partition, grid

PIPELINE = 'pipeline'
DATA = 'data'
TENSOR = 'tensor'
CONTEXT = 'context'
"""Ranks that share the tokens of every sequence."""
DATA_CONTEXT = 'data_context'
"""Data and context ranks with the same slices of weights; sums of gradients have a stream of their own."""
CONTEXT_TENSOR = 'context_tensor'
"""Context and tensor ranks, over which sequence parallelism splits the tokens of a sequence."""
STAGE = 'stage'
"""All data and tensor ranks of one pipeline rank."""
SHARD = 'shard'
"""Neighbours among the data ranks, over which optimizer parallelism shards, where these are not all of them."""
REPLICA = 'replica'
"""Data ranks that hold the same shards."""
EXPERT = 'expert'
"""Neighbours among the data ranks that share the experts of a mixture."""
EXPERT_DATA = 'expert_data'
"""Data ranks that hold the same experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Degrees of parallelism, and how often the batch is split.

    Arguments: ``placement``, stage → pipeline rank; ``shard``, data ranks over which optimizer parallelism shards;
    ``context``, ranks that share a sequence; ``balanced``: they hold chunks from both of its ends; ``expert``, data
    ranks that share experts; ``mirrored``: halves of the data ranks are mirrors of each other, see ``two_homes``;
    ``sequence_chunks`` of a micro-batch, each an item of the pipeline's order.
    """

    data: int
    tensor: int
    copies: int
    pipeline: int = 1
    micro_batches: int = 1
    placement: tuple[int, ...] = (0,)
    shard: int = 1
    context: int = 1
    balanced: bool = False
    expert: int = 1
    mirrored: bool = False
    sequence_chunks: int = 1

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.pipeline * self.replicas * self.tensor

    @property
    def replicas(self) -> int:
        """Ranks that hold the same weights: data × context."""
        return self.data * self.context

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.placement)

    def partitions(self) -> dict[str, Partition]:
        """Tensor ranks are neighbours, pipeline ranks blocks; ``stage`` joins the data and tensor ranks of a block."""
        degrees = {PIPELINE: self.pipeline, DATA: self.data, CONTEXT: self.context, TENSOR: self.tensor}
        partitions = grid(self.world, degrees)
        if self.context > 1:
            # Context ranks are nearer than data ranks, as in Megatron-LM: they talk in every layer.
            joint = {PIPELINE: self.pipeline, DATA_CONTEXT: self.replicas, TENSOR: self.tensor}
            partitions[DATA_CONTEXT] = grid(self.world, joint)[DATA_CONTEXT]
        if self.replicas > 1 and self.tensor > 1:
            # Some gradients are sums over both axes, and one all-reduce over both is cheaper than two.
            partitions[STAGE] = Partition(STAGE, np.arange(self.world, dtype=np.int32).reshape(self.pipeline, -1))
        if 1 < self.shard < self.replicas:
            # Neighbours shard together, as MindSpore's optimizer_weight_shard_size and FSDP's hybrid sharding do:
            # inside a node, mostly.
            groups = partitions[self.summed].groups_GP.reshape(-1, self.replicas // self.shard, self.shard)
            partitions[SHARD] = Partition(SHARD, groups.reshape(-1, self.shard))
            partitions[REPLICA] = Partition(REPLICA, groups.swapaxes(1, 2).reshape(-1, self.replicas // self.shard))
        if self.expert > 1:
            # Neighbours share experts, as in Megatron-LM: their all-to-alls stay inside of a node, mostly.
            groups = partitions[DATA].groups_GP.reshape(-1, self.data // self.expert, self.expert)
            partitions[EXPERT] = Partition(EXPERT, groups.reshape(-1, self.expert))
            if self.expert < self.data:
                # Context ranks have the same experts, too.
                same = partitions[self.summed].groups_GP.reshape(
                    -1, self.data // self.expert, self.expert, self.context
                )
                size = self.replicas // self.expert
                partitions[EXPERT_DATA] = Partition(EXPERT_DATA, same.swapaxes(1, 2).reshape(-1, size))
        return partitions

    @property
    def summed(self) -> str:
        """The partition that gradients of weights are summed over."""
        return DATA_CONTEXT if self.context > 1 else DATA

    @property
    def sharding(self) -> tuple[str, str]:
        """The partition over which parameters are sharded, and that over which shards are replicated; empty: none."""
        if self.shard == 1:
            return '', ''
        return (SHARD, REPLICA) if self.shard < self.replicas else (self.summed, '')

    def pipeline_rank(self, stage: int) -> int:
        """The pipeline rank that a stage is on."""
        return self.placement[stage]

    def summing(self, *, over_tensor: bool) -> str:
        """The partition that a parameter's gradient is summed over, or nothing where no one else has a part of it."""
        if over_tensor and self.tensor > 1:
            return STAGE if self.replicas > 1 else TENSOR
        return self.summed if self.replicas > 1 else ''


def mesh_of(plan: Plan, world: int, batch: int, placement: tuple[int, ...] = (0,)) -> Mesh:
    """The mesh of ``plan`` on ``world`` ranks.

    Arguments: ``placement``, stage → pipeline rank. Raises ``Infeasible`` where degrees and ranks, batch and slices, or
    data ranks and shard groups do not divide.
    """
    # What is left of the ranks; where it does not divide, the product below is told, with all its factors.
    data = plan.data or max(1, world // (plan.context * plan.tensor * plan.pipeline))
    degrees = {PIPELINE: plan.pipeline, DATA: data, CONTEXT: plan.context, TENSOR: plan.tensor}
    if prod(degrees.values()) != world:
        raise Infeasible(
            f'{_factors(degrees)} = {prod(degrees.values())} ranks, but the cluster has {world}; '
            f'choose degrees whose product is {world}'
        )
    slices = {DATA: data, 'micro_batches': plan.micro_batches, 'copies': plan.copies}
    if batch % prod(slices.values()):
        raise Infeasible(
            f'a batch of {batch} cannot be split into {_factors(slices)} equal slices; '
            f'choose a multiple of {prod(slices.values())}'
        )
    return Mesh(
        data=data,
        tensor=plan.tensor,
        copies=plan.copies,
        pipeline=plan.pipeline,
        micro_batches=plan.micro_batches,
        placement=placement,
        shard=_shard(plan, data * plan.context),
        context=plan.context,
        balanced=plan.context > 1 and plan.context_split == 'balanced',
        expert=_expert(plan, data),
        mirrored=plan.order == TWO_HOMES,
        sequence_chunks=plan.sequence_chunks,
    )


def mesh_of_strategies(plan: Plan, world: int, batch: int, placement: tuple[int, ...] = (0,)) -> Mesh:
    """The same where strategies tell what splits samples: data is what tensor leaves of a stage."""
    if world % plan.pipeline:
        raise Infeasible(f'plan.pipeline: {world} ranks cannot be split into {plan.pipeline} equal stages')
    ranks = world // plan.pipeline
    if plan.data > 1 and plan.data * plan.tensor != ranks:
        raise Infeasible(
            f'plan.data: data {plan.data} × tensor {plan.tensor} are not the {ranks} ranks of a stage; leave data out'
        )
    if ranks % plan.tensor:
        raise Infeasible(f'plan.tensor: {plan.tensor} does not divide the {ranks} ranks of a stage')
    slices = plan.micro_batches * plan.copies
    if batch % slices:
        raise Infeasible(
            f'a batch of {batch} cannot be split into micro_batches {plan.micro_batches} × copies '
            f'{plan.copies} equal slices; choose a multiple of {slices}'
        )
    return Mesh(
        data=ranks // plan.tensor,
        tensor=plan.tensor,
        copies=plan.copies,
        pipeline=plan.pipeline,
        micro_batches=plan.micro_batches,
        placement=placement,
    )


def _expert(plan: Plan, data: int) -> int:
    """Data ranks that share experts."""
    if data % plan.expert:
        raise Infeasible(
            f'plan.expert: {plan.expert} does not divide the {data} data ranks; choose a divisor of {data}'
        )
    return plan.expert


def _shard(plan: Plan, data: int) -> int:
    """Ranks of a shard group: the data (and context) ranks, or as many of them as the plan says, if there are more."""
    # A group that is larger than there are ranks is all of them: one plan serves several worlds.
    size = min(plan.shard_group or data, data)
    if data % size:
        ranks = f'{data} {"data × context" if plan.context > 1 else "data"} ranks'
        raise Infeasible(
            f'plan.shard_group: {size} does not divide the {ranks}; choose a divisor of {data}, or 0 for all'
        )
    return size


def _factors(counts: dict[str, int]) -> str:
    """``data 2 × tensor 4``: the pipeline and micro-batches only where there are several."""
    shown = {
        name: count for name, count in counts.items() if count > 1 or name not in (PIPELINE, CONTEXT, 'micro_batches')
    }
    return ' × '.join(f'{name} {count}' for name, count in shown.items())
