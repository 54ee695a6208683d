"""Operators and strategies: from how an operator's inputs are sharded to the layouts and collectives that follow.

An operator's tensor dims have names, as in an einsum; dims of one name are sharded alike. The device matrix has one
axis for each name, in the operator's order, and what is left of the ranks replicates the calculation (MindSpore 2.x: on
the right, least significant). An operator whose output lacks a name that is sharded gives partial sums over its axis,
which are all-reduced, or scattered where ``out_strategy`` says so. Gradients of what is replicated stay partial sums
("reduce late"): backward, the forward's all-reduce is one again, and a parameter's gradient is summed over every axis
that does not shard it (the mirror).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import gcd, prod

from simpar.errors import Infeasible
from simpar.layout.axis import Axis, size_of
from simpar.layout.layout import TensorLayout, mapped
from simpar.layout.nearest import nearest
from simpar.layout.redistribution import Redistribution, redistribute

Strategy = tuple[tuple[int, ...], ...]
"""For each input, into how many slices each of its dims is split."""
ONE = ''
"""The name of a dim that may not be sharded and belongs to no axis."""


@dataclass(frozen=True)
class Operator:
    """One operator and its tensors.

    Arguments:
        name: for messages.
        inputs, output: the name of each dim of each tensor, ``ONE`` for what must stay unsharded.
        shapes: of the inputs. output_shape: of the result.
        order: names in the order of the device matrix, outermost first.
        fixed: names that cannot be sharded here, with the reason.
        units: names that can be split into fewer slices than their length has elements, as heads are.
    """

    name: str
    inputs: tuple[tuple[str, ...], ...]
    output: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    output_shape: tuple[int, ...]
    order: tuple[str, ...]
    fixed: Mapping[str, str]
    units: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def lengths(self) -> dict[str, int]:
        """What the slices of each name must divide: the length of its dims, of a reshape's the greatest common part."""
        found: dict[str, int] = dict(self.units)
        tensors = [*zip(self.inputs, self.shapes, strict=True), (self.output, self.output_shape)]
        for name, length in (pair for tensor in tensors for pair in zip(*tensor, strict=True)):
            if name != ONE:
                # gcd(0, n) is n: the first length stands for itself.
                found[name] = gcd(found.get(name, 0), length)
        return found

    def strategy(self, counts: Mapping[str, int]) -> Strategy:
        """The strategy that splits each name into so many slices."""
        return tuple(tuple(counts.get(name, 1) for name in names) for names in self.inputs)

    def wrong(self, strategy: Strategy, world: int) -> str:
        """What is wrong with a strategy, naming the dim; empty if nothing."""
        if tuple(map(len, strategy)) != tuple(map(len, self.inputs)):
            wanted = ', '.join(str(len(names)) for names in self.inputs)
            return f'has entries for {[len(part) for part in strategy]} dims, but the inputs have {wanted}'
        seen: dict[str, tuple[int, str]] = {}
        for index, (names, counts, shape) in enumerate(zip(self.inputs, strategy, self.shapes, strict=True)):
            for dim, (name, count, length) in enumerate(zip(names, counts, shape, strict=True)):
                where = f'dim {dim} of input {index}'
                # ONE is no name that dims share, so it is compared with nothing but 1.
                known, first = seen.setdefault(name, (count, where)) if name != ONE else (1, '')
                problem = self._wrong_count(name, count, length)
                if not problem and count != known:
                    problem = f'is split into {count}, but {first} must be split alike, and is split into {known}'
                if problem:
                    return f'{where} {problem}'
        ranks = prod(count for count, _ in (seen[name] for name in seen))
        return f'takes {ranks} ranks, which do not divide {world}' if world % ranks else ''

    def _wrong_count(self, name: str, count: int, length: int) -> str:
        if count < 1:
            return f'is split into {count}'
        if count > 1 and name == ONE:
            return f'is split into {count}, but must stay unsharded'
        if count > 1 and name in self.fixed:
            return f'is split into {count}, but {self.fixed[name]}'
        if length % count:
            return f'of length {length} cannot be split into {count} equal slices'
        if name != ONE and self.lengths[name] % count:
            return f'is split into {count}, but becomes a dim of which only {self.lengths[name]} slices are whole'
        return ''

    def sharded(self, strategy: Strategy, world: int, out_strategy: Sequence[int] = ()) -> Sharded:
        """The operator sharded by a strategy over ``world`` ranks.

        Arguments: ``out_strategy``, into how many slices each dim of the output is to be split; empty: as it follows.
        Raises ``Infeasible`` naming operator and dim, with the nearest strategies that can be.
        """
        problem = self.wrong(strategy, world)
        if problem:
            near = nearest(self, strategy, world)
            offered = ' or '.join(str(one) for one in near)
            raise Infeasible(f'{self.name}: strategy {strategy}: {problem}; write e.g. {offered}')
        counts = {name: count for names, part in zip(self.inputs, strategy, strict=True)
                for name, count in zip(names, part, strict=True) if name != ONE}  # fmt: skip
        # A name of no input is an axis of size 1; its place in the order must stay all the same.
        matrix = [counts.get(name, 1) for name in self.order]
        place = {name: index for index, name in enumerate(self.order)}

        def layout(names: Sequence[str], partial: Sequence[str] = ()) -> TensorLayout:
            tensor_map = [[place[name]] if name in place else [] for name in names]
            return mapped(world, matrix, tensor_map, [place[name] for name in partial])

        # What is contracted and sharded leaves a part of the sum on every rank of its axis.
        sums = [name for name in self.order if name not in self.output and counts.get(name, 1) > 1]
        local = layout(self.output, sums)
        return Sharded(
            operator=self,
            strategy=strategy,
            matrix=tuple(matrix),
            inputs=tuple(map(layout, self.inputs)),
            local=local,
            output=self.output_of(local, out_strategy),
        )

    def output_of(self, local: TensorLayout, out_strategy: Sequence[int]) -> TensorLayout:
        """The output's layout: summed, or scattered where the out_strategy asks for it.

        Arguments: ``local``, the layout of what a rank computes. Raises ``Infeasible`` unless the axis of the sum
        shards one dim of the output further, inside of what shards it already.
        """
        wanted = tuple(out_strategy)
        if not wanted or wanted == local.shard_counts:
            return local.without_partial()
        for dim in range(len(self.output)):
            dims = list(local.dims)
            # Inside of what shards the dim already: then each rank's slice of the sum lies within its slice of the
            # product.
            dims[dim] = (*dims[dim], *local.partial)
            scattered = TensorLayout(local.world, tuple(dims))
            fits = all(
                length % count == 0 for length, count in zip(self.output_shape, scattered.shard_counts, strict=True)
            )
            if local.partial and wanted == scattered.shard_counts and fits:
                return scattered
        valid = [local.shard_counts, *self._scattered_counts(local)]
        raise Infeasible(
            f'{self.name}: out_strategy {wanted} is neither the output as it is split, nor that with the axis of its '
            f'sum on one dim; write {" or ".join(map(str, valid))}'
        )

    def _scattered_counts(self, local: TensorLayout) -> list[tuple[int, ...]]:
        if not local.partial:
            return []
        size, found = size_of(local.partial), []
        for dim, length in enumerate(self.output_shape):
            counts = list(local.shard_counts)
            counts[dim] *= size
            if length % counts[dim] == 0:
                found.append(tuple(counts))
        return found


@dataclass(frozen=True)
class Sharded:
    """An operator sharded by a strategy.

    Arguments:
        matrix: the device matrix without the replicated axis.
        inputs: their layouts.
        local: the layout of what a rank computes, partial sums included.
        output: that of the result.
    """

    operator: Operator
    strategy: Strategy
    matrix: tuple[int, ...]
    inputs: tuple[TensorLayout, ...]
    local: TensorLayout
    output: TensorLayout

    @property
    def forward(self) -> Redistribution:
        """The sum behind the operator: an all-reduce, a reduce-scatter, or nothing."""
        return redistribute(self.operator.output_shape, self.local, self.output)

    @property
    def backward(self) -> Redistribution:
        """What the output's gradient passes on its way back: an all-reduce, an all-gather, or nothing."""
        return self.forward.backward()

    def mirror(self, place: int) -> tuple[Axis, ...]:
        """The axes over which the gradient of a parameter, input number ``place``, is summed."""
        return self.inputs[place].unsharded_axes

    def slice_shape(self, place: int) -> tuple[int, ...]:
        """Shape of a rank's slice of an input."""
        return self.inputs[place].slice_shape(self.operator.shapes[place])
