"""Degrees as strategies: the data × tensor layout of a network (Megatron-LM, Shoeybi et al. 2019).

Dim 0 of every value is cut by data. A dense layer whose features come in cut by tensor is cut by rows, and gives whole
features; else by columns, and what follows keeps that cut: activations as they come, products of values by their
leading dims, LayerNorm and softmax with their last dim whole, an embedding by its vocabulary.
"""

from __future__ import annotations

from simpar.layout.operator import ONE
from simpar.layout.operator import Operator as Axes
from simpar.model import (
    INPUT,
    Dense,
    Embedding,
    Flatten,
    MatMul,
    Network,
    Operator,
    Reshape,
    Strategy,
    layer_names,
    network_shapes,
    reads_of,
)

WHOLE = 0
"""In the place of the dim that tensor cuts: none. Dim 0 is always that of data."""


def degree_strategies(network: Network, samples: int, data: int, tensor: int) -> dict[str, Strategy]:
    """The strategy of every layer that takes one, by name; they need not divide.

    Arguments: ``samples`` in dim 0 of the input.
    """
    shapes = network_shapes(network, samples)
    cut_dim, found = {INPUT: WHOLE}, {}
    for name, layer, reads in zip(layer_names(network), network.layers, reads_of(network), strict=True):
        rule = layer.axes(name, *(shapes[read] for read in reads))
        dim = _kept(layer, rule, cut_dim[reads[0]])
        if not isinstance(layer, Flatten | Reshape):
            found[name] = _strategy(layer, rule, dim, data, tensor)
        cut_dim[name] = _given(layer, rule, dim)
    return found


def _strategy(layer: Operator, rule: Axes, dim: int, data: int, tensor: int) -> Strategy:
    read = rule.inputs[layer.lead]
    cuts = {read[0]: data}
    if dim:
        cuts[read[dim]] = tensor
    elif isinstance(layer, Dense | Embedding):
        cuts['n' if isinstance(layer, Dense) else 'v'] = tensor
    return rule.strategy(cuts)


def _kept(layer: Operator, rule: Axes, dim: int) -> int:
    """Which dim of what a layer reads stays cut by tensor."""
    named = rule.inputs[layer.lead][dim]
    free = named != ONE and named not in rule.fixed
    return dim if free and not (isinstance(layer, MatMul) and dim >= len(rule.output) - 2) else WHOLE


def _given(layer: Operator, rule: Axes, dim: int) -> int:
    """Which dim of a layer's result is cut by tensor."""
    if isinstance(layer, Dense):
        return WHOLE if dim else 1
    named = rule.inputs[layer.lead][dim]
    return rule.output.index(named) if dim and named in rule.output else WHOLE
