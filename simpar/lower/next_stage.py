"""Stage boundaries: the values that later stages read go on in one message, and their gradients come back in one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from simpar.errors import Infeasible
from simpar.layout import Axis, TensorLayout
from simpar.layout.axis import minus, size_of
from simpar.lower.mesh import PIPELINE
from simpar.lower.move import Mover
from simpar.lower.tape import Tape
from simpar.lower.two_homes import sent_to_mirror
from simpar.lower.value import Value
from simpar.program import OpClass
from simpar.program.op import Phase


def send_to_next_stage(tape: Tape, values: Sequence[Value], chunks: Mover | None = None) -> list[Value]:
    """Go on in the next stage: every rank sends its shards of the values there, and gets their gradients back.

    Where both stages are on one rank, nothing is sent. Arguments: ``chunks``, who makes and gathers what a tensor rank
    sends of a value that all of them hold (Megatron-LM's scatter_gather_tensors_in_pipeline); none: all send all of it.
    """
    sender, receiver = tape.stage, tape.stage + 1
    if tape.mesh.pipeline_rank(sender) == tape.mesh.pipeline_rank(receiver):
        return sent_to_mirror(tape, values) if tape.mesh.mirrored else _stay(tape, values)
    arrived = [value.like(f'{value.name}.received') for value in values]
    arrived = [one._replace(needs_gradient=value.needs_gradient) for one, value in zip(arrived, values, strict=True)]
    _in_chunks(tape, values, arrived, 'F', (sender, receiver), chunks)

    def backward() -> None:
        gradients = [(value, tape.pop(one)) for value, one in zip(values, arrived, strict=True)]
        sent = [(value, _own(tape, one)) for value, one in gradients if one is not None and value.needs_gradient]
        if not sent:
            return
        # Names differ by the way that layouts came about, as they did when each had a tape of its own: spans and
        # goldens join on them.
        ending = 'stage' if tape.degrees else 'back'
        joint = '@' if tape.degrees else '.'
        returned = [gradient.like(f'd:{value.name}{joint}{ending}') for value, gradient in sent]
        _in_chunks(tape, [gradient for _, gradient in sent], returned, 'I', (receiver, sender), chunks)
        for (value, _), gradient in zip(sent, returned, strict=True):
            tape.accumulate(value, gradient)

    tape.on_backward(backward)
    return arrived


def _stay(tape: Tape, values: Sequence[Value]) -> list[Value]:
    """Hand the values to the next stage of the same rank.

    A stage frees what it alone reads. So a value that this stage's backward reads too is copied.
    """
    # What this stage's backward reads must not end with the later stage's last reader.
    kept = [_copied(tape, value) if value.name in tape.saved else value for value in values]
    tape.stage += 1
    for value in kept:
        tape.backward_of(value, partial(_returned, tape, value))
    return kept


def _returned(tape: Tape, value: Value, gradient: Value) -> None:
    """Hand the gradient to the earlier stage of the same rank.

    The parts were summed in the later stage, so that this stage frees them. A tensor that two stages read would be
    freed by neither.
    """
    tape.accumulate(value, _own(tape, gradient))


def _own(tape: Tape, gradient: Value) -> Value:
    """The gradient, or a copy of one that an operator hands on to several values as it is, as a sum does.

    The stage's other operators read it, too, in a split backward even behind the send. So no op could free it.
    """
    if tape.handed_on[gradient.name] < 2:
        return gradient
    name = f'{gradient.name}.copy'
    taken = {op.name for op in tape.ops}
    # A value that goes on over several stages is copied in each, and a redistribution may have copied it, too.
    while name in tape.tensors or f'{name}.I' in taken:
        name = f'{name}.copy'
    copied = tape.register(gradient.like(name))
    tape.emit_compute(copied.name, 'scale', 'I', [gradient.name], [copied.name], attributes={'factor': 1.0})
    return copied


def _copied(tape: Tape, value: Value) -> Value:
    copied = tape.register(value.like(f'{value.name}.copy')._replace(needs_gradient=value.needs_gradient))
    tape.emit_compute(copied.name, 'scale', 'F', [value.name], [copied.name], attributes={'factor': 1.0})
    tape.backward_of(copied, lambda gradient: tape.accumulate(value, gradient))
    return copied


def _in_chunks(
    tape: Tape,
    values: Sequence[Value],
    arrived: Sequence[Value],
    phase: Phase,
    stages: tuple[int, int],
    by: Mover | None,
) -> None:
    """Send values between two stages, each tensor rank its chunk of what all of them hold, which is gathered there."""
    sent, come = list(values), list(arrived)
    for place, value in enumerate(values if by else ()):
        layout = _chunk(tape, value)
        if by and layout:
            sent[place] = by.laid(value, layout, f'{value.name}.chunk', phase)
            come[place] = arrived[place].like(f'{arrived[place].name}.chunk', layout)
    _transfer(tape, sent, come, phase, *stages)
    for one, chunk in zip(arrived, come, strict=True):
        if by and chunk is not one:
            by.laid(chunk, one.layout, one.name, phase)


def _chunk(tape: Tape, value: Value) -> TensorLayout | None:
    """The layout of a tensor rank's chunk: along the first dim behind the batch that divides; None where none does."""
    layout = value.layout
    if layout.partial or size_of(tape.tensor_axes) == 1 or not _holds_all(layout, tape.tensor_axes):
        return None
    for dim in range(1, len(value.shape)):
        axes = (*layout.dims[dim], *tape.tensor_axes)
        if value.shape[dim] % size_of(axes) == 0:
            return TensorLayout(layout.world, (*layout.dims[:dim], axes, *layout.dims[dim + 1 :]))
    return None


def _holds_all(layout: TensorLayout, axes: Sequence[Axis]) -> bool:
    """Whether ranks along axes hold the same."""
    try:
        return not minus(axes, layout.replicated_axes)
    except Infeasible:
        # A strategy has parted the ranks otherwise (2 × 3, not 3 × 2).
        return False


def _transfer(
    tape: Tape, values: Sequence[Value], arrived: Sequence[Value], phase: Phase, source: int, target: int
) -> None:
    """Emit a send of all values in stage ``source`` and its receive in ``target``."""
    for value, one in zip(values, arrived, strict=True):
        # A mask or an index goes on in its own type, not in the tape's.
        tape.register(one, dtype=tape.tensors[value.name].dtype)
    names = tuple(value.name for value in values)
    # An offset, not a rank, so that all ranks of a stage share the op.
    offset = tape.mesh.pipeline_rank(target) - tape.mesh.pipeline_rank(source)
    send = OpClass(
        name=f'{names[0]}.send.{phase}',
        kind='send',
        operator='send',
        phase=phase,
        bytes=float(sum(map(tape.held_bytes, names))),
        dtype=tape.tensors[names[0]].dtype,
        partition=PIPELINE,
        peer=offset,
        reads=names,
    )
    receive = replace(
        send,
        name=f'{names[0]}.recv.{phase}',
        kind='recv',
        operator='recv',
        peer=-offset,
        reads=(),
        writes=tuple(one.name for one in arrived),
    )
    # The receive is emitted last: the tape goes on in the stage that it leads to.
    for tape.stage, op in ((source, send), (target, receive)):
        tape.emit(op)
