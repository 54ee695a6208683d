"""Rules: how an operator may be split, and what its split makes of layouts, told as bits of a device index."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise, product
from math import prod
from operator import mul

from simpar.errors import Infeasible, Problem, ScheduleError
from simpar.layout import Rule as Axes
from simpar.model import Shape, Strategy
from simpar.strategy_search.graph import Graph, Operator

Bits = tuple[tuple[int, ...], ...]
"""By tensor dim, the bits that split it; bit 0 is the most significant of a device's index.

A bit that splits no dim tells devices apart that hold the same slice: over it the tensor is replicated. Two layouts are
equal when the bits are, not only when the counts are."""


def device_bits(devices: int) -> int:
    """log2 of the devices; raises Infeasible where that is no whole number."""
    if devices < 1 or devices & (devices - 1):
        raise Infeasible(
            f'strategy search: {devices} devices are not a power of two, and every loop of this search halves; write '
            '2, 4, 8, … devices, or plan.search: exact'
        )
    return devices.bit_length() - 1


def used(layout: Bits) -> frozenset[int]:
    """Bits that split some dim."""
    return frozenset(bit for dim in layout for bit in dim)


def counts(layout: Bits) -> tuple[int, ...]:
    """Into how many slices each dim is split."""
    return tuple(1 << len(dim) for dim in layout)


def twos(number: int) -> int:
    """How often a number can be halved."""
    return (number & -number).bit_length() - 1 if number else 0


@dataclass(frozen=True, slots=True)
class Choice:
    """How an operator is split.

    Arguments:
        strategy: shards of each dim of each tensor that it reads, as in ``ops.MatMul().shard(((2, 4), (4, 1)))``.
        out_strategy: shards of its output's dims where its sum is scattered; none: the sum is everywhere.
    """

    strategy: Strategy
    out_strategy: tuple[int, ...] | None = None


AxisMap = tuple[tuple[int, ...], ...]
"""By tensor dim, the axes that it is made of, the outermost first."""


@dataclass(frozen=True)
class Rule:
    """The axes of an operator's work, in the order of MindSpore's device matrix.

    Arguments:
        sizes: extent of each axis.
        splittable: whether an axis may be split.
        reads, output: the axes of each tensor's dims. A dim of several axes (Reshape) is split from the outermost
            on, and an inner axis only where the outer ones are split to the last element.
    """

    sizes: tuple[int, ...]
    splittable: tuple[bool, ...]
    reads: tuple[AxisMap, ...]
    output: AxisMap

    @cached_property
    def contracted(self) -> tuple[int, ...]:
        """Axes that the output has not: where they are split, the output is a partial sum."""
        kept = {axis for dim in self.output for axis in dim}
        return tuple(axis for axis in range(len(self.sizes)) if axis not in kept)

    def split(self, exponents: tuple[int, ...]) -> ShardedOperator:
        """What splitting each axis 2^exponent times makes of the layouts, with the bits in the order of the axes."""
        ends = list(accumulate(exponents, initial=0))
        return self.split_by(tuple(tuple(range(start, end)) for start, end in pairwise(ends)))

    def split_by(self, bits: tuple[tuple[int, ...], ...]) -> ShardedOperator:
        """What splitting each axis by these bits makes of the layouts."""

        def layout(axes: AxisMap) -> Bits:
            return tuple(tuple(bit for axis in dim for bit in bits[axis]) for dim in axes)

        partial = tuple(bit for axis in self.contracted for bit in bits[axis])
        inputs = tuple(layout(read) for read in self.reads)
        strategy = tuple(tuple(1 << len(dim) for dim in read) for read in inputs)
        return ShardedOperator(strategy, inputs, layout(self.output), partial, sum(len(axis) for axis in bits))

    def copy(self, axes: AxisMap, layout: Bits) -> ShardedOperator | None:
        """The split that gives one tensor this very layout and splits no other axis; None where there is none."""
        bits: list[tuple[int, ...]] = [()] * len(self.sizes)
        for dim, dim_bits in zip(axes, layout, strict=True):
            if dim_bits and (len(dim) != 1 or not self.splittable[dim[0]]):
                return None
            if dim_bits:
                bits[dim[0]] = dim_bits
        fits = all(size % (1 << len(axis)) == 0 for size, axis in zip(self.sizes, bits, strict=True))
        return self.split_by(tuple(bits)) if fits else None

    def splits(self, devices: int) -> list[ShardedOperator]:
        """Every split by powers of two into at most ``devices`` shards; those with few of the first axes come first."""
        bits = device_bits(devices)
        limits = [min(twos(size), bits) if can else 0 for size, can in zip(self.sizes, self.splittable, strict=True)]
        choices = product(*(range(limit + 1) for limit in limits))
        return [self.split(choice) for choice in choices if sum(choice) <= bits and self.allowed(choice)]

    def allowed(self, exponents: tuple[int, ...]) -> bool:
        """Whether dims made of several axes are split from the outermost on."""
        dims = {dim for read in (*self.reads, self.output) for dim in read if len(dim) > 1}
        return all(
            not exponents[inner] or 1 << exponents[outer] == self.sizes[outer]
            for dim in dims
            for place, inner in enumerate(dim)
            for outer in dim[:place]
        )


@dataclass(frozen=True, slots=True)
class ShardedOperator:
    """One way to split an operator.

    Arguments:
        strategy: shards of each dim of each tensor that it reads.
        inputs, output: layouts.
        partial: bits over which the output is a sum still to be made.
        used: number of bits that split anything; the others replicate the work.
    """

    strategy: Strategy
    inputs: tuple[Bits, ...]
    output: Bits
    partial: tuple[int, ...]
    used: int


def rule(graph: Graph, operator: Operator) -> Rule:
    """The rule of an operator in a graph; raises ScheduleError where its shapes do not fit its kind."""
    shapes, output = graph.read_shapes(operator), graph.output_shape(operator)
    if operator.kind.pricing == 'view':
        # The dims of a layout have one name each; a search also splits dims that are made of several.
        return _reshape(operator, shapes[0], output)
    try:
        return _of(operator.named or operator.kind.axes(operator.name, operator, shapes, output))
    except Infeasible as wrong:
        # The problem names the operator already.
        raise ScheduleError(Problem(operator.name, str(wrong).removeprefix(f'{operator.name}: '))) from None


def _of(named: Axes) -> Rule:
    """A rule of an operator's named dims; those without a name belong to no axis."""
    place = {name: axis for axis, name in enumerate(named.order)}
    sizes = named.lengths

    def dims(names: tuple[str, ...]) -> AxisMap:
        return tuple((place[name],) if name in place else () for name in names)

    splittable = tuple(name not in named.fixed for name in named.order)
    return Rule(
        tuple(sizes[name] for name in named.order), splittable, tuple(map(dims, named.inputs)), dims(named.output)
    )


def _reshape(operator: Operator, shape: Shape, output: Shape) -> Rule:
    """Axes: the common factors of both shapes; where a dim is no whole product of them, nothing is split."""
    if prod(shape) != prod(output):
        raise ScheduleError(Problem(operator.name, f'{list(shape)} cannot be reshaped to {list(output)}'))
    edges = sorted({*accumulate(shape, mul, initial=1), *accumulate(output, mul, initial=1)})
    if any(inner % outer for outer, inner in pairwise(edges)):
        return Rule((), (), (tuple(() for _ in shape),), tuple(() for _ in output))
    sizes = tuple(inner // outer for outer, inner in pairwise(edges))
    return Rule(sizes, (True,) * len(sizes), (_factors(shape, edges),), _factors(output, edges))


def _factors(shape: Shape, edges: list[int]) -> AxisMap:
    """The axes of each dim; edges are the products of the leading dims of both shapes."""
    ends = pairwise(accumulate(shape, mul, initial=1))
    return tuple(tuple(range(edges.index(start), edges.index(end))) for start, end in ends)


def split_of(graph: Graph, operator: Operator, strategy: Strategy, devices: int) -> ShardedOperator:
    """The split that a strategy means; raises ScheduleError naming the nearest valid ones where there is none."""
    splits = rule(graph, operator).splits(devices)
    for split in splits:
        if split.strategy == strategy:
            return split
    near = sorted(splits, key=lambda split: _distance(split.strategy, strategy))[:3]
    shapes = ', '.join(str(list(shape)) for shape in graph.read_shapes(operator))
    raise ScheduleError(
        Problem(
            operator.name,
            f'{operator.primitive} of {shapes} cannot be split as {strategy} on {devices} devices',
            f'the nearest that can: {", ".join(str(split.strategy) for split in near)}',
        )
    )


def _distance(one: Strategy, other: Strategy) -> int:
    if [len(dims) for dims in one] != [len(dims) for dims in other]:
        # Farther than any strategy of the right form.
        return 1 << 30
    return sum(abs(a - b) for dims, others in zip(one, other, strict=True) for a, b in zip(dims, others, strict=True))
