"""Layers of a network: dense layers, activations, and the operators that transformers are made of.

Layers stand in order. Each reads the one before it, or those that it names; ``x`` is the network's input. Dim 0 of
every value counts samples, or what samples are cut into (a reshape of 8 samples of 128 tokens to 1024 rows).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field

from simpar.document import OneOf

INPUT: Final = 'x'
"""The name of the network's input."""

# The limits keep every size of a tensor below 2⁶² bytes, so that no count overflows.
Name = Annotated[
    str,
    Field(
        max_length=40,
        pattern='^[A-Za-z0-9_-]*$',
        examples=['matmul'],
        description='in traces and programs: letters, digits, _ and -; made from the kind unless given',
    ),
]
Of = Annotated[
    str,
    Field(
        max_length=40,
        pattern='^[A-Za-z0-9_-]*$',
        examples=['norm1'],
        description='the layer that it reads, or x, the input; the one before it unless given',
    ),
]
Pair = Annotated[
    tuple[Annotated[str, Field(max_length=40, pattern='^[A-Za-z0-9_-]+$')], ...],
    Field(min_length=2, max_length=2, examples=[['x', 'proj']], description='the two layers that it reads, or x'),
]
Width = Annotated[int, Field(ge=1, le=2**24)]
Deviation = Annotated[
    float, Field(ge=0, le=1e6, description='standard deviation of the normal initial weights; biases start at zero')
]
Cuts = tuple[Annotated[int, Field(ge=1, le=2**20)], ...]
"""Into how many slices each dim of a tensor is cut."""
Strategy = tuple[Cuts, ...]
"""Into how many slices each dim of each input of an operator is cut."""
One = Annotated[Strategy, Field(max_length=1, description='slices of what it reads, e.g. [[2, 4]]; empty: as it lies')]
Aliases = tuple[
    Annotated[
        str, Field(max_length=400, pattern=r'^[A-Za-z0-9_]+(\+[A-Za-z0-9_]+)*$', examples=['dp', 'dp+sp', 'none'])
    ],
    ...,
]
"""For each dim of a tensor the axes of plan.device_matrix that cut it, the outermost first, or none."""
Layouts = Annotated[
    tuple[Aliases, ...],
    Field(
        max_length=3,
        examples=[[['dp', 'mp'], ['mp', 'none']]],
        description='in place of strategy: for each dim the axes of device_matrix that cut it, joined by +, or none',
    ),
]
Recomputed = Annotated[
    bool, Field(description='its result is made again in the backward instead of kept, where the backward needs it')
]
Stage = Annotated[
    int | None, Field(ge=0, le=2**12, description='stage of the pipeline, from this layer on; none: as before')
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """y = x · weightᵀ + bias."""

    inputs: Annotated[Width, Field(alias='in', description='features of a sample')]
    outputs: Annotated[Width, Field(alias='out', description='features of its result')]
    bias: Annotated[bool, Field(description='adds a bias')] = True
    pipeline_stage: Stage = None
    comm_fusion: Annotated[
        int | None,
        Field(ge=0, le=2**20, description='for fusion ids: its messages are fused with those of equal id; 0: not'),
    ] = None
    recompute: Recomputed = False
    strategy: Annotated[
        Strategy,
        Field(
            max_length=2, description='slices of x [batch, in] and weight [in, out], as [[2, 4], [4, 1]]; empty: none'
        ),
    ] = ()
    layout: Layouts = ()
    out_strategy: Annotated[
        Cuts,
        Field(max_length=2, description='slices of its result, where the sum over ranks is scattered; empty: not'),
    ] = ()
    out_layout: Annotated[
        Aliases, Field(max_length=2, description='in place of out_strategy: the axes that cut each dim of its result')
    ] = ()
    of: Of = ''
    name: Name = ''


@dataclass(frozen=True, slots=True, kw_only=True)
class Relu:
    """y = max(x, 0)."""

    strategy: Annotated[
        Strategy, Field(max_length=1, description='slices of x [batch, features], e.g. [[2, 4]]; empty: as x lies')
    ] = ()
    layout: Layouts = ()
    recompute: Recomputed = False
    of: Of = ''
    name: Name = ''


@dataclass(frozen=True, slots=True, kw_only=True)
class Flatten:
    """All dims of a sample into one; a change of shape, no work."""

    strategy: Annotated[
        Strategy,
        Field(max_length=1, description='slices of what it reads, e.g. [[8, 1, 1, 1]]; empty: as it lies'),
    ] = ()
    layout: Layouts = ()
    of: Of = ''
    name: Name = ''


@dataclass(frozen=True, slots=True, kw_only=True)
class Gelu:
    """y = x · Φ(x), the exact (erf) form."""

    strategy: One = ()
    layout: Layouts = ()
    recompute: Recomputed = False
    of: Of = ''
    name: Name = ''


@dataclass(frozen=True, slots=True, kw_only=True)
class Mul:
    """y = factor · x."""

    factor: Annotated[float, Field(ge=-1e12, le=1e12, description='a constant')]
    strategy: One = ()
    layout: Layouts = ()
    recompute: Recomputed = False
    of: Of = ''
    name: Name = ''


@dataclass(frozen=True, slots=True, kw_only=True)
class Add:
    """The sum of two results of one shape."""

    of: Pair
    strategy: Annotated[
        Strategy, Field(max_length=2, description='slices of both, e.g. [[2, 4], [2, 4]]; empty: as the first lies')
    ] = ()
    layout: Layouts = ()
    recompute: Recomputed = False
    name: Name = ''


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNorm:
    """LayerNorm over the last dim, with gain and bias."""

    strategy: Annotated[
        Strategy,
        Field(max_length=3, description='slices of x, gain and bias, e.g. [[4, 1], [1], [1]]; empty: as x lies'),
    ] = ()
    layout: Layouts = ()
    pipeline_stage: Stage = None
    recompute: Recomputed = False
    of: Of = ''
    name: Name = ''


@dataclass(frozen=True, slots=True, kw_only=True)
class Softmax:
    """Softmax over the last dim."""

    strategy: One = ()
    layout: Layouts = ()
    recompute: Recomputed = False
    of: Of = ''
    name: Name = ''


@dataclass(frozen=True, slots=True, kw_only=True)
class MatMul:
    """The product of two results [batch..., m, k] and [batch..., k, n] for each index of the leading dims."""

    of: Pair
    transpose_a: Annotated[bool, Field(description='the first is [batch..., k, m]')] = False
    transpose_b: Annotated[bool, Field(description='the second is [batch..., n, k]')] = False
    strategy: Annotated[
        Strategy,
        Field(
            max_length=2,
            description='slices of both, e.g. [[2, 4, 1, 1], [2, 4, 1, 1]]; empty: as the first lies',
        ),
    ] = ()
    layout: Layouts = ()
    recompute: Recomputed = False
    name: Name = ''


@dataclass(frozen=True, slots=True, kw_only=True)
class Reshape:
    """The same elements in another shape; lies as its input does, as far as that can be."""

    shape: Annotated[
        tuple[Annotated[int, Field(ge=-1, le=2**24)], ...],
        Field(
            min_length=2,
            max_length=8,
            examples=[[-1, 128, 8, 64]],
            description='of its result; dim 0 is -1 and follows from the others',
        ),
    ]
    of: Of = ''
    name: Name = ''


@dataclass(frozen=True, slots=True, kw_only=True)
class Transpose:
    """Dims in another order, dim 0 as it was."""

    permutation: Annotated[
        tuple[Annotated[int, Field(ge=0, le=7)], ...],
        Field(min_length=2, max_length=8, examples=[[0, 2, 1, 3]], description='which dim each dim of its result is'),
    ]
    strategy: One = ()
    layout: Layouts = ()
    recompute: Recomputed = False
    of: Of = ''
    name: Name = ''


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """Rows of a weight [vocab, width] by the tokens of a sample; the first layer."""

    vocab: Annotated[Width, Field(description='tokens in the vocabulary')]
    width: Annotated[Width, Field(description='features of a token')]
    strategy: Annotated[
        Strategy,
        Field(max_length=2, description='slices of the weight and of the tokens, e.g. [[4, 1], [1, 1]]; empty: none'),
    ] = ()
    layout: Layouts = ()
    recompute: Recomputed = False
    name: Name = ''


Operator = Dense | Relu | Flatten | Gelu | Mul | Add | LayerNorm | Softmax | MatMul | Transpose | Embedding
"""Layers that take a strategy."""
AnyLayer = Operator | Reshape
KINDS: Final[dict[str, type[AnyLayer]]] = {
    'flatten': Flatten,
    'dense': Dense,
    'relu': Relu,
    'gelu': Gelu,
    'mul': Mul,
    'add': Add,
    'layer_norm': LayerNorm,
    'softmax': Softmax,
    'matmul': MatMul,
    'reshape': Reshape,
    'transpose': Transpose,
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
