"""The rule of a layer: how it may be cut, as an ``Operator`` over the shapes that it reads."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from simpar.layer_shapes import Shape
from simpar.layers import AnyLayer, Dense, Embedding, Flatten, LayerNorm, MatMul, Reshape, Softmax, Transpose
from simpar.layout import operators
from simpar.layout.operator import Operator


def rule_of(layer: AnyLayer, name: str, shapes: Sequence[Shape]) -> Operator:
    """The rule of a layer; its inputs stand in the order of the layer's strategy.

    Arguments: ``shapes`` of what it reads. Weights of a dense layer are [in, out], as strategies see them; those of an
    embedding come before the tokens.
    """
    x = shapes[0]
    if isinstance(layer, Dense):
        return operators.matmul(name, x, (layer.inputs, layer.outputs))
    if isinstance(layer, MatMul):
        return operators.batch_matmul(name, *shapes, transpose_a=layer.transpose_a, transpose_b=layer.transpose_b)
    if isinstance(layer, LayerNorm):
        return operators.layer_norm(name, x)
    if isinstance(layer, Softmax):
        return operators.softmax(name, x)
    if isinstance(layer, Transpose):
        return operators.transpose(name, x, layer.permutation)
    if isinstance(layer, Reshape):
        return operators.reshape(name, x, resolved(layer.shape, x))
    if isinstance(layer, Embedding):
        return operators.embedding(name, (layer.vocab, layer.width), x)
    return operators.flatten(name, x) if isinstance(layer, Flatten) else operators.elementwise(name, *shapes)


def resolved(shape: Shape, x: Shape) -> Shape:
    """A reshape's shape with its dim 0."""
    return (prod(x) // prod(shape[1:]), *shape[1:])


def lead_of(layer: AnyLayer) -> int:
    """Which of a rule's inputs is the first value that the layer reads."""
    return 1 if isinstance(layer, Embedding) else 0
