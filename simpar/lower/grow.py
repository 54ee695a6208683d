"""Growing: a model of many equal layers is lowered with few of them, and its program is grown to all.

Who may grow is decided beforehand, by the model and the plan: nothing in them may tell one layer of the middle from
another. Whoever may grow and turns out not to be periodic is lowered in full, as all others are.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final, cast

from simpar.kept import Facts, Kept
from simpar.lower.fusion import by_size
from simpar.lower.given import has_strategies
from simpar.lower.optimizer_parallel import choice_of
from simpar.lower.period import Layers
from simpar.plan import Plan
from simpar.workload import Transformer, Workload

_REPAYS: Final = 2
"""Times as many layers as are lowered, from which on growing takes less time than lowering them."""
_EQUAL: Final = 2
"""Layers in the middle that must be equal."""
_FUSIONS: Final = ('layer', 'none', 'all', 'auto')


def few_layers(workload: Workload, plan: Plan) -> Layers | None:
    """How many layers to lower, and how many to add; None: the plan may tell layers apart, or they are few."""
    model = workload.model
    edge = _unlike(workload, plan)
    count = 2 * edge + _EQUAL
    if not isinstance(model, Transformer) or model.layers < _REPAYS * count or not _equal(workload, plan):
        return None
    few = with_layers(workload, count)
    if has_strategies(few, plan) or not _alike(model, few, edge):
        return None
    return Layers(count, edge, model.layers - count)


def _alike(model: Transformer, few: Workload, edge: int) -> bool:
    """Whether the layers between the first and the last are of one kind, and those of the few are, too.

    Layers differ by experts and windows. Of a model whose third layer is the first with experts, or whose sixth sees
    all, few layers show nothing of it.
    """
    all_of, few_of = (
        [(one.experts_of(layer) is None, one.window_of(layer)) for layer in range(one.layers)]
        for one in (model, cast('Transformer', few.model))
    )
    return len({*all_of[edge:-edge], *few_of[edge:-edge]}) == 1 and all_of[-edge:] == few_of[-edge:]


def _unlike(workload: Workload, plan: Plan) -> int:
    """How many of the first, and of the last, layers differ from those between."""
    if 'weights' not in choice_of(plan).parts:
        return 1
    # A gather that is issued ahead makes as many layers more begin and end unlike the others. And an update waits for
    # its sum by itself where no gather behind that sum has been waited for, unless it waits for a look at all sums.
    return 1 + plan.prefetch + (not workload.clip_norm and workload.loss_scale == 1)


def with_layers(workload: Workload, layers: int) -> Workload:
    """The workload of a transformer with so many layers."""
    if not isinstance(workload.model, Transformer):
        raise TypeError(f'{type(workload.model).__name__} has no count of layers that could be changed')
    known = _few(workload)
    if layers not in known:
        known[layers] = replace(workload, model=replace(workload.model, layers=layers))
    return known[layers]


def one_of_equal(workload: Workload) -> Workload:
    """The very same for equal workloads, as those of the rows of a sweep: all that is kept of it is found at once."""
    # In a tuple, since of the very same objects these are equal without a look into them.
    return _workloads.get((workload,), lambda: workload)


_workloads: Final[Kept[tuple[Workload], Workload]] = Kept(4)
_few: Final[Facts[Workload, dict[int, Workload]]] = Facts(lambda workload: {}, 8)
"""Of a workload those of fewer layers."""


def _equal(workload: Workload, plan: Plan) -> bool:
    """Whether a plan does the same with all layers that stand between the first and the last."""
    one_stage = plan.pipeline == 1 and plan.chunks <= 1 and not plan.rows
    # Split points and ids count parameters and layers.
    fusion = plan.fusion in _FUSIONS or by_size(plan)
    recompute = () if isinstance(plan.recompute, str) else plan.recompute
    return one_stage and fusion and all(map(_blind, (*recompute, *plan.unsharded, *workload.fp8_except)))


def _blind(pattern: str) -> bool:
    """Whether a pattern of names cannot tell ``layer3`` from ``layer12``.

    What stands behind the number may be told; before that, only a star may match a digit.
    """
    return pattern.startswith(('layer*.', '*.')) or not re.search(r'[\d?\[]', pattern)
