"""Operators that work element by element, and gated units."""

from collections.abc import Iterator
from typing import ClassVar

from simpar.layout import Rule, operators
from simpar.model.keys import Of, Pair
from simpar.model.operators.base import Binary, MisfitError, Operator, SameShape, Sharded, Step, Unary, operator, shown
from simpar.model.ops import Local, Ops, Parameter, Work, unary
from simpar.model.primitive import Call, Primitive, Shape, ShardCounts, Use, dim_names, divisible
from simpar.model.primitive import Strategy as ShardStrategy

# Elementwise operators: of each place of their inputs one number, so that any split of dims is theirs too.


class Elementwise(Primitive):
    """Inputs of one shape, or broadcast to it."""

    def axes(self, name: str, call: Call, shapes: tuple[Shape, ...], output: Shape) -> Rule:
        """d0, d1, ..."""
        return operators.elementwise(name, *shapes)


class Arithmetic(Elementwise):
    """Double recursive search knows that its inputs may be broadcast."""

    def output_shards(self, use: Use, strategy: ShardStrategy) -> ShardCounts:
        """As the first input of the most dims."""
        # The operand of fewer dims is broadcast, so it does not tell all dims of the result.
        ranks = [len(shape) for shape in use.shapes]
        return strategy[ranks.index(max(ranks))]

    def strategy(self, use: Use, shards: ShardCounts) -> ShardStrategy:
        """The same from the last dim on, 1 where it does not divide."""
        alike = len(use.shapes[0]) == len(use.shapes[1])
        spread = super().strategy(use, shards) if alike else broadcast(shards, use.shapes)
        return tuple(map(divisible, spread, use.shapes))


def broadcast(shards: ShardCounts, shapes: tuple[Shape, ...]) -> ShardStrategy:
    """Right-aligned shards for inputs of different rank; all 1 where the shards are the smaller input's."""
    # The smaller input's shards do not tell how the other dims are split.
    if len(shards) != max(len(shape) for shape in shapes):
        return tuple((1,) * len(shape) for shape in shapes)
    return tuple(
        tuple(1 if size == 1 else count for size, count in zip(shape, shards[len(shards) - len(shape) :], strict=True))
        for shape in shapes
    )


ADD, MUL = Arithmetic('Add'), Arithmetic('Mul', same_backward=True)


@operator
class Relu(SameShape, Sharded, Unary):
    """y = max(x, 0)."""

    key = 'relu'
    primitives = {'relu': Elementwise('ReLU')}

    def ops(self, local: Local) -> Ops:
        """The backward reads y."""
        return unary(local, 'relu', saves=('y',), flops=(1, 1))


@operator
class Gelu(SameShape, Sharded, Unary):
    """y = x · Φ(x), the exact (erf) form."""

    key = 'gelu'
    primitives = {'gelu': Elementwise('GeLU')}

    def ops(self, local: Local) -> Ops:
        """About ten operations an element in both directions."""
        return unary(local, 'gelu', saves=('x',), flops=(10, 10))


@operator
class GeluTanh(SameShape, Sharded, Unary):
    """y = x / 2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))), the form of GPT-2 and Gemma."""

    key = 'gelu_tanh'
    primitives = {'gelu_tanh': Elementwise('GeLUTanh')}

    def ops(self, local: Local) -> Ops:
        """About ten operations an element in both directions."""
        return unary(local, 'gelu_tanh', saves=('x',), flops=(10, 10))


@operator
class Softcap(SameShape, Sharded, Unary):
    """y = cap · tanh(x / cap): no number is larger than the cap (Gemma 2)."""

    key = 'softcap'
    primitives = {'softcap': Elementwise('Softcap')}

    cap: float

    def ops(self, local: Local) -> Ops:
        """The backward reads y: dx = (1 − (y / cap)²) · dy."""
        attributes = {'cap': self.cap}
        return unary(local, 'softcap', saves=('y',), flops=(6, 4), forward=attributes, backward=attributes)


@operator
class SquaredRelu(SameShape, Sharded, Unary):
    """y = max(x, 0)² (So et al. 2021)."""

    key = 'squared_relu'
    primitives = {'squared_relu': Elementwise('SquaredReLU')}

    def ops(self, local: Local) -> Ops:
        """The backward reads x: dx = 2 · max(x, 0) · dy."""
        return unary(local, 'squared_relu', saves=('x',), flops=(2, 3))


@operator
class Silu(SameShape, Sharded, Unary):
    """y = x · σ(x), also called swish."""

    key = 'silu'
    primitives = {'silu': Elementwise('SiLU')}

    def ops(self, local: Local) -> Ops:
        """About five operations an element forward, eight backward."""
        return unary(local, 'silu', saves=('x',), flops=(5, 8))


class Alike(SameShape, Sharded, Binary):
    """Takes two results of one shape."""

    verb: ClassVar[str]
    roles = ('x', 'z')

    def result_shape(self, samples: int, *reads: Shape) -> Shape:
        """That of both."""
        one, other = reads
        if one != other:
            what = f'{self.verb} values of {shown(one)} and {shown(other)} a sample'
            raise MisfitError('of', what, 'name two layers whose results have one shape')
        return one


@operator
class Add(Alike):
    """The sum of two results of one shape."""

    key = 'add'
    primitives = {'residual': ADD}
    verb = 'adds'

    def ops(self, local: Local) -> Ops:
        """x + z; the gradient goes to both."""
        # None: the gradient of both is that of the sum itself, so the backward has no op.
        work = Work('residual', ('x', 'z'), ('y',), flops=local.elements('y'))
        return Ops(F=work, I={'x': None, 'z': None})


@operator
class Multiply(Alike):
    """The product, element by element, of two results of one shape; ``mul`` with two in ``of`` is the same."""

    key = 'multiply'
    primitives = {'multiply': MUL}
    verb = 'multiplies'

    def ops(self, local: Local) -> Ops:
        """x · z; the gradient of one is a product with the other."""
        elements = local.elements('y')
        return Ops(
            F=Work('multiply', ('x', 'z'), ('y',), flops=elements),
            I={
                'x': Work('multiply', ('dy', 'z'), flops=elements, suffix='.left'),
                'z': Work('multiply', ('dy', 'x'), flops=elements, suffix='.right'),
            },
        )


@operator
class Mul(SameShape, Sharded):
    """y = factor · x; of two results in ``of``, without a factor, their product: ``multiply``."""

    key = 'mul'
    primitives = {'mul': MUL}

    factor: float | None = None
    of: Of | Pair = ''

    def reads(self, before: str) -> tuple[str, ...]:
        """What ``of`` names, or the layer before it."""
        return self.of if isinstance(self.of, tuple) else (self.of or before,)

    def meant(self) -> Operator:
        """A product of two results where that is what it says."""
        if self.factor is not None or isinstance(self.of, str):
            return self
        return Multiply(of=self.of, strategy=self.strategy, layout=self.layout, pipeline_stage=self.pipeline_stage,
                        recompute=self.recompute, name=self.name)  # fmt: skip

    def result_shape(self, samples: int, *reads: Shape) -> Shape:
        """That of what it reads."""
        if self.factor is None:
            what = 'has neither a factor nor two layers in of'
            raise MisfitError('', what, 'write factor: 0.5, or of: [a, b] for a product of two')
        if len(reads) > 1:
            what = 'stands beside two layers in of: it scales one value, or multiplies two'
            raise MisfitError('factor', what, 'leave it out, or write one layer in of')
        if len(self.strategy) > 1:
            raise MisfitError('strategy', f'has {len(self.strategy)} parts, but one value is scaled', 'write one')
        return reads[0]

    def axes(self, name: str, *reads: Shape) -> Rule:
        """d0, d1, ... of the value alone."""
        return operators.elementwise(name, *reads)

    def ops(self, local: Local) -> Ops:
        """The factor is an attribute."""
        # A factor is told by now: without one, ``result_shape`` has refused it.
        attributes = {'factor': float(self.factor or 0)}
        return unary(local, 'mul', flops=(1, 1), forward=attributes, backward=attributes)

    def steps(self, reads: tuple[str, ...], result: Shape) -> Iterator[Step]:
        """Mul by a constant."""
        yield Step(primitive=MUL, reads=(*reads, Parameter('factor', trained=False)), shape=result)


@operator
class Scale(Mul):
    """y = factor · x: ``mul`` with a factor."""

    key = 'scale'


# Gated feed-forwards: what is left of a gate behind its activation, times the other half (Shazeer 2020).


class Gated(Sharded, Unary):
    """y = activation(gate) · up, of x whose features alternate: a gate, then what it lets through."""

    flops: ClassVar[tuple[int, int]]
    """Operations an element of the result, forward and backward."""

    def result_shape(self, samples: int, *reads: Shape) -> Shape:
        """Half of the features."""
        return (*reads[0][:-1], reads[0][-1] // 2)

    def axes(self, name: str, *reads: Shape) -> Rule:
        """Split along all dims; a gate and what it lets through stay together."""
        (x,) = reads
        names, result = dim_names(x), self.result_shape(0, x)
        return Rule(name, (names,), names, (x,), result, names, {}, {names[-1]: result[-1]})

    def ops(self, local: Local) -> Ops:
        """One op, as fused kernels do it; the backward reads x."""
        forward, backward = (count * local.elements('y') for count in self.flops)
        return Ops(
            F=Work(self.key, ('x',), ('y',), flops=forward),
            I={'x': Work(self.key, ('dy', 'x'), flops=backward)},
        )


@operator
class SwiGlu(Gated):
    """y = silu(gate) · up (Shazeer 2020)."""

    key = 'swiglu'
    primitives = {'swiglu': Elementwise('SwiGLU')}
    flops = (6, 12)


@operator
class GeGlu(Gated):
    """y = gelu(gate) · up, with the exact gelu."""

    key = 'geglu'
    primitives = {'geglu': Elementwise('GeGLU')}
    flops = (11, 14)


@operator
class GeGluTanh(Gated):
    """y = gelu_tanh(gate) · up, as Gemma has it."""

    key = 'geglu_tanh'
    primitives = {'geglu_tanh': Elementwise('GeGLUTanh')}
    flops = (11, 14)


GATED: tuple[type[Operator], ...] = (SwiGlu, GeGlu, GeGluTanh)
