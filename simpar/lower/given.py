"""Strategies that a plan gives single operators of a model by patterns of their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from math import prod
from typing import Any, TypeVar

from simpar.errors import Infeasible
from simpar.model import Operator, Sharded, Strategy
from simpar.model.keys import Layouts
from simpar.model.model import Model
from simpar.model.node import Node
from simpar.plan import Plan
from simpar.workload import Workload

SHOWN = 20
Given = TypeVar('Given')


def has_strategies(workload: Workload, plan: Plan) -> bool:
    """Whether an operator of the model, or its loss, is told by itself how it is split."""
    of_loss = bool(workload.loss_strategy) or workload.loss_operators != 'one'
    return bool(plan.strategies or plan.layouts) or of_loss or _is_told(workload.model)


def _is_told(model: Model) -> bool:
    return any(node.operator.strategy or node.operator.layout for node in model.nodes)


def with_strategies(nodes: Sequence[Node], plan: Plan) -> tuple[Node, ...]:
    """The nodes with the strategies and layouts that a plan gives them.

    Raises ``Infeasible`` where a pattern matches no operator, or one that takes no strategy.
    """
    if not (plan.strategies or plan.layouts):
        return tuple(nodes)
    found = _each(nodes, 'strategies', plan.strategies, told)
    found = _each(found, 'layouts', plan.layouts, laid_out)
    _tie(found)
    return tuple(found)


def _each(
    nodes: Sequence[Node], key: str, strategies: Mapping[str, Given], give: Callable[[Operator, Given], Operator]
) -> list[Node]:
    """Of the patterns that match its name a node takes the first."""
    free = set(strategies)
    found = []
    for node in nodes:
        matching = [pattern for pattern in strategies if matches(node.name, pattern)]
        if matching and (isinstance(node.operator, Sharded) or node.name in strategies):
            # A pattern that another one outruns is used all the same: only one that names nothing is a fault.
            free -= set(matching)
            node = _given(node, key, partial(give, node.operator, strategies[matching[0]]))  # noqa: PLW2901
        found.append(node)
    if free:
        names = [node.name for node in nodes if isinstance(node.operator, Sharded)]
        more = ', ...' if len(names) > SHOWN else ''
        raise Infeasible(
            f'plan.{key}: {min(free)} names no operator of the model; there are {", ".join(names[:SHOWN])}{more}'
        )
    return found


def _tie(nodes: list[Node]) -> None:
    """Where only the second operator of a tied weight has a strategy, the first splits the weight as that one."""
    place = {f'{node.name}.weight': number for number, node in enumerate(nodes)}
    for node in nodes:
        first = place.get(node.operator.tied, -1)
        if node.operator.strategy and first >= 0 and not nodes[first].operator.strategy:
            # A head's weight is [in, out], the embedding's [vocab, width] is the same turned; tokens have no
            # features.
            rows, (k, n) = node.operator.strategy[:2]
            nodes[first] = replace(nodes[first], operator=told(nodes[first].operator, ((n, k), rows[:-1])))


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern is a name or matches it."""
    return name == pattern or fnmatchcase(name, pattern)


def _given(node: Node, key: str, give: Callable[[], Operator]) -> Node:
    if not isinstance(node.operator, Sharded):
        raise Infeasible(f'plan.{key}: {node.name} takes no strategy, it lies as what it reads; leave it out')
    return replace(node, operator=give())


def laid_out(operator: Operator, layouts: Layouts) -> Operator:
    """An operator with layouts of its inputs, the last of which may be that of its result."""
    own: dict[str, Any] = {'strategy': (), 'layout': layouts}
    if operator.splits_result:
        inputs, result = layouts[: operator.splits_result], layouts[operator.splits_result :]
        own |= {'layout': inputs, 'out_strategy': (), 'out_layout': result[0] if result else ()}
    return replace(operator, **own)


def told(operator: Operator, strategy: Strategy) -> Operator:
    """An operator with a strategy, whose last part may be that of its result."""
    own: dict[str, Any] = {'strategy': strategy, 'layout': ()}
    if operator.splits_result:
        inputs, result = strategy[: operator.splits_result], strategy[operator.splits_result :]
        own |= {'strategy': inputs, 'out_strategy': result[0] if result else (), 'out_layout': ()}
    return replace(operator, **own)


def counts_of(layouts: Layouts, matrix: Mapping[str, int]) -> Strategy:
    """The strategy that layouts come to: into how many slices the axes of a device matrix split each dim."""
    return tuple(
        tuple(prod(matrix[axis] for axis in dim.split('+')) if dim.lower() != 'none' else 1 for dim in dims)
        for dims in layouts
    )
