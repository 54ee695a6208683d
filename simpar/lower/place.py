"""Where the tensors of an operator lie: as its strategy says, or as what it reads lies, as far as that can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod

from simpar.errors import Infeasible
from simpar.layout import Axis, Layout, TensorLayout
from simpar.layout.operator import ONE, Operator, Strategy


@dataclass(frozen=True, slots=True)
class Placed:
    """Layouts of an operator's inputs, of what a rank computes, and of the result, without pending sums."""

    inputs: tuple[TensorLayout, ...]
    local: TensorLayout
    output: TensorLayout


@dataclass(frozen=True, slots=True, eq=False)
class Placer:
    """Places operators on the ``world`` ranks of a stage; dim 0 of all tensors is split into ``copies`` besides."""

    world: int
    copies: int

    def by_strategy(
        self,
        operator: Operator,
        strategy: Strategy,
        out_strategy: Sequence[int] = (),
        lies: TensorLayout | None = None,
        lead: int = 0,
    ) -> Placed:
        """As a strategy says.

        Arguments: ``lies``, how the first value that it reads lies, input number ``lead``: where that has as many
        slices, they stay on their ranks, as MindSpore 2.10 propagates layouts. Raises ``Infeasible`` where none can.
        """
        sharded = operator.sharded(strategy, self.world, out_strategy)
        found = Placed(sharded.inputs, sharded.local, sharded.output)
        if (
            lies is not None
            and lies.shard_counts == found.inputs[lead].shard_counts
            and not _contracted(operator, lead)
        ):
            followed = self.followed(operator, lies, lead)
            # Only the ranks of slices may differ from the strategy, never their number.
            alike = [one.shard_counts for one in followed.inputs] == [one.shard_counts for one in found.inputs]
            found = followed if alike else found
        return self._checked(operator, found, lead)

    def by_layout(
        self, operator: Operator, matrix: Layout, inputs: Sequence[Sequence[str]], output: Sequence[str], lead: int = 0
    ) -> Placed:
        """As layouts say, by the names of a device matrix's axes, several joined by +, or none.

        Arguments: ``output``, where the sum over ranks is scattered; empty: it is not. Raises ``Infeasible`` naming
        operator and dim where it cannot be.
        """
        laid = [matrix(*map(_aliases, dims)) for dims in inputs]
        problem = operator.wrong(tuple(layout.shard_counts for layout in laid), self.world) or _unlike(operator, laid)
        if problem:
            raise Infeasible(f'{operator.name}: layout {_shown(inputs)}: {problem}')
        axes = {name: dim for names, layout in zip(operator.inputs, laid, strict=True)
                for name, dim in zip(names, layout.dims, strict=True)}  # fmt: skip
        # In the operator's order, so that the axes of a sum stand as in the device matrix.
        sums = [axis for name in operator.order if name not in operator.output for axis in axes.get(name, ())]
        local = self._layout(operator.output, axes).with_partial(sums)
        found = Placed(tuple(laid), local, local.without_partial())
        if output:
            wanted = matrix(*map(_aliases, output))
            scattered = operator.output_of(local, wanted.shard_counts)
            if scattered != wanted:
                raise Infeasible(
                    f'{operator.name}: out_layout {_shown([output])}: the axes of the sum shard a dim inside '
                    'of what shards it already; write them last'
                )
            found = Placed(tuple(laid), local, scattered)
        return self._checked(operator, found, lead)

    def followed(self, operator: Operator, lies: TensorLayout, lead: int = 0) -> Placed:
        """As what it reads lies, but for dims that must stay unsharded or do not divide.

        Arguments: ``lies``, the layout of input number ``lead``.
        """
        gone = _contracted(operator, lead)
        axes = {
            name: outermost(dim, self._most(operator, lead, name))
            for name, dim in zip(operator.inputs[lead], lies.dims, strict=True)
            # What is contracted would leave a pending sum, which nobody asked for.
            if name not in gone and name != ONE and name not in operator.fixed
        }
        inputs = tuple(self._layout(names, axes) for names in operator.inputs)
        output = self._layout(operator.output, axes)
        return Placed(inputs, output, output)

    def viewed(self, operator: Operator, lies: TensorLayout) -> Placed | None:
        """A change of shape that leaves every slice as it lies; None where a slice would not be one block.

        Where there are copies, they must remain parts of each slice's rows.
        """
        shape = operator.output_shape
        output = seen_as(lies, operator.shapes[0], shape)
        if output is None or (self.copies > 1 and not self._keeps_copies(lies, output, shape[0])):
            return None
        return Placed((lies,), output, output)

    def _keeps_copies(self, lies: TensorLayout, output: TensorLayout, rows: int) -> bool:
        return lies.dims[0] == output.dims[0] and rows % (output.shard_counts[0] * self.copies) == 0

    def by_batch(self, rows: int) -> int:
        """Slices of so many rows where nothing else is said: as many as divide ranks and the rows of a copy."""
        rows //= self.copies
        # Chained comparison: both remainders are 0.
        return max(count for count in range(1, self.world + 1) if self.world % count == 0 == rows % count)

    def _layout(self, names: Sequence[str], axes: dict[str, tuple[Axis, ...]]) -> TensorLayout:
        return TensorLayout(self.world, tuple(axes.get(name, ()) for name in names))

    def _most(self, operator: Operator, lead: int, name: str) -> int:
        """What the slices of a name must divide."""
        length = operator.lengths[name]
        outermost_dims = (operator.inputs[lead][:1], operator.output[:1])
        return length // self.copies if (name,) in outermost_dims and length % self.copies == 0 else length

    def _checked(self, operator: Operator, placed: Placed, lead: int) -> Placed:
        self.check_rows(operator, placed.inputs[lead], operator.shapes[lead])
        self.check_rows(operator, placed.output, operator.output_shape)
        return placed

    def check_rows(self, operator: Operator, layout: TensorLayout, shape: Sequence[int] = ()) -> None:
        """Raise ``Infeasible`` unless the rows of a copy divide as the rows of the full tensor do.

        Arguments: ``shape`` of the tensor, by default of the operator's first.
        """
        rows, count = (shape or operator.shapes[0])[0], layout.shard_counts[0]
        if rows % (count * self.copies):
            raise Infeasible(
                f'{operator.name}: {rows} samples cannot be split into {count} slices of {self.copies} copies'
            )


def _aliases(dim: str) -> list[str] | None:
    return None if dim.lower() == 'none' else dim.split('+')


def _shown(inputs: Sequence[Sequence[str]]) -> str:
    return ', '.join(f'({", ".join(dims)})' for dims in inputs)


def _unlike(operator: Operator, laid: Sequence[TensorLayout]) -> str:
    """What is wrong with the axes of layouts whose counts are right."""
    seen: dict[str, tuple[Axis, ...]] = {}
    for index, (names, layout) in enumerate(zip(operator.inputs, laid, strict=True)):
        for dim, (name, axes) in enumerate(zip(names, layout.dims, strict=True)):
            if name != ONE and seen.setdefault(name, axes) != axes:
                return f'dim {dim} of input {index} is sharded by other axes than the dim that it is one with'
    used = [axis for axes in seen.values() for axis in axes]
    shared = any(_overlap(one, other) for place, one in enumerate(used) for other in used[:place])
    return 'an axis shards two dims that are not one' if shared else ''


def _overlap(one: Axis, other: Axis) -> bool:
    low, high = sorted((one, other), key=lambda axis: axis.stride)
    return high.stride < low.stride * low.size


def outermost(axes: Sequence[Axis], length: int) -> tuple[Axis, ...]:
    """What of axes, from the outermost on, shards a dim of a length into equal slices."""
    found: list[Axis] = []
    for axis in axes:
        # The outermost positions of an axis are those of the greatest stride.
        size = gcd(axis.size, length)
        found.append(Axis(size, axis.stride * (axis.size // size)))
        length //= size
        if size < axis.size:
            break
    return tuple(found)


def seen_as(layout: TensorLayout, shape: Sequence[int], other: Sequence[int]) -> TensorLayout | None:
    """How the same slices lie in another shape of the same elements; None where one would not be one block there."""
    digits = [digit for axes, length in zip(layout.dims, shape, strict=True) for digit in _digits(axes, length)]
    dims = []
    for length in other:
        found = _taken(digits, length)
        if found is None or any(axis is None for _, axis in found[: sum(axis is not None for _, axis in found)]):
            return None
        dims.append(tuple(axis for _, axis in found if axis is not None))
    return TensorLayout(layout.world, tuple(dims))


_Digit = tuple[int, Axis | None]
"""Of an element's place, outermost first: how far it counts, and the axis that shards it."""


def _digits(axes: Sequence[Axis], length: int) -> list[_Digit]:
    rest = length // prod(axis.size for axis in axes)
    return [*((axis.size, axis) for axis in axes), (rest, None)]


def _taken(digits: list[_Digit], length: int) -> list[_Digit] | None:
    """The outermost digits that count so far together, parted where they must be, and removed; None if none do."""
    found: list[_Digit] = []
    while length > 1:
        size, axis = digits.pop(0)
        # Free digits that follow one another count on, so they are one.
        while axis is None and digits and digits[0][1] is None:
            size *= digits.pop(0)[0]
        part = gcd(size, length)
        inner = size // part
        # The digit and the dim share no factor: a slice would not be one block there.
        if part == 1 < size:
            return None
        if inner > 1:
            digits.insert(0, (inner, Axis(inner, axis.stride) if axis else None))
        if part > 1:
            found.append((part, Axis(part, axis.stride * inner) if axis else None))
        length //= part
    return found


def _contracted(operator: Operator, lead: int) -> set[str]:
    """Names of an input that the result has not."""
    return set(operator.inputs[lead]) - set(operator.output)
