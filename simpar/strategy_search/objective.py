"""Candidates of an operator by its rule, their propagation over a graph, and what a choice of them costs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise, product
from math import prod
from operator import mul
from typing import Protocol

from simpar.errors import Infeasible, Problem, ScheduleError
from simpar.layout import Axis, TensorLayout, redistribute
from simpar.layout import Rule as Axes
from simpar.model import Shape, Strategy
from simpar.model.operators.loss import DATASET
from simpar.model.primitive import Compat
from simpar.strategy_search.graph import Graph, Operator

# Rules: how an operator may be split, and what its split makes of layouts, told as bits of a device index.

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

    def split(self, exponents: tuple[int, ...]) -> ShardedOperator:
        """What splitting each axis 2^exponent times makes of the layouts, with the bits in the order of the axes."""
        ends = list(accumulate(exponents, initial=0))
        return self.split_by(tuple(tuple(range(start, end)) for start, end in pairwise(ends)))

    def split_by(self, bits: tuple[tuple[int, ...], ...]) -> ShardedOperator:
        """What splitting each axis by these bits makes of the layouts."""

        def layout(axes: AxisMap) -> Bits:
            return tuple(tuple(bit for axis in dim for bit in bits[axis]) for dim in axes)

        # Where axes are split that the output has not, it is a partial sum.
        kept = {axis for dim in self.output for axis in dim}
        partial = tuple(bit for axis, own in enumerate(bits) if axis not in kept for bit in own)
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


# Sharding propagation: from the operators that a user split, each neighbour takes the split that it is asked for.
#
# The rules are those of MindSpore's ``sharding_propagation`` (graph_costmodel.cc, edge_costmodel.cc), by version:
# 2.10 lets an operator use a part of the devices and copies layouts through elementwise operators; 2.0 uses all
# devices or splits nothing. It finds no optimum: each operator is fixed once, gradients of weights count nothing, and
# the order of the walk decides.

# Numbered in the order of preference, for keys are compared.
EQUAL, SLICES, COMMUNICATES = range(3)


def propagate(graph: Graph, fixed: Mapping[str, Choice], devices: int, compat: Compat = '2.10') -> dict[str, Choice]:
    """Strategies of all operators, by name, from those that the user fixed.

    Arguments:
        graph: operators and tensors.
        fixed: what the user chose, by operator name.
        devices: how many, a power of two.
        compat: MindSpore's version.

    Raises ScheduleError where nothing is fixed, or where a fixed strategy cannot be. Redistribution between two fixed
    operators that do not fit is left to whoever lowers the strategies.
    """
    if not fixed:
        raise ScheduleError(
            Problem('plan', 'sharding propagation starts at operators that you split', 'split at least one')
        )
    walk = _Walk(graph, devices, compat)
    for name, choice in fixed.items():
        split = split_of(graph, graph.operator(name), choice.strategy, devices)
        if compat == '2.0' and 0 < split.used < device_bits(devices):
            raise ScheduleError(Problem(name, f'{choice.strategy} leaves devices unused, which MindSpore 2.0 refuses'))
        walk.chosen[name] = split
    for name in fixed:
        # In the order given: where two walks meet, what the first one fixed stays.
        walk.from_(graph.names.index(name))
    for operator in graph.operators:
        if operator.name not in walk.chosen:
            walk.chosen[operator.name] = walk.default(operator)
    choices = {name: Choice(walk.chosen[name].strategy) for name in graph.names}
    return {**choices, **fixed}


class _Walk:
    """Fixes operators one by one; successors of the first operator come before its predecessors."""

    def __init__(self, graph: Graph, devices: int, compat: Compat) -> None:
        self.graph, self.devices, self.compat = graph, devices, compat
        self.chosen: dict[str, ShardedOperator] = {}
        self.rules: dict[object, Rule] = {}
        self.answers: dict[object, ShardedOperator] = {}

    def from_(self, start: int) -> None:
        """Fixes everything that hangs together with an operator."""
        queue = deque([start])
        while queue:
            place = queue.popleft()
            # Successors before predecessors, as MindSpore walks: each is fixed once, so the order decides whom it
            # follows.
            for near, tensor, reads in self.graph.neighbours(place):
                operator = self.graph.operators[near]
                if operator.name not in self.chosen and operator.primitive != DATASET:
                    layout = self.layout(self.graph.operators[place], tensor, writes=reads)
                    position = operator.reads.index(tensor) if reads else -1
                    self.chosen[operator.name] = self.choose(operator, position, layout)
                    queue.append(near)

    def choose(self, operator: Operator, position: int, bits: Bits) -> ShardedOperator:
        """The neighbour's layout decides: no redistribution, then least communication, then least computation."""
        # Rules live as long as the walk, so the id of one stands for it.
        key = (id(self.kind(operator)), position, bits)
        if key not in self.answers:
            copied = self.copied(operator, position, bits)
            options = [copied] if copied else self.candidates(operator)
            # Of equal keys the first candidate wins, in the order of strategies.
            self.answers[key] = min(options, key=lambda split: self.key(operator, split, position, bits))
        return self.answers[key]

    def copied(self, operator: Operator, position: int, bits: Bits) -> ShardedOperator | None:
        """2.10 copies a layout through operators that are not heavy, where they can have it."""
        if self.compat == '2.0' or operator.kind.weighs_work:
            return None
        kind = self.kind(operator)
        return kind.copy(kind.output if position < 0 else kind.reads[position], bits)

    def key(self, operator: Operator, split: ShardedOperator, position: int, bits: Bits) -> tuple[float, ...]:
        """What is compared; ``position`` is the input that the neighbour writes, −1 where it reads the output."""
        there = split.output if position < 0 else split.inputs[position]
        redistribution = relayout(there, bits) if position < 0 else relayout(bits, there)
        if not operator.kind.weighs_work:
            # 2.0 takes the fully used layout with the fewest splits of rows, and replicates only where nothing else
            # is left.
            idle = self.compat == '2.0' and position >= 0 and split.used == 0
            return redistribution, idle, *split.strategy[0]
        shapes = self.graph.read_shapes(operator)
        output = prod(self.graph.output_shape(operator)) / prod(1 << len(dim) for dim in split.output)
        sums = output if split.partial else 0
        slices = sum(prod(shape) / prod(shards) for shape, shards in zip(shapes, split.strategy, strict=True))
        # Communication before computation: the other way round misses 11 of 28 recorded propagations of 2.10.
        return redistribution, sums, slices + sums

    def layout(self, operator: Operator, tensor: str, *, writes: bool) -> Bits:
        """Layout of a tensor at an operator that is fixed already."""
        split = self.chosen[operator.name]
        return split.output if writes else split.inputs[operator.reads.index(tensor)]

    def kind(self, operator: Operator) -> Rule:
        """The operator's rule; a rule is made once for operators that look alike."""
        look = (operator.look, self.graph.read_shapes(operator), self.graph.output_shape(operator))
        if look not in self.rules:
            self.rules[look] = rule(self.graph, operator)
        return self.rules[look]

    def candidates(self, operator: Operator) -> list[ShardedOperator]:
        """Splits that the version considers."""
        every = self.kind(operator).splits(self.devices)
        if self.compat == '2.10':
            return every
        # 2.0 considers all devices or none (its ``fully_use_devices``).
        return [split for split in every if split.used in (0, device_bits(self.devices))]

    def default(self, operator: Operator) -> ShardedOperator:
        """The dataset's split, or none."""
        sharded = operator.primitive == DATASET and self.graph.dataset == 'data_parallel'
        return self.kind(operator).splits(self.devices)[-1 if sharded else 0]


def relayout(source: Bits, target: Bits) -> int:
    """What it takes to get from one layout to another: nothing, slices alone, or communication."""
    if source == target:
        return EQUAL
    bits = used(source)
    # A slice only appends bits that no dim has yet; a bit that leaves another dim moves data.
    sliced = all(to[: len(at)] == at and not bits & set(to[len(at) :]) for at, to in zip(source, target, strict=True))
    return SLICES if sliced else COMMUNICATES


# Objectives: what an operator's split and a redistribution cost, in numbers that add up.


@dataclass(frozen=True, slots=True)
class Candidate:
    """A split of an operator, with the layout that its output has at last.

    Arguments:
        choice: as a plan writes it.
        inputs, output: layouts.
        summed: layout of the output before its sum; equal to ``output`` where the sum is everywhere.
        partial: bits that are summed over.
    """

    choice: Choice
    inputs: tuple[Bits, ...]
    output: Bits
    summed: Bits
    partial: tuple[int, ...]

    @property
    def scattered(self) -> bool:
        """Whether the sum is scattered over the output's first dim."""
        return self.output != self.summed


def candidates(graph: Graph, operator: Operator, devices: int) -> list[Candidate]:
    """All that exact search considers for an operator, each also with its sum scattered over the rows."""
    operator_rule = rule(graph, operator)
    if operator.primitive == DATASET:
        sharded = graph.dataset == 'data_parallel'
        # A dataset has one axis: the first of its splits leaves it full, the last takes as many devices as samples
        # allow.
        return list(_candidates(graph, operator, [operator_rule.splits(devices)[-1 if sharded else 0]]))
    return list(_candidates(graph, operator, widest(operator, operator_rule, devices)))


def widest(operator: Operator, operator_rule: Rule, devices: int) -> list[ShardedOperator]:
    """Splits by powers of two; of what is bound by the matrix units those that use the most devices.

    Exact search may replicate the work of others.
    """
    splits = operator_rule.splits(devices)
    if operator.kind.pricing not in ('matrix', 'attention'):
        return splits
    # In bytes replicating a product is free, and would win although every device then does all of the work.
    most = max(split.used for split in splits)
    return [split for split in splits if split.used == most]


def fixed_candidates(graph: Graph, operator: Operator, choice: Choice, devices: int) -> list[Candidate]:
    """The candidate that a choice means; raises ScheduleError where it cannot be."""
    split = split_of(graph, operator, choice.strategy, devices)
    every = list(_candidates(graph, operator, [split]))
    # An out_strategy other than the scatter over rows, or one that does not divide, falls back to the full sum.
    return [candidate for candidate in every if candidate.choice == choice] or every[:1]


def _candidates(graph: Graph, operator: Operator, splits: list[ShardedOperator]) -> Iterator[Candidate]:
    shape = graph.output_shape(operator)
    for split in splits:
        yield Candidate(Choice(split.strategy), split.inputs, split.output, split.output, split.partial)
        if split.partial and operator.kind.scatters:
            # Innermost in dim 0: a reduce-scatter leaves each rank a part of the rows that it has.
            scattered = (split.output[0] + split.partial, *split.output[1:])
            if shape[0] % (1 << len(scattered[0])) == 0:
                choice = Choice(split.strategy, counts(scattered))
                yield Candidate(choice, split.inputs, scattered, split.output, split.partial)


# What it moves to get a tensor from one layout to another.


def redistribution_bytes(
    source: Bits, target: Bits, shape: Shape, itemsize: int = 4, *, all_to_all: bool = True
) -> float:
    """Bytes that a device receives while a tensor goes from one layout to another, by the cheapest sequence.

    A slice moves nothing, an all-gather what it adds, an all-to-all over g devices (g − 1) / g of a slice. The backward
    moves as much: an all-gather's is a reduce-scatter, and a slice's moves nothing, where gradients stay partial sums.

    Arguments: ``all_to_all``: may be used. Does not model: latency, permutations of devices.
    """
    return 0.0 if source == target else _moved(source, target, all_to_all) * prod(shape) * itemsize


@lru_cache(maxsize=1 << 18)
def _moved(source: Bits, target: Bits, all_to_all: bool) -> float:
    """Received, as a share of the full tensor; exact search asks for ten thousands of pairs, few of which differ."""
    count = 1 + max(bit for dim in (*source, *target) for bit in dim)
    # So long that all bits may split any dim.
    shape = (1 << count,) * len(source)
    ends = (
        TensorLayout(1 << count, tuple(tuple(Axis(2, 1 << (count - 1 - bit)) for bit in dim) for dim in bits))
        for bits in (source, target)
    )
    return float(redistribute(shape, *ends, 'cheapest', all_to_all).elements / prod(shape))


class Objective(Protocol):
    """What exact search minimises: a sum over operators and over redistributions."""

    def operator(self, graph: Graph, operator: Operator, candidate: Candidate, devices: int) -> float:
        """Cost of the collectives that an operator brings with it, forward, backward and for its parameters."""

    def redistribution(
        self, source: Bits, target: Bits, shape: Shape, *, backward: bool, reshaped: bool = False
    ) -> float:
        """Cost of bringing a tensor from a layout to another, and its gradient back where there is one.

        Arguments: ``reshaped``: a reshape reads it there.
        """


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes that a device sends in a step, by ring collectives, with gradients summed late.

    A sum over g devices: 2 (g − 1) / g of the slice, forward and again backward; scattered: half of it each. A
    parameter's gradient: 2 (g − 1) / g of its slice over all devices that hold the same one. Replicas hold partial sums
    of gradients (MindSpore's convention), so that nothing else is summed in the backward.
    Does not model: latency, time, links; statistics of a BatchNorm over a split batch; one sum for a parameter that
    several operators read.

    Arguments: ``itemsize``, bytes of an element.
    """

    itemsize: int = 4

    def operator(self, graph: Graph, operator: Operator, candidate: Candidate, devices: int) -> float:
        """Bytes of forward and backward sums and of the gradients' sums."""
        return self.sums(graph, operator, candidate) + self.mirrors(graph, operator, candidate, devices)

    def sums(self, graph: Graph, operator: Operator, candidate: Candidate) -> float:
        """Forward and backward bytes of the output's sum."""
        if not candidate.partial:
            return 0.0
        local = prod(graph.output_shape(operator)) * self.itemsize * 0.5 ** len(used(candidate.summed))
        # Each bit halves, so 1 − 0.5 ** bits is the (g − 1) / g of a ring of g devices.
        once = local * (1 - 0.5 ** len(candidate.partial))
        return 2 * once if candidate.scattered else 4 * once

    def mirrors(self, graph: Graph, operator: Operator, candidate: Candidate, devices: int) -> float:
        """Bytes of the parameters' gradients."""
        total = 0.0
        for name, layout in zip(operator.reads, candidate.inputs, strict=True):
            if name in graph.parameters:
                bits = len(used(layout))
                local = prod(graph.shapes[name]) * self.itemsize * 0.5**bits
                total += 2 * local * (1 - 0.5 ** (device_bits(devices) - bits))
        return total

    def redistribution(
        self, source: Bits, target: Bits, shape: Shape, *, backward: bool, reshaped: bool = False
    ) -> float:
        """Bytes of the cheapest sequence, and of its reverse."""
        return redistribution_bytes(source, target, shape, self.itemsize) * (2 if backward else 1)
