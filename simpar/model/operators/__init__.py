"""The registry of operators: one row each. All else that knows operators by kind is made from it."""

from __future__ import annotations

from typing import Final

from simpar.model.operators.base import Operator
from simpar.model.operators.conv import Conv2d
from simpar.model.operators.embedding import Embedding
from simpar.model.operators.linear import Dense
from simpar.model.operators.loss import OF_LOSSES
from simpar.model.operators.norm import LayerNorm, RmsNorm, Softmax
from simpar.model.operators.pointwise import Add, Gelu, Mul, Multiply, Relu, Silu
from simpar.model.operators.product import MatMul
from simpar.model.operators.reduce import Reduce
from simpar.model.operators.shape import Flatten, Reshape, Transpose
from simpar.model.primitive import Pricing, Primitive

OPERATORS: Final[tuple[type[Operator], ...]] = (
    Flatten,
    Dense,
    Relu,
    Gelu,
    Silu,
    Mul,
    Add,
    Multiply,
    LayerNorm,
    RmsNorm,
    Softmax,
    MatMul,
    Reduce,
    Reshape,
    Transpose,
    Conv2d,
    Embedding,
)
"""In the order of the docs."""
KINDS: Final = {kind.key: kind for kind in OPERATORS}
"""By key of a file."""
OP_CLASSES: Final[dict[str, Primitive]] = {
    name: primitive for kind in OPERATORS for name, primitive in kind.primitives.items()
}  # fmt: skip
"""By the operator of an op class in the forward, what it is to MindSpore."""
PRIMITIVES: Final = {
    one.name: one for kind in OPERATORS for one in kind.primitives.values()
} | {one.name: one for one in OF_LOSSES}  # fmt: skip
"""By MindSpore's name."""


def priced(pricing: Pricing) -> frozenset[str]:
    """The operators of op classes that something bounds."""
    return frozenset(name for name, primitive in OP_CLASSES.items() if primitive.pricing == pricing)
