"""Whether a search of strategies fits the rest of a schedule."""

from __future__ import annotations

from collections.abc import Iterator

from simpar.document import Complaint
from simpar.model import Network
from simpar.plan import Plan
from simpar.workload import Workload


def search_fits(workload: Workload, plan: Plan) -> Iterator[Complaint]:
    """Everything that does not fit, each at the key to change; strategies are tried when they are lowered."""
    if plan.search == 'none':
        return
    key, model = ('plan', 'search'), workload.model
    if not isinstance(model, Network):
        yield Complaint(key, 'cuts the layers of a network; a transformer takes degrees', 'write none, and plan.tensor')
        return
    if plan.tensor > 1:
        what = f'is a degree, but {plan.search} cuts every layer by itself'
        yield Complaint(('plan', 'tensor'), what, 'write 1, or search: none')
    given = any(layer.strategy for layer in model.layers)
    if plan.search == 'sharding-propagation' and not (given or workload.loss_strategy or workload.loss_strategies):
        what = 'sharding-propagation starts at layers that you cut, and there is none'
        yield Complaint(key, what, 'give a layer a strategy, e.g. strategy: [[2, 4], [4, 1]]')
