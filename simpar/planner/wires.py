"""Wires: least seconds of a rank's messages of weights and gradients: gathers, scatters, and sums."""

from __future__ import annotations

from typing import Final, NamedTuple

from simpar.cost.collective import ClusterCollectives
from simpar.hardware import Cluster
from simpar.plan import Plan
from simpar.planner.held import Standing
from simpar.planner.hiding import SURELY
from simpar.planner.outermost import load_of, outermost
from simpar.planner.room import standing_of
from simpar.planner.sample import Sample
from simpar.program import OpClass

OWN: Final = ('gather', 'accumulate', 'shard', 'unsharded', 'shard_form', 'shard_threshold')
"""Keys with which a plan says otherwise than its ZeRO stage what is gathered and summed."""


class Wire(NamedTuple):
    """Messages of a rank: least seconds of the longest of their streams; of the outermost link, which all share."""

    seconds: float = 0.0
    load: float = 0.0

    def __add__(self, other: object) -> Wire:
        """Both in one stream."""
        if not isinstance(other, Wire):
            return NotImplemented
        return Wire(self.seconds + other.seconds, self.load + other.load)

    def times(self, often: float) -> Wire:
        """So often in one stream."""
        return Wire(self.seconds * often, self.load * often)

    def beside(self, other: Wire) -> Wire:
        """In two streams."""
        return Wire(max(self.seconds, other.seconds), self.load + other.load)


NO_WIRE: Final = Wire()


class Way(NamedTuple):
    """How weights, gradients and states are sharded: ``zero`` and ``shard_group`` of a plan."""

    zero: int
    group: int


class Wires:
    """Least seconds of messages of weights and gradients on a cluster; remembers what messages cost.

    Arguments: ``world``, devices of a plan.
    """

    def __init__(self, cluster: Cluster, world: int) -> None:
        self._cluster, self._world = cluster, world
        self._collectives = ClusterCollectives(cluster)
        self._outer = outermost(cluster.topology, world)
        self._known: dict[tuple[object, ...], Wire] = {}

    def least(
        self, plan: Plan, way: Way, sample: Sample, layers: tuple[int, int], micro_batches: int, *, again: bool = True
    ) -> Wire:
        """A rank's messages of weights and gradients in a step.

        Those of experts have a stream of their own, where ranks share experts.
        Arguments: ``layers``, how many of the first kind and of the others the rank has at least; ``again``, whether
        weights that are gathered in the forward are surely gathered in the backward, but for one layer's.
        """
        if plan.hsdp != 'off' or any(getattr(plan, key) for key in OWN) or not sum(layers):
            return NO_WIRE
        key = ('wire', way, plan.data, plan.pipeline, layers, micro_batches, again)
        found: Wire | None = sample.known.get(key)
        if found is None:
            found = sample.known[key] = self._least(plan, way, sample, layers, micro_batches, again)
        return found

    def behind(self, plan: Plan, way: Way, sample: Sample, layers: tuple[int, int]) -> float:
        """Least seconds of the sums of gradients that a rank surely begins behind all of its computation.

        Argument: ``layers``, as of ``least``.
        """
        if plan.reduce_gradients != 'end' or plan.hsdp != 'off' or any(getattr(plan, key) for key in OWN):
            return 0.0
        key = ('behind', way, plan.data, plan.pipeline, layers)
        found: float | None = sample.known.get(key)
        if found is None:
            sums = self._least(plan, way, sample, layers, 0, True, behind=True) if sum(layers) else NO_WIRE
            found = sample.known[key] = max(sums.seconds, sums.load) * SURELY
        return found

    def _least(
        self,
        plan: Plan,
        way: Way,
        sample: Sample,
        layers: tuple[int, int],
        micro_batches: int,
        again: bool,
        *,
        behind: bool = False,
    ) -> Wire:
        early, late = layers
        edge = sample.few.edge
        dense, experts = standing_of(sample, [[], [*range(edge - early, edge + late)], []], 1)
        if plan.expert == 1:
            dense, experts = dense.plus(experts), Standing()

        def stream(held: Standing, each: int, count: int) -> Wire:
            if behind:
                sums, shards = self._sums(plan, way, held, each)
                return sums.beside(shards)
            return self._stream(plan, way, held, each, count if again else 1, micro_batches)

        # Of sums of gradients, some are over tensor ranks, too, and have a stream of their own.
        alone = NO_WIRE if plan.tensor > 1 and not way.zero else stream(dense, 1, early + late)
        return alone if plan.data * plan.context == plan.expert else alone.beside(stream(experts, plan.expert, late))

    def _stream(self, plan: Plan, way: Way, held: Standing, each: int, count: int, micro_batches: int) -> Wire:
        """All messages of a stream, each kind of them as if it were one.

        Arguments: ``each``, of how many data ranks one holds the same weights; ``count`` of layers.
        """
        if not held.parameter:
            return NO_WIRE
        # Forward and backward gather; the backward may begin with weights that the forward ended with.
        often = {0: 0.0, 1: 1.0, 2: 1.0, 3: (2 - 1 / count) * micro_batches}[way.zero]
        gathers = self._message(plan, way, 'all_gather', held.parameter, each).times(often) if often else NO_WIRE
        sums, shards = self._sums(plan, way, held, each)
        return (gathers + sums.times(micro_batches if way.zero > 1 else 1)).beside(shards)

    def _sums(self, plan: Plan, way: Way, held: Standing, each: int) -> tuple[Wire, Wire]:
        """Of all gradients of a stream; and of their shards over the groups, in a stream of its own."""
        if not held.parameter:
            return NO_WIRE, NO_WIRE
        sums = self._message(plan, way, 'reduce_scatter' if way.zero else 'all_reduce', held.gradient, each)
        return sums, self._message(plan, way, 'all_reduce', held.gradient, each, shards=True)

    def _message(self, plan: Plan, way: Way, operator: str, size: float, each: int, *, shards: bool = False) -> Wire:
        """Of one message. Argument: ``shards``, whether over shard groups; else over the ranks of one."""
        same = plan.data // each * plan.context
        group = min(way.group or same, same) if way.zero else same
        ranks = range(0, same, group) if shards else range(group)
        size = size / group if shards else size
        if len(ranks) == 1:
            return NO_WIRE
        key = (operator, size, each, ranks, plan.tensor, plan.context, plan.pipeline)
        if key not in self._known:
            op = OpClass('shards', 'collective', operator, 'F', bytes=float(size), dtype='bf16', partition='data')
            costs = [self._collectives.cost(op, members) for members in self._groups(plan, ranks, each)]
            self._known[key] = Wire(
                min(cost.alpha + cost.transfer for cost in costs),
                min(load_of(cost.transfer, cost.links, self._outer) for cost in costs),
            )
        return self._known[key]

    def _groups(self, plan: Plan, numbers: range, each: int) -> list[list[int]]:
        """Ranks of a message; more than one group where these lie otherwise on nodes.

        Argument: ``numbers``, of the members among the ranks that have the same weights.
        """
        steps = [divmod(number, plan.context) for number in numbers]
        ranks = [(data * each * plan.context + context) * plan.tensor for data, context in steps]
        block, node = self._world // plan.pipeline, self._cluster.world // self._cluster.nodes
        alike = block % node == 0 or node % block == 0
        return [[rank + first * block for rank in ranks] for first in range(1 if alike else plan.pipeline)]
