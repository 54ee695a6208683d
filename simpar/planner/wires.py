"""Wires: least seconds of a rank's messages of weights and gradients: gathers, scatters, and sums."""

from __future__ import annotations

from typing import Final

from simpar.cost.kept import cluster_collectives
from simpar.hardware import Cluster
from simpar.plan import Plan
from simpar.planner.held import Standing
from simpar.planner.room import standing_of
from simpar.planner.sample import Sample
from simpar.program import OpClass

OWN: Final = ('gather', 'accumulate', 'shard', 'unsharded', 'shard_form', 'shard_threshold')
"""Keys with which a plan says otherwise than its ZeRO stage what is gathered and summed."""


class Wires:
    """Least seconds of messages of weights and gradients on a cluster; remembers what messages cost.

    Arguments: ``world``, devices of a plan.
    """

    def __init__(self, cluster: Cluster, world: int) -> None:
        self._cluster, self._world = cluster, world
        self._known: dict[tuple[object, ...], float] = {}

    def least(self, plan: Plan, sample: Sample, layers: tuple[int, int], micro_batches: int) -> float:
        """Least seconds of one stream of a rank's messages of weights and gradients in a step.

        Those of experts have a stream of their own, where ranks share experts. Arguments: ``layers``, how many of the
        first kind and of the others the rank has at least.
        """
        if plan.hsdp != 'off' or any(getattr(plan, key) for key in OWN) or not sum(layers):
            return 0.0
        early, late = layers
        edge = sample.few.edge
        dense, experts = standing_of(sample, [[], [*range(edge - early, edge + late)], []], 1)
        if plan.expert == 1:
            dense, experts = dense.plus(experts), Standing()
        most = plan.data * plan.context
        # Of sums of gradients, some are over tensor ranks, too, and have a stream of their own.
        alone = 0.0 if plan.tensor > 1 and not plan.zero else self._stream(plan, dense, 1, early + late, micro_batches)
        return max(alone, self._stream(plan, experts, plan.expert, late, micro_batches) if most > plan.expert else 0.0)

    def _stream(self, plan: Plan, held: Standing, each: int, count: int, micro_batches: int) -> float:
        """Least seconds of all messages of a stream, each kind of them as if it were one.

        Arguments: ``each``, of how many data ranks one holds the same weights; ``count`` of layers.
        """
        if not held.parameter:
            return 0.0
        # Forward and backward gather; the backward may begin with weights that the forward ended with.
        often = {0: 0.0, 1: 1.0, 2: 1.0, 3: (2 - 1 / count) * micro_batches}[plan.zero]
        gathers = self._seconds(plan, 'all_gather', held.parameter, each) * often if often else 0.0
        scatter = 'reduce_scatter' if plan.zero else 'all_reduce'
        return gathers + self._seconds(plan, scatter, held.gradient, each) * (micro_batches if plan.zero > 1 else 1)

    def _seconds(self, plan: Plan, operator: str, size: float, each: int) -> float:
        """Of one message."""
        same = plan.data // each * plan.context
        group = min(plan.shard_group or same, same) if plan.zero else same
        if group == 1:
            return 0.0
        key = (operator, size, each, group, plan.tensor, plan.context, plan.pipeline)
        if key not in self._known:
            op = OpClass('shards', 'collective', operator, 'F', bytes=float(size), dtype='bf16', partition='data')
            collectives = cluster_collectives(self._cluster)
            costs = [collectives.cost(op, ranks) for ranks in self._groups(plan, group, each)]
            self._known[key] = min(cost.alpha + cost.transfer for cost in costs)
        return self._known[key]

    def _groups(self, plan: Plan, group: int, each: int) -> list[list[int]]:
        """Ranks of a message; more than one group where these lie otherwise on nodes."""
        steps = [divmod(number, plan.context) for number in range(group)]
        ranks = [(data * each * plan.context + context) * plan.tensor for data, context in steps]
        block, node = self._world // plan.pipeline, self._cluster.world // self._cluster.nodes
        alike = block % node == 0 or node % block == 0
        return [[rank + first * block for rank in ranks] for first in range(1 if alike else plan.pipeline)]
