"""Degrees as strategies: the data × tensor layout of a network (Megatron-LM, Shoeybi et al. 2019).

Dim 0 of every value is cut by data. A dense layer whose features come in cut by tensor is cut by rows, and gives whole
features; else by columns, and what follows keeps that cut: activations as they come, products of values by their
leading dims, LayerNorm and softmax with their last dim whole, an embedding by its vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simpar.layer_shapes import Shape, network_shapes
from simpar.layers import (
    INPUT,
    AnyLayer,
    Dense,
    Embedding,
    Flatten,
    LayerNorm,
    MatMul,
    Network,
    Reshape,
    Softmax,
    Strategy,
    Transpose,
    layer_names,
    reads_of,
)
from simpar.layout.operator import ONE
from simpar.lower.strategy.rule import rule_of

WHOLE = 0
"""In the place of the dim that tensor cuts: none. Dim 0 is always that of data."""


def degree_strategies(network: Network, samples: int, data: int, tensor: int) -> dict[str, Strategy]:
    """The strategy of every layer that takes one, by name; they need not divide.

    Arguments: ``samples`` in dim 0 of the input.
    """
    degrees = _Degrees(data, tensor)
    shapes = network_shapes(network, samples)
    cut_dim, found = {INPUT: WHOLE}, {}
    for name, layer, reads in zip(layer_names(network), network.layers, reads_of(network), strict=True):
        came = [shapes[read] for read in reads]
        dim = _kept(layer, cut_dim[reads[0]], came[0])
        if not isinstance(layer, Flatten | Reshape):
            found[name] = degrees.strategy(layer, dim, came)
        cut_dim[name] = _given(layer, name, dim, came)
    return found


@dataclass(frozen=True, slots=True)
class _Degrees:
    data: int
    tensor: int

    def cuts(self, rank: int, dim: int) -> tuple[int, ...]:
        """Slices of a value, whose dim is cut by tensor."""
        found = [1] * rank
        found[dim] = self.tensor
        return (self.data, *found[1:])

    def strategy(self, layer: AnyLayer, dim: int, shapes: Sequence[Shape]) -> Strategy:
        x = self.cuts(len(shapes[0]), dim)
        if isinstance(layer, Dense):
            return x, (self.tensor, 1) if dim else (1, self.tensor)
        if isinstance(layer, Embedding):
            return (self.tensor, 1), x
        return (x, (1,), (1,)) if isinstance(layer, LayerNorm) else (x,) * len(shapes)


def _kept(layer: AnyLayer, dim: int, x: Shape) -> int:
    """Which dim of what a layer reads stays cut by tensor."""
    last = len(x) - 1
    if isinstance(layer, MatMul):
        return dim if dim < last - 1 else WHOLE
    return WHOLE if isinstance(layer, LayerNorm | Softmax) and dim == last else dim


def _given(layer: AnyLayer, name: str, dim: int, shapes: Sequence[Shape]) -> int:
    """Which dim of a layer's result is cut by tensor."""
    if isinstance(layer, Dense):
        return WHOLE if dim else 1
    if isinstance(layer, Transpose):
        return layer.permutation.index(dim)
    if not isinstance(layer, Flatten | Reshape) or not dim:
        return dim
    rule = rule_of(layer, name, shapes)
    named = rule.inputs[0][dim]
    return rule.output.index(named) if named != ONE and named in rule.output else WHOLE
