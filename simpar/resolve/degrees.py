"""Degrees as strategies: the data × tensor layout of a graph (Megatron-LM, Shoeybi et al. 2019).

Dim 0 of every value is split by data. A product whose features come in split by tensor is split by rows, and gives full
features; else by columns, and what follows keeps that split: activations as they come, products of values by their
leading dims, LayerNorm and softmax with their last dim full, an embedding by its vocabulary.
"""

from __future__ import annotations

from simpar.layout.operator import ONE
from simpar.layout.operator import Operator as Axes
from simpar.model import Dense, Embedding, Flatten, MatMul, Operator, Sharded, Strategy
from simpar.model.model import Graph
from simpar.model.operators.linear import Product

PRODUCTS = Dense | Product
UNSHARDED = 0
"""In the place of the dim that tensor splits: none. Dim 0 is always that of data."""


def degree_strategies(graph: Graph, data: int, tensor: int) -> dict[str, Strategy]:
    """The strategy of every operator that takes one, by name; they need not divide."""
    sharded_dim, found = dict.fromkeys((source.name for source in graph.sources), UNSHARDED), {}
    for node in graph.nodes:
        shapes = [graph.shapes[read] for read in node.reads]
        rule = node.operator.axes(node.name, *shapes)
        dim = _kept(node.operator, rule, sharded_dim[node.reads[0]])
        if isinstance(node.operator, Sharded) and not isinstance(node.operator, Flatten):
            found[node.name] = _strategy(node.operator, rule, dim, data, tensor)
        sharded_dim[node.name] = _given(node.operator, rule, dim)
    return found


def _strategy(layer: Operator, rule: Axes, dim: int, data: int, tensor: int) -> Strategy:
    read = rule.inputs[layer.lead]
    counts = {read[0]: data}
    if dim:
        counts[read[dim]] = tensor
    elif isinstance(layer, PRODUCTS | Embedding):
        counts['v' if isinstance(layer, Embedding) else 'n'] = tensor
    return rule.strategy(counts)


def _kept(layer: Operator, rule: Axes, dim: int) -> int:
    """Which dim of what a layer reads stays split by tensor."""
    named = rule.inputs[layer.lead][dim]
    # The last two dims of a product of values are rows and columns: tensor keeps to the leading ones, as heads.
    free = named != ONE and named not in rule.fixed
    return dim if free and not (isinstance(layer, MatMul) and dim >= len(rule.output) - 2) else UNSHARDED


def _given(layer: Operator, rule: Axes, dim: int) -> int:
    """Which dim of a layer's result is split by tensor."""
    if isinstance(layer, PRODUCTS):
        return UNSHARDED if dim else len(rule.output) - 1
    named = rule.inputs[layer.lead][dim]
    return rule.output.index(named) if dim and named in rule.output else UNSHARDED
