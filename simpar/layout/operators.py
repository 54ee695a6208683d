"""Rules: the operators of the tutorials and of transformers, by the names of their dims.

Every function takes a name for messages and the shapes of the inputs, and gives an ``Rule``. Names of dims: m, n, k
of products, b for batches, d0, d1, ... by place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice, product
from math import gcd, log2, prod

from simpar.errors import Infeasible
from simpar.layout.layout import TensorLayout, mapped, size_of

# The valid strategies that are nearest to one that cannot be.


OFFERED = 3
TRIED = 4096


def nearest(operator: Rule, strategy: Strategy, world: int) -> list[Strategy]:
    """At most three valid strategies, those first that change the counts by the least factors.

    Arguments: ``strategy``, the wrong one.
    """
    by_name = _counts_by_name(operator, strategy)
    names = [name for name in operator.order if name not in operator.fixed]
    choices = [_divisors(operator.lengths[name], world, by_name.get(name, {1})) for name in names]
    candidates = [
        (
            sum(abs(log2(counts.get(name, 1) / want)) for name in operator.order for want in by_name.get(name, {1})),
            operator.strategy(counts),
        )
        # Choices begin with the nearest, so that the first TRIED products hold near ones however many dims there are.
        for counts in (dict(zip(names, numbers, strict=True)) for numbers in islice(product(*choices), TRIED))
        if world % prod(counts.values()) == 0
    ]
    # Ties are broken by the strategy itself: the same problem on every machine.
    return list(dict.fromkeys(one for _, one in sorted(candidates)))[:OFFERED]


def _counts_by_name(operator: Rule, strategy: Strategy) -> dict[str, set[int]]:
    """The counts that the strategy has for each name, where its inputs may disagree."""
    by_name: dict[str, set[int]] = {}
    for names, counts in zip(operator.inputs, strategy, strict=False):
        for name, count in zip(names, counts, strict=False):
            # Inputs that disagree on a name are just what may be wrong, so all counts are remembered; 0 has no
            # logarithm.
            by_name.setdefault(name, set()).add(max(count, 1))
    return by_name


def _divisors(length: int, world: int, wanted: set[int]) -> list[int]:
    """Counts of shards that divide both, the nearest first, a few of them."""
    divisors = [count for count in range(1, min(length, world) + 1) if length % count == 0 and world % count == 0]
    # Distances are ratios: from 4, the counts 2 and 8 are equally near.
    return sorted(divisors, key=lambda count: min(abs(log2(count / want)) for want in wanted))[:6]


# Operators and strategies: from how an operator's inputs are sharded to the layouts and collectives that follow.
#
# An operator's tensor dims have names, as in an einsum; dims of one name are sharded alike. The device matrix has one
# axis for each name, in the operator's order, and what is left of the ranks replicates the calculation (MindSpore
# 2.x: on the right, least significant). An operator whose output lacks a name that is sharded gives partial sums over
# its axis, which are all-reduced, or scattered where ``out_strategy`` says so. Gradients of what is replicated stay
# partial sums ("reduce late"): backward, the forward's all-reduce is one again, and a parameter's gradient is summed
# over every axis that does not shard it (the mirror).


Strategy = tuple[tuple[int, ...], ...]
"""For each input, into how many slices each of its dims is split."""
ONE = ''
"""The name of a dim that may not be sharded and belongs to no axis."""


@dataclass(frozen=True)
class Rule:
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
        by_name: dict[str, int] = dict(self.units)
        tensors = [*zip(self.inputs, self.shapes, strict=True), (self.output, self.output_shape)]
        for name, length in (pair for tensor in tensors for pair in zip(*tensor, strict=True)):
            if name != ONE:
                # gcd(0, n) is n: the first length stands for itself.
                by_name[name] = gcd(by_name.get(name, 0), length)
        return by_name

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
                earlier, first = seen.setdefault(name, (count, where)) if name != ONE else (1, '')
                problem = self._wrong_count(name, count, length)
                if not problem and count != earlier:
                    problem = f'is split into {count}, but {first} must be split alike, and is split into {earlier}'
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

    def sharded(self, strategy: Strategy, world: int, out_strategy: Sequence[int] = ()) -> Placed:
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
        return Placed(tuple(map(layout, self.inputs)), local, self.output_of(local, out_strategy))

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
        size, choices = size_of(local.partial), []
        for dim, length in enumerate(self.output_shape):
            counts = list(local.shard_counts)
            counts[dim] *= size
            if length % counts[dim] == 0:
                choices.append(tuple(counts))
        return choices


@dataclass(frozen=True, slots=True)
class Placed:
    """Layouts of an operator's ``inputs``; ``local``, of what a rank computes; ``output``, without pending sums."""

    inputs: tuple[TensorLayout, ...]
    local: TensorLayout
    output: TensorLayout


Shape = tuple[int, ...]
NORMALISED = 'is normalised over and must stay unsharded'


def matmul(name: str, x: Shape, w: Shape, *, transpose_a: bool = False, transpose_b: bool = False) -> Rule:
    """x [batch..., m, k] · w [batch..., k, n] → [batch..., m, n]; transposed operands are [..., k, m] and [..., n, k].

    The device matrix is (batch..., m, k, n).
    """
    batch = tuple(f'b{index}' for index in range(len(x) - 2))
    left = (*batch, 'k', 'm') if transpose_a else (*batch, 'm', 'k')
    right = (*batch, 'n', 'k') if transpose_b else (*batch, 'k', 'n')
    m, k = x[-2:][::-1] if transpose_a else x[-2:]
    inner, n = w[-2:][::-1] if transpose_b else w[-2:]
    if len(x) != len(w) or x[:-2] != w[:-2] or k != inner:
        raise Infeasible(f'{name}: shapes {x} and {w} cannot be multiplied')
    return Rule(name, (left, right), (*batch, 'm', 'n'), (x, w), (*x[:-2], m, n), (*batch, 'm', 'k', 'n'), {})


def elementwise(name: str, *shapes: Shape) -> Rule:
    """Inputs of one shape, or broadcast to it from the last dim on; a dim of length 1 that is broadcast stays full."""
    rank = max(map(len, shapes))
    # Broadcasting aligns shapes at their last dim, as numpy's does.
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    output = tuple(max(lengths) for lengths in zip(*padded, strict=True))
    for shape, long in zip(shapes, padded, strict=True):
        if any(length not in (1, full) for length, full in zip(long, output, strict=True)):
            raise Infeasible(f'{name}: shape {shape} cannot be broadcast to {output}')
    names = tuple(f'd{dim}' for dim in range(rank))
    inputs = tuple(
        tuple(ONE if length == 1 < full else named for named, length, full in zip(names, long, output, strict=True))[
            rank - len(shape) :
        ]
        for shape, long in zip(shapes, padded, strict=True)
    )
    return Rule(name, inputs, names, shapes, output, names, {})


def reduction(name: str, x: Shape, dims: Sequence[int], *, keep: bool = False) -> Rule:
    """Sum or mean over dims; where one of them is sharded, what ranks have is summed.

    A mean divides by the full length. Arguments: ``keep``: reduced dims stay, with length 1.
    """
    names = tuple(f'd{dim}' for dim in range(len(x)))
    # Dims may be counted from the end, as -1.
    gone = {dim % len(x) for dim in dims}
    rest = [dim for dim in range(len(x)) if keep or dim not in gone]
    output = tuple(ONE if dim in gone else names[dim] for dim in rest)
    return Rule(name, (names,), output, (x,), tuple(1 if dim in gone else x[dim] for dim in rest), names, {})


def maximum(name: str, x: Shape, dims: Sequence[int], *, keep: bool = False) -> Rule:
    """Maximum over dims, which must stay unsharded.

    Arguments: ``keep``: reduced dims stay, with length 1.
    """
    rule = reduction(name, x, dims, keep=keep)
    # A maximum of parts would need an all-reduce by maximum, which strategies have no word for.
    fixed = {rule.inputs[0][dim]: 'is compared over and must stay unsharded' for dim in dims}
    return replace(rule, fixed=fixed)


def gather_elements(name: str, x: Shape, index: Shape) -> Rule:
    """Of each row of x [rows..., classes] the elements that an index [rows..., count] names; last dims stay full."""
    rows = tuple(f'd{dim}' for dim in range(len(x) - 1))
    return Rule(
        name,
        # The index names classes of the full row, so that a slice of classes could not be picked from.
        ((*rows, 'classes'), (*rows, ONE)),
        (*rows, ONE),
        (x, index),
        index,
        (*rows, 'classes'),
        {'classes': 'is picked from and must stay unsharded'},
    )


def normalised(name: str, x: Shape, dims: Sequence[int] = (-1,), *, parameters: int = 0) -> Rule:
    """A softmax over dims, or a norm with so many parameters along them; these dims must stay unsharded."""
    names = tuple(f'd{dim}' for dim in range(len(x)))
    over = tuple(names[dim] for dim in dims)
    inputs, shapes = (names, *(over,) * parameters), (x, *(tuple(x[dim] for dim in dims),) * parameters)
    return Rule(name, inputs, names, shapes, x, names, dict.fromkeys(over, NORMALISED))


def embedding(name: str, weight: Shape, indices: Shape) -> Rule:
    """Rows of the weight [vocab, width] by indices [...] → [..., width].

    By row: each rank looks up what it has and gives zeros for the rest, and the sum is the result; by column: nothing
    is summed.
    """
    places = tuple(f'i{dim}' for dim in range(len(indices)))
    order = ('v', 'h', *places)
    return Rule(name, (('v', 'h'), places), (*places, 'h'), (weight, indices), (*indices, weight[1]), order, {})


def cross_entropy(name: str, logits: Shape) -> Rule:
    """Mean of the softmax cross-entropy of logits [..., classes] with labels [...] → a number; classes stay full."""
    names = tuple(f'd{dim}' for dim in range(len(logits)))
    return Rule(name, (names, names[:-1]), (), (logits, logits[:-1]), (), names, {names[-1]: NORMALISED})


def mean_loss(name: str, y: Shape) -> Rule:
    """Mean over all elements of what y and a target of its shape give each (MSE, MAE) → a number."""
    names = tuple(f'd{dim}' for dim in range(len(y)))
    return Rule(name, (names, names), (), (y, y), (), names, {})


def transpose(name: str, x: Shape, permutation: Sequence[int]) -> Rule:
    """Dims in another order."""
    names = tuple(f'd{dim}' for dim in range(len(x)))
    output, shape = (tuple(of[dim] for dim in permutation) for of in (names, x))
    return Rule(name, (names,), output, (x,), shape, names, {})  # type: ignore[arg-type]


def flatten(name: str, x: Shape) -> Rule:
    """All dims behind the first into one."""
    return reshape(name, x, (x[0], prod(x[1:])))


def reshape(name: str, x: Shape, shape: Shape) -> Rule:
    """The same elements in another shape; of dims that become one, the first is sharded.

    Does not model: the sharding of a further dim inside of a full first one, which would leave no equal slices.
    """
    if prod(x) != prod(shape):
        raise Infeasible(f'{name}: {x} has {prod(x)} elements, {shape} has {prod(shape)}')
    inputs, output, fixed = [ONE] * len(x), [ONE] * len(shape), {}
    order = []
    for index, (sources, targets) in enumerate(_groups(x, shape)):
        for place, dim in enumerate(sources):
            # The first dim of a group may be sharded, as its slices are blocks in either shape; inner ones may not.
            inputs[dim] = f'd{index}' if place == 0 else f'd{index}.{place}'
            order.append(inputs[dim])
            if place:
                fixed[inputs[dim]] = 'lies inside of a dim that it becomes one with'
        if sources and targets:
            output[targets[0]] = inputs[sources[0]]
    return Rule(name, (tuple(inputs),), tuple(output), (x,), shape, tuple(order), fixed)


def _groups(x: Shape, shape: Shape) -> list[tuple[list[int], list[int]]]:
    """Dims of both shapes in groups of equal size, as small as possible; dims of length 1 join the group before."""
    groups: list[tuple[list[int], list[int]]] = []
    left, right = list(range(len(x))), list(range(len(shape)))
    while left or right:
        sources, targets = left[:1], right[:1]
        del left[:1], right[:1]
        # The side with the smaller product takes the next dim, so that groups come out as small as possible.
        while prod(x[d] for d in sources) != prod(shape[d] for d in targets):
            smaller = prod(x[d] for d in sources) < prod(shape[d] for d in targets)
            (sources if smaller else targets).append((left if smaller else right).pop(0))
        groups.append((sources, targets))
    return groups


def conv2d(name: str, x: Shape, weight: Shape, output: Shape) -> Rule:
    """Convolution of x [batch, channels, height, width], sharded by batch alone.

    Does not model: halos of sharded height and width, sharded channels.
    """
    reason = 'is sharded by batch alone in a convolution'
    inputs = (('n', 'c', 'h', 'w'), ('o', 'c', 'kh', 'kw'))
    order = ('n', 'c', 'h', 'w', 'o', 'kh', 'kw')
    fixed = dict.fromkeys(order[1:], reason)
    return Rule(name, inputs, ('n', ONE, ONE, ONE), (x, weight), output, order, fixed)
