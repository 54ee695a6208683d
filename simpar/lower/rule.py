"""The rule of a layer: how it may be cut, as an ``Operator`` over the shapes that it reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Final

from simpar.layer_shapes import Shape, image_shape
from simpar.layers import (
    Add,
    AnyLayer,
    Conv2d,
    Dense,
    Embedding,
    Flatten,
    Gelu,
    LayerNorm,
    MatMul,
    Mul,
    Multiply,
    Reduce,
    Relu,
    Reshape,
    RmsNorm,
    Silu,
    Softmax,
    Transpose,
)
from simpar.layout import operators
from simpar.layout.operator import Operator


def rule_of(layer: AnyLayer, name: str, shapes: Sequence[Shape]) -> Operator:
    """The rule of a layer; its inputs stand in the order of the layer's strategy.

    Arguments: ``shapes`` of what it reads. Weights of a dense layer are [in, out], as strategies see them; those of an
    embedding come before the tokens.
    """
    return _RULES[type(layer)](layer, name, *shapes)


def resolved(shape: Shape, x: Shape) -> Shape:
    """A reshape's shape with its dim 0."""
    return (prod(x) // prod(shape[1:]), *shape[1:])


def lead_of(layer: AnyLayer) -> int:
    """Which of a rule's inputs is the first value that the layer reads."""
    return 1 if isinstance(layer, Embedding) else 0


def _convolution(layer: Conv2d, name: str, x: Shape) -> Operator:
    weight = (layer.outputs, layer.inputs, layer.kernel, layer.kernel)
    return operators.conv2d(name, x, weight, image_shape(layer, x))


def _product(layer: MatMul, name: str, a: Shape, b: Shape) -> Operator:
    return operators.batch_matmul(name, a, b, transpose_a=layer.transpose_a, transpose_b=layer.transpose_b)


def _elementwise(layer: AnyLayer, name: str, *shapes: Shape) -> Operator:
    return operators.elementwise(name, *shapes)


_RULES: Final[dict[type, Callable[..., Operator]]] = {
    Dense: lambda layer, name, x: operators.matmul(name, x, (layer.inputs, layer.outputs)),
    Conv2d: _convolution,
    MatMul: _product,
    LayerNorm: lambda _, name, x: operators.layer_norm(name, x),
    RmsNorm: lambda _, name, x: operators.rms_norm(name, x),
    Softmax: lambda _, name, x: operators.softmax(name, x),
    Transpose: lambda layer, name, x: operators.transpose(name, x, layer.permutation),
    Reduce: lambda layer, name, x: operators.reduction(name, x, layer.dims, keep=layer.keep),
    Reshape: lambda layer, name, x: operators.reshape(name, x, resolved(layer.shape, x)),
    Embedding: lambda layer, name, x: operators.embedding(name, (layer.vocab, layer.width), x),
    Flatten: lambda _, name, x: operators.flatten(name, x),
    **dict.fromkeys((Relu, Gelu, Silu, Mul, Add, Multiply), _elementwise),
}
