"""Losses: a mean over the samples of a copy, scaled so that losses of all copies and data ranks simply add up.

A static loss scale multiplies their gradients alone; the update divides by it.
"""

from __future__ import annotations

from math import prod
from typing import Literal

from simpar.lower.mesh import DATA, TENSOR
from simpar.lower.tape import Tape
from simpar.lower.value import Value
from simpar.program import Cut, Tensor
from simpar.program.op import Attribute


def scale(tape: Tape, samples: int, *, summed: bool) -> float:
    """Factor of one sample's loss.

    Arguments: ``samples`` of a micro-batch; ``summed``: MindSpore's sum over copies, each the mean of its own
    samples.
    """
    return (tape.mesh.copies if summed else 1) / (samples * tape.mesh.micro_batches)


def _loss(tape: Tape) -> Value:
    """The tensor ``loss``: one number for each data rank and copy."""
    value = Value('loss', (tape.mesh.data * tape.mesh.copies,))
    cuts = (Cut(0, DATA),) if tape.mesh.data > 1 else ()
    tape.tensors['loss'] = Tensor('loss', 'activation', value.shape, 'fp32', cuts=cuts, batch_dim=0)
    return value


def cross_entropy(tape: Tape, logits: Value, labels: Value, *, summed: bool, loss_scale: float = 1.0) -> None:
    """Softmax cross-entropy with class labels; over cut classes by a maximum and two sums over the tensor ranks.

    Arguments: ``loss_scale``, factor of the gradient.
    """
    factor = scale(tape, prod(labels.shape), summed=summed)
    elements = tape.elements(logits)
    cut = logits.cut is not None
    partition: dict[str, Attribute] = {'partition': TENSOR} if cut else {}
    scaled: dict[str, Attribute] = {'scale': factor}
    loss, lse = _loss(tape), Value('loss.lse', labels.shape)
    tape.activation(lse)
    if cut:
        maximum = tape.activation(Value('loss.maximum.partial', (*labels.shape, 1), partial=True))
        tape.compute('loss.maximum', 'ce_max', 'F', [logits], [maximum], flops=elements)
        top = tape.collective('all_reduce', 'F', maximum, Value('loss.maximum', maximum.shape), reduce='max')
        parts = tape.activation(Value('loss.parts.partial', (*labels.shape, 2), partial=True))
        tape.compute('loss.sum', 'ce_sum', 'F', [logits, labels, top], [parts], flops=4 * elements,
                     attributes=partition)  # fmt: skip
        total = tape.collective('all_reduce', 'F', parts, Value('loss.parts', parts.shape))
        tape.compute('loss', 'ce_loss', 'F', [total, top], [loss, lse], attributes=scaled)
    else:
        tape.compute('loss', 'cross_entropy', 'F', [logits, labels], [loss, lse], flops=5 * elements,
                     attributes=scaled)  # fmt: skip
    late = tape.late and not cut
    dlogits = tape.activation(logits.like(f'd:{logits.name}@loss', partial=late))
    share: dict[str, Attribute] = {'partial_share': 1.0 / tape.mesh.tensor} if late else {}
    tape.compute('loss', 'cross_entropy', 'I', [logits, labels, lse], [dlogits], flops=4 * elements,
                 attributes={'scale': factor * loss_scale, **partition, **share})  # fmt: skip
    tape.contribute(logits, dlogits)


def difference(
    tape: Tape, operator: Literal['mse', 'mae'], y: Value, target: Value, *, summed: bool, loss_scale: float = 1.0
) -> None:
    """Mean over all elements of the squared (``mse``) or absolute (``mae``) differences.

    Arguments: ``loss_scale``, factor of the gradient.
    """
    factor = scale(tape, prod(target.shape), summed=summed)
    loss = _loss(tape)
    tape.compute('loss', operator, 'F', [y, target], [loss], flops=3 * tape.elements(y),
                 attributes={'scale': factor})  # fmt: skip
    dy = tape.activation(y.like(f'd:{y.name}@loss', partial=tape.late))
    share: dict[str, Attribute] = {'partial_share': 1.0 / tape.mesh.tensor} if tape.late else {}
    tape.compute('loss', operator, 'I', [y, target], [dy], flops=(2 if operator == 'mse' else 3) * tape.elements(y),
                 attributes={'scale': factor * loss_scale, **share})  # fmt: skip
    tape.contribute(y, dy)
