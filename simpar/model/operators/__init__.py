"""The registry of operators: one row each. All else that knows operators by kind is made from it."""

from typing import Final

from simpar.model.operators import attention, experts, linear, loss, norm, pointwise, shape, stream, torch_call
from simpar.model.operators.base import Operator
from simpar.model.primitive import Pricing, Primitive

OPERATORS: Final[tuple[type[Operator], ...]] = (
    shape.Flatten,
    linear.Linear,
    linear.Dense,
    pointwise.Relu,
    pointwise.Gelu,
    pointwise.Silu,
    pointwise.SquaredRelu,
    pointwise.Mul,
    pointwise.Scale,
    pointwise.Add,
    pointwise.Multiply,
    norm.LayerNorm,
    norm.RmsNorm,
    norm.Softmax,
    linear.MatMul,
    shape.Reduce,
    shape.ReduceSum,
    shape.Reshape,
    shape.Transpose,
    linear.Conv2d,
    linear.Embedding,
)
"""Those that files write, in the order of the docs."""
OF_LIBRARY: Final[tuple[type[Operator], ...]] = (
    linear.Product,
    linear.TiedEmbedding,
    shape.Concat,
    attention.Attention,
    attention.SinkAttention,
    attention.AttentionScores,
    attention.Alibi,
    norm.GainNorm,
    attention.CausalSoftmax,
    attention.AttentionValues,
    stream.Position,
    stream.Dropout,
    stream.Residual,
    stream.Bias,
    attention.Rotary,
    attention.QkNorm,
    attention.LatentNorm,
    attention.LastFeatures,
    attention.LatentQkv,
    pointwise.SwiGlu,
    pointwise.GeGlu,
    pointwise.GeGluTanh,
    pointwise.GeluTanh,
    pointwise.Softcap,
    experts.Route,
    experts.Balance,
    experts.AuxLoss,
    experts.Dispatch,
    experts.GroupedProduct,
    experts.Combine,
    experts.SigmoidGate,
    torch_call.TorchCall,
    torch_call.ModuleLinear,
    torch_call.ModuleEmbedding,
)
"""Those that models of the library alone have."""
KINDS: Final = {kind.key: kind for kind in OPERATORS}
"""By key of a file."""
OP_CLASSES: Final[dict[str, Primitive]] = {
    name: primitive for kind in (*OF_LIBRARY, *OPERATORS) for name, primitive in kind.primitives.items()
} | attention.OF_CONTEXT  # fmt: skip
"""By the operator of an op class in the forward, what it is to MindSpore."""
PRIMITIVES: Final = {
    one.name: one for kind in (*OPERATORS, *OF_LIBRARY) for one in kind.primitives.values()
} | {one.name: one for one in (*loss.OF_LOSSES, *attention.OF_CONTEXT.values())}  # fmt: skip
"""By MindSpore's name."""


def priced(pricing: Pricing) -> frozenset[str]:
    """The operators of op classes that something bounds."""
    return frozenset(name for name, primitive in OP_CLASSES.items() if primitive.pricing == pricing)
