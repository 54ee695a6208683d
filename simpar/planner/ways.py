"""Ways to shard weights, gradients and states: what a plan sends and holds of them at least."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import inf, isinf
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simpar import hardware, memory, units
from simpar.cost.collective import ClusterCollectives
from simpar.engine.queues import RECEIVE, STEP
from simpar.pipeline.messages import KINDS
from simpar.planner import pieces
from simpar.planner.bound import Kept, Stage, Sums, held_up, sums_of, twice, whole_of
from simpar.planner.clock import Lasts, Moments, Tail, Timed, Work, moments_of
from simpar.planner.sample import STANDING, Sample, Standing, load_of, outermost
from simpar.planner.space import Judged, Refusal, Space
from simpar.plans import Plan
from simpar.program import OpClass

Stages = Sequence[Stage]


@dataclass(frozen=True, slots=True)
class Shares:
    """Over how many ranks each kind of standing bytes may be shared out, of experts and of all else.

    Infinite: they need not be anywhere. Arguments: ``experts``, ranks that hold the same experts: experts' own bytes
    are shared out over no more of them; ``contiguous``, whether gradients lie in a buffer that is always there;
    ``late``, whether a stage's full gradients are all there when its backward ends, and only then sharded.
    """

    parameter: int = 1
    state: int = 1
    gradient: int = 1
    experts: int = 1
    gathered: float = 1
    contiguous: bool = False
    late: bool = False

    def bytes(self, dense: Standing, experts: Standing) -> Standing:
        """Least bytes of a rank."""
        by_kind = {}
        for kind in STANDING:
            share = getattr(self, kind)
            few = share if isinf(share) else min(share, self.experts)
            by_kind[kind] = getattr(dense, kind) / share + getattr(experts, kind) / few
        return Standing(**by_kind)

    def at_most(self, other: Shares) -> Shares:
        """What holds no more than either of them."""
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in Shares.__slots__}
        # What is there, or held at once, is so only where both have it so.
        return Shares(**{name: min(pair) if isinstance(pair[0], bool) else max(pair)
                         for name, pair in pairs.items()})  # fmt: skip

    def always(self, dense: Standing, experts: Standing) -> float:
        """Bytes of gradients that lie in a buffer, between steps, too."""
        if not self.contiguous:
            return 0.0
        held = self.bytes(dense, experts).gradient
        # Where shards lie in it, what is not sharded has no buffer: experts that no other rank holds.
        return held - experts.gradient if self.gradient > 1 == self.experts else held

    def whole(self, dense: Standing, experts: Standing) -> float:
        """Bytes of full gradients at the end of a backward, beside what there is of them all the time."""
        if not self.late or self.gradient == 1:
            return 0.0
        # Experts that no other rank holds are not sharded.
        return dense.gradient + experts.gradient * (self.experts > 1)


def least_bytes(
    stages: Stages, timed: Timed, shares: Shares, *, peaks: bool = True, copies: int = 1, enough: float = inf
) -> float:
    """Least bytes of the fullest rank at its peak.

    Arguments: ``peaks``, whether what a stage holds at the peak of one micro-batch counts, or what it keeps alone;
    ``copies``, at most, where that is open: more than the sample has; ``enough``, bytes of a rank beyond which others
    need not be looked at.
    """
    most = 0.0
    for rank in range(timed.ranks):
        most = max(most, _of_rank(stages, timed, rank, shares, peaks=peaks, copies=copies))
        if most > enough:
            break
    return most


def least_standing(stages: Stages, placement: Sequence[int], shares: Shares) -> float:
    """Least bytes of the fullest rank without any activation; gradients may be gone, but for a buffer of them."""
    total = dict.fromkeys(placement, stages[0].sample.held[0].fixed)
    whole = dict.fromkeys(placement, 0.0)
    for stage, rank in zip(stages, placement, strict=True):
        standing = stage.standing()
        held = shares.bytes(*standing)
        # A micro-batch comes to all stages of a rank before it goes back through one of them.
        total[rank] += held.parameter + held.state + held.gathered + shares.always(*standing)
        whole[rank] = max(whole[rank], shares.whole(*standing))
    return max(total[rank] + whole[rank] for rank in total)


def _of_rank(stages: Stages, timed: Timed, rank: int, shares: Shares, *, peaks: bool, copies: int) -> float:
    mine = [stage for stage, holder in zip(stages, timed.placement, strict=True) if holder == rank]
    sample, standing = mine[0].sample, [stage.standing() for stage in mine]
    held, by_stage = [shares.bytes(*one) for one in standing], [stage.kept(copies) for stage in mine]
    fixed = sample.held[0].fixed + sum(one.parameter + one.state for one in held)
    if sum(stage.first or stage.last for stage in mine) > 1:
        fixed -= shares.bytes(twice(sample), Standing()).total
    # In whole numbers of what stages hold, so that it is worked out once for all plans of an order.
    moments = moments_of(timed, rank)
    activations, gradients, casts = (np.zeros(len(moments.kind)) for _ in range(3))
    for place, own in enumerate(by_stage):
        activations += moments.live[place] * own.total + moments.later[place] * own.waits
        always = shares.always(*standing[place])
        gradients += np.where(moments.gradients[place], held[place].gradient, always)
        casts += moments.casts[place] * held[place].gathered
    more = _more(moments, by_stage, sample, peaks=peaks)
    if shares.late:
        # When a backward ends its activations may be gone, and all of its gradients are there.
        whole = [shares.whole(*one) for one in standing]
        for kind, gone in ('B', [one.total for one in by_stage]), ('W', [one.waits for one in by_stage]):
            ends = np.maximum(more, (np.array(whole) - np.array(gone))[moments.own])
            more = np.where(moments.kind == KINDS.index(kind), ends, more)
    return float((fixed + activations + gradients + casts + more).max())


def _more(moments: Moments, by_stage: Sequence[Kept], sample: Sample, *, peaks: bool) -> NDArray[np.float64]:
    """What each action holds more than there is when it begins. Argument: ``by_stage``, of each stage of the rank."""
    total, most, joined, waits, part, head = np.array(by_stage, dtype=np.float64).T[:, moments.own]
    # Behind its own forward a backward makes the last layer again when it comes to it, not before all else.
    peak = np.where(moments.joined & sample.again, total, most) if peaks else total
    back = np.where(moments.joined, joined + (peak - total) * part, peak) - total
    # At its loss a last stage holds what comes of logits, of one copy at least, whatever is made again.
    keeps = np.where(moments.joined, joined, total)
    back = np.maximum(back, keeps + head * part - total)
    forward, _, inputs, weights = (moments.kind == KINDS.index(kind) for kind in 'FBIW')
    more: NDArray[np.float64] = np.where(forward, keeps + head * part, back)
    # What waits for gradients of weights stays.
    more[inputs] = np.maximum(back, waits - total)[inputs]
    # Gradients of weights need nothing new: what there is counts at the action behind.
    more[weights] = -np.inf
    return more


# Wires: what a plan sends of weights and gradients, and the least of all ways to shard them.


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


def sums_late(plan: Plan) -> bool:
    """Whether a plan sums gradients behind a whole backward, as its ZeRO stage alone says."""
    return plan.reduce_gradients == 'end' and plan.hsdp == 'off' and not any(getattr(plan, key) for key in OWN)


Stream = Callable[[Standing, int, int], Wire]
"""Messages of some weights: of their bytes, of how many data ranks one holds the same, and of how many layers."""


class Wires:
    """Least seconds of messages of weights and gradients on a cluster; remembers what messages cost.

    Arguments: ``world``, devices of a plan.
    """

    def __init__(self, cluster: hardware.Cluster, world: int) -> None:
        self._cluster, self._world = cluster, world
        self._collectives = ClusterCollectives(cluster)
        self._outer = outermost(cluster.topology, world)
        self._known: dict[tuple[object, ...], Wire] = {}

    def least(self, plan: Plan, way: Way, held: Stage, micro_batches: int, *, again: bool = True) -> Wire:
        """A rank's messages of weights and gradients in a step.

        Those of experts have a stream of their own, where ranks share experts.
        Arguments: ``held``, the layers that the rank has at least, in one stage; ``again``, whether weights that are
        gathered in the forward are surely gathered in the backward, but for one layer's.
        """
        if plan.hsdp != 'off' or any(getattr(plan, key) for key in OWN) or not held.layers:
            return NO_WIRE
        key = ('wire', way, plan.data, plan.pipeline, held, micro_batches, again)

        def stream(standing: Standing, each: int, count: int) -> Wire:
            return self._stream(plan, way, standing, each, count if again else 1, micro_batches)

        return held.sample.once(key, lambda: self._streams(plan, way, held, stream))

    def behind(self, plan: Plan, way: Way, held: Stage, *, shards: bool = True) -> float:
        """Least seconds of the sums of gradients that a rank surely begins behind all of its computation.

        Arguments: ``held``, as of ``least``; ``shards``, whether their shards are summed over the groups there, too.
        """
        if not sums_late(plan):
            return 0.0

        def stream(standing: Standing, each: int, _: int) -> Wire:
            sums, of_shards = self._sums(plan, way, standing, each)
            return sums.beside(of_shards) if shards else sums

        def seconds() -> float:
            sums = self._streams(plan, way, held, stream) if held.layers else NO_WIRE
            return max(sums.seconds, sums.load) * pieces.SURELY

        return held.sample.once(('behind', way, plan.data, plan.pipeline, held, shards), seconds)

    def _streams(self, plan: Plan, way: Way, held: Stage, stream: Stream) -> Wire:
        """What is sent of all weights and of those of experts, each in a stream, where it is not in one."""
        dense, experts = held.standing()
        if plan.expert == 1:
            dense, experts = dense.plus(experts), Standing()
        # Of sums of gradients, some are over tensor ranks, too, and have a stream of their own.
        alone = NO_WIRE if plan.tensor > 1 and not way.zero else stream(dense, 1, held.layers)
        return (
            alone if plan.data * plan.context == plan.expert else alone.beside(stream(experts, plan.expert, held.late))
        )

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


class Laid(NamedTuple):
    """A plan and its order.

    Argument: ``travel``, seconds of the last message behind an action.
    """

    plan: Plan
    stages: Stages
    clock: Timed
    travel: float

    @property
    def sample(self) -> Sample:
        """That of its stages."""
        return self.stages[0].sample

    @property
    def key(self) -> tuple[object, ...]:
        """What ends of steps depend on, beside the way of sharding."""
        return self.plan.pipeline, self.plan.data, self.clock.placement, self.travel


SLICED: Final = 2
"""The ZeRO stage from which on gradients are summed for each micro-batch."""


@dataclass(frozen=True, slots=True, eq=False)
class End:
    """Least seconds of messages while nothing is computed.

    Arguments: ``behind``, by rank, of sums of gradients behind all computation of a step; ``exposed``, by kind and
    stage, of what is sent and summed behind an action where the host waits until that has ended.
    """

    behind: tuple[float, ...]
    exposed: Mapping[tuple[str, int], float]

    def beats(self, other: End) -> bool:
        """Whether none of it is more."""
        pairs = [*zip(self.behind, other.behind, strict=True)]
        pairs += [(seconds, other.exposed.get(key, 0.0)) for key, seconds in self.exposed.items()]
        return all(own <= one for own, one in pairs)

    def of_ranks(self, placement: Sequence[int], often: Mapping[tuple[str, int], int]) -> list[float]:
        """Of each rank what is exposed in a step. Argument: ``often``, how many such actions there are."""
        seconds = [0.0] * len(self.behind)
        for key, times in often.items():
            seconds[placement[key[1]]] += times * self.exposed.get(key, 0.0)
        return seconds


class Ways:
    """Judges plans of one space by what they hold and send of weights.

    Arguments: ``layers``, of the model; ``room``, bytes of a device for tensors.
    """

    def __init__(self, space: Space, cluster: hardware.Cluster, layers: int, room: float) -> None:
        self._space = space
        self._layers = layers
        self._wires = Wires(cluster, space.world)
        self._open = [
            Way(zero, group)
            for zero in space.values_of('zero')
            for group in (space.values_of('shard_group') if zero else (0,))
        ]
        self._device = room
        workload = space.base.workload
        # The norm of all gradients, and whether they are finite, is one message of all ranks.
        self._together = bool(workload.clip_norm) or workload.loss_scale != 1
        stack = cluster.stack
        self._waits = stack.waits.at if stack and stack.waits else ()
        # A host that waits for the end of a step begins the next one no sooner.
        self._ended = STEP in self._waits
        self._begins = stack.host.step.value * pieces.SURELY if self._ended and stack and stack.host else 0.0
        framework = memory.framework_of(cluster)
        self._contiguous = framework is not None and framework.contiguous

    def ending(
        self, laid: Laid, often: Mapping[tuple[str, int], int], step: Callable[[End, Sequence[float]], float]
    ) -> Judged:
        """The least of all ways that leave room for weights and states.

        Arguments: ``often``, how many actions of each kind and stage a host waits behind; ``step``, seconds of a step,
        by how it ends and by what is exposed of each rank.
        """
        ends, least = laid.sample.once(('ends', *laid.key), lambda: self._ends(laid))
        if not ends:
            return Judged(0.0, self._too_much(least), least)
        return Judged(min(step(one, one.of_ranks(laid.clock.placement, often)) for one in ends))

    def _ends(self, laid: Laid) -> tuple[list[End], float]:
        """What ends steps and backwards, none beaten by another; and the least bytes of all ways."""
        held = {
            shares: least_standing(laid.stages, laid.clock.placement, shares)
            for shares in {self._shares(laid.plan, way) for way in self._open}
        }
        fit = [way for way in self._open if held[self._shares(laid.plan, way)] <= self._device]
        ends: list[End] = []
        for way in fit:
            end = self._end(laid, way)
            if not any(one.beats(end) for one in ends):
                ends = [*(one for one in ends if not end.beats(one)), end]
        return ends, min(held.values())

    def _end(self, laid: Laid, way: Way) -> End:
        """Of a way; of ways that end alike, one."""

        def end() -> End:
            behind, exposed = self._ending(laid, way)
            return laid.sample.once(('end', behind, tuple(exposed.items())), lambda: End(behind, exposed))

        return laid.sample.once(('end', way, *laid.key), end)

    def _ending(self, laid: Laid, way: Way) -> tuple[tuple[float, ...], dict[tuple[str, int], float]]:
        plan, sample, stages, placement = laid.plan, laid.sample, laid.stages, laid.clock.placement
        alone = [stage._replace(first=False, last=False) for stage in stages]
        behind = [inf] * (max(placement) + 1)
        # Where gradients are sharded, each stage's are summed behind its own backward: of one stage all the same.
        parts = (zip(placement, alone, strict=True) if way.zero >= SLICED
                 else enumerate(_of_ranks(stages, placement)))  # fmt: skip
        for rank, held in parts:
            behind[rank] = min(behind[rank], self._wires.behind(plan, way, held))
        if not self.hosts_wait(plan):
            return tuple(behind), {}
        sent = {kind: laid.travel if hands_on(sample, kind) else 0.0 for kind in 'FBI'}
        exposed = {(kind, stage): seconds for kind, seconds in sent.items() for stage in range(len(stages))}
        if way.zero >= SLICED:
            sums = [self._wires.behind(plan, way, one, shards=False) for one in alone]
            exposed |= {('B', stage): max(seconds, sent['B']) for stage, seconds in enumerate(sums)}
        return tuple(behind), exposed

    def _behind_any(self, plan: Plan, way: Way, sample: Sample) -> float:
        """The same of some rank, in any order of any stages."""
        edge = sample.few.edge
        if way.zero < SLICED:
            return self._wires.behind(plan, way, self._every(sample)) / plan.pipeline
        kinds = [(0, 1), *([(1, 0)] if edge else [])]
        return min(self._wires.behind(plan, way, Stage(sample, False, False, *one)) for one in kinds)

    def tail(self, end: End) -> Tail:
        """What ends a step."""
        return Tail(tuple(one + self._begins for one in end.behind), self._together)

    def alone(self, sums: Sums, slowed: float, behind: float, exposed: float = 0.0) -> float:
        """Least seconds of a step by what a rank computes, as far as it is slowed, and its host issues.

        Arguments: of the rank, as of ``End``.
        """
        issued = sums.issued * pieces.SURELY + exposed
        step = max(sums.alone + self._begins, slowed) + exposed + behind
        return max(step, issued + (behind + self._begins if self._ended else 0.0))

    def hosts_wait(self, plan: Plan) -> bool:
        """Whether hosts wait for all that they have issued behind each exchange of messages."""
        return RECEIVE in self._waits and plan.exchange == 'fused' and plan.pipeline > 1

    def in_any_order(self, plan: Plan, sample: Sample, seconds: float, share: float) -> Judged:
        """The least of all ways that leave room for weights and states, in any order of micro-batches.

        Arguments: ``seconds``, that a step takes in any case; ``share``, how often a step does what the sample does.
        """
        stages, placement = self._even(plan, sample)
        # Of the ranks of a pipeline one does no less than their mean.
        mean = sums_of([whole_of(sample, self._layers)], (0,), share / plan.pipeline)[0]
        least, most = inf, inf
        for one in self._open:
            # How many layers a stage has is not known yet.
            held = least_standing(stages, placement, replace(self._shares(plan, one), late=False))
            least = min(least, held)
            if held <= self._device and most > seconds:
                alone = self.alone(replace(mean, alone=seconds), 0.0, self._behind_any(plan, one, sample))
                most = min(most, max(self._sent(plan, one, sample, mean), alone))
        if least > self._device:
            return Judged(0.0, self._too_much(least), least)
        return Judged(max(seconds, most))

    def in_order(
        self, laid: Laid, works: Callable[[], Mapping[Work, Lasts]], *, peaks: bool, copies: int
    ) -> Judged:  # fmt: skip
        """The least of all ways with which a plan fits. Argument: ``works``, least seconds of what an order does."""
        plan, stages, clock, _ = laid
        # What all of them together share out holds least: if that is too much, no way fits.
        shares = reduce(Shares.at_most, (self._shares(plan, one) for one in self._open))
        least = least_bytes(stages, clock, shares, peaks=peaks, copies=copies, enough=self._device)
        if least > self._device:
            return Judged(0.0, self._too_much(least), least)
        steps = self._steps(laid, self._open, works())
        # Where messages make no difference, what shards most is asked first: it fits if anything does.
        pairs = sorted(zip(steps, self._open, strict=True), key=lambda pair: (pair[0], -pair[1].zero, pair[1].group))
        least = inf
        by_shares: dict[Shares, float] = {}
        for seconds, one in pairs:
            shares = self._shares(plan, one)
            if shares not in by_shares:
                by_shares[shares] = least_bytes(stages, clock, shares, peaks=peaks, copies=copies)
            if by_shares[shares] <= self._device:
                return Judged(seconds)
            least = min(least, by_shares[shares])
        return Judged(0.0, self._too_much(least), least)

    def one(self, laid: Laid, works: Callable[[], Mapping[Work, Lasts]]) -> Judged:
        """The same of a plan whose way is chosen."""
        plan, stages, clock, _ = laid
        way = Way(plan.zero, plan.shard_group)
        least = least_bytes(stages, clock, self._shares(plan, way))
        if least > self._device:
            return Judged(0.0, self._too_much(least), least)
        (step,) = self._steps(laid, [way], works())
        return Judged(step, None, least)

    def _steps(self, laid: Laid, ways: Sequence[Way], works: Mapping[Work, Lasts]) -> list[float]:
        """Least seconds of a step by its way; arguments as of ``in_order``."""
        plan, stages, clock, _ = laid
        sample = laid.sample
        sums = sums_of(stages, clock.placement, plan.micro_batches)
        held = _of_ranks(stages, clock.placement)
        ends = [self._end(laid, way) for way in ways]
        by_end = {end: clock.period(held_up(works, end.exposed), self.tail(end)) for end in dict.fromkeys(ends)}
        steps: pieces.Floats = np.array([by_end[end] for end in ends])
        each = [
            zip(
                [self._wires.least(plan, way, one, plan.micro_batches) for one in held],
                self.tail(end).seconds,
                end.of_ranks(clock.placement, clock.ended),
                strict=True,
            )
            for way, end in zip(ways, ends, strict=True)
        ]
        # Most ranks do the same.
        for one, rank in set(zip(sums, zip(*each, strict=True), strict=True)):
            load, seconds, last, more = np.array([(wire.load, wire.seconds, *idle) for wire, *idle in rank]).T
            steps = np.maximum(steps, np.maximum(one.least(load, sample.speeds, more), seconds))
            if self._ended:
                steps = np.maximum(steps, one.issued * pieces.SURELY + more + last)
        step_seconds: list[float] = steps.tolist()
        return step_seconds

    def _sent(self, plan: Plan, way: Way, sample: Sample, mean: Sums) -> float:
        """Least seconds of a step by what is sent, in any order. Argument: ``mean``, of what the ranks do."""
        micro_batches, share = plan.micro_batches, Stage(sample, False, False, 0, self._share(plan, sample))
        every = self._wires.least(plan, way, self._every(sample), micro_batches, again=plan.pipeline == 1)
        sent = self._wires.least(plan, way, share, micro_batches).seconds
        if plan.pipeline == 1:
            sent = pieces.least_beside(mean.alone, mean.slowed, 0.0, sent, sample.speeds)
            # A message's latency is not stretched beside computation, so none of it is taken to be.
            speeds = sample.speeds.unstretched
            sent = max(sent, pieces.least_beside(mean.alone, mean.slowed, 0.0, mean.wire, speeds) * pieces.SURELY)
        return max(sent, float(mean.least(every.load / plan.pipeline, sample.speeds)))

    def _every(self, sample: Sample) -> Stage:
        """All layers, without what stands before and behind them."""
        return whole_of(sample, self._layers)._replace(first=False, last=False)

    def _even(self, plan: Plan, sample: Sample) -> tuple[Stages, list[int]]:
        """Stages, and their ranks, that hold as little as can be: with more chunks they may be more even.

        The first rank, the last, and one that has no less than its share of the layers that most are like.
        """
        least, late = self._layers // plan.pipeline, self._layers - sample.few.edge
        if not least or plan.pipeline == 1:
            return [whole_of(sample, self._layers)], [0]
        # Among those of the first rank may be all that are of another kind; else these come last.
        counts = (max(0, least - sample.few.edge), self._share(plan, sample), least)
        stages = [Stage(sample, at == 0, at == 2, max(0, one - late), min(one, late)) for at, one in enumerate(counts)]
        return stages, [0, 1, 2]

    def _share(self, plan: Plan, sample: Sample) -> int:
        """Layers of the kind that most are of: some rank has no fewer."""
        return -(-(self._layers - sample.few.edge) // plan.pipeline)

    def _too_much(self, least: float) -> Refusal:
        return Refusal('memory', f'at least {units.format_size(least)} of {units.format_size(self._device)}')

    def _shares(self, plan: Plan, way: Way) -> Shares:
        """Over how many ranks weights, states and gradients are shared out at most."""
        most = plan.data * plan.context
        zero = 3 if plan.shard or plan.hsdp != 'off' else way.zero
        share = min(way.group or most, most)
        # A buffer is of full gradients, but of shards where weights are gathered on use.
        sharded = zero >= (3 if self._contiguous else SLICED)
        return Shares(
            parameter=share if zero >= 3 else 1,
            gradient=share if sharded else 1,
            state=share if zero >= 1 else 1,
            experts=max(1, most // plan.expert),
            # What is gathered on use is cast on use, too.
            gathered=inf if zero >= 3 else 1,
            contiguous=self._contiguous,
            late=sharded and sums_late(plan),
        )


def hands_on(sample: Sample, kind: str) -> bool:
    """Whether an action of a kind surely ends with what it sends on."""
    # What begins or ends a step sends nothing.
    silent = sample.stages - 1 if kind == 'F' else 0
    blocks = [block for (stage, own, _), block in sample.blocks.items() if own == kind and stage != silent]
    return bool(blocks) and all(block.hands_on for block in blocks)


def _of_ranks(stages: Stages, placement: Sequence[int]) -> list[Stage]:
    """The layers of each rank, without what stands before and behind them."""
    early, late = ([0] * (max(placement) + 1) for _ in range(2))
    for rank, stage in zip(placement, stages, strict=True):
        early[rank] += stage.early
        late[rank] += stage.late
    return [Stage(stages[0].sample, False, False, *each) for each in zip(early, late, strict=True)]
