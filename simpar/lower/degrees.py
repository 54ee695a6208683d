"""Degrees as layouts: how data, tensor and sequence degrees split the operators of any graph (Megatron-LM's way).

Samples are split over the data ranks. A product takes rows over the tensor ranks by its outputs (column), or by its
inputs where these are split already (row); embeddings by their vocabulary. All else lies as what it reads, as far as it
can. With sequence parallelism the results of row products and what norms and sums read are split along the sequence, or
along rows where batch and sequence are one dim. What does not divide stays full, with a note.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from simpar.errors import Infeasible
from simpar.layout import Axis, TensorLayout
from simpar.layout.axis import merged, minus, size_of
from simpar.layout.operator import Operator
from simpar.lower.experts import balanced, grouped, slots_fit
from simpar.lower.place import Placed, Placer, outermost
from simpar.lower.value import Value
from simpar.model import Add, Dense, Embedding, LayerNorm, RmsNorm
from simpar.model.library.decoder import VOCABULARY
from simpar.model.operators.experts import Dispatch, GroupedProduct
from simpar.model.operators.linear import Product
from simpar.model.operators.router import Balance
from simpar.model.operators.stream import Dropout, Position, Residual
from simpar.model.operators.torch_call import TorchCall

Axes = tuple[Axis, ...]
Dims = tuple[Axes, ...]
STREAM = (LayerNorm, RmsNorm, Add, Residual, Position, Dropout)
"""Operators of the residual stream, which sequence parallelism splits."""
SUMS = (Add, Residual)


@dataclass(slots=True, eq=False)
class Degrees:
    """Places operators by degrees.

    Arguments:
        placer: lays out operators that follow their input.
        data, tensor: the axes of the degrees, the outermost first.
        sequence_parallel: norms and residuals are split along the sequence.
        expert: the innermost of the data axes, over which experts are shared.
        context: axes of the ranks that share a sequence.
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
    notes: list[str] = field(default_factory=list)

    @property
    def degree(self) -> int:
        """Tensor ranks."""
        return size_of(self.tensor)

    def placed(self, operator: object, name: str, rule: Operator, reads: Sequence[Value]) -> Placed:
        """Where the tensors of an operator lie."""
        if isinstance(operator, Product | Dense):
            return self._product(operator, name, rule, reads[0])
        if isinstance(operator, Embedding):
            return self._embedding(rule, reads[0])
        if isinstance(operator, GroupedProduct):
            return grouped(self, operator, rule, reads[0])
        if isinstance(operator, Dispatch):
            slots_fit(operator, name, reads[0])
            # Tokens lie as their router had them.
            return self.placer.followed(rule, reads[1].layout, 1)
        if isinstance(operator, Balance):
            return balanced(reads[0].layout, together=operator.together)
        lead, lies = self._lead(operator, reads)
        return self.placer.followed(rule, lies, lead)

    # operators with a weight

    def _product(self, operator: Product | Dense, name: str, rule: Operator, x: Value) -> Placed:
        *rows, features = x.layout.dims
        if features == self.tensor and self.degree > 1:
            dims = self._rows(x)
            # By rows (Megatron): inputs come in split, so each rank has a part of every sum.
            local = TensorLayout(self.placer.world, (*dims, ()), self.tensor)
            weight = TensorLayout(self.placer.world, (self.tensor, ()))
            inputs = (TensorLayout(self.placer.world, (*dims, self.tensor)), weight)
            return Placed(inputs, local, self._scattered(local.without_partial(), rule.output_shape))
        by_outputs = not isinstance(operator, Product) or operator.split == 'outputs'
        if by_outputs and self._divides(rule.lengths['n'], operator, name):
            return self._local(self._rows(x), (), self.tensor)
        if isinstance(operator, Product) and operator.gathers:
            return self._local(self._rows(x), (), ())
        return self._local(self._stream(x) if self.restores else rows, (), ())

    def _local(self, rows: Sequence[Axes], inputs: Axes, outputs: Axes) -> Placed:
        world = self.placer.world
        y = TensorLayout(world, (*rows, outputs))
        return Placed((TensorLayout(world, (*rows, inputs)), TensorLayout(world, (inputs, outputs))), y, y)

    def _divides(self, length: int, operator: Product | Dense, name: str) -> bool:
        if isinstance(operator, Product):
            return self.divides(length, operator.what)
        return self.divides(length, name, f'its {length} outputs are')

    def divides(self, length: int, what: str, told: str = '') -> bool:
        """Whether the tensor ranks split a length; where it does not divide, a note.

        Arguments: ``what`` stays full; ``told``, the length in words.
        """
        if self.degree > 1 and length % self.degree and what:
            told = told or f'{length} is'
            self.notes.append(
                f'{what} stays unsharded on every tensor rank: {told} not divisible by tensor {self.degree}'
            )
        return self.degree > 1 and length % self.degree == 0

    def _embedding(self, rule: Operator, tokens: Value) -> Placed:
        world, vocab = self.placer.world, rule.shapes[0][0]
        first, *others = tokens.layout.dims
        rows = (
            # Where data splits no samples, tokens stay as they come.
            outermost(self.data, tokens.shape[0] // self.placer.copies) or first,
            *map(self._without_tensor, others),
        )
        split = self._divides(vocab, Product(outputs=(vocab,), inputs=(1,), what=VOCABULARY), '')
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
        for taken in (self.tensor, self.data) if self.tensor else ():
            axes = (_minus(axes, taken) or ()) if axes else axes
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
        except Infeasible:
            # A strategy has parted the ranks otherwise (2 × 3, not 3 × 2): it stays as it is.
            return layout

    def _splits(self, layout: TensorLayout) -> bool:
        """Whether the tensor ranks hold different slices."""
        return any(_minus(axes, self.tensor) != axes for axes in layout.dims if axes)

    def _lead(self, operator: object, reads: Sequence[Value]) -> tuple[int, TensorLayout]:
        """Which of the values that an operator reads it lies as, and how."""
        lead = 0
        if isinstance(operator, SUMS):
            # The branch that is split, if one is: the other is sliced, which costs nothing.
            own = [place for place in (0, 1) if self._is_own(reads[place])] or [0, 1]
            lead = next((place for place in own if self._splits(reads[place].layout)), own[0])
        elif isinstance(operator, TorchCall):
            # The value of the most slices, so that what is split stays split.
            lead = max(range(len(reads)), key=lambda place: _kept_slices(operator, place, reads[place].layout))
        lies = reads[lead].layout
        stream = isinstance(operator, STREAM) and not self._splits(lies)
        return lead, self._scattered(lies, reads[lead].shape) if stream else lies


def _kept_slices(operator: TorchCall, place: int, layout: TensorLayout) -> int:
    """Slices of a value that an operator reads, along dims that may be split."""
    names, fixed = operator.spec.reads[place], operator.spec.fixed
    split = (size_of(axes) for name, axes in zip(names, layout.dims, strict=True) if name and name not in fixed)
    return prod(split)


def _minus(axes: Axes, others: Axes) -> Axes | None:
    """What the others leave of axes; None where a strategy has parted the ranks otherwise (2 × 3, not 3 × 2)."""
    try:
        return minus(axes, others)
    except Infeasible:
        return None
