"""The model: operators with all that is known of each, and networks of them.

Layers stand in order. Each reads the one before it, or those that it names; ``x`` is the network's input. Dim 0 of
every value counts samples, or what samples are split into (a reshape of 8 samples of 128 tokens to 1024 rows).
"""

from simpar.model.graph import INPUT, Layer, Network, Shapes, layer_names, network_shapes, reads_of, shapes_of
from simpar.model.keys import Deviation, SplitCounts, Strategy
from simpar.model.operators import KINDS, OPERATORS
from simpar.model.operators.base import Operator, Sharded, Trained, Weighted
from simpar.model.operators.linear import Conv2d, Dense, Embedding, MatMul
from simpar.model.operators.norm import LayerNorm, RmsNorm, Softmax
from simpar.model.operators.pointwise import Add, Gelu, Mul, Multiply, Relu, Silu, SquaredRelu
from simpar.model.operators.shape import Flatten, Reduce, Reshape, Transpose
from simpar.model.primitive import Shape
