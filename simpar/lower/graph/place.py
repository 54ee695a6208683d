"""Where the tensors of an operator lie: as its strategy says, or as what it reads lies, as far as that can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import gcd, prod

from simpar import errors, model
from simpar.layout import ONE, Axis, Layout, Placed, Rule, Strategy, TensorLayout, merged, minus, size_of, union
from simpar.lower.tape import Value
from simpar.model.library.gpt import VOCABULARY
from simpar.model.operators import linear, norm, torch_call
from simpar.model.operators.experts import Balance, Combine, Dispatch, GroupedProduct, Route
from simpar.model.operators.stream import Dropout, Position, Residual


@dataclass(frozen=True, slots=True, eq=False)
class Placer:
    """Places operators on the ``world`` ranks of a stage; dim 0 of all tensors is split into ``copies`` besides."""

    world: int
    copies: int

    def by_strategy(
        self,
        operator: Rule,
        strategy: Strategy,
        out_strategy: Sequence[int] = (),
        layout: TensorLayout | None = None,
        lead: int = 0,
    ) -> Placed:
        """As a strategy says.

        Arguments: ``layout``, that of the first value that it reads, input number ``lead``: where that has as many
        slices, they stay on their ranks, as MindSpore 2.10 propagates layouts. Raises ``Infeasible`` where none can.
        """
        placement = operator.sharded(strategy, self.world, out_strategy)
        if (
            layout is not None
            and layout.shard_counts == placement.inputs[lead].shard_counts
            and not _contracted(operator, lead)
        ):
            followed = self.followed(operator, layout, lead)
            # Only the ranks of slices may differ from the strategy, never their number.
            alike = [one.shard_counts for one in followed.inputs] == [one.shard_counts for one in placement.inputs]
            placement = followed if alike else placement
        return self._checked(operator, placement, lead)

    def by_layout(
        self, operator: Rule, matrix: Layout, inputs: Sequence[Sequence[str]], output: Sequence[str], lead: int = 0
    ) -> Placed:
        """As layouts say, by the names of a device matrix's axes, several joined by +, or none.

        Arguments: ``output``, where the sum over ranks is scattered; empty: it is not. Raises ``Infeasible`` naming
        operator and dim where it cannot be.
        """
        layouts = [matrix(*map(_aliases, dims)) for dims in inputs]
        counts = tuple(layout.shard_counts for layout in layouts)
        problem = operator.wrong(counts, self.world) or _unlike(operator, layouts)
        if problem:
            raise errors.Infeasible(f'{operator.name}: layout {_layout_text(inputs)}: {problem}')
        axes = {name: dim for names, layout in zip(operator.inputs, layouts, strict=True)
                for name, dim in zip(names, layout.dims, strict=True)}  # fmt: skip
        # In the operator's order, so that the axes of a sum stand as in the device matrix.
        sums = [axis for name in operator.order if name not in operator.output for axis in axes.get(name, ())]
        local = self._layout(operator.output, axes).with_partial(sums)
        placement = Placed(tuple(layouts), local, local.without_partial())
        if output:
            wanted = matrix(*map(_aliases, output))
            scattered = operator.output_of(local, wanted.shard_counts)
            if scattered != wanted:
                raise errors.Infeasible(
                    f'{operator.name}: out_layout {_layout_text([output])}: the axes of the sum shard a dim inside '
                    'of what shards it already; write them last'
                )
            placement = Placed(tuple(layouts), local, scattered)
        return self._checked(operator, placement, lead)

    def followed(self, operator: Rule, layout: TensorLayout, lead: int = 0) -> Placed:
        """As what it reads lies, but for dims that must stay unsharded or do not divide.

        Arguments: ``layout``, the layout of input number ``lead``.
        """
        gone = _contracted(operator, lead)
        axes = {
            name: outermost(dim, self._most(operator, lead, name))
            for name, dim in zip(operator.inputs[lead], layout.dims, strict=True)
            # What is contracted would leave a pending sum, which nobody asked for.
            if name not in gone and name != ONE and name not in operator.fixed
        }
        inputs = tuple(self._layout(names, axes) for names in operator.inputs)
        output = self._layout(operator.output, axes)
        return Placed(inputs, output, output)

    def viewed(self, operator: Rule, layout: TensorLayout) -> Placed | None:
        """A change of shape that leaves every slice as it lies; None where a slice would not be one block.

        Where there are copies, they must remain parts of each slice's rows.
        """
        shape = operator.output_shape
        output = seen_as(layout, operator.shapes[0], shape)
        if output is None:
            return None
        rows = self.copies * output.shard_counts[0] if self.copies > 1 else 1
        keeps = rows == 1 or (layout.dims[0] == output.dims[0] and shape[0] % rows == 0)
        return Placed((layout,), output, output) if keeps else None

    def by_batch(self, rows: int) -> int:
        """Slices of so many rows where nothing else is said: as many as divide ranks and the rows of a copy."""
        rows //= self.copies
        # Chained comparison: both remainders are 0.
        return max(count for count in range(1, self.world + 1) if self.world % count == 0 == rows % count)

    def _layout(self, names: Sequence[str], axes: dict[str, tuple[Axis, ...]]) -> TensorLayout:
        return TensorLayout(self.world, tuple(axes.get(name, ()) for name in names))

    def _most(self, operator: Rule, lead: int, name: str) -> int:
        """What the slices of a name must divide."""
        length = operator.lengths[name]
        outermost_dims = (operator.inputs[lead][:1], operator.output[:1])
        return length // self.copies if (name,) in outermost_dims and length % self.copies == 0 else length

    def _checked(self, operator: Rule, placed: Placed, lead: int) -> Placed:
        self.check_rows(operator, placed.inputs[lead], operator.shapes[lead])
        self.check_rows(operator, placed.output, operator.output_shape)
        return placed

    def check_rows(self, operator: Rule, layout: TensorLayout, shape: Sequence[int] = ()) -> None:
        """Raise ``Infeasible`` unless the rows of a copy divide as the rows of the full tensor do.

        Arguments: ``shape`` of the tensor, by default of the operator's first.
        """
        rows, count = (shape or operator.shapes[0])[0], layout.shard_counts[0]
        if rows % (count * self.copies):
            raise errors.Infeasible(
                f'{operator.name}: {rows} samples cannot be split into {count} slices of {self.copies} copies'
            )


def _aliases(dim: str) -> list[str] | None:
    return None if dim.lower() == 'none' else dim.split('+')


def _layout_text(inputs: Sequence[Sequence[str]]) -> str:
    return ', '.join(f'({", ".join(dims)})' for dims in inputs)


def _unlike(operator: Rule, layouts: Sequence[TensorLayout]) -> str:
    """What is wrong with the axes of layouts whose counts are right."""
    seen: dict[str, tuple[Axis, ...]] = {}
    for index, (names, layout) in enumerate(zip(operator.inputs, layouts, strict=True)):
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
    outer: list[Axis] = []
    for axis in axes:
        # The outermost positions of an axis are those of the greatest stride.
        size = gcd(axis.size, length)
        outer.append(Axis(size, axis.stride * (axis.size // size)))
        length //= size
        if size < axis.size:
            break
    return tuple(outer)


def seen_as(layout: TensorLayout, shape: Sequence[int], other: Sequence[int]) -> TensorLayout | None:
    """How the same slices lie in another shape of the same elements; None where one would not be one block there."""
    digits = [digit for axes, length in zip(layout.dims, shape, strict=True) for digit in _digits(axes, length)]
    dims = []
    for length in other:
        dim_digits = _pop_digits(digits, length)
        if dim_digits is None or any(
            axis is None for _, axis in dim_digits[: sum(axis is not None for _, axis in dim_digits)]
        ):
            return None
        dims.append(tuple(axis for _, axis in dim_digits if axis is not None))
    return TensorLayout(layout.world, tuple(dims))


_Digit = tuple[int, Axis | None]
"""Of an element's place, outermost first: how far it counts, and the axis that shards it."""


def _digits(axes: Sequence[Axis], length: int) -> list[_Digit]:
    rest = length // prod(axis.size for axis in axes)
    return [*((axis.size, axis) for axis in axes), (rest, None)]


def _pop_digits(digits: list[_Digit], length: int) -> list[_Digit] | None:
    """The outermost digits that count so far together, parted where they must be, and removed; None if none do."""
    parts: list[_Digit] = []
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
            parts.append((part, Axis(part, axis.stride * inner) if axis else None))
        length //= part
    return parts


def _contracted(operator: Rule, lead: int) -> set[str]:
    """Names of an input that the result has not."""
    return set(operator.inputs[lead]) - set(operator.output)


# Where the tensors of experts lie by degrees (Megatron-LM's expert parallelism).
#
# Tokens lie over the data ranks, and with sequence parallelism over the tensor ranks. Before a grouped product they
# go to the ranks of their experts by an all-to-all: what split samples over the ranks that share experts splits
# experts then. Tensor ranks split each expert by its width, or share experts, too.


def grouped(degrees: Degrees, operator: GroupedProduct, rule: Rule, x: Value) -> Placed:
    """A grouped product: experts over their ranks, an expert's width over tensor ranks that do not share experts."""
    world, expert = degrees.placer.world, degrees.expert
    tensor = () if minus(degrees.tensor, expert) != degrees.tensor else degrees.tensor
    rows = outermost(minus(degrees.data, expert), x.shape[0] // degrees.placer.copies)
    features = x.layout.dims[3]
    # Other context ranks keep the slots of their own tokens, and so do other tensor ranks where experts are whole.
    slots = minus(minus(x.layout.dims[2], tensor), expert)
    if tensor and features == tensor and operator.split == 'inputs':
        local = TensorLayout(world, (rows, expert, slots, ()), tensor)
        inputs = (TensorLayout(world, (rows, expert, slots, tensor)), TensorLayout(world, (expert, tensor, ())))
    else:
        asks = operator.split == 'outputs' and bool(tensor)
        width = tensor if asks and degrees.divides(rule.lengths['n'], 'the experts (their width)') else ()
        local = TensorLayout(world, (rows, expert, slots, width))
        inputs = (TensorLayout(world, (rows, expert, slots, ())), TensorLayout(world, (expert, (), width)))
    if operator.split == 'outputs':
        return Placed(inputs, local, local)
    return Placed(inputs, local, _back(degrees, x))


def slots_fit(operator: Dispatch, name: str, x: Value) -> None:
    """Raise ``Infeasible`` where ranks that hold slices of a sequence cannot hold equal slices of slots."""
    slices = x.layout.shard_counts[1]
    if operator.slots % slices:
        raise errors.Infeasible(
            f'{name}: {operator.slots} slots of an expert cannot be dealt out to {slices} slices of a sequence; choose '
            'another experts.capacity'
        )


def _back(degrees: Degrees, x: Value) -> TensorLayout:
    """Where results go: to the ranks of their tokens, with sequence parallelism to those of the slots."""
    rows = outermost(degrees.data, x.shape[0] // degrees.placer.copies)
    slots = degrees.context or minus(x.layout.dims[2], degrees.tensor)
    if degrees.by_features:
        return TensorLayout(degrees.placer.world, (rows, (), slots, degrees.tensor))
    slices = size_of(slots) * degrees.degree
    splits = degrees.sequence_parallel and degrees.degree > 1 and x.shape[2] % slices == 0
    return TensorLayout(degrees.placer.world, (rows, (), (*slots, *degrees.tensor) if splits else slots, ()))


def balanced(logits: TensorLayout, *, together: bool) -> Placed:
    """Sums over tokens: a part of them on each rank that has a slice of the sequence, or of the samples."""
    rows, sequence, _ = logits.dims
    pending = union(rows, sequence) if together else sequence
    local = TensorLayout(logits.world, (() if together else rows, (), ()), pending)
    return Placed((logits,), local, local.without_partial())


# Degrees as layouts: how data, tensor and sequence degrees split the operators of any graph (Megatron-LM's way).
#
# Samples are split over the data ranks. A product takes rows over the tensor ranks by its outputs (column), or by its
# inputs where these are split already (row); embeddings by their vocabulary. All else lies as what it reads, as far
# as it can. With sequence parallelism the results of row products and what norms and sums read are split along the
# sequence, or along rows where batch and sequence are one dim. What does not divide stays full, with a note.


Axes = tuple[Axis, ...]
Dims = tuple[Axes, ...]
STREAM = (model.LayerNorm, model.RmsNorm, norm.GainNorm, model.Add, Residual, Position, Dropout)
"""Operators of the residual stream, which sequence parallelism splits."""
SUMS = (model.Add, Residual)


@dataclass(slots=True, eq=False)
class Degrees:
    """Places operators by degrees.

    Arguments:
        placer: lays out operators that follow their input.
        data, tensor: the axes of the degrees, the outermost first.
        sequence_parallel: norms and residuals are split along the sequence.
        expert: the axes over which experts are shared.
        context: axes of the ranks that share a sequence.
        by_features: tensor ranks exchange tokens for features before these go to experts.
        restores: operators with strategies stand beside; what these have laid otherwise goes back to samples over data
            and a sequence over context ranks.
        notes: of what stays full; they grow.
    """

    placer: Placer
    data: Axes
    tensor: Axes
    sequence_parallel: bool = False
    expert: Axes = ()
    context: Axes = ()
    restores: bool = False
    by_features: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def degree(self) -> int:
        """Tensor ranks."""
        return size_of(self.tensor)

    def placed(self, operator: object, name: str, rule: Rule, reads: Sequence[Value]) -> Placed:
        """Where the tensors of an operator lie."""
        if isinstance(operator, linear.Product | model.Dense):
            return self._product(operator, name, rule, reads[0])
        if isinstance(operator, model.Embedding):
            return self._embedding(rule, reads[0])
        if isinstance(operator, GroupedProduct):
            return grouped(self, operator, rule, reads[0])
        if self.by_features and isinstance(operator, Route | Dispatch | Combine):
            return self._by_features(operator, name, rule, reads)
        if isinstance(operator, Dispatch):
            slots_fit(operator, name, reads[0])
            # Tokens lie as their router had them.
            return self.placer.followed(rule, reads[1].layout, 1)
        if isinstance(operator, Balance):
            logits = self._of_all(reads[0].layout) if self.by_features else reads[0].layout
            return balanced(logits, together=operator.together)
        lead, layout = self._lead(operator, reads)
        return self.placer.followed(rule, layout, lead)

    def _by_features(
        self, operator: Route | Dispatch | Combine, name: str, rule: Rule, reads: Sequence[Value]
    ) -> Placed:
        """Tokens of all tensor ranks, of each of which a rank has a part of the features."""
        if isinstance(operator, Combine):
            local = self.placer.followed(rule, reads[1].layout, 1)
            return replace(local, output=self._scattered(self._of_all(local.output), rule.output_shape))
        tokens = self._of_all(reads[-1].layout)
        if isinstance(operator, Route):
            return self.placer.followed(rule, tokens)
        slots_fit(operator, name, reads[0]._replace(layout=tokens))
        return self.placer.followed(rule, TensorLayout(tokens.world, (*tokens.dims[:2], self.tensor)))

    def _of_all(self, layout: TensorLayout) -> TensorLayout:
        """The same of what no tensor rank has alone."""
        rows, *others = layout.dims
        return TensorLayout(layout.world, (rows, *map(self._without_tensor, others)))

    # operators with a weight

    def _product(self, operator: linear.Product | model.Dense, name: str, rule: Rule, x: Value) -> Placed:
        *rows, features = x.layout.dims
        if features == self.tensor and self.degree > 1:
            dims = self._rows(x)
            # By rows (Megatron): inputs come in split, so each rank has a part of every sum.
            local = TensorLayout(self.placer.world, (*dims, ()), self.tensor)
            weight = TensorLayout(self.placer.world, (self.tensor, ()))
            inputs = (TensorLayout(self.placer.world, (*dims, self.tensor)), weight)
            return Placed(inputs, local, self._scattered(local.without_partial(), rule.output_shape))
        by_outputs = not isinstance(operator, linear.Product) or operator.split != 'inputs'
        if by_outputs and self._divides(rule.lengths['n'], operator, name):
            placed = self._local(self._rows(x), (), self.tensor)
            if isinstance(operator, linear.Product) and operator.split == 'rejoined':
                full = TensorLayout(self.placer.world, (*placed.output.dims[:-1], ()))
                return replace(placed, output=self._scattered(full, rule.output_shape))
            return placed
        if isinstance(operator, linear.Product) and operator.gathers:
            return self._local(self._rows(x), (), ())
        return self._local(self._stream(x) if self.restores else rows, (), ())

    def _local(self, rows: Sequence[Axes], inputs: Axes, outputs: Axes) -> Placed:
        world = self.placer.world
        y = TensorLayout(world, (*rows, outputs))
        return Placed((TensorLayout(world, (*rows, inputs)), TensorLayout(world, (inputs, outputs))), y, y)

    def _divides(self, length: int, operator: linear.Product | model.Dense, name: str) -> bool:
        if isinstance(operator, linear.Product):
            return self.divides(length, operator.what)
        return self.divides(length, name, f'its {length} outputs are')

    def divides(self, length: int, what: str, words: str = '') -> bool:
        """Whether the tensor ranks split a length; where it does not divide, a note.

        Arguments: ``what`` stays full; ``words``, the length in words.
        """
        if self.degree > 1 and length % self.degree and what:
            words = words or f'{length} is'
            self.notes.append(
                f'{what} stays unsharded on every tensor rank: {words} not divisible by tensor {self.degree}'
            )
        return self.degree > 1 and length % self.degree == 0

    def _embedding(self, rule: Rule, tokens: Value) -> Placed:
        world, vocab = self.placer.world, rule.shapes[0][0]
        first, *others = tokens.layout.dims
        rows = (
            # Where data splits no samples, tokens stay as they come.
            outermost(self.data, tokens.shape[0] // self.placer.copies) or first,
            *map(self._without_tensor, others),
        )
        split = self._divides(vocab, linear.Product(outputs=(vocab,), inputs=(1,), what=VOCABULARY), '')
        weight = TensorLayout(world, (self.tensor if split else (), ()))
        y = TensorLayout(world, (*rows, ()), self.tensor if split else ())
        return Placed(
            (weight, TensorLayout(world, tuple(rows))), y, self._scattered(y.without_partial(), rule.output_shape)
        )

    # rows and sequence

    def _rows(self, x: Value) -> list[Axes]:
        """How rows lie for a product: samples over the data ranks, nothing over the tensor ranks."""
        rows = x.shape[0] // self.placer.copies
        others = x.layout.dims[1 : max(1, len(x.shape) - 1)]
        if self.restores and others:
            return [outermost(self.data, rows), self.context, *((),) * (len(others) - 1)]
        return [outermost(self.data, rows), *(self._without_tensor(axes) for axes in others)]

    def own(self, x: Value) -> TensorLayout:
        """How a value lies that is left to degrees: samples over data, tokens over context ranks."""
        rows, *others = self._rows(x)
        features = x.layout.dims[-1] if x.layout.dims[-1] == self.tensor else ()
        return TensorLayout(self.placer.world, (rows, *others, features))

    def _stream(self, x: Value) -> Sequence[Axes]:
        """Rows of the residual stream, wherever an operator with a strategy has left them."""
        rows = TensorLayout(self.placer.world, (*self._rows(x), ()))
        return self._scattered(rows, x.shape).dims[:-1]

    def _is_own(self, x: Value) -> bool:
        """Whether samples and tokens lie so; with sequence parallelism tensor ranks may have parts of the tokens."""
        if not self.restores or len(x.shape) < 3:
            return True
        rows, tokens = x.layout.dims[:2]
        return rows == self._rows(x)[0] and tokens in (self.context, merged((*self.context, *self.tensor)))

    def _without_tensor(self, axes: Axes) -> Axes:
        """What neither tensor ranks nor samples take; a strategy may have given a sequence to both."""
        for part in (self.tensor, self.data) if self.tensor else ():
            axes = (left_of(axes, part) or ()) if axes else axes
        return axes

    def _scattered(self, layout: TensorLayout, shape: Sequence[int]) -> TensorLayout:
        """A layout of the residual stream: with sequence parallelism split along the sequence, or along rows."""
        if not self.sequence_parallel or self.degree == 1 or len(shape) > 3 or self._splits(layout):
            return layout
        dim = len(shape) - 2
        slices = size_of(layout.dims[dim]) * self.degree * (1 if dim else self.placer.copies)
        if shape[dim] % slices:
            what = 'the sequence of norms and residuals' if dim else 'the rows of norms and residuals'
            self.notes.append(
                f'{what} stays unsharded on every tensor rank: {shape[dim]} is not divisible by tensor {self.degree}'
            )
            return layout
        dims = list(layout.dims)
        dims[dim] = merged((*dims[dim], *self.tensor))
        try:
            return TensorLayout(layout.world, tuple(dims))
        except errors.Infeasible:
            # A strategy has parted the ranks otherwise (2 × 3, not 3 × 2): it stays as it is.
            return layout

    def _splits(self, layout: TensorLayout) -> bool:
        """Whether the tensor ranks hold different slices."""
        return any(left_of(axes, self.tensor) != axes for axes in layout.dims if axes)

    def _lead(self, operator: object, reads: Sequence[Value]) -> tuple[int, TensorLayout]:
        """Which of the values that an operator reads it lies as, and how."""
        lead = 0
        if isinstance(operator, SUMS):
            # The branch that is split, if one is: the other is sliced, which costs nothing.
            own = [place for place in (0, 1) if self._is_own(reads[place])] or [0, 1]
            lead = next((place for place in own if self._splits(reads[place].layout)), own[0])
        elif isinstance(operator, torch_call.TorchCall):
            # The value of the most slices, so that what is split stays split.
            lead = max(range(len(reads)), key=lambda place: _slice_count(operator, place, reads[place].layout))
        layout = reads[lead].layout
        stream = isinstance(operator, STREAM) and not self._splits(layout)
        return lead, self._scattered(layout, reads[lead].shape) if stream else layout


def _slice_count(operator: torch_call.TorchCall, place: int, layout: TensorLayout) -> int:
    """Slices of a value that an operator reads, along dims that may be split."""
    names, fixed = operator.spec.reads[place], operator.spec.fixed
    split = (size_of(axes) for name, axes in zip(names, layout.dims, strict=True) if name and name not in fixed)
    return prod(split)


def left_of(axes: Axes, others: Axes) -> Axes | None:
    """What the others leave of axes; None where a strategy has parted the ranks otherwise (2 × 3, not 3 × 2)."""
    try:
        return minus(axes, others)
    except errors.Infeasible:
        return None
