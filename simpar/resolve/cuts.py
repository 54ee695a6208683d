"""Cuts: a layer's strategy as users write it, and the same as the choice of an operator in a graph.

They differ in two ways: a graph has the weights of dense layers as [out, in], and its ``Mul`` reads the constant too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from simpar.layout import operators
from simpar.model import Dense, Mul, Operator, Shape, Sharded, Strategy
from simpar.strategy_search import Choice


def in_graph(layer: Operator, strategy: Strategy) -> Choice:
    """The choice that a layer's strategy is."""
    if isinstance(layer, Dense):
        x, weight = strategy
        return Choice((x, weight[::-1]), layer.out_strategy or None)
    return Choice((*strategy, ()) if isinstance(layer, Mul) else strategy)


def cut(layer: Operator, choice: Choice | None) -> Operator:
    """A layer with what was chosen for it; a reshape takes none."""
    if choice is None or not isinstance(layer, Sharded):
        return layer
    if isinstance(layer, Dense):
        x, weight = choice.strategy
        return replace(layer, strategy=(x, weight[::-1]), out_strategy=choice.out_strategy or ())
    return replace(layer, strategy=choice.strategy[:1] if isinstance(layer, Mul) else choice.strategy)


def flatten_choice(choice: Choice, x: Shape) -> Choice:
    """What a search chose for a flatten, as one takes it that reads values of a shape.

    The search's graph has images where samples come flat: their dims are one here, and so are its cuts. Cuts that lie
    inside of a dim are left to whoever reads the result.
    """
    (cuts,) = choice.strategy
    cuts = (cuts[0], prod(cuts[1:])) if len(x) == 2 else cuts
    rule = operators.flatten('flatten', x)
    free = (name not in rule.fixed and rule.lengths[name] % count == 0
            for name, count in zip(rule.inputs[0], cuts, strict=True))  # fmt: skip
    return Choice((tuple(count if may else 1 for count, may in zip(cuts, free, strict=True)),))


def in_graphs(layers: Mapping[str, Operator], strategies: Mapping[str, Strategy]) -> dict[str, Choice]:
    """Choices by name."""
    return {name: in_graph(layers[name], strategy) for name, strategy in strategies.items()}
