"""Judge: least seconds and bytes of all plans below a node, the deeper the closer; in processes where that repays."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Final

from simpar import case, errors, memory, pipeline, schedule
from simpar.cost.collective import ClusterCollectives
from simpar.hardware import Cluster
from simpar.lower.graph.stages import stage_of_layer
from simpar.lower.lower import order_of, receives_late
from simpar.planner import ways
from simpar.planner.bound import Stage, held_up, least_busy, least_mean, least_slowed, least_works, sums_of, whole_of
from simpar.planner.clock import Lasts, Timed, Work, timed
from simpar.planner.sample import Sample, Samples
from simpar.planner.space import KEYS, WITH_BOUNDS, Judged, Refusal, Space, with_bounds
from simpar.plans import Plan
from simpar.predict import at_full_clocks
from simpar.sweep import run

Asked = tuple[tuple[int, ...], int] | tuple[tuple[int, ...], int, float]
"""What a judge is asked: a node, and how often it was judged before; of a guess, a limit, too."""
AHEAD: Final = 1.5
"""Seconds of computation for each second that a host issues, from which on it is surely ahead of its device."""
ROUNDS: Final = 2
"""Micro-batches for each pipeline rank up to which an order is walked for all that may be sliced."""
SPARE: Final = 0.97
"""Share of a device's memory that a plan may surely hold for a guess that it fits."""
GUESS: Final = -1
"""Judge one plan in full; in place of how often a node was judged before."""
LEVELS: Final = ('pipeline', 'micro_batches', 'chunks', 'recompute', 'tiles', 'shard_group')
"""Behind these keys a node is judged anew."""


class Judge:
    """Judges nodes of one space; keeps samples and orders, which many nodes share.

    Arguments: ``samples``, of another judge, for plans of which it is not known what they hold, or when hosts are
    ahead; ``until``, on the clock of ``time.monotonic``, from when on it says nothing of nodes, so that none is cut.
    """

    def __init__(self, space: Space, cluster: Cluster, samples: Samples | None = None, until: float = inf) -> None:
        self._space, self.until = space, until
        # What a whole step asks of the matrix units sets their clock; a sample does not know it.
        self._cluster = at_full_clocks(cluster)
        self._collectives = ClusterCollectives(self._cluster)
        self._roomy = samples is not None
        self._device = inf if self._roomy else memory.room_of(cluster).tensors
        self._ways = ways.Ways(space, self._cluster, self._layers, self._device)
        self.samples = Samples(space, self._cluster) if samples is None else samples
        self._known: dict[tuple[int, ...], Judged] = {}
        self._other = None if self._roomy else Judge(space, cluster, self.samples)
        self._orders: dict[tuple[Any, ...], Timed] = {}
        self._split: dict[tuple[Any, ...], bool] = {}
        self._depths = {_depth(space, key): key for key in LEVELS}
        self._last: tuple[tuple[int, ...], Plan] | None = None
        self._only = all(space.values_of(key) == (1,) for key in ('copies', 'tiles'))

    def judges(self, depth: int) -> int:
        """How often nodes of a depth are judged, ever closer."""
        if not self.samples or depth not in self._depths:
            return 0
        return 2 if self._depths[depth] == 'chunks' else 1

    def __call__(self, path: Sequence[int], turn: int = 0, limit: float = inf) -> Judged:
        """Judge a node at one of the depths.

        Arguments: ``turn``, how often it was judged before, or ``GUESS``; ``limit``, of a guess, seconds from which
        on a plan does not matter.
        """
        if turn == GUESS:
            return self._estimate(path, limit)
        return Judged() if time.monotonic() >= self.until else self._judged(path, turn)

    def _judged(self, path: Sequence[int], turn: int) -> Judged:
        plan = self._plan(tuple(path))
        if self._other and with_bounds(plan) is not plan:
            return self._as_other(path, turn)
        level = self._depths[len(path)]
        if not self.samples:
            return Judged()
        try:
            if level == 'pipeline':
                return self._wide(plan)
            if level == 'micro_batches':
                return self._batched(plan)
            sample = self._slice(plan) if level == 'chunks' else None
            # Nothing is known of orders that are still to be found.
            if plan.order in pipeline.AUTOMATIC:
                return Judged()
            if sample:
                return (self._placed, self._walked)[turn](plan, sample)
            return self._recomputed(plan) if level == 'recompute' else self._whole(plan, leaf=level == 'shard_group')
        except (errors.ScheduleError, errors.Infeasible) as wrong:
            return Judged(0.0, Refusal('plan.order', str(wrong).partition('\n')[0]))

    def _as_other(self, path: Sequence[int], turn: int) -> Judged:
        """As the plan whose bounds stand for it, and for others."""
        assert self._other is not None
        key = (*(place for name, place in zip(self._space.keys, path, strict=False) if name not in WITH_BOUNDS), -turn)
        if key not in self._known:
            self._known[key] = self._other(path, turn)._replace(held=0.0)
        return self._known[key]

    def _plan(self, path: tuple[int, ...]) -> Plan:
        if self._last is None or self._last[0] != path:
            plan = self._space.plan(path)
            self._last = path, with_bounds(plan) if self._roomy else plan
        return self._last[1]

    def _estimate(self, path: Sequence[int], limit: float) -> Judged:
        """Least seconds and bytes of one plan; infinite seconds where it likely does not fit, or is not below a limit.

        Seconds are infinite, and bytes 0, where it has no order.
        """
        seconds, held = 0.0, 0.0
        for depth in (depth for depth, key in self._depths.items() if key != 'chunks'):
            judged = self._judged(path[:depth], 0)
            held = max(held, judged.held)
            if judged.refusal or held > self._device * SPARE:
                return Judged(inf, None, held)
            seconds = max(seconds, judged.seconds)
            if seconds >= limit:
                return Judged(inf, None, held)
        return Judged(seconds, None, held)

    def _wide(self, plan: Plan) -> Judged:
        """Any number of micro-batches, in any order."""
        sample = self.samples.widest(plan)
        mean = least_mean(whole_of(sample, self._layers), plan.pipeline * plan.data, chains=self._only)
        # At least one of them.
        return self._ways.in_any_order(replace(plan, micro_batches=1), sample, mean, 1 / plan.data)

    def _batched(self, plan: Plan) -> Judged:
        """Any order of so many micro-batches: the price of their slices."""
        sample = self._slice(plan)
        mean = least_mean(whole_of(sample, self._layers), plan.pipeline / plan.micro_batches, chains=self._only)
        return self._ways.in_any_order(plan, sample, mean, plan.micro_batches)

    def _slice(self, plan: Plan) -> Sample:
        """A sample of one micro-batch, without what is still open."""
        return self._sample(plan, self.samples.base(plan))

    def _sample(self, plan: Plan, like: Plan, *, split: bool = False) -> Sample:
        """A sample of a plan as another, of the one's micro-batch."""
        size = self._space.base.workload.batch // (plan.data * plan.micro_batches)
        return self.samples.sample(like, size, split=split)

    def _placed(self, plan: Plan, sample: Sample) -> Judged:
        """Any copies, tiles and recomputation: what is computed in any case by these stages, in an order like this."""
        few = min(plan.micro_batches, ROUNDS * plan.pipeline)
        few -= few % plan.pipeline if few > plan.pipeline else 0
        clock, stages = self._in_order(replace(plan, micro_batches=few), sample)
        sums = sums_of(stages, clock.placement, plan.micro_batches)
        slowed = least_slowed(stages, clock, plan.micro_batches)
        # With more micro-batches whole backwards that send are more, and as many of them have nothing behind.
        more = 0 if clock.parted else plan.micro_batches - few
        often = {key: times + more * (key[0] == 'B') for key, times in clock.ended.items()}

        def step(end: ways.End, exposed: Sequence[float]) -> float:
            return max(map(self._ways.alone, sums, slowed, end.behind, exposed))

        return self._ways.ending(ways.Laid(plan, stages, clock, self._sent(sample, plan)), often, step)

    def _walked(self, plan: Plan, sample: Sample) -> Judged:
        """The same with what the order makes ranks wait for."""
        if plan.micro_batches > ROUNDS * plan.pipeline:
            return Judged()
        clock, stages = self._in_order(plan, sample)
        works = self._acted(stages, clock)

        def step(end: ways.End, _: Sequence[float]) -> float:
            return clock.period(held_up(works, end.exposed), self._ways.tail(end))

        return self._ways.ending(ways.Laid(plan, stages, clock, self._sent(sample, plan)), clock.ended, step)

    def _in_order(self, plan: Plan, sample: Sample) -> tuple[Timed, list[Stage]]:
        """A plan's order, ready to be timed, and its stages. Raises ``Infeasible`` where layers do not fit."""
        clock = self._order(plan, sample)
        counts = plan.stages if not isinstance(plan.stages, str) else ()
        last, edge = len(clock.placement) - 1, sample.few.edge
        of_layer = stage_of_layer(self._layers, last + 1, counts)
        early, late = Counter(of_layer[:edge]), Counter(of_layer[edge:])
        return clock, [Stage(sample, at == 0, at == last, early[at], late[at]) for at in range(last + 1)]

    def _recomputed(self, plan: Plan) -> Judged:
        """Any copies and tiles: computation in this order, and what is kept in any case."""
        sample = self._sample(plan, self.samples.plain(plan))
        clock, stages = self._in_order(plan, sample)
        most, laid = max(self._space.values_of('copies')), ways.Laid(plan, stages, clock, self._sent(sample, plan))
        return self._ways.in_order(laid, lambda: self._acted(stages, clock), peaks=False, copies=most)

    def _acted(self, stages: list[Stage], clock: Timed) -> dict[Work, Lasts]:
        """Least seconds of actions in an order, for any copies and tiles that are still open."""
        copies, tiles = (max(self._space.values_of(key)) for key in ('copies', 'tiles'))
        return least_busy(stages, clock, copies, serial=tiles == stages[0].sample.tiles)

    def _whole(self, plan: Plan, *, leaf: bool) -> Judged:
        """All is known but how it is sharded, and at a ``leaf`` that, too."""
        sample = self._sample(plan, plan, split=self._splits(plan))
        clock, stages = self._in_order(plan, sample)
        laid = ways.Laid(plan, stages, clock, self._travel(sample, plan))

        def works() -> dict[Work, Lasts]:
            return least_works(stages, clock, laid.travel)

        return self._ways.one(laid, works) if leaf else self._ways.in_order(laid, works, peaks=True, copies=1)

    @property
    def _layers(self) -> int:
        # A network's layers are a list, of which none need equal another.
        layers = getattr(self._space.base.workload.model, 'layers', 0)
        return layers if isinstance(layers, int) else 0

    def _splits(self, plan: Plan) -> bool:
        """Whether an order does its backwards in two parts."""
        key = (plan.pipeline, plan.order, plan.chunks, plan.micro_batches, plan.pairs)
        if key not in self._split:
            self._split[key] = bool(order_of(plan).splits_backward)
        return self._split[key]

    def _order(self, plan: Plan, sample: Sample) -> Timed:
        # A message is awaited early where the host is ahead: also when more copies and tiles make for more ops.
        more = 1
        for name, own in (('copies', sample.copies), ('tiles', sample.tiles)):
            more *= max(1, max(self._space.values_of(name)) // own)
        ahead = sample.pace > AHEAD * more and not self._roomy
        awaited, hosts_wait = ahead and self._awaited(plan), self._ways.hosts_wait(plan)
        key = (plan.pipeline, plan.order, plan.chunks, plan.micro_batches, plan.pairs, awaited, hosts_wait)
        if key not in self._orders:
            self._orders[key] = timed(order_of(plan), awaited=awaited, hosts_wait=hosts_wait)
        return self._orders[key]

    def _awaited(self, plan: Plan) -> bool:
        """Whether a receive that waits for its sender surely slows computation."""
        return self._cluster.waiting_slows('messages') and plan.streams == 'group' and not receives_late(plan)

    def _sent(self, sample: Sample, plan: Plan) -> float:
        """The same of the last copy, for as many copies as there may be."""
        most: int = max(self._space.values_of('copies'))
        return self._travel(sample, plan) * sample.copies / most

    def _travel(self, sample: Sample, plan: Plan) -> float:
        """Seconds of a message between two stages, where that is least."""
        if sample.send is None or plan.pipeline == 1:
            return 0.0
        send, block = sample.send, self._space.world // plan.pipeline
        pairs = [(rank * block, (rank + 1) % plan.pipeline * block) for rank in range(plan.pipeline)]

        def least() -> float:
            # Neighbours may have links of different speeds: in one ring, or through the host.
            return min(cost.alpha + cost.transfer for cost in (self._collectives.cost(send, pair) for pair in pairs))

        return sample.once(('travel', plan.pipeline), least)


def _depth(space: Space, key: str) -> int:
    """How many keys are chosen when a key, or the last one before it, has its value."""
    upto = KEYS[: KEYS.index(key) + 1]
    return max((number + 1 for number, one in enumerate(space.keys) if one in upto or one not in KEYS), default=0)


# Workers: processes that judge nodes and predict plans; what they say does not depend on how many there are.


DIED: Final = 'a process that judges nodes'
REPAYS: Final = 2.0
"""Seconds of judging here, after which processes are started."""


class Workers:
    """Judges nodes here at first, and in processes once that repays.

    Arguments: ``jobs``, processes at once; 1, none is started.
    """

    def __init__(self, space: Space, judge: Judge, jobs: int) -> None:
        self._space, self._judge, self._jobs = space, judge, jobs
        self._processes: dict[Connection, BaseProcess] = {}
        self._spent = 0.0

    def judge(self, nodes: Sequence[Asked]) -> list[Judged]:
        """Judge some nodes. Raises ``RunFailed`` where a process dies."""
        if self._spent > REPAYS and self._jobs > 1 and not self._processes:
            self._processes = run.start(self._jobs, partial(_answering, self._space, self._judge.until))
        begin = time.perf_counter()
        judgements = self._shared(nodes) if self._processes else [self._judge(*one) for one in nodes]
        self._spent += time.perf_counter() - begin
        return judgements

    def _shared(self, nodes: Sequence[Asked]) -> list[Judged]:
        """Judge nodes in processes, each the same part of all nodes every time, as it has their samples."""
        processes = [*self._processes]
        parts = [_share_of(self._space, one[0]) % len(processes) for one in nodes]
        for number, connection in enumerate(processes):
            with suppress(BrokenPipeError):
                connection.send([one for one, part in zip(nodes, parts, strict=True) if part == number])
        # Each answers in the order in which it was asked.
        return [run.received(processes[part], DIED) for part in parts]

    @property
    def ready(self) -> bool:
        """Whether there are processes beside this one."""
        return bool(self._processes)

    def predict(self, schedules: Sequence[schedule.Schedule]) -> run.Coming:
        """Predict schedules in the processes that there are; yields place and outcome as they come."""
        return run.spread(schedules, [*self._processes], DIED)

    def close(self) -> None:
        """End all processes, also in the middle of nodes that nobody waits for."""
        run.end(self._processes)


def _share_of(space: Space, path: Sequence[int]) -> int:
    """Which worker judges a node: each makes samples of its own, which take longest, and orders, too.

    A slice is of as many samples where there are twice the micro-batches and twice the stages.
    """
    place = dict(zip(space.keys, path, strict=False))
    slices = place.get('micro_batches', 0) - place.get('pipeline', 0) if 'micro_batches' in place else 0
    # Not their sum, which is the same for all that are about as fast. Whole numbers hash alike in all processes.
    return hash((*(place.get(key, 0) for key in ('tensor', 'sequence_parallel', 'context', 'expert')), slices))


def _answering(space: Space, until: float) -> Callable[[Any], Any]:
    """What judges nodes in a process, and predicts schedules with their places."""
    judge, predicting = Judge(space, case.cluster_of(space.base), until=until), run.predicting()
    return lambda one: predicting(one) if isinstance(one[1], schedule.Schedule) else judge(*one)
