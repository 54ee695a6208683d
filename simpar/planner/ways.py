"""Ways: of all ways to shard weights, gradients and states that are still open, least seconds and bytes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import reduce
from math import inf

from simpar.hardware import Cluster
from simpar.plan import Plan
from simpar.planner.bound import least_alone, least_sharing
from simpar.planner.clock import Timed
from simpar.planner.hiding import SURELY, Speeds, least_beside
from simpar.planner.load import Sums, sums_of
from simpar.planner.room import Shares, least_bytes, least_standing
from simpar.planner.rules import MEMORY, Judged, Refusal
from simpar.planner.sample import Sample
from simpar.planner.space import Space
from simpar.planner.wires import Way, Wire, Wires
from simpar.units import format_size

Stages = list[list[int]]


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
                most = min(most, self._sent(plan, one, sample, mean))
        if least > self._device:
            return Judged(0.0, self._too_much(least), least)
        return Judged(max(seconds, most))

    def in_order(
        self, plan: Plan, sample: Sample, stages: Stages, clock: Timed, seconds: float, *, peaks: bool, copies: int
    ) -> Judged:
        """The least of all ways with which a plan fits. Arguments: ``seconds``, that a step takes in any case."""
        # What all of them together share out holds least: if that is too much, no way fits.
        shares = reduce(Shares.at_most, (self._shares(plan, one) for one in self._open))
        least = least_bytes(sample, stages, clock, shares, peaks=peaks, copies=copies, enough=self._device)
        if least > self._device:
            return Judged(0.0, self._too_much(least), least)
        sums = sums_of(sample, stages, clock.placement, plan.micro_batches)
        counts = _counts(sample, stages, clock)
        steps = [
            max(seconds, _step(sums, self._of_ranks(plan, one, sample, counts), sample.speeds)) for one in self._open
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

    def one(self, plan: Plan, sample: Sample, stages: Stages, clock: Timed) -> Judged:
        """The same of a plan whose way is chosen."""
        way = Way(plan.zero, plan.shard_group)
        least = least_bytes(sample, stages, clock, self._shares(plan, way))
        if least > self._device:
            return Judged(0.0, self._too_much(least), least)
        wires = self._of_ranks(plan, way, sample, _counts(sample, stages, clock))
        step = _step(sums_of(sample, stages, clock.placement, plan.micro_batches), wires, sample.speeds)
        seconds = [wire.seconds for wire in wires]
        if plan.pipeline == 1 and len(stages) == 1:
            step = max(step, least_alone(sample, stages, clock, max(seconds), sample.speeds))
        elif any(seconds):
            step = max(step, least_sharing(sample, stages, clock, seconds, sample.speeds))
        return Judged(step, None, least)

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
            gradient=share if zero >= 2 else 1,
            state=share if zero >= 1 else 1,
            experts=max(1, most // plan.expert),
            # What is gathered on use is cast on use, too.
            gathered=inf if zero >= 3 else 1,
        )


def _counts(sample: Sample, stages: Sequence[Sequence[int]], clock: Timed) -> list[tuple[int, int]]:
    """How many layers of the first kind, and of the others, each rank has."""
    early, late = [0] * clock.ranks, [0] * clock.ranks
    for rank, stage in zip(clock.placement, stages, strict=True):
        first = bisect_left(stage, sample.few.edge)
        early[rank] += first
        late[rank] += len(stage) - first
    return list(zip(early, late, strict=True))


def _step(sums: Sequence[Sums], wires: Sequence[Wire], speeds: Speeds) -> float:
    """Least seconds of a step with these messages of weights and gradients of each rank."""
    # Most ranks do the same.
    unlike = set(zip(sums, wires, strict=True))
    return max(max(one.least(wire.load, speeds), wire.seconds) for one, wire in unlike)
