"""Choices: a layer's strategy as users write it, and the same as the choice of an operator in a graph.

They differ in two ways: a graph has the weights of dense layers as [out, in], and its ``Mul`` reads the constant too.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from math import prod
from typing import Final

from simpar.layout import operators
from simpar.lower.graph.record import told
from simpar.model import Dense, Mul, Operator, Shape, Sharded, Strategy
from simpar.strategy_search import Choice

LAYER: Final = re.compile(r'^layer\d+\.')


def in_graph(layer: Operator, strategy: Strategy) -> Choice:
    """The choice that a layer's strategy is."""
    if isinstance(layer, Dense):
        x, weight = strategy
        return Choice((x, weight[::-1]), layer.out_strategy or None)
    return Choice((*strategy, ()) if isinstance(layer, Mul) else strategy, layer.out_strategy or None)


def written(layer: Operator, choice: Choice) -> Strategy:
    """What was chosen for a layer as a plan writes it: slices of its inputs, and of its result where that is told."""
    strategy = choice.strategy[:1] if isinstance(layer, Mul) else choice.strategy
    if isinstance(layer, Dense):
        x, weight = strategy
        strategy = (x, weight[::-1])
    return (*strategy, choice.out_strategy) if choice.out_strategy else strategy


def with_choice(layer: Operator, choice: Choice | None) -> Operator:
    """A layer with what was chosen for it; a reshape takes none."""
    if choice is None or not isinstance(layer, Sharded):
        return layer
    return told(layer, written(layer, choice))


def flatten_choice(choice: Choice, x: Shape) -> Choice:
    """What a search chose for a flatten, as one takes it that reads values of a shape.

    The search's graph has images where samples come flat: their dims are one here, and so are its
    splits. Splits that lie inside of a dim are left to whoever reads the result.
    """
    (counts,) = choice.strategy
    counts = (counts[0], prod(counts[1:])) if len(x) == 2 else counts
    rule = operators.flatten('flatten', x)
    free = (name not in rule.fixed and rule.lengths[name] % count == 0
            for name, count in zip(rule.inputs[0], counts, strict=True))  # fmt: skip
    return Choice((tuple(count if may else 1 for count, may in zip(counts, free, strict=True)),))


def in_graphs(layers: Mapping[str, Operator], strategies: Mapping[str, Strategy]) -> dict[str, Choice]:
    """Choices by name."""
    return {name: in_graph(layers[name], strategy) for name, strategy in strategies.items()}


def in_patterns(strategies: Mapping[str, Strategy], names: Collection[str]) -> dict[str, Strategy]:
    """Strategies by name, where all layers agree by a pattern: ``layer*.fc1``.

    Arguments: ``names``, of all operators.
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(LAYER.sub('layer*.', name), []).append(name)
    found: dict[str, Strategy] = {}
    for pattern, members in groups.items():
        given = [strategies.get(name) for name in members]
        # A pattern must not reach a layer that has no strategy: it stands for all or for none.
        if len(members) > 1 and given[0] is not None and all(one == given[0] for one in given):
            found[pattern] = given[0]
        else:
            found |= {name: strategies[name] for name in members if name in strategies}
    return found
