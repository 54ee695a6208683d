"""Layers of a network: dense layers, activations, and the operators that transformers are made of.

Layers stand in order. Each reads the one before it, or those that it names; ``x`` is the network's input. Dim 0 of
every value counts samples, or what samples are cut into (a reshape of 8 samples of 128 tokens to 1024 rows).
"""

from simpar.layers.keys import Cuts, Deviation, Strategy
from simpar.layers.network import (
    INPUT,
    KINDS,
    AnyLayer,
    Layer,
    Network,
    Operator,
    Trained,
    Weighted,
    kind_of,
    layer_names,
    reads_of,
)
from simpar.layers.norm import LayerNorm, RmsNorm, Softmax
from simpar.layers.pointwise import Add, Gelu, Mul, Multiply, Relu, Silu
from simpar.layers.product import MatMul
from simpar.layers.reduction import Reduce
from simpar.layers.shape import Flatten, Reshape, Transpose
from simpar.layers.weighted import Conv2d, Dense, Embedding

__all__ = [
    'INPUT',
    'KINDS',
    'Add',
    'AnyLayer',
    'Conv2d',
    'Cuts',
    'Dense',
    'Deviation',
    'Embedding',
    'Flatten',
    'Gelu',
    'Layer',
    'LayerNorm',
    'MatMul',
    'Mul',
    'Multiply',
    'Network',
    'Operator',
    'Reduce',
    'Relu',
    'Reshape',
    'RmsNorm',
    'Silu',
    'Softmax',
    'Strategy',
    'Trained',
    'Transpose',
    'Weighted',
    'kind_of',
    'layer_names',
    'reads_of',
]
