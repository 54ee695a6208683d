"""Fusion: which gradients, and which weights, travel as one message.

Facts about MindSpore's ``comm_fusion``: by size, ids are given from the first parameter on, and a message stays below
the size; by index, gradients are counted from the one that the backward finishes first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from simpar.errors import Infeasible
from simpar.lower.update_shards import layer_of
from simpar.plan import Plan
from simpar.workload import Workload

AUTO: Final = 64.0 * 2**20
"""Bytes that MindSpore's automatic fusion stays below."""
ALONE: Final = 0
"""The id of what is not fused."""
UNMARKED: Final = 1
"""MindSpore's id of a layer without a mark."""


def fuse(
    parameters: Sequence[str],
    size: Mapping[str, float],
    plan: Plan,
    ids: Mapping[str, int],
    scope: str = '',
) -> dict[str, list[str]]:
    """Buckets by name, in the order of their first parameters.

    Arguments:
        parameters: in the order in which they are used.
        size: bytes of each; only looked at where ``by_size``.
        ids: by layer, for ``fusion: ids``.
        scope: what names begin with, unless they are those of a layer or a parameter.
    """
    keys = _keys(parameters, size, plan, ids)
    buckets: dict[str, list[str]] = {}
    for name, key in zip(parameters, keys, strict=True):
        buckets.setdefault(key if isinstance(key, str) else f'{scope}bucket{key}', []).append(name)
    return buckets


def by_size(plan: Plan) -> bool:
    """Whether messages are fused by their size."""
    return plan.fusion == 'auto' or isinstance(plan.fusion, float | int)


def _keys(
    parameters: Sequence[str], size: Mapping[str, float], plan: Plan, ids: Mapping[str, int]
) -> Sequence[str | int]:
    """A layer, a parameter, or a number."""
    fusion = plan.fusion
    if fusion == 'layer':
        return [layer_of(name) for name in parameters]
    if fusion == 'none':
        return parameters
    if fusion in ('all', 'stage'):
        # Whoever fuses by stages asks for each apart.
        return [0] * len(parameters)
    if fusion == 'ids':
        # Id 0 is not fused: such a parameter is a bucket of its own.
        return [ids[layer_of(name)] or name for name in parameters]
    if isinstance(fusion, tuple):
        splits = sorted(fusion)
        # Counted from the last parameter, whose gradient the backward finishes first.
        return [bisect_right(splits, len(parameters) - 1 - place) for place in range(len(parameters))]
    return _by_size([size[name] for name in parameters], AUTO if isinstance(fusion, str) else fusion)


def _by_size(sizes: Sequence[float], limit: float) -> list[int]:
    """A bucket stays below the limit, unless its only tensor does not."""
    keys: list[int] = []
    key, held = 0, 0.0
    for size in sizes:
        # At the limit already a message is closed: recorded buckets stay below it.
        if held and held + size >= limit:
            key, held = key + 1, 0.0
        held += size
        keys.append(key)
    return keys


def fusion_ids(workload: Workload, plan: Plan, parameters: Iterable[str]) -> dict[str, int]:
    """The id of every layer, from the plan or the marks of a network's layers.

    Raises ``Infeasible`` where the plan's ids are not as many as the layers.
    """
    if plan.fusion != 'ids':
        return {}
    layers = list(dict.fromkeys(map(layer_of, parameters)))
    if plan.fusion_ids:
        if len(plan.fusion_ids) != len(layers):
            raise Infeasible(
                f'plan.fusion_ids lists {len(plan.fusion_ids)} ids, but {len(layers)} layers have parameters '
                f'({", ".join(layers[:8])}{", ..." if len(layers) > 8 else ""}); list {len(layers)} ids'
            )
        return dict(zip(layers, plan.fusion_ids, strict=True))
    marks = {name: operator.comm_fusion for name, operator in workload.model.operators.items()}
    return {layer: UNMARKED if (mark := marks.get(layer)) is None else mark for layer in layers}
