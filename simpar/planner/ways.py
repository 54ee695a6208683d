"""Ways: of all ways to shard weights, gradients and states that are still open, least seconds and bytes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from math import inf
from typing import Final

from simpar.engine.hosts import RECEIVE, STEP
from simpar.hardware import Cluster
from simpar.memory import framework_of
from simpar.plan import Plan
from simpar.planner.bound import least_alone, least_sharing
from simpar.planner.clock import Lasts, Tail, Timed, Work
from simpar.planner.hiding import SURELY, Speeds, least_beside
from simpar.planner.load import Sums, sums_of
from simpar.planner.room import Shares, least_bytes, least_standing
from simpar.planner.rules import MEMORY, Judged, Refusal
from simpar.planner.sample import Sample
from simpar.planner.space import Space
from simpar.planner.wires import Way, Wire, Wires
from simpar.units import format_size

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
