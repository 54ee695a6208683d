"""spelled_out: whether a key says what would be chosen without it, so that it is no news that nothing changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from simpar.ablation.keys import Key, left_out
from simpar.errors import SimparError
from simpar.lower.overlap import overlap_of, with_passes
from simpar.plan import Plan
from simpar.resolve.settle import settled_plan, settled_workload
from simpar.workload import Workload

_OF_PLAN: Final = (
    *('chunks', 'stages', 'shard', 'gather', 'shard_group', 'shard_threshold', 'accumulate', 'recompute_stages'),
)
_OF_WORKLOAD: Final = ('gradients', 'ffn', 'kv_heads', 'input')
_UNMARKED: Final = 1
"""The id of fusion of a layer without a mark."""


def spelled_out(key: Key, workload: Workload, plan: Plan, world: int) -> bool:
    """Whether a key has the value that presets and automatic choices give it without.

    Arguments: ``workload`` and ``plan``, with every choice made; ``world``, ranks of the cluster.
    """
    if key.rule == 'plan.data':
        return bool(key.value == world // (plan.context * plan.tensor * plan.pipeline))
    # ``balanced`` is a request, not a value that could be chosen without it.
    if isinstance(key.value, str) and key.field == 'stages':
        return False
    if key.rule == 'layer.comm_fusion':
        return bool(key.value == _UNMARKED)
    other_workload, other = left_out(workload, plan, [key])
    if key.rule == 'plan.overlap':
        return with_passes(plan) == _but(with_passes(other), plan.overlap) and overlap_of(plan) == overlap_of(other)
    if key.path[0] == 'plan' and key.field in _OF_PLAN:
        try:
            chosen = settled_plan(workload, other)
        # Without the key nothing can be chosen: so it does not say what would be chosen.
        except SimparError:
            return False
        return _alike(getattr(chosen, key.field), getattr(plan, key.field))
    if key.rule in {f'workload.{name}' for name in _OF_WORKLOAD}:
        settled = settled_workload(other_workload)
        owner: Any = settled if key.field == 'gradients' else settled.model
        return bool(getattr(owner, key.field) == key.value)
    return False


def _but(plan: Plan, overlap: Any) -> Plan:
    return replace(plan, overlap=overlap)


def _alike(one: Any, other: Any) -> bool:
    """Equal; of what is sharded, in any order."""
    if isinstance(one, tuple) and isinstance(other, tuple) and one and isinstance(one[0], str):
        # Parts that are sharded are a set to users; a list has an order that means nothing.
        return set(one) == set(other)
    return bool(one == other)
