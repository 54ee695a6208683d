"""Strategies that a plan gives single operators of a model by patterns of their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from simpar.errors import Infeasible
from simpar.model import Operator, Sharded, Strategy
from simpar.model.node import Node
from simpar.plan import Plan
from simpar.workload import Workload

SHOWN = 20


def has_strategies(workload: Workload, plan: Plan) -> bool:
    """Whether an operator of the model, or its loss, is told by itself how it is split."""
    given = (operator.strategy or operator.layout for operator in workload.model.operators.values())
    of_loss = bool(workload.loss_strategy) or workload.loss_operators != 'one'
    return bool(plan.strategies) or of_loss or any(given)


def with_strategies(nodes: Sequence[Node], strategies: Mapping[str, Strategy]) -> tuple[Node, ...]:
    """The nodes with their strategies: of the patterns that match its name a node takes the first.

    Raises ``Infeasible`` where a pattern matches no operator, or one that takes no strategy.
    """
    if not strategies:
        return tuple(nodes)
    free = set(strategies)
    found = []
    for node in nodes:
        matching = [pattern for pattern in strategies if _matches(node.name, pattern)]
        if matching and (isinstance(node.operator, Sharded) or node.name in strategies):
            free -= set(matching)
            node = _given(node, strategies[matching[0]])  # noqa: PLW2901
        found.append(node)
    _tie(found)
    if free:
        names = [node.name for node in nodes if isinstance(node.operator, Sharded)]
        more = ', ...' if len(names) > SHOWN else ''
        raise Infeasible(
            f'plan.strategies: {min(free)} names no operator of the model; there are {", ".join(names[:SHOWN])}{more}'
        )
    return tuple(found)


def _tie(nodes: list[Node]) -> None:
    """Where only the second operator of a tied weight has a strategy, the first splits the weight as that one."""
    place = {f'{node.name}.weight': number for number, node in enumerate(nodes)}
    for node in nodes:
        first = place.get(node.operator.tied, -1)
        if node.operator.strategy and first >= 0 and not nodes[first].operator.strategy:
            rows, (k, n) = node.operator.strategy[:2]
            nodes[first] = replace(nodes[first], operator=told(nodes[first].operator, ((n, k), rows[:-1])))


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)


def _given(node: Node, strategy: Strategy) -> Node:
    operator = node.operator
    if not isinstance(operator, Sharded):
        raise Infeasible(f'plan.strategies: {node.name} takes no strategy, it lies as what it reads; leave it out')
    return replace(node, operator=told(operator, strategy))


def told(operator: Operator, strategy: Strategy) -> Operator:
    """An operator with a strategy, whose last part may be that of its result."""
    own: dict[str, Any] = {'strategy': strategy, 'layout': ()}
    if operator.splits_result:
        inputs, result = strategy[: operator.splits_result], strategy[operator.splits_result :]
        own |= {'strategy': inputs, 'out_strategy': result[0] if result else (), 'out_layout': ()}
    return replace(operator, **own)
