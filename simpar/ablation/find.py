"""without_effect: the keys that a user wrote and without which the program would be the same.

A key with its default value, or with the value that would be chosen anyway, is told only where no value has an effect.
Keys that say the same as one another are not told: without all of them the program is another. With an exact search the
strategies that it found are kept, and so are predicted choices: the question is what this program owes to a key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from simpar.ablation.facts import Facts, facts_of
from simpar.ablation.keys import Key, left_out, written_keys
from simpar.ablation.rules import INERT, effective, idle, words
from simpar.ablation.same import same
from simpar.ablation.spelled import spelled_out
from simpar.errors import SimparError
from simpar.hardware import Cluster
from simpar.lower import lower
from simpar.plan import Plan
from simpar.program import Program
from simpar.resolve import Strategies, find_strategies
from simpar.schedule import Schedule
from simpar.schedule.without_effect import WithoutEffect
from simpar.workload import Workload

if TYPE_CHECKING:
    from simpar.resolve.proposal import Proposal

_ITEMS = ('plan.unsharded', 'plan.recompute', 'plan.overlap')
"""Lists of which every item is looked at."""
_CHEAP_SEARCHES = ('sharding-propagation', 'double-recursive')
_BY_TIME = 'exact by time'
"""How the proposals begin that only a search by time makes."""


def without_effect(
    schedule: Schedule, found: Strategies, plan: Plan, cluster: Cluster, program: Program
) -> tuple[WithoutEffect, ...]:
    """The keys of workload and plan that changed nothing, in the order of the plan's and the workload's keys.

    Arguments:
        schedule: as the user wrote it.
        found, plan: strategies and plan with every choice made.
        cluster: what the program runs on.
        program: what came of them.
    """
    return tuple(_Ablation(schedule, found, plan, cluster, program).told())


@dataclass(slots=True, eq=False)
class _Ablation:
    """One schedule's keys; ``same_without``, programs that have been compared, by the names of the keys left out."""

    schedule: Schedule
    found: Strategies
    plan: Plan
    cluster: Cluster
    program: Program
    same_without: dict[frozenset[str], bool] = field(default_factory=dict)

    def told(self) -> Iterator[WithoutEffect]:
        facts = facts_of(self.schedule, self.found.workload, self.plan, self.program)
        keys = list(written_keys(self.schedule))
        inert = {key.name: INERT[key.rule](facts) for key in keys if key.rule in INERT}
        others = [key for key in keys if key.is_set and not inert.get(key.name)]
        spelled = [key for key in others if spelled_out(key, self.found.workload, self.plan, self.cluster.world)]
        others = [key for key in others if key not in spelled]
        why = {**inert, **self._idle(others, spelled, facts)}
        for key in keys:
            if why.get(key.name):
                yield WithoutEffect(key.name, key.shown, why[key.name])
            elif key in others and key.rule in _ITEMS:
                items = list(key.items())
                told = self._idle(items, [], facts)
                yield from (
                    WithoutEffect(item.name, item.shown, told[item.name]) for item in items if item.name in told
                )

    def _idle(self, keys: Sequence[Key], spelled: Sequence[Key], facts: Facts) -> dict[str, str]:
        """Why the program is the same without each of these keys, alone and when all others that are idle go with it.

        Arguments: ``spelled``, keys that say what is chosen anyway, which may be what holds the effect of another.
        """
        sure = {key.name: idle(key, facts) for key in keys}
        alone = [
            key
            for key in keys
            if sure[key.name] or (not effective(key, facts) and not self._is_other_optimum(key) and self._same([key]))
        ]
        for context in ([*alone, *spelled], alone):
            if len(context) > 1 and alone and not self._same(context):
                # Without all of them the program is another: those that hold it say the same as one another.
                bare = self._without(context)
                alone = [key for key in alone if self._is_without(bare, [one for one in context if one is not key])]
        return {key.name: sure[key.name] or words(key, facts) for key in alone}

    def _same(self, keys: Collection[Key]) -> bool:
        """Whether the program is the same without keys; where nothing can be lowered, they have an effect."""
        names = frozenset(key.name for key in keys)
        if names not in self.same_without:
            other = self._without(keys)
            self.same_without[names] = other is not None and same(self.program, other)
        return self.same_without[names]

    def _is_without(self, program: Program | None, keys: Collection[Key]) -> bool:
        other = self._without(keys)
        return program is other if program is None or other is None else same(program, other)

    def _without(self, keys: Collection[Key]) -> Program | None:
        """The program without keys; None where there is none."""
        try:
            return lower(*self._choices(keys), self.cluster.world)
        except SimparError:
            return None

    def _choices(self, keys: Collection[Key]) -> tuple[Workload, Plan]:
        rules = {key.rule for key in keys}
        plan = self.plan
        if 'plan.order' in rules and not self.schedule.plan.rows:
            plan = replace(plan, rows=())
        if 'plan.redistribution' in rules:
            # Where it is predicted, all-to-all is chosen with it.
            plan = replace(plan, all_to_all=self.schedule.plan.all_to_all)
        searched = self.schedule.plan.search
        given = replace(plan, strategies=self.schedule.plan.strategies)
        if 'plan.search' in rules:
            return left_out(self.schedule.workload, given, keys)
        if searched in _CHEAP_SEARCHES:
            workload, plan = left_out(self.schedule.workload, replace(given, search=searched), keys)
            found = find_strategies(workload, plan, self.cluster)
            return found.workload, found.plan
        workload = self.found.workload
        if 'plan.objective' in rules:
            best = self._by_bytes()
            workload, plan = best.workload, replace(plan, strategies=best.plan.strategies)
        return left_out(workload, plan, keys)

    def _is_other_optimum(self, key: Key) -> bool:
        """Whether a key is the objective of a search that by bytes would have found something else."""
        if key.rule != 'plan.objective' or not self.found.proposals:
            return False
        found, other = self.found.proposals[0], self._by_bytes()
        return (found.sent, found.step) != (other.sent, other.step)

    def _by_bytes(self) -> Proposal:
        """What an exact search would take if it counted bytes, of what one by time has tried."""
        from simpar.resolve.proposal import least_first

        known = [one for one in self.found.proposals if not all(map(_only_by_time, (one.name, *one.also)))]
        return min(known, key=least_first('bytes'))


def _only_by_time(name: str) -> bool:
    return name.startswith(_BY_TIME)
