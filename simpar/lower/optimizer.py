"""Gradient sums over replicas, and the update.

The gradients of one layer travel as one message as soon as its last copy's W is issued; updates end the step, a layer
an op.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from simpar.lower.issue import Issue
from simpar.lower.mesh import TENSOR
from simpar.lower.tape import Tape
from simpar.program import OpClass, Tensor
from simpar.program.tensor import BYTES
from simpar.workload import Adam, Sgd

STATE = BYTES['fp32']
"""Bytes of an element of an optimizer's state."""


def layer_of(parameter: str) -> str:
    """The layer that a parameter belongs to: ``layer3.qkv.weight`` → ``layer3``."""
    return parameter.partition('.')[0]


def local_elements(tape: Tape, tensor: Tensor) -> int:
    """Elements of a parameter that one rank holds."""
    cut = any(cut.partition == TENSOR for cut in tensor.cuts)
    return prod(tensor.shape) // (tape.mesh.tensor if cut else 1)


def reductions(tape: Tape) -> list[OpClass]:
    """One all-reduce for the gradients of each layer that are summed over the same partition."""
    buckets: dict[tuple[str, str], list[Tensor]] = {}
    for tensor in _gradients(tape):
        partition = tape.mesh.summing(over_tensor=tensor.like in tape.partial_gradients)
        if partition:
            buckets.setdefault((layer_of(tensor.like), partition), []).append(tensor)
    stages = _stages(tape)
    return [
        OpClass(
            name=f'{layer}.gradients.{partition}.all_reduce.W',
            kind='collective',
            operator='all_reduce',
            phase='W',
            bytes=float(sum(local_elements(tape, tensor) * BYTES[tensor.dtype] for tensor in bucket)),
            dtype=bucket[0].dtype,
            partition=partition,
            reduce='sum',
            reads=(names := tuple(tensor.name for tensor in bucket)),
            writes=names,
            stage=stages[names[0]],
        )
        for (layer, partition), bucket in buckets.items()
    ]


def place(order: Sequence[Issue], reduces: Iterable[OpClass]) -> list[Issue]:
    """Issue every reduction right behind the last op that adds to one of its gradients."""
    last = {name: index for index, issue in enumerate(order) for name in issue.op.accumulates}
    behind: dict[int, list[OpClass]] = {}
    for op in reduces:
        behind.setdefault(max(last[name] for name in op.reads), []).append(op)
    placed = list(order)
    for index, ops in sorted(behind.items(), reverse=True):
        placed[index + 1 : index + 1] = [Issue(op) for op in ops]
    return placed


def updates(tape: Tape, optimizer: Sgd | Adam) -> list[OpClass]:
    """One update op for each layer, in the order in which the backward finishes the layers."""
    layers: dict[str, list[Tensor]] = {}
    for tensor in _gradients(tape):
        layers.setdefault(layer_of(tensor.like), []).append(tensor)
    stages = _stages(tape)
    return [_update(tape, layer, gradients, optimizer, stages) for layer, gradients in reversed(layers.items())]


def _stages(tape: Tape) -> dict[str, int]:
    """The stage that adds to each gradient (the first stage, for a weight that two use)."""
    return {name: op.stage for op in tape.ops for name in op.accumulates}


def _gradients(tape: Tape) -> list[Tensor]:
    return [tensor for tensor in tape.tensors.values() if tensor.kind == 'gradient']


def _update(tape: Tape, layer: str, gradients: list[Tensor], optimizer: Sgd | Adam, stages: dict[str, int]) -> OpClass:
    names = tuple(tensor.name for tensor in gradients)
    weights = tuple(tensor.like for tensor in gradients)
    adam = isinstance(optimizer, Adam)
    master = isinstance(optimizer, Adam) and optimizer.master_weights
    states = _states(tape, gradients, master=master) if adam else ()
    elements = sum(local_elements(tape, tensor) for tensor in gradients)
    moved = BYTES[gradients[0].dtype] + BYTES[tape.dtype] * (1 if master else 2) + 2 * STATE * len(states) // len(names)
    attributes: dict[str, int | float | str | bool] = {'learning_rate': optimizer.learning_rate}
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
        stage=stages[names[0]],
    )


def _states(tape: Tape, gradients: list[Tensor], *, master: bool) -> tuple[str, ...]:
    """Register both moments of every weight, and with ``master`` the weight itself, in fp32."""
    names = []
    for state in ('m', 'v', 'master') if master else ('m', 'v'):
        for tensor in gradients:
            name = f'{state}:{tensor.like}'
            initial = tape.tensors[tensor.like].initial if state == 'master' else 'zeros'
            tape.tensors[name] = Tensor(
                name, 'state', tensor.shape, 'fp32', cuts=tensor.cuts, initial=initial, like=tensor.like
            )
            names.append(name)
    return tuple(names)
