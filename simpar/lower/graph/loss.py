"""Losses: a mean over the samples of a copy, scaled so that the losses of all copies and data ranks simply add up.

One number for each slice of samples and copy. A static loss scale multiplies gradients alone; the update divides by it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from simpar.files import read_csv
from simpar.layout import ONE, Axis, Placed, Rule, Strategy, TensorLayout, operators, size_of
from simpar.lower.graph.move import Mover, Site, emit
from simpar.lower.graph.place import Degrees, Placer
from simpar.lower.tape import Tape, Value
from simpar.model import Reshape, Shape
from simpar.model.library import cross_entropy
from simpar.program import BYTES, Attribute, Split, Tensor
from simpar.workload import Workload

# The loss summed over the ranks for display: one number a copy of a micro-batch, behind the loss, read by nobody.
#
# MindSpore's compiler puts it into every graph, Megatron-LM calls it for every micro-batch. The backward does not wait.


LOSS: Final = 'loss'
TOTAL: Final = 'loss.total'


def sum_loss(tape: Tape) -> None:
    """Put the sum behind the op that makes the loss; nothing where no rank has a shard that another has not."""
    axes = tape.layouts[LOSS].sharding_axes
    if not axes:
        return
    loss = tape.tensors[LOSS]
    place = next(place for place, op in enumerate(tape.ops) if LOSS in op.writes)
    # No pending sum in the source: shards of what has one number for each rank and copy are added.
    tape.tensors[TOTAL] = Tensor(TOTAL, 'activation', (tape.mesh.copies,), loss.dtype, batch_dim=0)
    tape.emit_collective('all_reduce', 'F', axes, LOSS, TOTAL)
    summed = replace(tape.ops.pop(), stage=tape.ops[place].stage)
    # Right behind the loss, in the forward: the backward has all its time to hide the all-reduce.
    tape.ops.insert(place + 1, summed)


# Cross-entropy in operators on the tape, each sharded by its own strategy, with redistributions between them.


@dataclass(frozen=True, slots=True)
class _Kind:
    """What programs call a primitive, the floating-point operations of an element of what it reads first, and what its
    backward reads besides the gradient: its ``input``, its ``output``, what it reads ``second``, or nothing."""

    operator: str
    flops: float = 0.0
    backward: str = ''


KINDS: Final = {
    row['primitive']: _Kind(row['operator'], float(row['flops']), row['backward'])
    for row in read_csv(Path(__file__).with_name('loss.csv'))
}
Attributes = dict[str, Attribute]
WIDE: Final = 'fp32'
"""Of sums over rows, at least."""
WITHOUT_GRADIENT: Final = frozenset({'ReduceMax', 'Equal'})
"""The maximum cancels out of the loss, so that nothing comes back through it."""


def rule_of(operator: cross_entropy.LossOperator, shapes: Sequence[Shape]) -> Rule:
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


def loss_rules(logits: Shape) -> Iterator[tuple[cross_entropy.LossOperator, Rule]]:
    """Every operator of the loss with its rule, in order.

    Arguments: ``logits``, their shape [rows, classes].
    """
    shapes = {cross_entropy.LOGITS: logits, cross_entropy.LABELS: logits[:1], cross_entropy.ONES: (*logits[:1], 1)}
    for operator in cross_entropy.CROSS_ENTROPY:
        rule = rule_of(operator, [shapes[name] for name in operator.reads])
        shapes[operator.name] = rule.output_shape
        yield operator, rule


def by_rows(rule: Rule, count: int) -> Strategy:
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
        values = {cross_entropy.LOGITS: logits, cross_entropy.LABELS: labels}
        for operator, rule in loss_rules(logits.shape):
            reads = [values[name] for name in operator.reads if name != cross_entropy.ONES]
            # Of a sum of everything, a number for every copy.
            if not rule.output:
                rule = replace(rule, output=(ONE,), output_shape=(self.tape.mesh.copies,))  # noqa: PLW2901
            values[operator.name] = self._operator(operator, rule, reads)
        self._mean(values[cross_entropy.LIKELIHOOD], values[cross_entropy.SMOOTH], values[cross_entropy.COUNT])

    def _placed(self, operator: cross_entropy.LossOperator, rule: Rule, reads: Sequence[Value]) -> Placed:
        lead = len(operator.reads) - len(reads)
        choice = self.workload.loss_strategies.get(operator.name)
        # Without a strategy of its own: by batch, over as many ranks as divide it.
        strategy = choice or by_rows(rule, self.placer.by_batch(rule.shapes[0][0]))
        return self.placer.by_strategy(rule, strategy, (), reads[0].layout, lead)

    def _operator(self, operator: cross_entropy.LossOperator, rule: Rule, reads: Sequence[Value]) -> Value:
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

    def _dtype(self, operator: cross_entropy.LossOperator, reads: Sequence[Value]) -> str:
        """Labels and what is made of them are integers, a mask is one of truths.

        Sums over a copy's rows are wide, as the loss is: 16 bits count to 65504 at most.
        """
        if operator.primitive == 'Equal':
            return 'bool'
        if operator.name in (cross_entropy.LIKELIHOOD, cross_entropy.SMOOTH, cross_entropy.COUNT):
            return self.tape.dtype if BYTES[self.tape.dtype] >= BYTES[WIDE] else WIDE
        keeps_dtype = (
            operator.primitive in ('ExpandDims', 'Squeeze', 'MaskedFill') and cross_entropy.ONES not in operator.reads
        )
        return self.tape.tensors[reads[0].name].dtype if keeps_dtype else self.tape.dtype

    # forward and backward of one operator

    def _forward(self, operator: cross_entropy.LossOperator, reads: Sequence[Value], y: Value) -> None:
        kind, held = KINDS[operator.primitive], self.tape.held_bytes
        if kind.backward == 'output':
            self.tape.saved.add(y.name)
        # Picking moves the index, and what it names read and written.
        moved = held(reads[1].name) + 2.0 * held(y.name) if operator.primitive == 'GatherD' else None
        self.tape.emit_compute(
            operator.node,
            kind.operator,
            'F',
            [read.name for read in reads],
            [y.name],
            flops=kind.flops * self.tape.held(reads[0].name),
            attributes=self._attributes(operator, reads, y),
            moved=moved,
        )

    def _attributes(self, operator: cross_entropy.LossOperator, reads: Sequence[Value], y: Value) -> Attributes:
        """What the kernel of the forward must know."""
        match operator.primitive:
            case 'SumExt' | 'ReduceMax':
                return {'dims': ' '.join(map(str, operator.axes))}
            case 'ExpandDims' | 'Squeeze':
                return {'shape': self._local(y)}
            case 'Equal':
                return {'value': cross_entropy.IGNORE_INDEX}
        return {}

    def _backward(self, operator: cross_entropy.LossOperator, reads: Sequence[Value], y: Value, dy: Value) -> None:
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

    def _back(self, operator: cross_entropy.LossOperator, x: Value, dy: Value, saved: Sequence[Value] = ()) -> None:
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


Layouts = tuple[TensorLayout, TensorLayout]
"""Of the result of the model and of the target."""


def scale(tape: Tape, samples: int, *, summed: bool) -> float:
    """Factor of one sample's loss.

    Arguments: ``samples`` of a micro-batch; ``summed``: MindSpore's sum over copies, each the mean of its own samples.
    """
    # Over all micro-batches and chunks, so that the losses of a step add up to its mean.
    items = tape.mesh.micro_batches * tape.mesh.sequence_chunks
    return (tape.mesh.copies if summed else 1) / (samples * items)


def as_rows(tape: Tape, mover: Mover, placer: Placer, y: Value) -> Value:
    """Logits [batch, sequence, classes] as rows of classes, which the operators of the loss take."""
    if len(y.shape) == 2:
        return y
    operator = Reshape(shape=(-1, y.shape[-1]))
    rule = operator.axes('loss.rows', y.shape)
    placed = placer.followed(rule, y.layout)
    x = mover.move(y, placed.inputs[0])
    rows = Value('loss.rows', rule.output_shape, placed.local)
    site = Site(tape=tape, mover=mover, name=rows.name, values={'x': x, 'y': rows}, inputs=placed.inputs,
                output=placed.output, deviation=0.0)  # fmt: skip
    return emit(site, operator.ops(site), operator.roles)


def by_strategy(rule: Rule, placer: Placer, workload: Workload, y: Value) -> Layouts:
    by_class = workload.loss == 'cross-entropy'
    rows = (placer.by_batch(y.shape[0]), *(1,) * (len(y.shape) - 1))
    placed = rule.sharded(workload.loss_strategy or (rows, rows[:-1] if by_class else rows), placer.world)
    placer.check_rows(rule, placed.inputs[0])
    return placed.inputs[0], placed.inputs[1]


def by_degrees(y: Value, degrees: Degrees, *, by_class: bool) -> Layouts:
    """As the result lies; of classes alone, the tensor ranks may hold slices, which no difference takes."""
    *rows, last = y.layout.dims
    # Only the tensor degree's split is known to the split kernels; any other is gathered.
    keeps = by_class and last == degrees.tensor
    result = TensorLayout(y.layout.world, (*rows, last if keeps else ()))
    return result, TensorLayout(y.layout.world, tuple(rows)) if by_class else result


class Loss:
    """A loss as one operator; of classes that are split, as a maximum and two sums over the ranks."""

    def __init__(self, tape: Tape, workload: Workload, y: Value, target: Value, factor: float, name: str) -> None:
        self.tape, self.workload, self.y, self.target, self.name = tape, workload, y, target, name
        self.scaled: dict[str, Attribute] = {'scale': factor}
        self.masked: dict[str, Attribute] = {'masked': True} if name != LOSS else {}
        self.elements = tape.held(y.name)
        self.classes = y.layout.dims[-1] if workload.loss == 'cross-entropy' else ()
        self.partition: dict[str, Attribute] = {'partition': tape.partition(self.classes)} if self.classes else {}

    def emit(self) -> None:
        """The loss, and the gradient of the result."""
        tape, workload, factor = self.tape, self.workload, float(self.scaled['scale'])
        number = _number(tape, self.name, [axis for axis in self.y.layout.sharding_axes if axis not in self.classes])
        by_class = workload.loss == 'cross-entropy'
        lse = [tape.register(Value(f'{self.name}.lse', self.target.shape, self.target.layout)).name] if by_class else []
        operator = workload.loss.replace('-', '_')
        if self.classes:
            self._split(number, *lse)
        else:
            tape.emit_compute(self.name, operator, 'F', [self.y.name, self.target.name], [number, *lse],
                              flops=(5 if by_class else 3) * self.elements,
                              attributes={**self.scaled, **self.masked})  # fmt: skip
        layout = tape.gradient_layout(self.y)
        dy = tape.register(self.y.like(f'd:{self.y.name}@{self.name}', layout))
        # Late sums add the gradient over the ranks that replicate the loss; each gives its share.
        share = 1.0 / size_of(layout.partial)
        attributes: dict[str, Attribute] = {
            'scale': factor * workload.loss_scale,
            **self.partition,
            **self.masked,
            **({'partial_share': share} if share != 1 else {}),
        }
        flops = {'cross-entropy': 4, 'mse': 2, 'mae': 3}[workload.loss] * self.elements
        tape.emit_compute(self.name, operator, 'I', [self.y.name, self.target.name, *lse], [dy.name], flops=flops,
                          attributes=attributes)  # fmt: skip
        tape.accumulate(self.y, dy)

    def _split(self, number: str, lse: str) -> None:
        """Megatron's: all-reduced are a maximum and two sums, no logits (Shoeybi et al. 2019, section 3)."""
        tape, y, labels = self.tape, self.y.name, self.target.name
        maximum = self._summed(f'{self.name}.maximum', 'ce_max', [y], 1, self.elements, reduce='max')
        parts = self._summed(
            f'{self.name}.parts', 'ce_sum', [y, labels, maximum], 2, 4 * self.elements, name=f'{self.name}.sum'
        )
        reads = [parts, maximum, *([labels] if self.masked else [])]
        tape.emit_compute(self.name, 'ce_loss', 'F', reads, [number, lse], attributes=self.scaled)

    def _summed(
        self, value: str, operator: str, reads: list[str], width: int, flops: int, *, name: str = '',
        reduce: str = 'sum'
    ) -> str:  # fmt: skip
        """A few numbers of each row, of all ranks together."""
        tape, shape = self.tape, (*self.target.shape, width)
        rows = TensorLayout(tape.world, (*self.target.layout.dims, ()))
        own = tape.register(Value(f'{value}.partial', shape, rows.with_partial(self.classes)))
        attributes = self.partition if operator == 'ce_sum' else {}
        tape.emit_compute(name or value, operator, 'F', reads, [own.name], flops=flops, attributes=attributes)
        joint = tape.register(Value(value, shape, rows))
        tape.emit_collective('all_reduce', 'F', self.classes, own.name, joint.name, reduce=reduce)
        return joint.name


def _number(tape: Tape, name: str, axes: Sequence[Axis]) -> str:
    """The tensor of a loss: one number for each slice and copy."""
    splits = tuple(Split(0, tape.partition((axis,))) for axis in axes)
    tape.tensors[name] = Tensor(name, 'activation', (size_of(axes) * tape.mesh.copies,), 'fp32', splits, batch_dim=0)
    tape.place(name, TensorLayout(tape.world, (tuple(axes),)))
    return name
