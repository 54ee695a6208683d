"""Sums of gradients over replicas.

The gradients of one layer travel as one message as soon as its last copy's W is issued.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from simpar.lower.issue import Issue
from simpar.lower.pieces import layer_of, local_elements
from simpar.lower.tape import Tape
from simpar.program import OpClass, Tensor
from simpar.program.tensor import BYTES


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


def _stages(tape: Tape) -> dict[str, int]:
    """The stage that adds to each gradient (the first stage, for a weight that two use)."""
    return {name: op.stage for op in tape.ops for name in op.accumulates}


def _gradients(tape: Tape) -> list[Tensor]:
    return [tensor for tensor in tape.tensors.values() if tensor.kind == 'gradient']
