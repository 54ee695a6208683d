"""Redistribution under predicted cost: of the ways from layout to layout, the one whose step is fastest."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Final

from simpar.hardware import Cluster
from simpar.layout.redistribution import Method
from simpar.lower.graph.record import has_strategies
from simpar.plan import Plan
from simpar.resolve.trial import tried
from simpar.workload import Workload

METHODS: Final[tuple[Method, ...]] = ('cheapest', 'mindspore-2.10', 'mindspore-2.0')


def redistributed(workload: Workload, plan: Plan, cluster: Cluster) -> Plan:
    """The plan with the method whose predicted step is fastest, with or without all-to-all, of those that fit into
    memory; a workload without strategies has none, and gets the first.

    Arguments: ``plan``, that leaves nothing else open. Among equals the first of ``METHODS``, without all-to-all.
    Raises what ``lower`` does. Not searched: another method for each tensor.
    """
    if not has_strategies(workload, plan):
        return replace(plan, redistribution=METHODS[0])
    # Of a method all-to-all comes last: of equal steps the plan without it wins.
    trials = (
        tried(workload, replace(plan, redistribution=method, all_to_all=all_to_all), cluster)
        for method, all_to_all in product(METHODS, (False, True))
    )
    return min(trials, key=lambda trial: trial.rank).plan
