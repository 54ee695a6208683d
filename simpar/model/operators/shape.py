"""Operators that change a shape or reduce over dims."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd, prod
from typing import Annotated

from pydantic import Field

from simpar.layout import ONE, Rule, operators
from simpar.model.keys import Pair
from simpar.model.operators.base import Binary, MisfitError, Sharded, Step, Unary, operator, shown
from simpar.model.ops import Local, Ops, Work, slice_text, text, unary
from simpar.model.primitive import Call, Compat, Pricing, Primitive, Shape, ShardCounts, Use, dim_names
from simpar.model.primitive import Strategy as ShardStrategy
from simpar.program import Attribute

# What changes the shape or order of dims.


@dataclass(frozen=True)
class View(Primitive):
    """The same elements in another shape; searches split the common factors of both shapes."""

    pricing: Pricing = 'view'

    def axes(self, name: str, call: Call, shapes: tuple[Shape, ...], output: Shape) -> Rule:
        """One for each group of dims that become one another."""
        return operators.reshape(name, shapes[0], output)


class Reshaped(View):
    """Reshape: shards go to the dims that they divide."""

    def output_shards(self, use: Use, strategy: ShardStrategy) -> ShardCounts:
        """Those of its input, dealt to the dims of its result."""
        first = super().output_shards(use, strategy)
        return reshaped(use.shapes[0], use.output, first, use.compat)

    def input_shards(self, use: Use, wanted: ShardCounts) -> ShardCounts:
        """Those that its result is wanted in, dealt to the dims of its input."""
        return reshaped(use.output, use.shapes[0], wanted, use.compat)


class Flattened(View):
    """Flatten: split by rows over all devices, whatever its neighbours do."""

    def output_shards(self, use: Use, strategy: ShardStrategy) -> ShardCounts:
        """The shards of all dims behind the first in one."""
        first = super().output_shards(use, strategy)
        return (first[0], prod(first[1:]))

    def input_shards(self, use: Use, wanted: ShardCounts) -> ShardCounts:
        """Not known."""
        return ()

    def strategy(self, use: Use, shards: ShardCounts) -> ShardStrategy:
        """Rows over all devices."""
        return rows_over_all(use.shapes, use.devices)


class Transposed(Primitive):
    """Transpose."""

    follows_main_only = True

    def axes(self, name: str, call: Call, shapes: tuple[Shape, ...], output: Shape) -> Rule:
        """d0, d1, ... in another order."""
        return operators.transpose(name, shapes[0], call.permutation)

    def output_shards(self, use: Use, strategy: ShardStrategy) -> ShardCounts:
        """In the order of its result."""
        first = super().output_shards(use, strategy)
        return tuple(first[dim] for dim in use.call.permutation)

    def input_shards(self, use: Use, wanted: ShardCounts) -> ShardCounts:
        """2.10 permutes forward where it goes backward; 2.0 does not know."""
        # As the compiler has it, not the inverse: its searches are reproduced, faults included.
        return () if use.compat == '2.0' else tuple(wanted[dim] for dim in use.call.permutation)


def rows_over_all(shapes: tuple[Shape, ...], devices: int) -> ShardStrategy:
    """Dim 0 of each tensor over all devices where they divide it."""
    return tuple((devices if shape[0] % devices == 0 else 1, *(1,) * (len(shape) - 1)) for shape in shapes)


def reshaped(shape: Shape, output: Shape, shards: ShardCounts, compat: Compat) -> ShardCounts:
    """Shards of the output's dims from those of the input's.

    2.10 first gives all shards of a dim to one dim of the output where they divide it; what is left, and all in 2.0,
    goes to the outer dims as far as it divides them.
    """
    left, made = list(shards), [1] * len(output)
    # In this order, so that a dim keeps its split in one place wherever it can.
    if compat == '2.10':
        _deal(shape, output, left, made, undivided=True)
    _deal(shape, output, left, made, undivided=False)
    return tuple(made)


def _deal(shape: Shape, output: Shape, left: list[int], made: list[int], *, undivided: bool) -> None:
    sizes, wanted, place, to = list(shape), list(output), 0, 0
    while place < len(sizes) and to < len(wanted):
        # Two pointers: a larger dim is used up by several of the other shape, one after the other.
        splits, merges = sizes[place] > wanted[to], sizes[place] < wanted[to]
        if not undivided:
            factor = gcd(left[place], wanted[to]) if splits else left[place]
            made[to], left[place] = made[to] * factor, left[place] // factor
        elif not merges and wanted[to] % left[place] == 0:
            made[to], left[place] = made[to] * left[place], 1
        if splits:
            sizes[place] //= wanted[to]
        elif merges:
            wanted[to] //= sizes[place]
        place, to = place + (not splits), to + (not merges)


FLATTEN = Flattened('Flatten', same_backward=True)


def view(local: Local) -> Ops:
    """A rank's slice in another shape."""
    return unary(
        local, 'reshape', forward={'shape': slice_text(local, 'y')}, backward={'shape': slice_text(local, 'x')}
    )


@operator
class Flatten(Sharded, Unary):
    """All dims of a sample into one; a change of shape, no work."""

    key = 'flatten'
    primitives = {'reshape': FLATTEN}

    def result_shape(self, samples: int, *reads: Shape) -> Shape:
        """Rows of all elements of a sample."""
        (x,) = reads
        return (x[0], prod(x[1:]))

    def ops(self, local: Local) -> Ops:
        """A view."""
        return view(local)


@operator
class Reshape(Unary):
    """The same elements in another shape; lies as its input does, as far as that can be."""

    key = 'reshape'
    primitives = {'reshape': Reshaped('Reshape', same_backward=True)}

    shape: tuple[Annotated[int, Field(ge=-1, le=2**24)], ...]

    def result_shape(self, samples: int, *reads: Shape) -> Shape:
        """Its shape with a dim 0, so that a row is a part of a sample or of whole samples."""
        (x,) = reads
        first, *rest = self.shape
        if first != -1 or any(length < 1 for length in rest):
            what = f'dim 0 is -1, and the others are told (got {list(self.shape)})'
            raise MisfitError('shape', what, f'write [-1, {", ".join(str(max(1, length)) for length in rest)}]')
        size = prod(rest)
        # A row must be within one sample or hold full ones: else samples could not be split over ranks.
        if prod(x) % size or ((prod(x) // size) % samples and samples % (prod(x) // size)):
            what = f'{list(x)} for {samples} samples does not become rows of {size} elements that keep samples apart'
            remedy = 'choose dims whose product divides a sample, or is so many samples that they divide a copy'
            raise MisfitError('shape', what, remedy)
        return (prod(x) // size, *rest)

    def axes(self, name: str, *reads: Shape) -> Rule:
        """One for each group of dims that become one another."""
        (x,) = reads
        return operators.reshape(name, x, (prod(x) // prod(self.shape[1:]), *self.shape[1:]))

    def ops(self, local: Local) -> Ops:
        """A view."""
        return view(local)


@operator
class Transpose(Sharded, Unary):
    """Dims in another order, dim 0 as it was."""

    key = 'transpose'
    primitives = {'transpose': Transposed('Transpose', same_backward=True)}

    permutation: tuple[Annotated[int, Field(ge=0, le=7)], ...]

    def result_shape(self, samples: int, *reads: Shape) -> Shape:
        """In the order of its result."""
        (x,) = reads
        order = self.permutation
        if sorted(order) != list(range(len(x))) or order[0]:
            what = f'{list(order)} is no order of {len(x)} dims that begins with 0'
            raise MisfitError('permutation', what, f'write e.g. {[0, *range(len(x) - 1, 0, -1)]}')
        return tuple(x[dim] for dim in order)

    def call(self, result: Shape) -> Call:
        """Its permutation."""
        return Call(permutation=self.permutation)

    def ops(self, local: Local) -> Ops:
        """Every element once; back in the inverse order."""
        order = self.permutation
        # The inverse permutation: where each dim of the input stands in the result.
        back = sorted(range(len(order)), key=order.__getitem__)
        return unary(local, 'transpose', forward={'permutation': text(order)}, backward={'permutation': text(back)})


class Concatenated(Primitive):
    """Values side by side along the last dim, which stays full."""

    def axes(self, name: str, call: Call, shapes: tuple[Shape, ...], output: Shape) -> Rule:
        """d0, d1, ..., the last of none."""
        names = (*dim_names(output)[:-1], ONE)
        return Rule(name, (names,) * len(shapes), names, shapes, output, names[:-1], {})


@operator
class Concat(Sharded, Binary):
    """The features of two values of one shape, one behind the other."""

    key = 'concat'
    primitives = {'concat': Concatenated('Concat')}
    roles = ('x', 'z')

    of: Pair = ('', '')

    def result_shape(self, samples: int, *reads: Shape) -> Shape:
        """Twice as many features."""
        return (*reads[0][:-1], 2 * reads[0][-1])

    def ops(self, local: Local) -> Ops:
        """A copy of both; each gradient is a copy of its half."""
        works = {
            role: Work('concat', ('dy',), moved=2.0 * local.size(role), attributes={'half': half}, suffix=f'.{role}')
            for half, role in enumerate(self.roles)
        }  # fmt: skip
        return Ops(F=Work('concat', self.roles, ('y',)), I={**works})


# Sums and means.


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

    dims: tuple[Annotated[int, Field(ge=1, le=7)], ...]
    mean: bool = True
    keep: bool = False

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
        attributes: dict[str, Attribute] = {'dims': text(dims)}
        if self.mean:
            # The full count, not that of a slice: where a reduced dim is split, partial means must add up.
            attributes['count'] = prod(local.shape('x')[dim] for dim in dims)
        return Ops(
            F=Work(kind, ('x',), ('y',), flops=local.elements('x'), attributes=attributes),
            I={'x': Work(kind, ('dy',), flops=local.elements('y'),
                         attributes={**attributes, 'shape': slice_text(local, 'x')})},
        )  # fmt: skip


@operator
class ReduceSum(Reduce):
    """The sum over dims: ``reduce`` with ``mean: false``."""

    key = 'reduce_sum'

    mean: bool = False
