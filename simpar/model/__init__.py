"""The model: operators with all that is known of each, and networks of them.

Layers stand in order. Each reads the one before it, or those that it names; ``x`` is the network's input. Dim 0 of
every value counts samples, or what samples are split into (a reshape of 8 samples of 128 tokens to 1024 rows).
"""

from simpar.model.graph import Layer, Network
from simpar.model.keys import Deviation, SplitCounts, Strategy
from simpar.model.operators import KINDS, OPERATORS
from simpar.model.operators.base import Operator, Sharded, Trained, Weighted
from simpar.model.operators.conv import Conv2d
from simpar.model.operators.embedding import Embedding
from simpar.model.operators.linear import Dense
from simpar.model.operators.norm import LayerNorm, RmsNorm, Softmax
from simpar.model.operators.pointwise import Add, Gelu, Mul, Multiply, Relu, Silu, SquaredRelu
from simpar.model.operators.product import MatMul
from simpar.model.operators.reduce import Reduce
from simpar.model.operators.shape import Flatten, Reshape, Transpose
from simpar.model.primitive import Shape
from simpar.model.shapes import INPUT, Shapes, layer_names, network_shapes, reads_of, shapes_of
