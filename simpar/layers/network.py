"""Networks: layers in order, each with its name and what it reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field

from simpar.document import OneOf
from simpar.layers.keys import Deviation, Width
from simpar.layers.norm import LayerNorm, RmsNorm, Softmax
from simpar.layers.pointwise import Add, Gelu, Mul, Multiply, Relu, Silu
from simpar.layers.product import MatMul
from simpar.layers.reduction import Reduce
from simpar.layers.shape import Flatten, Reshape, Transpose
from simpar.layers.weighted import Conv2d, Dense, Embedding

INPUT: Final = 'x'
"""The name of the network's input."""

Operator = (
    Dense
    | Conv2d
    | MatMul
    | Relu
    | Gelu
    | Silu
    | Mul
    | Add
    | Multiply
    | LayerNorm
    | RmsNorm
    | Softmax
    | Reduce
    | Flatten
    | Transpose
    | Embedding
)
"""Layers that take a strategy."""
AnyLayer = Operator | Reshape
Weighted = Dense | Conv2d | Embedding
"""Products of a weight, cut by batch unless they are told otherwise."""
Trained = Weighted | LayerNorm | RmsNorm
"""Layers that have parameters."""
KINDS: Final[dict[str, type[AnyLayer]]] = {
    'flatten': Flatten,
    'dense': Dense,
    'relu': Relu,
    'gelu': Gelu,
    'silu': Silu,
    'mul': Mul,
    'add': Add,
    'multiply': Multiply,
    'layer_norm': LayerNorm,
    'rms_norm': RmsNorm,
    'softmax': Softmax,
    'matmul': MatMul,
    'reduce': Reduce,
    'reshape': Reshape,
    'transpose': Transpose,
    'conv2d': Conv2d,
    'embedding': Embedding,
}
"""By key of a file."""
Layer = Annotated[AnyLayer, OneOf(**KINDS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Layers, each reading the one before it or those that it names.

    Arguments: ``input``, shape of a sample, where the first layer does not tell; ``weight_deviation``, standard
    deviation of the normal initial weights; biases start at zero, gains at one.
    """

    layers: Annotated[tuple[Layer, ...], Field(min_length=1, max_length=4096, description='in order')]
    input: Annotated[
        tuple[Width, ...],
        Field(max_length=7, examples=[[512]], description='shape of a sample; empty: what the first dense layer takes'),
    ] = ()
    weight_deviation: Deviation = 0.01

    @property
    def dense(self) -> tuple[Dense, ...]:
        """Its dense layers."""
        return tuple(layer for layer in self.layers if isinstance(layer, Dense))

    @property
    def is_graph(self) -> bool:
        """Whether it has operators that degrees do not cut: others than a chain of dense layers and activations."""
        chained = all(isinstance(layer, Dense | Relu | Flatten) for layer in self.layers)
        return bool(self.input) or not chained or any(getattr(layer, 'of', '') for layer in self.layers)

    @property
    def sample(self) -> tuple[int, ...]:
        """Shape of a sample."""
        return self.input or (self.dense[0].inputs,)


def kind_of(layer: AnyLayer) -> str:
    """The key under which a file has a layer."""
    return next(kind for kind, of in KINDS.items() if type(layer) is of)


def layer_names(network: Network) -> tuple[str, ...]:
    """The names that programs give to layers: their own, or kind and count."""
    counts: dict[str, int] = {}
    names = []
    for layer in network.layers:
        kind = kind_of(layer)
        names.append(layer.name or f'{kind}{counts.get(kind, 0)}')
        counts[kind] = counts.get(kind, 0) + 1
    return tuple(names)


def reads_of(network: Network) -> Iterator[tuple[str, ...]]:
    """For each layer the names of what it reads."""
    before = INPUT
    for name, layer in zip(layer_names(network), network.layers, strict=True):
        of = getattr(layer, 'of', '') or before
        yield of if isinstance(of, tuple) else (of,)
        before = name
