"""Sums and means."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Annotated

from pydantic import Field

from simpar.layout import Rule, operators
from simpar.model.operators.base import MisfitError, Sharded, Step, Unary, operator, shown
from simpar.model.ops import Local, Ops, Work, slice_text, text
from simpar.model.primitive import Call, Primitive, Shape, ShardCounts, Use
from simpar.model.primitive import Strategy as ShardStrategy
from simpar.program import Attribute


class Reduction(Primitive):
    """A reduction over the axes of its call; where one of them is split, partial results are summed."""

    def axes(self, name: str, call: Call, shapes: tuple[Shape, ...], output: Shape) -> Rule:
        """d0, d1, ..., its result without those that are reduced."""
        return operators.reduction(name, shapes[0], call.axes, keep=call.keep_dims)

    def output_shards(self, use: Use, strategy: ShardStrategy) -> ShardCounts:
        """As its input, without the axes that are gone."""
        first = super().output_shards(use, strategy)
        return first if use.call.keep_dims else without(first, use.call.axes)

    def input_shards(self, use: Use, wanted: ShardCounts) -> ShardCounts:
        """As its result is wanted; what is reduced stays full."""
        # Shards of the result are dealt out in order: only dims that stay, or are kept with length 1, take one.
        left = iter(wanted)
        shards = []
        for dim in range(len(use.shapes[0])):
            reduced = dim in use.call.axes
            count = next(left, 1) if not reduced or use.call.keep_dims else 1
            shards.append(1 if reduced else count)
        return tuple(shards)


def without(shards: ShardCounts, axes: tuple[int, ...]) -> ShardCounts:
    """Shards of the other dims."""
    return tuple(count for dim, count in enumerate(shards) if dim not in axes)


REDUCE_MEAN, REDUCE_SUM = Reduction('ReduceMean'), Reduction('ReduceSum')


@operator
class Reduce(Sharded, Unary):
    """The sum or the mean over dims behind dim 0, which counts samples."""

    key = 'reduce'
    primitives = {'sum': REDUCE_SUM, 'mean': REDUCE_MEAN}
    inputs_told = 'x; where a dim that goes is split, what ranks have is summed'

    dims: Annotated[
        tuple[Annotated[int, Field(ge=1, le=7)], ...],
        Field(min_length=1, max_length=7, examples=[[2, 3]], description='over which dims, by number; dim 0 stays'),
    ]
    mean: Annotated[bool, Field(description='the mean, else the sum')] = True
    keep: Annotated[bool, Field(description='these dims stay, with length 1')] = False

    def result_shape(self, samples: int, *reads: Shape) -> Shape:
        """The dims that stay."""
        (x,) = reads
        gone, last = self.dims, len(x) - 1
        if max(gone) > last:
            what = f'{list(gone)} of a value of {shown(x)} a sample, whose dims are 1 to {last}'
            raise MisfitError('dims', what, f'write numbers from 1 to {last}')
        if len(set(gone)) < len(gone):
            raise MisfitError('dims', f'{list(gone)} names a dim twice', f'write {sorted(set(gone))}')
        if len(gone) == last and not self.keep:
            raise MisfitError('dims', f'{list(gone)} leaves a sample no dim', 'write keep: true too, or fewer dims')
        return tuple(1 if dim in gone else length for dim, length in enumerate(x) if self.keep or dim not in gone)

    def steps(self, reads: tuple[str, ...], result: Shape) -> Iterator[Step]:
        """ReduceMean or ReduceSum."""
        kind = REDUCE_MEAN if self.mean else REDUCE_SUM
        yield Step(primitive=kind, reads=reads, shape=result, call=Call(axes=self.dims, keep_dims=self.keep))

    def ops(self, local: Local) -> Ops:
        """One operation for each element of x; the gradient is the same everywhere along the dims."""
        dims, kind = sorted(self.dims), 'mean' if self.mean else 'sum'
        told: dict[str, Attribute] = {'dims': text(dims)}
        if self.mean:
            # The full count, not that of a slice: where a reduced dim is split, partial means must add up.
            told['count'] = prod(local.shape('x')[dim] for dim in dims)
        return Ops(
            F=Work(operator=kind, reads=('x',), writes=('y',), flops=local.elements('x'), attributes=told),
            I={'x': Work(operator=kind, reads=('dy',), flops=local.elements('y'),
                         attributes={**told, 'shape': slice_text(local, 'x')})},
        )  # fmt: skip


@operator
class ReduceSum(Reduce):
    """The sum over dims: ``reduce`` with ``mean: false``."""

    key = 'reduce_sum'

    mean: Annotated[bool, Field(description='the mean, else the sum')] = False
