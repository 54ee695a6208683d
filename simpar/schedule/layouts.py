"""Whether layouts of layers, by the axes of a device matrix, fit the rest of a schedule; each is tried when lowered."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final

from simpar.errors import Problem
from simpar.model import Operator
from simpar.model.model import Model
from simpar.plan import Plan

UNSHARDED: Final = 'none'
"""What a layout has for a dim that no axis splits."""


def layouts_fit(model: Model, plan: Plan) -> Iterator[Problem]:
    """Everything that does not fit, each at the key to change."""
    # ``none`` is a word of layouts: an axis of this name could never be named.
    for name in (name for name in plan.device_matrix if name.lower() == UNSHARDED):
        yield Problem(('plan', 'device_matrix', name), 'is what layouts have for no axis', 'choose another name')
    for place, layer in enumerate(model.operators.values()):
        for key, what, instead in _of_layer(layer, plan):
            yield Problem(model.file_key(place, key), what, instead)
    for pattern, layouts in plan.layouts.items():
        for _, what, instead in _axes('layouts', chain.from_iterable(layouts), plan):
            yield Problem(('plan', 'layouts', pattern), what, instead)


def _of_layer(layer: Operator, plan: Plan) -> Iterator[tuple[str, str, str]]:
    """Key, what is wrong, remedy."""
    layout, out = layer.layout, layer.out_layout
    if layout and (layer.strategy or layer.out_strategy):
        yield 'layout', 'stands beside a strategy', 'write one of them'
    if out and not layout:
        yield 'out_layout', 'stands without a layout', 'write out_strategy, or layout too'
    yield from _axes('layout', chain.from_iterable(layout), plan)
    yield from _axes('out_layout', out, plan)


def _axes(key: str, dims: Iterator[str] | tuple[str, ...], plan: Plan) -> Iterator[tuple[str, str, str]]:
    """The first axis that is not there."""
    known = [name for name in plan.device_matrix if name.lower() != UNSHARDED]
    for name in (axis for dim in dims if dim.lower() != UNSHARDED for axis in dim.split('+')):
        if name not in known:
            instead = (
                f'write {", ".join(known)} or {UNSHARDED}' if known else f'write e.g. plan.device_matrix: {{{name}: 2}}'
            )
            yield key, f'{name} is no axis of plan.device_matrix', instead
            return
