"""Cross-entropy in operators on the tape, each sharded by its own strategy, with redistributions between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from simpar.layout import TensorLayout, operators
from simpar.layout.axis import size_of
from simpar.layout.operator import ONE, Operator, Strategy
from simpar.lower.move import Mover
from simpar.lower.place import Placed, Placer
from simpar.lower.tape import Tape
from simpar.lower.value import Value
from simpar.model import Shape
from simpar.model.library.cross_entropy import (
    COUNT,
    CROSS_ENTROPY,
    IGNORE_INDEX,
    LABELS,
    LIKELIHOOD,
    LOGITS,
    ONES,
    SMOOTH,
    LossOperator,
)
from simpar.program import Tensor
from simpar.program.op import Attribute
from simpar.program.tensor import BYTES
from simpar.workload import Workload


@dataclass(frozen=True, slots=True)
class _Kind:
    """What programs call a primitive, the floating-point operations of an element of what it reads first, and what its
    backward reads besides the gradient: its ``input``, its ``output``, what it reads ``second``, or nothing."""

    operator: str
    flops: float = 0.0
    backward: str = ''


KINDS: Final = {
    'ReduceMax': _Kind('maximum', 1),
    'Sub': _Kind('subtract', 1),
    'Exp': _Kind('exp', 4, 'output'),
    'Log': _Kind('log', 4, 'input'),
    'Neg': _Kind('negate', 1),
    'Add': _Kind('residual', 1),
    'SumExt': _Kind('reduce_sum', 1),
    'ExpandDims': _Kind('reshape'),
    'Squeeze': _Kind('reshape'),
    'Equal': _Kind('equal', 1),
    'MaskedFill': _Kind('masked_fill', 1, 'second'),
    'GatherD': _Kind('gather_elements', 0, 'second'),
}
Attributes = dict[str, Attribute]
WIDE: Final = 'fp32'
"""Of sums over rows, at least."""
WITHOUT_GRADIENT: Final = frozenset({'ReduceMax', 'Equal'})
"""The maximum cancels out of the loss, so that nothing comes back through it."""


def rule_of(operator: LossOperator, shapes: Sequence[Shape]) -> Operator:
    """How an operator of the loss may be sharded.

    Arguments: ``shapes`` of what it reads, but for single numbers.
    """
    name, x = operator.node, shapes[0]
    match operator.primitive:
        case 'ReduceMax':
            return operators.maximum(name, x, operator.axes, keep=operator.keep)
        case 'SumExt':
            return operators.reduction(name, x, operator.axes, keep=operator.keep)
        case 'ExpandDims':
            return operators.reshape(name, x, (*x, 1))
        case 'Squeeze':
            return operators.reshape(name, x, x[:-1])
        case 'GatherD':
            return operators.gather_elements(name, *shapes)
    return operators.elementwise(name, *shapes)


def loss_rules(logits: Shape) -> Iterator[tuple[LossOperator, Operator]]:
    """Every operator of the loss with its rule, in order.

    Arguments: ``logits``, their shape [rows, classes].
    """
    shapes = {LOGITS: logits, LABELS: logits[:1], ONES: (*logits[:1], 1)}
    for operator in CROSS_ENTROPY:
        rule = rule_of(operator, [shapes[name] for name in operator.reads])
        shapes[operator.name] = rule.output_shape
        yield operator, rule


def by_rows(rule: Operator, count: int) -> Strategy:
    """An operator split into so many slices of rows."""
    return rule.strategy({rule.inputs[0][0]: count})


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossEntropy:
    """Emits the operators of a loss.

    Arguments: ``factor`` of a copy's loss in that of the step.
    """

    tape: Tape
    mover: Mover
    placer: Placer
    workload: Workload
    factor: float

    def emit(self, logits: Value, labels: Value) -> None:
        """All of them, the loss and its gradient."""
        # ONES has no tensor: the kernel of its reader knows the number.
        values = {LOGITS: logits, LABELS: labels}
        for operator, rule in loss_rules(logits.shape):
            reads = [values[name] for name in operator.reads if name != ONES]
            values[operator.name] = self._operator(operator, self._for_copies(rule), reads)
        self._mean(values[LIKELIHOOD], values[SMOOTH], values[COUNT])

    def _for_copies(self, rule: Operator) -> Operator:
        """Of a sum of everything, with a number for every copy."""
        return rule if rule.output else replace(rule, output=(ONE,), output_shape=(self.tape.mesh.copies,))

    def _placed(self, operator: LossOperator, rule: Operator, reads: Sequence[Value]) -> Placed:
        lead = len(operator.reads) - len(reads)
        given = self.workload.loss_strategies.get(operator.name)
        # Without a strategy of its own: by batch, over as many ranks as divide it.
        strategy = given or by_rows(rule, self.placer.by_batch(rule.shapes[0][0]))
        return self.placer.by_strategy(rule, strategy, (), reads[0].layout, lead)

    def _operator(self, operator: LossOperator, rule: Operator, reads: Sequence[Value]) -> Value:
        placed = self._placed(operator, rule, reads)
        layouts = placed.inputs[-len(reads) :]
        reads = [self.mover.move(value, layout) for value, layout in zip(reads, layouts, strict=True)]
        name = f'{operator.node}.partial' if placed.local.partial else operator.node
        # What needs no gradient gets none: its backward is not emitted, nor what would read it.
        comes_back = operator.primitive not in WITHOUT_GRADIENT and any(read.needs_gradient for read in reads)
        y = Value(name, rule.output_shape, placed.local, comes_back)
        self.tape.register(y, dtype=self._dtype(operator, reads))
        self._forward(operator, reads, y)
        self.tape.backward_of(y, lambda dy: self._backward(operator, reads, y, dy))
        return self.mover.summed(y, placed.output, operator.node)

    def _dtype(self, operator: LossOperator, reads: Sequence[Value]) -> str:
        """Labels and what is made of them are integers, a mask is one of truths.

        Sums over a copy's rows are wide, as the loss is: 16 bits count to 65504 at most.
        """
        if operator.primitive == 'Equal':
            return 'bool'
        if operator.name in (LIKELIHOOD, SMOOTH, COUNT):
            return self.tape.dtype if BYTES[self.tape.dtype] >= BYTES[WIDE] else WIDE
        kept = operator.primitive in ('ExpandDims', 'Squeeze', 'MaskedFill') and ONES not in operator.reads
        return self.tape.tensors[reads[0].name].dtype if kept else self.tape.dtype

    # forward and backward of one operator

    def _forward(self, operator: LossOperator, reads: Sequence[Value], y: Value) -> None:
        kind = KINDS[operator.primitive]
        if kind.backward == 'output':
            self.tape.saved.add(y.name)
        self.tape.emit_compute(
            operator.node,
            kind.operator,
            'F',
            [read.name for read in reads],
            [y.name],
            flops=kind.flops * self.tape.held(reads[0].name),
            attributes=self._attributes(operator, reads, y),
            moved=self._picked(reads[1], y) if operator.primitive == 'GatherD' else None,
        )

    def _picked(self, index: Value, y: Value) -> float:
        """Bytes of picking: the index, and what it names read and written."""
        return self.tape.held_bytes(index.name) + 2.0 * self.tape.held_bytes(y.name)

    def _attributes(self, operator: LossOperator, reads: Sequence[Value], y: Value) -> Attributes:
        """What the kernel of the forward must know."""
        match operator.primitive:
            case 'SumExt' | 'ReduceMax':
                return {'dims': ' '.join(map(str, operator.axes))}
            case 'ExpandDims' | 'Squeeze':
                return {'shape': self._local(y)}
            case 'Equal':
                return {'value': IGNORE_INDEX}
        return {}

    def _backward(self, operator: LossOperator, reads: Sequence[Value], y: Value, dy: Value) -> None:
        x = reads[0]
        if operator.primitive in ('Sub', 'Add'):
            self.tape.accumulate(x, dy)
            # The second operand's gradient is negated, so it needs an op; the first one's is dy itself.
            if operator.primitive == 'Sub' and reads[1].needs_gradient:
                self._back(operator, reads[1], dy)
            return
        kind = KINDS[operator.primitive]
        saved = {'input': [x], 'output': [y], 'second': list(reads[1:])}.get(kind.backward, [])
        if x.needs_gradient:
            self._back(operator, x, dy, saved)

    def _back(self, operator: LossOperator, x: Value, dy: Value, saved: Sequence[Value] = ()) -> None:
        """The op that makes the gradient of ``x``."""
        kind = KINDS[operator.primitive]
        dx = self.tape.new_gradient(x, operator.node, dy)
        self.tape.emit_compute(
            operator.node,
            kind.operator,
            'I',
            [dy.name, *(value.name for value in saved)],
            [dx.name],
            flops=kind.flops * self.tape.held(dy.name),
            attributes={'shape': self._local(x)},
        )
        self.tape.accumulate(x, dx)

    def _local(self, value: Value) -> str:
        """The shape of a copy's slice."""
        rows, *rest = value.layout.slice_shape(value.shape)
        return ' '.join(map(str, (rows // self.tape.mesh.copies, *rest)))

    # the number

    def _mean(self, likelihood: Value, smooth: Value, count: Value) -> None:
        """Both sums by the count, which every rank has in full."""
        copies = self.tape.mesh.copies
        self.tape.tensors['loss'] = Tensor('loss', 'activation', (copies,), 'fp32', batch_dim=0)
        self.tape.place('loss', TensorLayout(self.tape.world, ((),)))
        sums = [likelihood, smooth]
        self.tape.emit_compute(
            'loss',
            'cross_entropy_mean',
            'F',
            [likelihood.name, smooth.name, count.name],
            ['loss'],
            attributes={'scale': self.factor},
        )
        gradients = [
            self.tape.register(value.like(f'd:{value.name}@loss', self.tape.gradient_layout(value))) for value in sums
        ]
        # Late sums: each of the ranks that replicate the loss gives a share, and together they give it once.
        share = 1.0 / size_of(likelihood.layout.unsharded_axes)
        self.tape.emit_compute(
            'loss',
            'cross_entropy_mean',
            'I',
            [count.name],
            [gradient.name for gradient in gradients],
            attributes={'scale': self.factor * self.workload.loss_scale, 'partial_share': share},
        )
        for value, gradient in zip(sums, gradients, strict=True):
            self.tape.accumulate(value, gradient)
