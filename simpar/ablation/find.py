"""without_effect: the keys that a user wrote and without which the program would be the same.

A key with its default value, or with the value that would be chosen anyway, is told only where no value has an effect.
Keys that say the same as one another are not told: without all of them the program is another. With an exact search the
strategies that it found are kept, and so are predicted choices: the question is what this program owes to a key.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np

from simpar import errors, hardware, plans, resolve, units
from simpar.ablation import rules
from simpar.cost.price import price, taxes_of
from simpar.keys import WithoutEffect
from simpar.lower import lower
from simpar.program import Program, Role
from simpar.schedule import Schedule
from simpar.workload import Workload

if TYPE_CHECKING:
    from simpar.resolve.strategies import Proposal


_COLUMNS = ('op_class', 'micro_batch', 'copy', 'stream')
_LISTS = ('need', 'carry')


def same(one: Program, other: Program) -> bool:
    """Whether every rank does the same in both, on the same tensors, in the same groups."""
    counts = [(p.world, p.micro_batches, p.copies, len(p.roles), p.op_classes) for p in (one, other)]
    return (
        counts[0] == counts[1]
        and np.array_equal(one.role_of_rank, other.role_of_rank)
        and all(map(_same_role, one.roles, other.roles))
        and _touched(one) == _touched(other)
    )


def _same_role(one: Role, other: Role) -> bool:
    named = (one.name, one.streams) == (other.name, other.streams)
    columns = [(getattr(one, name), getattr(other, name)) for name in _COLUMNS]
    for name in _LISTS:
        mine, others = getattr(one, name), getattr(other, name)
        columns += [(mine.start, others.start), (mine.item, others.item)]
    return named and all(np.array_equal(*pair) for pair in columns)


def _touched(program: Program) -> tuple[object, ...]:
    """The tensors that ops touch, and the groups that they or their tensors are in."""
    each = ((*op.reads, *op.writes, *op.accumulates, *op.frees) for op in program.op_classes)
    names = dict.fromkeys(chain.from_iterable(each))
    tensors = [program.tensor[name] for name in names]
    groups = {split.partition for tensor in tensors for split in tensor.splits}
    groups |= {partition for tensor in tensors for partition in tensor.partial}
    groups |= {op.partition for op in program.op_classes if op.partition}
    return tensors, {name: program.partitions[name].groups_GP.tolist() for name in groups}


_ITEMS = ('plan.unsharded', 'plan.recompute', 'plan.overlap')
"""Lists of which every item is looked at."""
_CHEAP_SEARCHES = ('sharding-propagation', 'double-recursive')
_BY_TIME = 'exact by time'
"""How the proposals begin that only a search by time makes."""


def without_effect(
    schedule: Schedule, strategies: resolve.Strategies, plan: plans.Plan, cluster: hardware.Cluster, program: Program
) -> tuple[WithoutEffect, ...]:
    """The keys of workload and plan that changed nothing, in the order of the plan's and the workload's keys.

    Arguments:
        schedule: as the user wrote it.
        strategies, plan: with every choice made.
        cluster: what the program runs on.
        program: what came of them.
    """
    return tuple(_Ablation(schedule, strategies, plan, cluster, program).keys())


@dataclass(slots=True, eq=False)
class _Ablation:
    """One schedule's keys.

    Arguments: ``same_without``, programs that have been compared, by the names of the keys left out; ``of_few``, the
    schedule's own programs of fewer micro-batches.
    """

    schedule: Schedule
    strategies: resolve.Strategies
    plan: plans.Plan
    cluster: hardware.Cluster
    program: Program
    same_without: dict[frozenset[str], bool] = field(default_factory=dict)
    of_few: dict[int, Program] = field(default_factory=dict)

    def keys(self) -> Iterator[WithoutEffect]:
        facts = rules.facts_of(self.schedule, self.strategies.workload, self.plan, self.program)
        keys = list(rules.user_keys(self.schedule))
        unable = {key.name: rules.inert(key.rule, facts) for key in keys}
        others = [key for key in keys if key.is_set and not unable[key.name]]
        spelled = [
            key for key in others if rules.says_the_choice(key, self.strategies.workload, self.plan, self.cluster.world)
        ]
        others = [key for key in others if key not in spelled]
        why = {**unable, **self._idle(others, spelled, facts)}
        for key in keys:
            if why.get(key.name):
                yield WithoutEffect(key.name, key.shown, why[key.name])
            elif key in others and key.rule in _ITEMS:
                items = list(key.items())
                reasons = self._idle(items, [], facts)
                yield from (
                    WithoutEffect(item.name, item.shown, reasons[item.name]) for item in items if item.name in reasons
                )

    def _idle(self, keys: Sequence[rules.Key], spelled: Sequence[rules.Key], facts: rules.Facts) -> dict[str, str]:
        """Why the program is the same without each of these keys, alone and when all others that are idle go with it.

        Arguments: ``spelled``, keys that say what is chosen anyway, which may be what holds the effect of another.
        """
        sure = {key.name: rules.idle(key, facts) for key in keys}
        alone = [
            key
            for key in keys
            if sure[key.name]
            or (not rules.effective(key, facts) and not self._is_other_optimum(key) and self._same([key]))
        ]
        for context in ([*alone, *spelled], alone):
            if len(context) > 1 and alone and not self._same(context):
                # Without all of them the program is another: those that hold it say the same as one another.
                bare = self._without(context)
                alone = [key for key in alone if self._is_without(bare, [one for one in context if one is not key])]
        return {key.name: sure[key.name] or rules.words(key, facts) for key in alone}

    def _same(self, keys: Collection[rules.Key]) -> bool:
        """Whether the program is the same without keys; where nothing can be lowered, they have an effect."""
        names = frozenset(key.name for key in keys)
        if names not in self.same_without:
            few, of_workload = self._few(), all(name.startswith('workload.') for name in names)
            # Keys of the workload say what a micro-batch does; the plan alone says when.
            counts = [few] if few and of_workload else [few, 0] if few else [0]
            self.same_without[names] = all(self._equal(keys, count) for count in counts)
        return self.same_without[names]

    def _is_without(self, program: Program | None, keys: Collection[rules.Key]) -> bool:
        other = self._without(keys)
        return program is other if program is None or other is None else same(program, other)

    def _few(self) -> int:
        """How many micro-batches, two for each stage, have all that an order does; 0: only all of them.

        An order that was worked out for all of them has no program of fewer.
        """
        plan, batches = self.plan, self.plan.micro_batches
        few = 2 * plan.pipeline * max(plan.chunks, 1)
        worked_out = plan.rows or plan.order.endswith('.csv') or self.strategies.workload.batch % batches
        return 0 if worked_out or 2 * few >= batches else few

    def _equal(self, keys: Collection[rules.Key], few: int) -> bool:
        """Whether programs of so few micro-batches are the same; 0: the whole ones."""
        other = self._without(keys, few)
        return other is not None and same(self._first(few), other)

    def _first(self, few: int) -> Program:
        """The program of so few micro-batches; 0: the whole one."""
        if few and few not in self.of_few:
            self.of_few[few] = lower(*_of_few(self.strategies.workload, self.plan, few), self.cluster.world)
        return self.of_few[few] if few else self.program

    def _without(self, keys: Collection[rules.Key], few: int = 0) -> Program | None:
        """The program without keys, of so few micro-batches; None where there is none."""
        try:
            workload, plan = self._choices(keys)
            return lower(*(_of_few(workload, plan, few) if few else (workload, plan)), self.cluster.world)
        except errors.SimparError:
            return None

    def _choices(self, keys: Collection[rules.Key]) -> tuple[Workload, plans.Plan]:
        names = {key.rule for key in keys}
        plan = self.plan
        if 'plan.order' in names and not self.schedule.plan.rows:
            plan = replace(plan, rows=())
        if 'plan.redistribution' in names:
            # Where it is predicted, all-to-all is chosen with it.
            plan = replace(plan, all_to_all=self.schedule.plan.all_to_all)
        searched = self.schedule.plan.search
        base_plan = replace(plan, strategies=self.schedule.plan.strategies)
        if 'plan.search' in names:
            return rules.without_keys(self.schedule.workload, base_plan, keys)
        if searched in _CHEAP_SEARCHES:
            workload, plan = rules.without_keys(self.schedule.workload, replace(base_plan, search=searched), keys)
            strategies = resolve.find_strategies(workload, plan, self.cluster)
            return strategies.workload, strategies.plan
        workload = self.strategies.workload
        if 'plan.objective' in names:
            best = self._by_bytes()
            workload, plan = best.workload, replace(plan, strategies=best.plan.strategies)
        return rules.without_keys(workload, plan, keys)

    def _is_other_optimum(self, key: rules.Key) -> bool:
        """Whether a key is the objective of a search that by bytes would have found something else."""
        if key.rule != 'plan.objective' or not self.strategies.proposals:
            return False
        best, other = self.strategies.proposals[0], self._by_bytes()
        return (best.sent, best.step) != (other.sent, other.step)

    def _by_bytes(self) -> Proposal:
        """What an exact search would take if it counted bytes, of what one by time has tried."""
        from simpar.resolve.strategies import least_first

        all_of_them = self.strategies.proposals
        proposals = [one for one in all_of_them if not all(name.startswith(_BY_TIME) for name in (one.name, *one.also))]
        return min(proposals, key=least_first('bytes'))


def _of_few(workload: Workload, plan: plans.Plan, few: int) -> tuple[Workload, plans.Plan]:
    """The same with fewer micro-batches, of as many samples each."""
    batch = workload.batch // plan.micro_batches * few
    return replace(workload, batch=batch), replace(plan, micro_batches=few)


Made = tuple[Program, hardware.Cluster]
_SPELLED: Final = ('loss_strategy', 'loss_strategies', 'layers')
"""What may say how operators are sharded anyway."""


def unchanged_baseline(
    schedule: Schedule, made: Made, baseline: Made | None, make: Callable[[Schedule], Made]
) -> Iterator[WithoutEffect]:
    """The keys of ``against`` that change nothing of the baseline.

    Arguments:
        schedule: with its ``against``.
        made, baseline: program and cluster of both.
        make: lowers any schedule to a program and its cluster.
    """
    against = schedule.against or {}
    other = schedule.baseline() if against else None
    if baseline is not None and _alike(made, baseline):
        for key, value in against.items():
            yield WithoutEffect(f'against.{key}', value, 'the baseline is the same program, at the same prices')
        return
    for key, value in against.items():
        if key.rpartition('.')[2] in _SPELLED:
            continue
        rest = {name: one for name, one in against.items() if name != key}
        why = _unchanged(schedule, rest, other, baseline, make)
        if why:
            yield WithoutEffect(f'against.{key}', value, why)


def _unchanged(
    schedule: Schedule,
    rest: dict[str, object],
    other: Schedule | None,
    baseline: Made | None,
    make: Callable[[Schedule], Made],
) -> str:
    """Why the baseline without a key is the same; empty where it is not."""
    try:
        without = replace(schedule, against=rest).baseline() if rest else None
        if without == other or (without and other and replace(without, against=None) == replace(other, against=None)):
            return 'the plan has this value already'
        # An exact search takes seconds: what it makes of a baseline with one key less is not asked for.
        if not rest or without is None or baseline is None or without.plan.search == 'exact':
            return ''
        return 'the baseline is the same program without it' if _alike(make(without), baseline) else ''
    except errors.SimparError:
        return ''


def _alike(one: Made, other: Made) -> bool:
    """The same program at the same prices."""
    if not same(one[0], other[0]):
        return False
    if one[1] == other[1]:
        return True
    costs = [price(*made) for made in (one, other)]
    arrays = all(
        np.array_equal(getattr(costs[0], name), getattr(costs[1], name))
        for name in ('compute', 'host', 'speeds', 'taking', 'rank_speed')
    )
    queues = costs[0].work_queues == costs[1].work_queues
    return bool(arrays and queues and costs[0].communication == costs[1].communication)


def unused_of_cluster(schedule: Schedule, program: Program, cluster: hardware.Cluster) -> Iterator[WithoutEffect]:
    """The keys of the cluster that change nothing: links, work queues, the spread, the mode of expansion."""
    yield from _links(schedule, program, cluster)
    yield from _queues(schedule, program, cluster)
    if cluster.spread and cluster.world == 1:
        yield WithoutEffect('cluster.spread', schedule.cluster.spread, 'one device waits for no other')
    yield from _mode(schedule, program, cluster)


def _links(schedule: Schedule, program: Program, cluster: hardware.Cluster) -> Iterator[WithoutEffect]:
    """The links that were changed and whose bandwidth no communication of the program waits for."""
    if not cluster.links:
        return
    priced = price(program, cluster).communication
    for name, factor in cluster.links.items():
        others = {other: by for other, by in cluster.links.items() if other != name}
        changed = factor != 1
        # A factor of 1 cannot be left out to see a difference: half of the bandwidth shows whether anything waits for
        # it.
        probe = replace(cluster, links=others if changed else {**others, name: 0.5})
        if price(program, probe).communication == priced:
            why = 'no communication is faster or slower by it'
            yield WithoutEffect(f'cluster.links.{name}', schedule.cluster.links[name], why)


def _mode(schedule: Schedule, program: Program, cluster: hardware.Cluster) -> Iterator[WithoutEffect]:
    """The key of the mode, where it is in use anyway, or collectives take the same of a device without it."""
    mode = schedule.cluster.expansion_mode
    if mode is None:
        return
    without = replace(cluster, expansion_mode='')
    if mode == without.mode:
        yield WithoutEffect('cluster.expansion_mode', mode, 'it is the mode without the key, too')
    elif taxes_of(cluster, program, program.op_classes) == taxes_of(without, program, program.op_classes):
        why = f'collectives of this plan, if any, take the same of a device as with {without.mode or "its default"}'
        yield WithoutEffect('cluster.expansion_mode', mode, why)


def _queues(schedule: Schedule, program: Program, cluster: hardware.Cluster) -> Iterator[WithoutEffect]:
    """The key of work queues, where every stream has one for itself, or there would be as many without the key."""
    queues = schedule.cluster.work_queues
    if queues is None:
        return
    streams = max(len(role.streams) for role in program.roles)
    without = replace(cluster, work_queues=0).queues
    if queues >= streams and not 0 < without < streams:
        why = f'no device has more than {_counted(streams)}, and each has a work queue for itself'
        yield WithoutEffect('cluster.work_queues', queues, why)
    elif queues == without:
        yield WithoutEffect('cluster.work_queues', queues, 'the stack or the device says so already')


def _counted(streams: int) -> str:
    return f'{streams} streams' if streams > 1 else 'one stream'


_PLAN: Final = 'plan.'
_ATTENTION: Final = 'workload.transformer.attention'


def unlike_stack(schedule: Schedule, stack: hardware.Stack | None, facts: rules.Facts) -> Iterator[str]:
    """A sentence on keys of plan and model that a framework has otherwise, of those that may have an effect here.

    Keys on which the file is silent are the framework's own, so what differs was asked for, or is of the model.
    """
    if stack is None:
        return
    plan = {
        key: (value, getattr(facts.plan, key.removeprefix(_PLAN), None))
        for key, value in stack.keys_of(lambda key: getattr(facts.plan, key.removeprefix(_PLAN), None)).items()
        if key.startswith(_PLAN) and tuple(key.split('.')) not in schedule.of_stack and not _inert(key, facts)
    }
    # Of its models' keys this one alone is what a framework does of itself: it has no other kernel.
    kernel = stack.model.get('attention')
    keys = {_ATTENTION: (kernel, getattr(facts.workload.model, 'attention', kernel))} if kernel else {}
    unlike = [
        f'{key} is {_text(mine, value)}, not {_text(value)}'
        for key, (value, mine) in {**plan, **keys}.items()
        if _plain(mine) != _plain(value)
    ]
    if unlike:
        yield f'Your schedule is not as {stack.name} is by default: {"; ".join(unlike)}.'


def _inert(key: str, facts: rules.Facts) -> bool:
    # Without tensor ranks no value has parts to send.
    parts = key == 'plan.scatter_gather' and facts.plan.tensor == 1
    return parts or bool(rules.inert(key, facts))


def _plain(value: object) -> object:
    """A stack's value as a plan has it: bytes for a size, a list for a tuple."""
    with suppress(ValueError):
        return units.parse(value, 'size')
    return list(value) if isinstance(value, tuple) else value


def _text(value: object, of: object = None) -> str:
    """Arguments: ``of``, the stack's own: a size is written as one."""
    if isinstance(value, float) and isinstance(_plain(of), float):
        return units.format_size(value)
    return str(value).lower() if isinstance(value, bool) else str(list(value) if isinstance(value, tuple) else value)
