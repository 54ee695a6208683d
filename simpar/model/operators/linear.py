"""Products of a value with a weight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd, prod
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from simpar.layout import Rule, TensorLayout, operators, size_of
from simpar.model.keys import Aliases, SplitCounts, Strategy, Width
from simpar.model.operators.base import MisfitError, Step, Unary, Weighted, operator, shown
from simpar.model.operators.pointwise import Arithmetic
from simpar.model.ops import Local, Ops, Parameter, Work
from simpar.model.primitive import BOTH, Call, Main, Primitive, Shape, ShardCounts, Use, dim_names
from simpar.model.primitive import Strategy as ShardStrategy


class MatrixProduct(Primitive):
    """x [rows, inputs] · weight, either of them transposed."""

    weighs_work = True
    scatters = True
    main = BOTH
    halved = 'product'

    def axes(self, name: str, call: Call, shapes: tuple[Shape, ...], output: Shape) -> Rule:
        """m, k, n."""
        x, weight = shapes
        return operators.matmul(name, x, weight, transpose_a=call.transpose_a, transpose_b=call.transpose_b)

    def main_strategy(self, use: Use, main: Main) -> ShardStrategy:
        """Its operands as they lie, the transposed one turned."""
        first, second = main.first[2:], main.second[2:]
        return (first[::-1] if use.call.transpose_a else first, second[::-1] if use.call.transpose_b else second)


class BiasAddition(Arithmetic):
    """A bias along dim 1."""

    def axes(self, name: str, call: Call, shapes: tuple[Shape, ...], output: Shape) -> Rule:
        """d0, d1, ...; the bias has d1."""
        names = dim_names(output)
        return Rule(name, (names, names[1:2]), names, shapes, output, names, {})

    def strategy(self, use: Use, shards: ShardCounts) -> ShardStrategy:
        """The bias as dim 1."""
        return shards, shards[1:2]


class RowProduct(MatrixProduct):
    """The same of rows of any rank; outputs and inputs may be made of parts, as heads, not split."""

    def axes(self, name: str, call: Call, shapes: tuple[Shape, ...], output: Shape) -> Rule:
        """b0, ..., m, k, n."""
        x, (inputs, outputs) = shapes
        return product_axes(name, x, (outputs,), (inputs,))

    def as_seen(self, shape: Shape) -> Shape:
        """All rows in one dim."""
        return (prod(shape[:-1]), shape[-1])

    def main_output(self, use: Use, main: Main, rank: int) -> ShardCounts:
        """Rows of samples first."""
        return (*_rows(main.output[2], use.output), main.output[3])

    def main_strategy(self, use: Use, main: Main) -> ShardStrategy:
        """Rows of samples first."""
        return (*_rows(main.first[2], use.shapes[0]), main.first[3]), main.second[2:]


def _rows(shards: int, shape: Shape) -> ShardCounts:
    """Slices of all rows, dealt to the dims before the last, the first first."""
    found = []
    for length in shape[:-1]:
        # A dim takes as many slices as divide it; the next one takes what is left.
        found.append(gcd(shards, length))
        shards //= found[-1]
    return tuple(found)


MAT_MUL, ROW_PRODUCT = MatrixProduct('MatMul', 'matrix'), RowProduct('RowMatMul', 'matrix')
BIAS_ADD = BiasAddition('BiasAdd')


class Biased(Weighted, Unary):
    """A product of a weight [outputs, ...], and a bias for each output if there is one."""

    if TYPE_CHECKING:  # keys, in the words of each product
        outputs: int
        bias: bool

    def weight(self) -> Shape:
        """Shape of its weight."""
        raise NotImplementedError

    def parameters(self, result: Shape) -> tuple[Parameter, ...]:
        """Weight and bias."""
        bias = Parameter('bias', (self.outputs,), 'zeros')
        return (Parameter('weight', self.weight()), *((bias,) if self.bias else ()))

    def steps(self, reads: tuple[str, ...], result: Shape) -> Iterator[Step]:
        """The product and BiasAdd."""
        product, add = self.primitives.values()
        weight, *biases = self.parameters(result)
        yield Step(primitive=product, reads=(*reads, weight), shape=result, call=self.call(result))
        # It reads what the product gives, so its first name is empty.
        for bias in biases:
            yield Step(primitive=add, reads=('', bias), shape=result, part='bias_add')


@operator
class Dense(Biased):
    """y = x · weightᵀ + bias."""

    key = 'dense'
    primitives = {'matmul': MAT_MUL, 'bias': BIAS_ADD}
    inputs_told = 'x [rows, in], weight [in, out]'
    splits_result = 2

    inputs: Annotated[Width, Field(alias='in', description='features of a sample')]
    outputs: Annotated[Width, Field(alias='out', description='features of its result')]
    bias: Annotated[bool, Field(description='adds a bias')] = True
    strategy: Annotated[
        Strategy,
        Field(
            max_length=2, description='slices of x [batch, in] and weight [in, out], as [[2, 4], [4, 1]]; empty: none'
        ),
    ] = ()
    out_strategy: Annotated[
        SplitCounts,
        Field(max_length=2, description='slices of its result, where the sum over ranks is scattered; empty: not'),
    ] = ()
    out_layout: Annotated[
        Aliases, Field(max_length=2, description='in place of out_strategy: the axes that split each dim of its result')
    ] = ()

    def result_shape(self, samples: int, *reads: Shape) -> Shape:
        """Rows of outputs."""
        (x,) = reads
        if len(x) != 2:
            what = f'reads values of {shown(x)} a sample, but a dense layer takes rows of features'
            raise MisfitError('', what, f'put - reshape: {{shape: [-1, {x[-1]}]}} before it')
        if self.inputs != x[1]:
            raise MisfitError('in', f'{self.inputs} features, but what it reads has {x[1]}', f'write {x[1]}')
        return (x[0], self.outputs)

    def axes(self, name: str, *reads: Shape) -> Rule:
        """m, k, n of x and the weight [in, out]."""
        (x,) = reads
        return operators.matmul(name, x, (self.inputs, self.outputs))

    def weight(self) -> Shape:
        """As programs hold it."""
        return (self.outputs, self.inputs)

    def call(self, result: Shape) -> Call:
        """The weight is transposed."""
        # As nn.Dense has it in MindSpore: the weight is [out, in].
        return Call(transpose_b=True)

    def ops(self, local: Local) -> Ops:
        """Three products."""
        return product_ops(local, self.parameters(local.shape('y')))


@operator
class Linear(Dense):
    """``dense`` by the name that torch and Megatron have for it."""

    key = 'linear'


@operator
class Product(Weighted, Unary):
    """Rows [..., inputs] · weight, whose outputs and inputs may have several dims.

    Arguments:
        bias: added behind the product; a product that sums over ranks leaves it to the next operator.
        weight: name of a weight that another operator has, too (tied).
        split: by degrees, ``outputs``, its inputs where these are split already, or ``inputs`` alone.
        gathers: where it is not split, it takes all rows, as what reads it needs them.
        what: the note of what stays full where a degree does not divide; empty: none.
    """

    key = 'product'
    written = False
    primitives = {'matmul': ROW_PRODUCT, 'bias': BIAS_ADD}
    inputs_told = 'x [..., in], weight [in, out]'
    splits_result = 2

    outputs: Shape
    inputs: Shape
    bias: bool = True
    weight: str = ''
    out_strategy: SplitCounts = ()
    out_layout: Aliases = ()
    split: str = 'outputs'
    gathers: bool = False
    what: str = ''

    def steps(self, reads: tuple[str, ...], result: Shape) -> Iterator[Step]:
        """The product; its bias lies as it does."""
        weight = Parameter('weight', (prod(self.inputs), prod(self.outputs)))
        yield Step(primitive=ROW_PRODUCT, reads=(*reads, weight), shape=result)

    @property
    def tied(self) -> str:
        """Its weight, if that has a name of its own."""
        return self.weight

    @property
    def has_own(self) -> bool:
        """Not where its only parameter is tied."""
        return self.bias or not self.weight

    def result_shape(self, samples: int, *reads: Shape) -> Shape:
        """Rows of all outputs."""
        return (*reads[0][:-1], prod(self.outputs))

    def axes(self, name: str, *reads: Shape) -> Rule:
        """Rows, inputs k and outputs n."""
        return product_axes(name, reads[0], self.outputs, self.inputs)

    def parameters(self, result: Shape) -> tuple[Parameter, ...]:
        """Weight and bias."""
        # [outputs, inputs], as dense layers have it, so that a tied head and embedding share [vocab, hidden].
        weight = Parameter(f'={self.weight}' if self.weight else 'weight', (*self.outputs, *self.inputs))
        return (weight, *((Parameter('bias', self.outputs, 'zeros'),) if self.bias else ()))

    def ops(self, local: Local) -> Ops:
        """Three products."""
        return product_ops(local, self.parameters(local.shape('y')), len(self.outputs))


def product_axes(name: str, x: Shape, outputs: Shape, inputs: Shape) -> Rule:
    """x [..., k] · weight [k, n] → [..., n]; the first output dim and the first input dim of a weight can be split."""
    rows = (*(f'b{index}' for index in range(len(x) - 2)), 'm')
    order = (*rows, 'k', 'n')
    result = (*x[:-1], prod(outputs))
    # A split must not run through a head: only the first dim of each side is dealt out.
    units = {'n': outputs[0], 'k': inputs[0]}
    return Rule(name, ((*rows, 'k'), ('k', 'n')), (*rows, 'n'), (x, (prod(inputs), prod(outputs))), result, order,
                    {}, units)  # fmt: skip


def product_ops(local: Local, parameters: Sequence[Parameter], outputs: int = 1) -> Ops:
    """2·m·n·k floating-point operations in each phase.

    Arguments: ``parameters``, the weight and, if there is one, the bias, added where nothing is left to be summed;
    ``outputs``, how many of the weight's dims are outputs.
    """
    weight, *biases = parameters
    in_axes, out_axes = local.inputs[1].dims
    of_outputs = (out_axes, *((),) * (outputs - 1))
    of_inputs = (in_axes, *((),) * (len(weight.shape) - outputs - 1))
    layout, of_bias = (TensorLayout(local.world, dims) for dims in ((*of_outputs, *of_inputs), of_outputs))
    # Added before the sum, a bias would count once for every rank.
    added = [] if local.layout('y').partial else biases
    placed = (weight.on(layout), *(bias.on(of_bias) for bias in added))
    n, k = prod(weight.shape[:outputs]) // size_of(out_axes), prod(weight.shape[outputs:]) // size_of(in_axes)
    m = local.elements('x') // k
    flops, told = 2.0 * m * n * k, {'outputs': outputs}
    return Ops(
        F=Work(operator='matmul', reads=('x', *(one.role for one in placed)), writes=('y',), flops=flops,
               dims={'m': m, 'n': n, 'k': k}, attributes=told),
        I={'x': Work(operator='matmul', reads=('dy', weight.role), flops=flops,
                     dims={'m': m, 'n': k, 'k': n}, attributes=told)},
        W=Work(operator='matmul', reads=('dy', 'x'), flops=flops, dims={'m': n, 'n': k, 'k': m}, attributes=told),
        parameters=placed,
    )  # fmt: skip
