"""Frees: an activation ends with the last op of its copy that reads it, so that memory is known and reuse is checked.

A free must wait for all readers. Where a collective and a computation read the same tensor, the free moves on to the
computation that waits for that collective anyway, so that frees never add a need.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from simpar.program import OpClass, Tensor


def add_frees(ops: Sequence[OpClass], tensors: Mapping[str, Tensor], elsewhere: Collection[str] = ()) -> list[OpClass]:
    """The same ops, each freeing the activations that no later one of its copy reads; the loss stays.

    Arguments: ``ops`` of one copy in issue order; ``elsewhere``, what other stages of the rank read, and end.
    """
    readers: dict[str, list[int]] = {}
    touched: dict[str, int] = {}
    for index, op in enumerate(ops):
        for name in op.reads:
            readers.setdefault(name, []).append(index)
        touched.update(dict.fromkeys((*op.reads, *op.writes), index))
    ends: dict[int, list[str]] = {}
    for name, index in touched.items():
        if tensors[name].kind == 'activation' and name != 'loss' and name not in elsewhere:
            ends.setdefault(_end(ops, readers, readers.get(name, [index])), []).append(name)
    return [replace(op, frees=(*op.frees, *ends[i])) if i in ends else op for i, op in enumerate(ops)]


def _end(ops: Sequence[OpClass], readers: Mapping[str, list[int]], last: list[int]) -> int:
    """The op that may end a tensor read by the ops ``last``."""
    collectives = [index for index in last if ops[index].kind != 'compute']
    if not collectives or len(collectives) == len(last):
        return max(last)
    waiting = [min(readers[name]) for index in collectives for name in ops[index].writes if name in readers]
    return max([*last, *waiting])
