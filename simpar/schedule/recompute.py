"""Whether what a plan recomputes is there to be recomputed."""

from __future__ import annotations

from collections.abc import Iterator

from simpar.errors import Problem
from simpar.lower.regions import attention_cores
from simpar.plan import Plan
from simpar.workload import Workload


def recompute_fits(workload: Workload, plan: Plan) -> Iterator[Problem]:
    """Everything that does not fit, each at the key to change; names of operators are looked up when it is lowered."""
    if plan.recompute == 'selective' and not attention_cores(workload.model.nodes):
        what = 'selective runs attention again, and the model has none'
        yield Problem(('plan', 'recompute'), what, 'write full, or a list of names of operators')
    if plan.pipeline == 1 and plan.chunks <= 1 and not plan.rows and any(plan.recompute_stages):
        what = f'lists {max(plan.recompute_stages)}, but there is one stage, 0, without a pipeline'
        yield Problem(('plan', 'recompute_stages'), what, 'write [], or set pipeline too')
