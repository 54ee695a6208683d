"""Operators that normalise the last dim."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

from pydantic import Field

from simpar.layout import Rule, TensorLayout, operators
from simpar.model.operators.base import SameShape, Sharded, Trained, Unary, operator
from simpar.model.ops import Attributes, Kept, Local, Ops, Parameter, Work, unary
from simpar.model.primitive import Call, Compat, Main, Primitive, Shape, ShardCounts, Use, divisible
from simpar.model.primitive import Strategy as ShardStrategy

EPSILON: Final = 1e-5
"""Added to the mean of squares, unless told otherwise."""
Epsilon = Annotated[float, Field(gt=0, le=1, description='added to the mean of squares')]


@dataclass(frozen=True)
class Normalised(Primitive):
    """LayerNorm."""

    main: ClassVar[frozenset[Compat]] = frozenset(('2.0',))

    def axes(self, name: str, call: Call, shapes: tuple[Shape, ...], output: Shape) -> Rule:
        """d0, d1, ..., the last full."""
        return operators.normalised(name, shapes[0], parameters=2)

    def strategy(self, use: Use, shards: ShardCounts) -> ShardStrategy:
        """The last dim full."""
        return (*shards[:-1], 1), (1,), (1,)

    def main_strategy(self, use: Use, main: Main) -> ShardStrategy:
        """The last dim full."""
        x, *others = super().main_strategy(use, main)
        return ((*x[:-1], 1), *others)


class RmsNormalised(Primitive):
    """RmsNorm."""

    def axes(self, name: str, call: Call, shapes: tuple[Shape, ...], output: Shape) -> Rule:
        """d0, d1, ..., the last full."""
        return operators.normalised(name, shapes[0], parameters=1)

    def strategy(self, use: Use, shards: ShardCounts) -> ShardStrategy:
        """Rows over all devices, whatever its neighbours do."""
        # At most one rank for each row.
        return (min(use.devices, use.shapes[0][0]), *(1,) * (len(use.shapes[0]) - 1)), (1,)


class SoftmaxOver(Primitive):
    """Softmax over the axes of its call."""

    def axes(self, name: str, call: Call, shapes: tuple[Shape, ...], output: Shape) -> Rule:
        """d0, d1, ...; those that it is over stay full."""
        return operators.normalised(name, shapes[0], call.axes)

    def strategy(self, use: Use, shards: ShardCounts) -> ShardStrategy:
        """The dims that it is over stay full."""
        counts = tuple(1 if dim in use.call.axes else count for dim, count in enumerate(shards))
        return (divisible(counts, use.shapes[0]),)


SOFTMAX = SoftmaxOver('Softmax')


class Norm(SameShape, Trained, Unary):
    """Normalises the last dim, which is full."""

    operator: ClassVar[str]
    """Of its op classes."""
    kept: ClassVar[tuple[str, ...]]
    """Of each row, what the backward reads."""
    flops: ClassVar[tuple[int, int, int]]
    """Operations an element of F, I and W."""

    if TYPE_CHECKING:  # a key of each norm
        epsilon: float

    def parameters(self, result: Shape) -> tuple[Parameter, ...]:
        """Gain."""
        return (Parameter('gain', result[-1:], 'ones'),)

    def ops(self, local: Local) -> Ops:
        """A sum of squares and a scale forward; the backward reads x and what is kept of each row."""
        attributes: Attributes = {'epsilon': self.epsilon}
        kind, statistics, parameters = self.operator, self.kept, self.parameters(local.shape('y'))
        # One number a row lies as the rows do: the last dim is normalised over, so no rank has a part of it.
        column = TensorLayout(local.world, (*local.layout('x').dims[:-1], ()))
        # Counts of operations are rough: a norm is bound by bytes, so they hardly tell in time.
        forward, inputs, weights = (count * local.elements('x') for count in self.flops)
        read = ('x', *(parameter.role for parameter in parameters))
        return Ops(
            F=Work(kind, read, ('y', *statistics), flops=forward, attributes=attributes),
            I={'x': Work(kind, ('dy', 'x', 'gain', *statistics), flops=inputs, attributes=attributes)},
            W=Work(kind, ('dy', 'x', *statistics), flops=weights, attributes=attributes),
            parameters=parameters,
            kept=tuple(Kept(role=name, shape=(*local.shape('x')[:-1], 1), layout=column) for name in statistics),
        )


@operator
class LayerNorm(Norm):
    """LayerNorm over the last dim, with gain and bias."""

    key = 'layer_norm'
    primitives = {'norm': Normalised('LayerNorm')}
    operator, kept, flops = 'norm', ('mean', 'rstd'), (8, 12, 4)

    epsilon: Epsilon = EPSILON

    def parameters(self, result: Shape) -> tuple[Parameter, ...]:
        """Gain and bias."""
        return Parameter('gain', result[-1:], 'ones'), Parameter('bias', result[-1:], 'zeros')


@operator
class GainNorm(Norm):
    """LayerNorm over the last dim with a gain alone (Cohere)."""

    key = 'gain_norm'
    primitives = {'gain_norm': RmsNormalised('GainNorm')}
    operator, kept, flops = 'gain_norm', ('mean', 'rstd'), (8, 12, 3)

    epsilon: float = EPSILON


@operator
class RmsNorm(Norm):
    """Division by the root mean square over the last dim, with a gain (Zhang and Sennrich 2019)."""

    key = 'rms_norm'
    primitives = {'rms_norm': RmsNormalised('RmsNorm')}
    operator, kept, flops = 'rms_norm', ('rstd',), (5, 9, 3)

    epsilon: Epsilon = EPSILON


@operator
class Softmax(SameShape, Sharded, Unary):
    """Softmax over the last dim."""

    key = 'softmax'
    primitives = {'softmax': SOFTMAX}

    def call(self, result: Shape) -> Call:
        """Over the last dim."""
        return Call(axes=(len(result) - 1,))

    def ops(self, local: Local) -> Ops:
        """About five operations an element forward, four backward, which reads y."""
        return unary(local, 'softmax', saves=('y',), flops=(5, 4), forward={'causal': False})
