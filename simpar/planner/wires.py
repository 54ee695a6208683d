"""Wires: what a plan sends of weights and gradients, and the least of all ways to shard them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from math import inf
from typing import Final, NamedTuple

from simpar.cost.collective import ClusterCollectives
from simpar.engine.hosts import RECEIVE, STEP
from simpar.hardware import Cluster
from simpar.memory import framework_of
from simpar.planner.bound import Sums, least_alone, least_sharing, sums_of
from simpar.planner.clock import Lasts, Tail, Timed, Work
from simpar.planner.pieces import SURELY, Speeds, least_beside
from simpar.planner.room import Shares, least_bytes, least_standing, standing_of
from simpar.planner.sample import Sample, Standing, load_of, outermost
from simpar.planner.space import MEMORY, Judged, Refusal, Space
from simpar.plans import Plan
from simpar.program import OpClass
from simpar.units import format_size

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


Stages = list[list[int]]
SLICED: Final = 2
"""The ZeRO stage from which on gradients are summed for each micro-batch."""


class Ways:
    """Judges plans of one space by what they hold and send of weights. Arguments: ``layers``, of the model."""

    def __init__(self, space: Space, cluster: Cluster, layers: int) -> None:
        self._space = space
        self._layers = layers
        self._wires = Wires(cluster, space.world)
        self._open = [
            Way(zero, group)
            for zero in space.values_of('zero')
            for group in (space.values_of('shard_group') if zero else (0,))
        ]
        self._device = cluster.profile.device.memory.size.value
        workload = space.base.workload
        # The norm of all gradients, and whether they are finite, is one message of all ranks.
        self._together = bool(workload.clip_norm) or workload.loss_scale != 1
        stack = cluster.stack
        self._waits = stack.waits.at if stack and stack.waits else ()
        # A host that waits for the end of a step begins the next one no sooner.
        self._ended = STEP in self._waits
        self._begins = stack.host.step.value * SURELY if self._ended and stack and stack.host else 0.0
        framework = framework_of(cluster)
        self._contiguous = framework is not None and framework.contiguous

    def behind(
        self, plan: Plan, sample: Sample, stages: Stages, placement: Sequence[int], ways: Sequence[Way] = ()
    ) -> tuple[float, ...]:
        """Least seconds of sums of gradients behind all computation of each rank.

        Argument: ``ways``, that are still open; none: all.
        """
        alone = [_counts(sample, [stage], (0,))[0] for stage in stages]
        found = [inf] * (max(placement) + 1)
        for way in ways or self._open:
            # Where gradients are sharded, each stage's are summed behind its own backward: of one stage all the same.
            parts = (zip(placement, alone, strict=True) if way.zero >= SLICED
                     else enumerate(_counts(sample, stages, placement)))  # fmt: skip
            for rank, counts in parts:
                found[rank] = min(found[rank], self._wires.behind(plan, way, sample, counts))
        return tuple(found)

    def _behind_any(self, plan: Plan, way: Way, sample: Sample) -> float:
        """The same of some rank, in any order of any stages."""
        edge = sample.few.edge
        if way.zero < SLICED:
            return self._wires.behind(plan, way, sample, (edge, self._layers - edge)) / plan.pipeline
        kinds = [(0, 1), *([(1, 0)] if edge else [])]
        return min(self._wires.behind(plan, way, sample, one) for one in kinds)

    def tail(self, behind: tuple[float, ...]) -> Tail:
        """What ends a step. Argument: ``behind``, as above."""
        return Tail(tuple(one + self._begins for one in behind), self._together)

    def alone(self, sums: Sums, behind: float) -> float:
        """Least seconds of a step by what a rank computes and its host issues. Argument: ``behind``, as above."""
        issued = sums.issued * SURELY
        return max(sums.alone + behind + self._begins, issued + (behind + self._begins if self._ended else 0.0))

    def hosts_wait(self, plan: Plan) -> bool:
        """Whether hosts wait for all that they have issued behind each exchange of messages."""
        return RECEIVE in self._waits and plan.exchange == 'fused' and plan.pipeline > 1

    def in_any_order(self, plan: Plan, sample: Sample, seconds: float, share: float) -> Judged:
        """The least of all ways that leave room for weights and states, in any order of micro-batches.

        Arguments: ``seconds``, that a step takes in any case; ``share``, how often a step does what the sample does.
        """
        layers, placement = self._even(plan, sample)
        # Of the ranks of a pipeline one does no less than their mean.
        mean = sums_of(sample, [[*range(self._layers)]], (0,), share / plan.pipeline)[0]
        least, most = inf, inf
        for one in self._open:
            held = least_standing(sample, layers, placement, self._shares(plan, one))
            least = min(least, held)
            if held <= self._device and most > seconds:
                alone = self.alone(replace(mean, alone=seconds), self._behind_any(plan, one, sample))
                most = min(most, max(self._sent(plan, one, sample, mean), alone))
        if least > self._device:
            return Judged(0.0, self._too_much(least), least)
        return Judged(max(seconds, most))

    def in_order(
        self,
        plan: Plan,
        sample: Sample,
        stages: Stages,
        clock: Timed,
        works: Mapping[Work, Lasts],
        *,
        peaks: bool,
        copies: int,
    ) -> Judged:
        """The least of all ways with which a plan fits. Argument: ``works``, least seconds of what an order does."""
        # What all of them together share out holds least: if that is too much, no way fits.
        shares = reduce(Shares.at_most, (self._shares(plan, one) for one in self._open))
        least = least_bytes(sample, stages, clock, shares, peaks=peaks, copies=copies, enough=self._device)
        if least > self._device:
            return Judged(0.0, self._too_much(least), least)
        sums = sums_of(sample, stages, clock.placement, plan.micro_batches)
        counts = _counts(sample, stages, clock.placement)
        tails = [self.tail(self.behind(plan, sample, stages, clock.placement, [one])) for one in self._open]
        steps = [
            max(seconds, self._step(sums, self._of_ranks(plan, one, sample, counts), tail, sample.speeds))
            for one, tail, seconds in zip(self._open, tails, clock.periods(works, tails), strict=True)
        ]
        # Where messages make no difference, what shards most is asked first: it fits if anything does.
        pairs = sorted(zip(steps, self._open, strict=True), key=lambda pair: (pair[0], -pair[1].zero, pair[1].group))
        least = inf
        known: dict[Shares, float] = {}
        for step, one in pairs:
            shares = self._shares(plan, one)
            if shares not in known:
                known[shares] = least_bytes(sample, stages, clock, shares, peaks=peaks, copies=copies)
            if known[shares] <= self._device:
                return Judged(step)
            least = min(least, known[shares])
        return Judged(0.0, self._too_much(least), least)

    def one(
        self, plan: Plan, sample: Sample, stages: Stages, clock: Timed, works: Mapping[Work, Lasts]
    ) -> Judged:  # fmt: skip
        """The same of a plan whose way is chosen."""
        way = Way(plan.zero, plan.shard_group)
        least = least_bytes(sample, stages, clock, self._shares(plan, way))
        if least > self._device:
            return Judged(0.0, self._too_much(least), least)
        wires = self._of_ranks(plan, way, sample, _counts(sample, stages, clock.placement))
        behind = self.behind(plan, sample, stages, clock.placement, [way])
        sums = sums_of(sample, stages, clock.placement, plan.micro_batches)
        tail = self.tail(behind)
        step = max(clock.period(works, tail), self._step(sums, wires, tail, sample.speeds))
        seconds = [wire.seconds for wire in wires]
        if plan.pipeline == 1 and len(stages) == 1:
            step = max(step, least_alone(sample, stages, clock, max(seconds), sample.speeds, behind[0]))
        elif any(seconds):
            step = max(step, least_sharing(sample, stages, clock, seconds, sample.speeds, behind))
        return Judged(step, None, least)

    def _step(self, sums: Sequence[Sums], wires: Sequence[Wire], tail: Tail, speeds: Speeds) -> float:
        """Least seconds of a step with these messages of weights and gradients of each rank, and this end."""
        # Most ranks do the same.
        unlike = set(zip(sums, wires, tail.seconds, strict=True))
        step = max(max(one.least(wire.load, speeds), wire.seconds) for one, wire, _ in unlike)
        return max(step, max(one.issued * SURELY + last for one, _, last in unlike) if self._ended else 0.0)

    def _sent(self, plan: Plan, way: Way, sample: Sample, mean: Sums) -> float:
        """Least seconds of a step by what is sent, in any order. Argument: ``mean``, of what the ranks do."""
        edge, micro_batches = sample.few.edge, plan.micro_batches
        every = self._wires.least(
            plan, way, sample, (edge, self._layers - edge), micro_batches, again=plan.pipeline == 1
        )
        sent = self._wires.least(plan, way, sample, (0, self._share(plan, sample)), micro_batches).seconds
        if plan.pipeline == 1:
            sent = least_beside(mean.alone, mean.slowed, 0.0, sent, sample.speeds)
            # A message's latency is not stretched beside computation, so none of it is taken to be.
            speeds = sample.speeds.unstretched
            sent = max(sent, least_beside(mean.alone, mean.slowed, 0.0, mean.wire, speeds) * SURELY)
        return max(sent, mean.least(every.load / plan.pipeline, sample.speeds))

    def _of_ranks(self, plan: Plan, way: Way, sample: Sample, counts: Sequence[tuple[int, int]]) -> list[Wire]:
        """Messages of weights and gradients of each rank of a pipeline. Argument: ``counts``, layers of each."""
        each = {one: self._wires.least(plan, way, sample, one, plan.micro_batches) for one in dict.fromkeys(counts)}
        return [each[one] for one in counts]

    def _even(self, plan: Plan, sample: Sample) -> tuple[Stages, list[int]]:
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

    def _too_much(self, least: float) -> Refusal:
        return Refusal(MEMORY, f'at least {format_size(least)} of {format_size(self._device)}')

    def _shares(self, plan: Plan, way: Way) -> Shares:
        """Over how many ranks weights, states and gradients are shared out at most."""
        most = plan.data * plan.context
        zero = 3 if plan.shard or plan.hsdp != 'off' else way.zero
        share = min(way.group or most, most)
        return Shares(
            parameter=share if zero >= 3 else 1,
            gradient=share if zero >= 2 and not self._contiguous else 1,
            state=share if zero >= 1 else 1,
            experts=max(1, most // plan.expert),
            # What is gathered on use is cast on use, too.
            gathered=inf if zero >= 3 else 1,
            contiguous=self._contiguous,
        )


def _counts(sample: Sample, stages: Sequence[Sequence[int]], placement: Sequence[int]) -> list[tuple[int, int]]:
    """How many layers of the first kind, and of the others, each rank has."""
    early, late = ([0] * (max(placement) + 1) for _ in range(2))
    for rank, stage in zip(placement, stages, strict=True):
        first = bisect_left(stage, sample.few.edge)
        early[rank] += first
        late[rank] += len(stage) - first
    return list(zip(early, late, strict=True))
