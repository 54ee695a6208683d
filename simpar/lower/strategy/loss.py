"""The loss on the tape of strategies: one number for each slice of samples and copy."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from simpar.errors import Infeasible
from simpar.layout import TensorLayout, operators
from simpar.layout.axis import size_of
from simpar.lower import loss
from simpar.lower.strategy.cross_entropy import CrossEntropy
from simpar.lower.strategy.move import Mover
from simpar.lower.strategy.place import Placer
from simpar.lower.strategy.tape import Laid, LaidTape
from simpar.program import Cut, Tensor
from simpar.program.op import Attribute
from simpar.workload import Workload

Input = Callable[[str, tuple[int, ...], str, str], Laid]
"""Registers an input: name, shape, how it is drawn, data type."""


def add_loss(
    tape: LaidTape, mover: Mover, placer: Placer, workload: Workload, register: Input, y: Laid, *, summed: bool
) -> None:
    """Emit the loss of a network's result and its gradient.

    Arguments: ``summed``: losses of copies add up. Raises ``Infeasible`` where its strategy does not fit.
    """
    by_class, drawn = workload.loss == 'cross-entropy', 'mnist' if workload.data == 'mnist' else ''
    if by_class and len(y.shape) != 2:
        raise Infeasible(
            f'loss: cross-entropy takes rows of classes, not {list(y.shape[1:])} a sample; reshape before it'
        )
    if workload.loss_operators != 'one':
        labels = register('labels', y.shape[:1], drawn or f'classes:{y.shape[1]}', 'int64')
        of_a_copy = loss.scale(tape, tape.mesh.copies, summed=summed)
        CrossEntropy(tape=tape, mover=mover, placer=placer, workload=workload, factor=of_a_copy).emit(y, labels)
        return
    rule = (operators.cross_entropy if by_class else operators.mean_loss)('loss', y.shape)
    rows = (placer.by_batch(y.shape[0]), *(1,) * (len(y.shape) - 1))
    placed = rule.sharded(workload.loss_strategy or (rows, rows[:1] if by_class else rows), tape.world)
    placer.check_rows(rule, placed.inputs[0])
    y = mover.move(y, placed.inputs[0])
    if by_class:
        target = register('labels', y.shape[:1], drawn or f'classes:{y.shape[1]}', 'int64')
    else:
        target = register('target', y.shape, 'normal:1', tape.dtype)
    target = mover.move(target, placed.inputs[1])
    number = _number(tape, placed.inputs[0])
    lse = [tape.lay(Laid('loss.lse', target.shape, target.layout)).name] if by_class else []
    factor = loss.scale(tape, prod(target.shape), summed=summed)
    operator, elements = workload.loss.replace('-', '_'), tape.held(y.name)
    tape.work('loss', operator, 'F', [y.name, target.name], [number, *lse], flops=(5 if by_class else 3) * elements,
              attributes={'scale': factor})  # fmt: skip
    dy = tape.new_gradient(y, 'loss')
    share: dict[str, Attribute] = {
        'scale': factor * workload.loss_scale,
        'partial_share': 1.0 / size_of(y.layout.uncut),
    }
    tape.work('loss', operator, 'I', [y.name, target.name, *lse], [dy.name], flops=(2 + 2 * by_class) * elements,
              attributes=share)  # fmt: skip
    tape.give(y, dy)


def _number(tape: LaidTape, layout: TensorLayout) -> str:
    """The tensor ``loss``: one number for each slice and copy."""
    axes, copies = layout.cutting, tape.mesh.copies
    cuts = tuple(Cut(0, tape.partition((axis,))) for axis in axes)
    tape.tensors['loss'] = Tensor('loss', 'activation', (size_of(axes) * copies,), 'fp32', cuts, batch_dim=0)
    return 'loss'
