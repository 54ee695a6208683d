"""Pool: what a search tries, each workload weighed once, and the best of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from simpar.errors import Infeasible
from simpar.hardware import Cluster
from simpar.model import Strategy
from simpar.plan import Plan
from simpar.resolve.proposal import Proposal, least_first, weighed
from simpar.workload import Workload


@dataclass(slots=True, eq=False)
class Pool:
    """Proposals by workload, as a plan lowers them on a cluster."""

    plan: Plan
    cluster: Cluster
    known: dict[object, Proposal] = field(default_factory=dict)
    problems: list[Infeasible] = field(default_factory=list)

    def add(self, name: str, workload: Workload, strategies: Mapping[str, Strategy]) -> None:
        """Weigh a workload; one that is known gets another name, one that cannot be lowered is left out.

        Arguments: ``strategies`` of the plan.
        """
        # Strategies are dicts, which have no hash: their items stand in the key.
        told = (tuple(given.items()) for given in (workload.loss_strategies, strategies))
        key = workload.model, workload.loss_strategy, *told
        if key in self.known:
            self.known[key] = replace(self.known[key], also=(*self.known[key].also, name))
            return
        try:
            plan = replace(self.plan, strategies=dict(strategies))
            self.known[key] = weighed(name, workload, plan, self.cluster)
        except Infeasible as wrong:
            # One that cannot be lowered is no fault of the user, unless none can: then the first reason is told.
            self.problems.append(wrong)

    @property
    def ranking(self) -> tuple[Proposal, ...]:
        """The best first, those that do not fit into memory last; raises ``Infeasible`` where there is none."""
        if not self.known:
            raise self.problems[0]
        return tuple(sorted(self.known.values(), key=least_first(self.plan.objective)))
