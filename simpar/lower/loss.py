"""Losses: a mean over the samples of a copy, scaled so that the losses of all copies and data ranks simply add up.

One number for each slice of samples and copy. A static loss scale multiplies gradients alone; the update divides by it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from simpar.layout import TensorLayout, operators
from simpar.layout.axis import Axis, size_of
from simpar.layout.operator import Operator
from simpar.lower.cross_entropy import CrossEntropy
from simpar.lower.degrees import Degrees
from simpar.lower.emit import Site, emit
from simpar.lower.move import Mover
from simpar.lower.place import Placer
from simpar.lower.tape import Tape
from simpar.lower.value import Value
from simpar.model import Reshape
from simpar.program import Split, Tensor
from simpar.program.op import Attribute
from simpar.workload import Workload

Input = Callable[[str, tuple[int, ...], str, str], Value]
"""Registers an input: name, shape, how it is drawn, data type."""
Layouts = tuple[TensorLayout, TensorLayout]
"""Of the result of the model and of the target."""


def scale(tape: Tape, samples: int, *, summed: bool) -> float:
    """Factor of one sample's loss.

    Arguments: ``samples`` of a micro-batch; ``summed``: MindSpore's sum over copies, each the mean of its own samples.
    """
    # Over all micro-batches and chunks, so that the losses of a step add up to its mean.
    items = tape.mesh.micro_batches * tape.mesh.sequence_chunks
    return (tape.mesh.copies if summed else 1) / (samples * items)


def add_loss(
    tape: Tape,
    mover: Mover,
    placer: Placer,
    degrees: Degrees | None,
    workload: Workload,
    register: Input,
    y: Value,
    *,
    drawn_labels: str,
    summed: bool,
) -> None:
    """Emit the loss of a model's result and its gradient.

    Arguments: ``drawn_labels``, how labels are drawn; ``summed``: losses of copies add up. Raises ``Infeasible`` where
    its strategy does not fit.
    """
    by_class, drawn = workload.loss == 'cross-entropy', 'mnist' if workload.data == 'mnist' else ''
    classes = drawn or (drawn_labels if ':' in drawn_labels else f'{drawn_labels}:{y.shape[-1]}')
    if workload.loss_operators != 'one':
        y = _as_rows(tape, mover, placer, y)
        labels = register('labels', y.shape[:-1], classes, 'int64')
        # Its operators divide by the rows of a copy themselves: copies stand in the place of samples.
        of_a_copy = scale(tape, tape.mesh.copies, summed=summed)
        CrossEntropy(tape=tape, mover=mover, placer=placer, workload=workload, factor=of_a_copy).emit(y, labels)
        return
    rule = (operators.cross_entropy if by_class else operators.mean_loss)('loss', y.shape)
    split = degrees is not None and not workload.loss_strategy
    layouts = (
        _by_degrees(y, degrees, by_class=by_class) if split and degrees else _by_strategy(rule, placer, workload, y)
    )
    y = mover.move(y, layouts[0])
    if by_class:
        target = register('labels', y.shape[:-1], classes, 'int64')
    else:
        target = register('target', y.shape, 'normal:1', tape.dtype)
    target = mover.move(target, layouts[1])
    factor = scale(tape, prod(target.shape), summed=summed)
    _Loss(tape, workload, y, target, factor).emit()


def _as_rows(tape: Tape, mover: Mover, placer: Placer, y: Value) -> Value:
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


def _by_strategy(rule: Operator, placer: Placer, workload: Workload, y: Value) -> Layouts:
    by_class = workload.loss == 'cross-entropy'
    rows = (placer.by_batch(y.shape[0]), *(1,) * (len(y.shape) - 1))
    placed = rule.sharded(workload.loss_strategy or (rows, rows[:-1] if by_class else rows), placer.world)
    placer.check_rows(rule, placed.inputs[0])
    return placed.inputs[0], placed.inputs[1]


def _by_degrees(y: Value, degrees: Degrees, *, by_class: bool) -> Layouts:
    """As the result lies; of classes alone, the tensor ranks may hold slices, which no difference takes."""
    *rows, last = y.layout.dims
    # Only the tensor degree's split is known to the split kernels; any other is gathered.
    keeps = by_class and last == degrees.tensor
    result = TensorLayout(y.layout.world, (*rows, last if keeps else ()))
    return result, TensorLayout(y.layout.world, tuple(rows)) if by_class else result


class _Loss:
    """A loss as one operator; of classes that are split, as a maximum and two sums over the ranks."""

    def __init__(self, tape: Tape, workload: Workload, y: Value, target: Value, factor: float) -> None:
        self.tape, self.workload, self.y, self.target = tape, workload, y, target
        self.scaled: dict[str, Attribute] = {'scale': factor}
        self.elements = tape.held(y.name)
        self.classes = y.layout.dims[-1] if workload.loss == 'cross-entropy' else ()
        self.partition: dict[str, Attribute] = {'partition': tape.partition(self.classes)} if self.classes else {}

    def emit(self) -> None:
        """The loss, and the gradient of the result."""
        tape, workload, factor = self.tape, self.workload, float(self.scaled['scale'])
        number = _number(tape, [axis for axis in self.y.layout.sharding_axes if axis not in self.classes])
        by_class = workload.loss == 'cross-entropy'
        lse = [tape.register(Value('loss.lse', self.target.shape, self.target.layout)).name] if by_class else []
        operator = workload.loss.replace('-', '_')
        if self.classes:
            self._split(number, *lse)
        else:
            tape.emit_compute('loss', operator, 'F', [self.y.name, self.target.name], [number, *lse],
                              flops=(5 if by_class else 3) * self.elements, attributes=self.scaled)  # fmt: skip
        layout = tape.gradient_layout(self.y)
        dy = tape.register(self.y.like(f'd:{self.y.name}@loss', layout))
        # Late sums add the gradient over the ranks that replicate the loss; each gives its share.
        share = 1.0 / size_of(layout.partial)
        told: dict[str, Attribute] = {
            'scale': factor * workload.loss_scale,
            **self.partition,
            **({'partial_share': share} if share != 1 else {}),
        }
        flops = {'cross-entropy': 4, 'mse': 2, 'mae': 3}[workload.loss] * self.elements
        tape.emit_compute('loss', operator, 'I', [self.y.name, self.target.name, *lse], [dy.name], flops=flops,
                          attributes=told)  # fmt: skip
        tape.accumulate(self.y, dy)

    def _split(self, number: str, lse: str) -> None:
        """Megatron's: all-reduced are a maximum and two sums, no logits (Shoeybi et al. 2019, section 3)."""
        tape, y, labels = self.tape, self.y.name, self.target.name
        maximum = self._summed('loss.maximum', 'ce_max', [y], 1, self.elements, reduce='max')
        parts = self._summed('loss.parts', 'ce_sum', [y, labels, maximum], 2, 4 * self.elements, name='loss.sum')
        tape.emit_compute('loss', 'ce_loss', 'F', [parts, maximum], [number, lse], attributes=self.scaled)

    def _summed(
        self, value: str, operator: str, reads: list[str], width: int, flops: int, *, name: str = '',
        reduce: str = 'sum'
    ) -> str:  # fmt: skip
        """A few numbers of each row, of all ranks together."""
        tape, shape = self.tape, (*self.target.shape, width)
        rows = TensorLayout(tape.world, (*self.target.layout.dims, ()))
        own = tape.register(Value(f'{value}.partial', shape, rows.with_partial(self.classes)))
        told = self.partition if operator == 'ce_sum' else {}
        tape.emit_compute(name or value, operator, 'F', reads, [own.name], flops=flops, attributes=told)
        joint = tape.register(Value(value, shape, rows))
        tape.emit_collective('all_reduce', 'F', self.classes, own.name, joint.name, reduce=reduce)
        return joint.name


def _number(tape: Tape, axes: Sequence[Axis]) -> str:
    """The tensor ``loss``: one number for each slice and copy."""
    splits = tuple(Split(0, tape.partition((axis,))) for axis in axes)
    tape.tensors['loss'] = Tensor(
        'loss', 'activation', (size_of(axes) * tape.mesh.copies,), 'fp32', splits, batch_dim=0
    )
    tape.place('loss', TensorLayout(tape.world, (tuple(axes),)))
    return 'loss'
