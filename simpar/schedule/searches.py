"""Whether a search of strategies fits the rest of a schedule."""

from __future__ import annotations

from collections.abc import Iterator

from simpar.errors import Problem
from simpar.plan import Plan
from simpar.workload import Workload


def search_fits(workload: Workload, plan: Plan) -> Iterator[Problem]:
    """Everything that does not fit, each at the key to change; strategies are tried when they are lowered."""
    if plan.search == 'none':
        return
    key, model = ('plan', 'search'), workload.model
    told = (operator.strategy or operator.layout for operator in model.operators.values())
    given = bool(plan.strategies or plan.layouts) or any(told)
    if plan.search == 'sharding-propagation' and not (given or workload.loss_strategy or workload.loss_strategies):
        what = 'sharding-propagation starts at layers that you split, and there is none'
        instead = 'give a layer a strategy, e.g. strategy: [[2, 4], [4, 1]]'
        if not model.listed:
            instead = 'give an operator one, e.g. plan.strategies: {layer0.fc1: [[2, 1, 1], [1, 4]]}'
        yield Problem(key, what, instead)
