"""Whether the keys of optimizer parallelism and fusion fit together, as far as it can be told without a cluster."""

from __future__ import annotations

from collections.abc import Iterator

from simpar.errors import Problem
from simpar.lower.optimizer_parallel import conflicts
from simpar.plan import Plan
from simpar.workload import Workload


def shards_fit(workload: Workload, plan: Plan) -> Iterator[Problem]:
    """Everything that does not fit, each at the key to change."""
    yield from conflicts(plan)
    # With data 0 the degree follows from the cluster, and lowering checks it.
    ranks = plan.data * plan.context
    if plan.shard_group and ranks and ranks % min(plan.shard_group, ranks):
        what = f'{plan.shard_group} does not divide data {plan.data}'
        what += f' × context {plan.context}' if plan.context > 1 else ''
        yield Problem(('plan', 'shard_group'), what, f'write a divisor of {ranks}, or 0 for all')
    yield from _fusion(workload, plan)


def _fusion(workload: Workload, plan: Plan) -> Iterator[Problem]:
    if isinstance(plan.fusion, float) and not plan.fusion > 0:
        yield Problem(('plan', 'fusion'), 'a message of nothing', 'write a size above 0, e.g. "25 MB", or none')
    if plan.fusion_ids and plan.fusion != 'ids':
        yield Problem(('plan', 'fusion_ids'), 'ids are not asked for', 'write fusion: ids too')
    layers = workload.model.trained_layers
    if plan.fusion == 'ids' and plan.fusion_ids and len(plan.fusion_ids) != layers:
        what = f'lists {len(plan.fusion_ids)} ids, but {layers} layers have parameters'
        yield Problem(('plan', 'fusion_ids'), what, f'list {layers} ids')
