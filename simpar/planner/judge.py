"""Judge: least seconds and bytes of all plans below a node of the tree, the deeper the closer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, reduce
from math import inf
from typing import Any, Final, NamedTuple

from simpar.clocks import at_full_clocks
from simpar.cost.kept import cluster_collectives
from simpar.errors import Infeasible, ScheduleError
from simpar.hardware import Cluster
from simpar.lower.lower import order_of
from simpar.pipeline.orders import AUTOMATIC, ORDERS, family
from simpar.plan import Plan
from simpar.planner.bound import (
    compute_of_one,
    least_alone,
    least_busy,
    least_mean,
    least_of_ranks,
    least_seconds,
    least_sharing,
    least_slowed,
)
from simpar.planner.clock import Timed, timed
from simpar.planner.hiding import Speeds, least_beside
from simpar.planner.layers import few_of, layers_of_stages
from simpar.planner.room import Shares, least_bytes, least_standing
from simpar.planner.rules import MEMORY, ORDER, Refusal
from simpar.planner.sample import KNOWN, Sample, sample_of
from simpar.planner.space import Space, depth_of
from simpar.planner.wires import Wires
from simpar.units import format_size

AHEAD: Final = 1.5
"""Seconds of computation for each second that a host issues, from which on it is surely ahead of its device."""
ROUNDS: Final = 2
"""Micro-batches for each pipeline rank up to which an order is walked for all that may be sliced."""
SPARE: Final = 0.97
"""Share of a device's memory that a plan may surely hold for a guess that it fits."""
LEVELS: Final = ('pipeline', 'micro_batches', 'chunks', 'recompute', 'tiles', 'shard_group')
"""Behind these keys a node is judged anew."""


class Judged(NamedTuple):
    """Least seconds of a step of all plans below a node; why none of them can be; least bytes at the peak."""

    seconds: float = 0.0
    refusal: Refusal | None = None
    held: float = 0.0


class Judge:
    """Judges nodes of one space; keeps samples and orders, which many nodes share."""

    def __init__(self, space: Space, cluster: Cluster) -> None:
        self._space = space
        # What a whole step asks of the matrix units sets their clock; a sample does not know it.
        self._cluster = at_full_clocks(cluster)
        self._wires = Wires(self._cluster, space.world)
        self._few = few_of(space.base.workload)
        self._device = cluster.profile.device.memory.size.value
        self._samples: dict[tuple[Any, ...], Sample | None] = {}
        self._orders: dict[tuple[Any, ...], tuple[Timed, bool, int]] = {}
        self._depths = {depth_of(space, key): key for key in LEVELS}
        self._last: tuple[tuple[int, ...], Plan] | None = None
        self._only = all(space.values_of(key) == (1,) for key in ('copies', 'tiles'))

    def judges(self, depth: int) -> int:
        """How often nodes of a depth are judged, ever closer."""
        if self._few is None or depth not in self._depths:
            return 0
        return 3 if self._depths[depth] == 'chunks' else 1

    def __call__(self, path: Sequence[int], turn: int = 0) -> Judged:
        """Judge a node at one of the depths; ``turn``, how often it was judged before."""
        plan = self._plan(tuple(path))
        level = self._depths[len(path)]
        try:
            if level == 'pipeline':
                return self._wide(plan)
            if level == 'micro_batches':
                return self._batched(plan)
            if level == 'chunks':
                return (self._placed, self._sliced, self._walked)[turn](plan)
            return self._recomputed(plan) if level == 'recompute' else self._whole(plan, leaf=level == 'shard_group')
        except (ScheduleError, Infeasible) as wrong:
            return Judged(0.0, Refusal(ORDER, str(wrong).partition('\n')[0]))

    def _plan(self, path: tuple[int, ...]) -> Plan:
        if self._last is None or self._last[0] != path:
            self._last = path, self._space.plan(path)
        return self._last[1]

    def estimate(self, path: Sequence[int], limit: float) -> float:
        """The least seconds of one plan; infinite where it surely does not fit, or is not below a limit."""
        seconds = 0.0
        for key in ('pipeline', 'micro_batches', 'recompute', 'tiles', 'shard_group'):
            depth = next((depth for depth, one in self._depths.items() if one == key), None)
            if depth is None:
                continue
            judged = self(path[:depth])
            if judged.refusal or judged.held > self._device * SPARE:
                return float('inf')
            seconds = max(seconds, judged.seconds)
            if seconds >= limit:
                return float('inf')
        return seconds

    def _widest(self, plan: Plan) -> Sample | None:
        """A sample of the whole batch at once: nothing takes less time for each of its samples."""
        return self._sample(self._base(plan), self._space.base.workload.batch, split=False)

    def _wide(self, plan: Plan) -> Judged:
        """Any number of micro-batches, in any order."""
        sample = self._widest(plan)
        if sample is None:
            return Judged()
        mean = least_mean(sample, self._layers, plan.pipeline * plan.data, self._speeds, chains=self._only)
        return self._with_shards(plan, sample, mean, 1)

    def _batched(self, plan: Plan) -> Judged:
        """Any order of so many micro-batches: the price of their slices."""
        sample = self._slice(plan)
        if sample is None:
            return Judged()
        mean = least_mean(sample, self._layers, plan.pipeline / plan.micro_batches, self._speeds, chains=self._only)
        return self._with_shards(plan, sample, mean, plan.micro_batches)

    def _slice(self, plan: Plan) -> Sample | None:
        """A sample of one micro-batch, without what is still open."""
        return self._sample(
            self._base(plan), self._space.base.workload.batch // (plan.data * plan.micro_batches), split=False
        )

    def _placed(self, plan: Plan) -> Judged:
        """Any order of these stages on these ranks."""
        sample = self._slice(plan)
        if sample is None or plan.order in AUTOMATIC or plan.order not in ORDERS:
            return Judged()
        found = family(plan.order)
        chunks = plan.chunks or (found.chunks[0] if plan.pipeline > 1 else 1)
        rounds = [range(plan.pipeline), range(plan.pipeline - 1, -1, -1)]
        placement = [rank for chunk in range(chunks) for rank in rounds[chunk % 2 if found.placement == 'v' else 0]]
        layers = layers_of_stages(self._layers, len(placement), self._given(plan))
        return Judged(least_of_ranks(sample, layers, placement, plan.micro_batches))

    def _sliced(self, plan: Plan) -> Judged:
        """Any copies, tiles and recomputation: what is computed in any case, in this order."""
        sample = self._slice(plan)
        if sample is None or plan.order in AUTOMATIC:
            return Judged()
        few = min(plan.micro_batches, ROUNDS * plan.pipeline)
        few -= few % plan.pipeline if few > plan.pipeline else 0
        clock, _, stages = self._order(replace(plan, micro_batches=few), sample)
        layers = layers_of_stages(self._layers, stages, self._given(plan))
        return Judged(least_slowed(sample, layers, clock, 1.0, plan.micro_batches))

    def _walked(self, plan: Plan) -> Judged:
        """The same with what the order makes ranks wait for."""
        sample = self._slice(plan)
        if sample is None or plan.order in AUTOMATIC or plan.micro_batches > ROUNDS * plan.pipeline:
            return Judged()
        clock, _, stages = self._order(plan, sample)
        layers = layers_of_stages(self._layers, stages, self._given(plan))
        return Judged(self._acted(sample, layers, clock))

    def _given(self, plan: Plan) -> tuple[int, ...]:
        return plan.stages if not isinstance(plan.stages, str) else ()

    def _with_shards(self, plan: Plan, sample: Sample, seconds: float, micro_batches: int) -> Judged:
        """The least of all ways to shard that leave room for weights and states."""
        layers, placement = self._even(plan, sample)
        least, wire = float('inf'), float('inf')
        for zero in self._space.values_of('zero'):
            for group in self._space.values_of('shard_group') if zero else (0,):
                one = replace(plan, zero=zero, shard_group=group)
                held = least_standing(sample, layers, placement, self._shares(one))
                least = min(least, held)
                if held <= self._device and wire:
                    wire = min(wire, self._wire(one, sample, micro_batches))
        if least > self._device:
            return Judged(0.0, self._too_much(least), least)
        if plan.pipeline == 1:
            seconds_of, slowed, inside = compute_of_one(sample, self._layers, 1 / plan.data)
            # Messages inside of layers are hidden at the same price.
            wire = max(wire, least_beside(seconds_of, slowed, 0.0, max(wire, inside), self._speeds))
        return Judged(max(seconds, wire))

    @cached_property
    def _speeds(self) -> Speeds:
        """How fast computation and messages are beside each other."""
        found = self._cluster.profile.slow_down
        return Speeds(found.matrix.value, found.memory.value, found.collective.value)

    def _even(self, plan: Plan, sample: Sample) -> tuple[list[list[int]], list[int]]:
        """The layers of stages, and ranks, that hold as little as can be: with more chunks they may be more even.

        The first rank, the last, and one that has no less than its share of the layers that most are like.
        """
        every = [*range(self._layers)]
        least = self._layers // plan.pipeline
        if not least or plan.pipeline == 1:
            return [every], [0]
        # Among those of the first rank may be all that are of another kind.
        first = every[self._layers - max(0, least - sample.few.edge) :]
        mid, last = every[self._layers - self._share(plan, sample) :], every[self._layers - least :]
        return [first, mid, last], [0, 1, 2]

    def _share(self, plan: Plan, sample: Sample) -> int:
        """Layers of the kind that most are of: some rank has no fewer."""
        return -(-(self._layers - sample.few.edge) // plan.pipeline)

    def _wire(self, plan: Plan, sample: Sample, micro_batches: int) -> float:
        """Least seconds of a stream of weights and gradients of some rank."""
        return self._wires.least(plan, sample, (0, self._share(plan, sample)), micro_batches)

    def _wires_of(self, plan: Plan, sample: Sample, stages: Sequence[Sequence[int]], clock: Timed) -> list[float]:
        """The same of each rank of a pipeline."""
        edge, layers = sample.few.edge, [[0, 0] for _ in range(clock.ranks)]
        for rank, stage in zip(clock.placement, stages, strict=True):
            early = sum(layer < edge for layer in stage)
            layers[rank][0] += early
            layers[rank][1] += len(stage) - early
        return [self._wires.least(plan, sample, (early, late), plan.micro_batches) for early, late in layers]

    def _sharded(
        self,
        plan: Plan,
        sample: Sample,
        stages: list[list[int]],
        clock: Timed,
        seconds: float,
        *,
        peaks: bool,
        copies: int,
    ) -> Judged:
        """The least messages of all ways to shard with which a plan fits; ``seconds`` it takes in any case."""
        ways = [
            replace(plan, zero=zero, shard_group=group)
            for zero in self._space.values_of('zero')
            for group in (self._space.values_of('shard_group') if zero else (0,))
        ]
        # What all of them together share out holds least: if that is too much, no way fits.
        least_of_all = reduce(Shares.at_most, map(self._shares, ways))
        least = least_bytes(sample, stages, clock, least_of_all, peaks=peaks, copies=copies, enough=self._device)
        if least > self._device:
            return Judged(0.0, self._too_much(least), least)
        wires = [max(seconds, *self._wires_of(one, sample, stages, clock)) for one in ways]
        # Where messages make no difference, what shards most is asked first: it fits if anything does.
        pairs = sorted(zip(wires, ways, strict=True), key=lambda pair: (pair[0], -pair[1].zero, pair[1].shard_group))
        least = float('inf')
        known: dict[Shares, float] = {}
        for wire, one in pairs:
            shares = self._shares(one)
            if shares not in known:
                known[shares] = least_bytes(sample, stages, clock, shares, peaks=peaks, copies=copies)
            if known[shares] <= self._device:
                return Judged(wire)
            least = min(least, known[shares])
        return Judged(0.0, self._too_much(least), least)

    def _recomputed(self, plan: Plan) -> Judged:
        """Any copies and tiles: computation in this order, and what is kept in any case."""
        if plan.order in AUTOMATIC:
            return Judged()
        size = self._space.base.workload.batch // (plan.data * plan.micro_batches)
        sample = self._sample(self._plain(plan), size, split=False)
        if sample is None:
            return Judged()
        clock, _, stages = self._order(plan, sample)
        layers = layers_of_stages(self._layers, stages, self._given(plan))
        most = max(self._space.values_of('copies'))
        seconds = self._acted(sample, layers, clock)
        return self._sharded(plan, sample, layers, clock, seconds, peaks=False, copies=most)

    def _acted(self, sample: Sample, layers: list[list[int]], clock: Timed) -> float:
        """Least seconds of actions in an order, for any copies and tiles that are still open."""
        copies, tiles = (max(self._space.values_of(key)) for key in ('copies', 'tiles'))
        return least_busy(sample, layers, clock, 1.0, copies, self._speeds, serial=tiles == sample.tiles)

    def _whole(self, plan: Plan, *, leaf: bool) -> Judged:
        """All is known but how it is sharded, and at a ``leaf`` that, too."""
        if plan.order in AUTOMATIC:
            return Judged()
        size = self._space.base.workload.batch // (plan.data * plan.micro_batches * plan.copies)
        sample = self._sample(plan, size, split=self._splits(plan))
        if sample is None:
            return Judged()
        clock, _, stages = self._order(plan, sample)
        layers = layers_of_stages(self._layers, stages, self._given(plan))
        if not leaf:
            seconds = least_seconds(sample, layers, clock, self._travel(sample, plan))
            return self._sharded(plan, sample, layers, clock, seconds, peaks=True, copies=1)
        least = least_bytes(sample, layers, clock, self._shares(plan))
        if least > self._device:
            return Judged(0.0, self._too_much(least), least)
        wires = self._wires_of(plan, sample, layers, clock)
        wire = max(wires)
        if plan.pipeline == 1 and stages == 1:
            wire = max(wire, least_alone(sample, layers, clock, wire, self._speeds))
        elif wire:
            wire = max(wire, least_sharing(sample, layers, clock, wires, self._speeds))
        return Judged(wire, None, least)

    def _too_much(self, least: float) -> Refusal:
        return Refusal(MEMORY, f'at least {format_size(least)} of {format_size(self._device)}')

    @property
    def _layers(self) -> int:
        return int(getattr(self._space.base.workload.model, 'layers', 0))

    def _base(self, plan: Plan) -> Plan:
        """The plan with the values of what is still open that take the least time."""
        return replace(self._plain(plan), recompute='none')

    def _plain(self, plan: Plan) -> Plan:
        """The plan with one copy and no tiles where these are still open."""
        copies, tiles = (one[0] if len(one := self._space.values_of(key)) == 1 else 1 for key in ('copies', 'tiles'))
        return replace(plan, copies=copies, tiles=tiles)

    def _sample(self, plan: Plan, size: int, *, split: bool) -> Sample | None:
        if self._few is None:
            return None
        key = (
            plan.tensor, plan.sequence_parallel, plan.context, plan.expert, plan.recompute, plan.copies, plan.tiles,
            size, split, *(repr(getattr(plan, key)) for key in self._space.keys if key not in KNOWN),
        )  # fmt: skip
        if key not in self._samples:
            self._samples[key] = sample_of(
                self._few,
                plan,
                self._cluster,
                size,
                split=split,
                known=lambda other, parted: self._made(other, size, split=parted),
            )
        return self._samples[key]

    def _made(self, plan: Plan, size: int, *, split: bool) -> Sample:
        if (sample := self._sample(plan, size, split=split)) is None:
            raise ValueError('no model of few layers')
        return sample

    def _splits(self, plan: Plan) -> bool:
        """Whether an order does its backwards in two parts."""
        key = (plan.pipeline, plan.order, plan.chunks, plan.micro_batches)
        known = self._orders.get((*key, True)) or self._orders.get((*key, False))
        return known[1] if known else bool(order_of(plan).splits_backward)

    def _order(self, plan: Plan, sample: Sample) -> tuple[Timed, bool, int]:
        # A message is awaited early where the host is ahead: also when more copies and tiles make for more ops.
        more = 1
        for name, own in (('copies', sample.copies), ('tiles', sample.tiles)):
            more *= max(1, max(self._space.values_of(name)) // own)
        ahead = sample.pace > AHEAD * more
        key = (plan.pipeline, plan.order, plan.chunks, plan.micro_batches, ahead)
        if key not in self._orders:
            order = order_of(plan)
            clock = timed(order, awaited=ahead and self._awaited(plan))
            self._orders[key] = (clock, order.splits_backward, order.stages)
        return self._orders[key]

    def _awaited(self, plan: Plan) -> bool:
        """Whether a receive that waits for its sender surely slows computation."""
        stack = self._cluster.stack
        told = stack.waiting if stack else None
        slows = self._cluster.profile.slow_down.waiting if told is None else told
        early = plan.receive == 'early' and plan.exchange == 'separate' and plan.streams == 'group'
        return bool(slows) and early

    def _shares(self, plan: Plan) -> Shares:
        """Over how many ranks weights, states and gradients are shared out at most."""
        most = plan.data * plan.context
        given = bool(plan.shard) or plan.hsdp != 'off'
        zero = 3 if given else plan.zero
        share = min(plan.shard_group or most, most)
        return Shares(
            parameter=share if zero >= 3 else 1,
            gradient=share if zero >= 2 else 1,
            state=share if zero >= 1 else 1,
            # Groups of the user's own count experts' ranks otherwise.
            experts=1 if plan.shard_group else plan.expert,
            # What is gathered on use is cast on use, too.
            gathered=inf if zero >= 3 else 1,
        )

    def _travel(self, sample: Sample, plan: Plan) -> float:
        """Seconds of a message between two stages, that of the nearest ranks."""
        if sample.send is None or plan.pipeline == 1:
            return 0.0
        collectives = cluster_collectives(self._cluster)
        cost = collectives.cost(sample.send, (0, self._space.world // plan.pipeline))
        return cost.alpha + cost.transfer
