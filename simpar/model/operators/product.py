"""Products of two values."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simpar.layout import Rule, operators
from simpar.model.keys import Strategy
from simpar.model.operators.base import Binary, MisfitError, Sharded, operator, shown
from simpar.model.ops import Local, Ops, Work
from simpar.model.primitive import Call, Primitive, Shape, ShardCounts, Use
from simpar.model.primitive import Strategy as ShardStrategy


class BatchProduct(Primitive):
    """A product for each index of the leading dims."""

    weighs_work = True

    def axes(self, name: str, call: Call, shapes: tuple[Shape, ...], output: Shape) -> Rule:
        """b0, ..., m, k, n."""
        a, b = shapes
        return operators.batch_matmul(name, a, b, transpose_a=call.transpose_a, transpose_b=call.transpose_b)

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


BATCH_MAT_MUL = BatchProduct('BatchMatMul', 'matrix', same_backward=True)


@operator
class MatMul(Sharded, Binary):
    """The product of two results [batch..., m, k] and [batch..., k, n] for each index of the leading dims."""

    key = 'matmul'
    primitives = {'batch_matmul': BATCH_MAT_MUL}
    inputs_told = 'a [batch..., m, k], b [batch..., k, n] (or transposed)'
    roles = ('a', 'b')

    transpose_a: Annotated[bool, Field(description='the first is [batch..., k, m]')] = False
    transpose_b: Annotated[bool, Field(description='the second is [batch..., n, k]')] = False
    strategy: Annotated[
        Strategy,
        Field(
            max_length=2,
            description='slices of both, e.g. [[2, 4, 1, 1], [2, 4, 1, 1]]; empty: as the first lies',
        ),
    ] = ()

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
    return Work(operator='batch_matmul', reads=(one[0], other[0]), writes=('y',) if result == 'y' else (),
                flops=2.0 * local.elements(result) * k, dims={'m': local.elements(result) // n, 'n': n, 'k': k},
                attributes={'transpose_a': one[1], 'transpose_b': other[1]}, suffix=suffix)  # fmt: skip
