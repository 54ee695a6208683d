"""resolve: fills in what a plan leaves open: balanced stages, the order of a zero-bubble pipeline, fusion,
redistribution."""

from __future__ import annotations

from dataclasses import replace

from simpar.hardware import Cluster
from simpar.pipeline.orders import AUTOMATIC
from simpar.plan import Plan
from simpar.workload import Workload


def resolve(workload: Workload, plan: Plan, cluster: Cluster) -> Plan:
    """The plan with every choice made; a plan that leaves nothing open comes back as it is.

    Layers are split into stages where predicted times balance. That split, its neighbours and equal counts are
    simulated, and the fastest that fits into memory is taken. Fusion comes next, and redistribution last. Raises
    ``Infeasible`` where degrees and ranks do not fit.
    """
    # From the inside out: stages and order, then fusion, then redistribution, each with the later ones at a default.
    # A search of all together would take their product; what comes of this need not be the optimum.
    # Most plans leave nothing open, so what chooses is imported where there is a choice.
    if plan.redistribution == 'predicted':
        from simpar.resolve.redistributions import redistributed

        one = resolve(workload, replace(plan, redistribution='cheapest'), cluster)
        return redistributed(workload, one, cluster)
    if plan.fusion == 'predicted':
        from simpar.resolve.buckets import fused

        return fused(workload, resolve(workload, replace(plan, fusion='layer'), cluster), cluster)
    if plan.rows or not (isinstance(plan.stages, str) or plan.order in AUTOMATIC):
        return plan
    from simpar.resolve.staged import staged

    return staged(workload, plan, cluster)
