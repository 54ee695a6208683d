"""Products with weights: embeddings, linear layers, convolutions, and products of two values."""

from collections.abc import Iterator, Sequence
from math import gcd, prod
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from simpar.layout import Rule, TensorLayout, operators, size_of
from simpar.model.keys import Aliases, SplitCounts, Width
from simpar.model.operators.base import Binary, MisfitError, Sharded, Step, Unary, Weighted, operator, shown
from simpar.model.operators.pointwise import Arithmetic
from simpar.model.ops import Attributes, Local, Ops, Parameter, Work, given, slice_text
from simpar.model.primitive import BOTH, Call, Main, Primitive, Shape, ShardCounts, Use, dim_names
from simpar.model.primitive import Strategy as ShardStrategy

# Rows of a table by integers.


class Gathered(Primitive):
    """Rows of its first input by its second: a split of the rows leaves zeros to be summed."""

    weighs_work = True

    def axes(self, name: str, call: Call, shapes: tuple[Shape, ...], output: Shape) -> Rule:
        """v, h, i0, i1, ..."""
        weight, indices = shapes
        return operators.embedding(name, weight, indices)


@operator
class Embedding(Weighted):
    """Rows of a weight [vocab, width] by the tokens of a sample; the first layer."""

    key = 'embedding'
    primitives = {'embedding': Gathered('Gather', stops=True)}
    lead = 1
    roles = ('tokens',)

    vocab: Width
    width: Width

    def result_shape(self, samples: int, *reads: Shape) -> Shape:
        """A row for each token."""
        return (*reads[0], self.width)

    def parameters(self, result: Shape) -> tuple[Parameter, ...]:
        """The weight, which its strategy has before the tokens."""
        return (Parameter('weight', (self.vocab, self.width)),)

    def ops(self, local: Local) -> Ops:
        """Rows of a weight; where it is split by rows, zeros for the tokens of others."""
        (weight,) = self.parameters(local.shape('y'))
        layout = local.inputs[0]
        # Only a kernel whose rows are split must know which of them it has.
        attributes = given(partition=local.partition(layout, 0))
        # Rows are read and written once; the backward reads the sum that it adds to besides.
        moved = 2.0 * local.size('y') + local.size('tokens')
        return Ops(
            F=Work('embedding', ('tokens', weight.role), ('y',), moved=moved, attributes=attributes),
            W=Work('embedding', ('tokens', 'dy'), moved=1.5 * moved, flops=local.elements('y'), attributes=attributes),
            parameters=(weight.on(layout),),
        )  # fmt: skip


@operator
class TiedEmbedding(Embedding):
    """Rows of a table that another operator has, too.

    Arguments: ``weight``, the name of the table.
    """

    key = 'tied_embedding'

    weight: str = ''

    @property
    def has_own(self) -> bool:
        """The table is another operator's."""
        return False

    def parameters(self, result: Shape) -> tuple[Parameter, ...]:
        """The table."""
        return (Parameter(f'={self.weight}', (self.vocab, self.width)),)


# Products of a value with a weight.


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
    counts = []
    for length in shape[:-1]:
        # A dim takes as many slices as divide it; the next one takes what is left.
        counts.append(gcd(shards, length))
        shards //= counts[-1]
    return tuple(counts)


ROW_PRODUCT = RowProduct('RowMatMul', 'matrix')
BIAS_ADD = BiasAddition('BiasAdd')


class Biased(Weighted, Unary):
    """A product of a weight [outputs, ...], and a bias for each output if there is one."""

    if TYPE_CHECKING:  # keys, in the words of each product
        inputs: int
        outputs: int
        bias: bool

    def weight(self) -> Shape:
        """Shape of its weight."""
        raise NotImplementedError

    def check(self, x: Shape, rank: int, takes: str, dims: str, counted: str) -> None:
        """Raise ``MisfitError`` where what it reads has another rank, or another count of inputs in dim 1."""
        if len(x) != rank:
            what, remedy = f'reads values of {shown(x)} a sample, but {takes}', f'reshape: {{shape: [-1, {dims}]}}'
            raise MisfitError('', what, f'put - {remedy} before it')
        if self.inputs != x[1]:
            raise MisfitError('in', f'{self.inputs} {counted}, but what it reads has {x[1]}', f'write {x[1]}')

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
    primitives = {'matmul': MatrixProduct('MatMul', 'matrix'), 'bias': BIAS_ADD}
    splits_result = 2

    inputs: Annotated[Width, Field(alias='in')]
    outputs: Annotated[Width, Field(alias='out')]
    bias: bool = True
    out_strategy: SplitCounts = ()
    out_layout: Aliases = ()

    def result_shape(self, samples: int, *reads: Shape) -> Shape:
        """Rows of outputs."""
        (x,) = reads
        self.check(x, 2, 'a dense layer takes rows of features', str(x[-1]), 'features')
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
        split: by degrees, ``outputs``, its inputs where these are split already, or ``inputs`` alone; ``rejoined``:
            as outputs, and its result lies as the residual stream does (Megatron-LM's ``eh_proj``).
        gathers: where it is not split, it takes all rows, as what reads it needs them.
        what: the note of what stays full where a degree does not divide; empty: none.
    """

    key = 'product'
    primitives = {'matmul': ROW_PRODUCT, 'bias': BIAS_ADD}
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
    flops, attributes = 2.0 * m * n * k, {'outputs': outputs}
    return Ops(
        F=Work('matmul', ('x', *(one.role for one in placed)), ('y',), flops=flops,
               dims={'m': m, 'n': n, 'k': k}, attributes=attributes),
        I={'x': Work('matmul', ('dy', weight.role), flops=flops, dims={'m': m, 'n': k, 'k': n}, attributes=attributes)},
        W=Work('matmul', ('dy', 'x'), flops=flops, dims={'m': n, 'n': k, 'k': m}, attributes=attributes),
        parameters=placed,
    )  # fmt: skip


# Convolutions of images.


class Convolution(Primitive):
    """Split by batch alone."""

    weighs_work = True
    main = BOTH
    halved = 'batch'

    def axes(self, name: str, call: Call, shapes: tuple[Shape, ...], output: Shape) -> Rule:
        """n, c, h, w; o, c, kh, kw."""
        x, weight = shapes
        return operators.conv2d(name, x, weight, output)


@operator
class Conv2d(Biased):
    """A convolution of images [batch, channels, height, width] with a square kernel, and a bias."""

    key = 'conv2d'
    primitives = {'conv2d': Convolution('Conv2D', 'matrix'), 'bias': BIAS_ADD}

    inputs: Annotated[Width, Field(alias='in')]
    outputs: Annotated[Width, Field(alias='out')]
    kernel: int
    stride: int = 1
    padding: int = 0
    bias: bool = True

    def weight(self) -> Shape:
        """One kernel for each pair of channels."""
        return (self.outputs, self.inputs, self.kernel, self.kernel)

    def result_shape(self, samples: int, *reads: Shape) -> Shape:
        """Images of other channels, height and width."""
        (x,) = reads
        takes = 'a convolution takes images [channels, height, width]'
        self.check(x, 4, takes, f'{self.inputs}, height, width', 'channels')
        most = min(x[2:]) + 2 * self.padding
        if self.kernel > most:
            what = f'{self.kernel} is larger than an image of {x[2]} × {x[3]} with a padding of {self.padding}'
            raise MisfitError('kernel', what, f'write at most {most}')
        # Windows that would reach over the padded edge are left out, as in torch.
        height, width = (1 + (length + 2 * self.padding - self.kernel) // self.stride for length in x[2:])
        return (x[0], self.outputs, height, width)

    def ops(self, local: Local) -> Ops:
        """A product of windows with the full weight, whose dims it has."""
        weight, *biases = self.parameters(local.shape('y'))
        # The weight is full: channels are not split.
        parameters = (weight.on(local.inputs[1]), *biases)
        attributes: Attributes = {'stride': self.stride, 'padding': self.padding}
        n, k = self.outputs, prod(self.weight()[1:])
        m = local.elements('y') // n
        flops = 2.0 * m * n * k
        return Ops(
            F=Work('conv2d', ('x', *(p.role for p in parameters)), ('y',), flops=flops,
                   dims={'m': m, 'n': n, 'k': k}, attributes=attributes),
            I={'x': Work('conv2d', ('dy', 'weight'), flops=flops, dims={'m': m, 'n': k, 'k': n},
                         attributes={**attributes, 'shape': slice_text(local, 'x')})},
            W=Work('conv2d', ('dy', 'x'), flops=flops, dims={'m': n, 'n': k, 'k': m},
                   attributes={**attributes, 'kernel': self.kernel}),
            parameters=parameters,
        )  # fmt: skip


# Products of two values.


class BatchProduct(Primitive):
    """A product for each index of the leading dims."""

    weighs_work = True

    def axes(self, name: str, call: Call, shapes: tuple[Shape, ...], output: Shape) -> Rule:
        """b0, ..., m, k, n."""
        a, b = shapes
        return operators.matmul(name, a, b, transpose_a=call.transpose_a, transpose_b=call.transpose_b)

    def output_shards(self, use: Use, strategy: ShardStrategy) -> ShardCounts:
        """As the first operand; in 2.0 its columns as the second's."""
        first = super().output_shards(use, strategy)
        columns = -2 if use.call.transpose_b else -1
        # 2.0 reads columns off the second operand; 2.10 does not, and so may lose a split of them.
        return first if use.compat == '2.10' else (*first[:-1], strategy[1][columns])

    def strategy(self, use: Use, shards: ShardCounts) -> ShardStrategy:
        """From the shards of its output; the contracted axis stays full."""
        *lead, i, j = shards
        first = (*lead, 1, i) if use.call.transpose_a else (*lead, i, 1)
        second = (*lead, j, 1) if use.call.transpose_b else (*lead, 1, j)
        return first, second


@operator
class MatMul(Sharded, Binary):
    """The product of two results [batch..., m, k] and [batch..., k, n] for each index of the leading dims."""

    key = 'matmul'
    primitives = {'batch_matmul': BatchProduct('BatchMatMul', 'matrix', same_backward=True)}
    roles = ('a', 'b')

    transpose_a: bool = False
    transpose_b: bool = False

    def result_shape(self, samples: int, *reads: Shape) -> Shape:
        """[batch..., m, n]."""
        a, b = reads
        if len(a) < 3 or len(a) != len(b) or a[:-2] != b[:-2]:
            what = f'multiplies values of {shown(a)} and {shown(b)} a sample'
            remedy = 'name two of [batch..., m, k] and [batch..., k, n] with the same leading dims'
            raise MisfitError('of', what, remedy)
        m, k = a[-2:][::-1] if self.transpose_a else a[-2:]
        inner, n = b[-2:][::-1] if self.transpose_b else b[-2:]
        if k != inner:
            what = f'multiplies matrices [{m}, {k}] and [{inner}, {n}]'
            raise MisfitError('of', what, 'name two that fit, or write transpose_a or transpose_b: true')
        return (*a[:-2], m, n)

    def call(self, result: Shape) -> Call:
        """Which operands are transposed."""
        return Call(transpose_a=self.transpose_a, transpose_b=self.transpose_b)

    def ops(self, local: Local) -> Ops:
        """a · b for each index of the leading dims; the gradient of one is a product with the other."""
        a, b, dy = ('a', self.transpose_a), ('b', self.transpose_b), ('dy', False)
        # dA = dY · Bᵀ, or for a transposed A its transpose, B · dYᵀ, so that no gradient is transposed apart.
        left = (b, _turned(dy)) if self.transpose_a else (dy, _turned(b))
        right = (_turned(dy), a) if self.transpose_b else (_turned(a), dy)
        return Ops(
            F=_work(local, a, b, 'y'),
            I={'a': _work(local, *left, 'a', '.left'), 'b': _work(local, *right, 'b', '.right')},
        )


Factor = tuple[str, bool]
"""A role, and whether its last two dims are swapped."""


def _turned(factor: Factor) -> Factor:
    return factor[0], not factor[1]


def _work(local: Local, one: Factor, other: Factor, result: str, suffix: str = '') -> Work:
    """2·m·n·k floating-point operations for each index of the leading dims."""
    rows = local.slice_shape('y' if one[0] == 'dy' else one[0])
    n, k = local.slice_shape(result)[-1], rows[-2 if one[1] else -1]
    return Work('batch_matmul', (one[0], other[0]), ('y',) if result == 'y' else (),
                flops=2.0 * local.elements(result) * k, dims={'m': local.elements(result) // n, 'n': n, 'k': k},
                attributes={'transpose_a': one[1], 'transpose_b': other[1]}, suffix=suffix)  # fmt: skip
