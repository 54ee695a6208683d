"""The update: it ends the step, a layer an op, in the order in which the backward finishes the layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simpar.lower.pieces import Piece, local_elements
from simpar.lower.tape import Tape
from simpar.program import OpClass, Tensor
from simpar.program.op import Attribute
from simpar.program.tensor import BYTES
from simpar.workload import Adam, Sgd

STATE = BYTES['fp32']
"""Bytes of an element of an optimizer's state."""


@dataclass(frozen=True, slots=True)
class Updates:
    """What ends a step.

    Arguments: ``layers``, update ops by layer.
    """

    layers: tuple[OpClass, ...]

    def ops(self, held: set[str]) -> list[OpClass]:
        """The ops of a pipeline rank that holds these gradients when its sums are done."""
        return [op for op in self.layers if held.issuperset(op.frees)]


def updates(tape: Tape, optimizer: Sgd | Adam, pieces: Sequence[Piece]) -> Updates:
    """All updates; states are registered as tensors."""
    layers: dict[str, list[Piece]] = {}
    for piece in pieces:
        layers.setdefault(piece.layer, []).append(piece)
    return Updates(tuple(_update(tape, layer, own, optimizer) for layer, own in reversed(layers.items())))


def _update(tape: Tape, layer: str, pieces: list[Piece], optimizer: Sgd | Adam) -> OpClass:
    names = tuple(piece.gradient.name for piece in pieces)
    weights = tuple(piece.weight.name for piece in pieces)
    adam = isinstance(optimizer, Adam)
    master = isinstance(optimizer, Adam) and optimizer.master_weights
    states = _states(tape, pieces, master=master) if adam else ()
    elements = sum(local_elements(tape, piece.weight) for piece in pieces)
    moved = BYTES[pieces[0].gradient.dtype] + BYTES[tape.dtype] * (1 if master else 2)
    moved += 2 * STATE * len(states) // len(names)
    attributes: dict[str, Attribute] = {'learning_rate': optimizer.learning_rate}
    if isinstance(optimizer, Adam):
        attributes |= {'beta1': optimizer.beta1, 'beta2': optimizer.beta2, 'epsilon': optimizer.epsilon}
    if master:
        attributes['master_weights'] = True
    return OpClass(
        name=f'{layer}.update.U',
        kind='compute',
        operator='adam' if adam else 'sgd',
        phase='U',
        flops=float(elements * (12 if adam else 2)),
        bytes=float(elements * moved),
        dtype=tape.dtype,
        reads=(*names, *weights, *states),
        writes=(*weights, *states),
        frees=names,
        attributes=attributes,
        stage=pieces[0].stage,
    )


def _states(tape: Tape, pieces: list[Piece], *, master: bool) -> tuple[str, ...]:
    """Register both moments of every weight, and with ``master`` the weight itself, in fp32."""
    names = []
    for state in ('m', 'v', 'master') if master else ('m', 'v'):
        for piece in pieces:
            name = f'{state}:{piece.parameter}'
            initial = tape.tensors[piece.parameter].initial if state == 'master' else 'zeros'
            tape.tensors[name] = Tensor(
                name,
                'state',
                piece.weight.shape,
                'fp32',
                cuts=piece.weight.cuts,
                initial=initial,
                like=piece.parameter,
            )
            names.append(name)
    return tuple(names)
