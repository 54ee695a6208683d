"""same: whether two programs do the same; notes, and tensors and partitions that no op touches, do not count."""

from __future__ import annotations

from itertools import chain

import numpy as np

from simpar.program import OpClass, Program, Role

_COLUMNS = ('op_class', 'micro_batch', 'copy', 'stream')
_LISTS = ('need', 'carry')


def same(one: Program, other: Program) -> bool:
    """Whether every rank does the same in both, on the same tensors, in the same groups."""
    counts = [(p.world, p.micro_batches, p.copies, len(p.roles), p.op_classes) for p in (one, other)]
    return (
        counts[0] == counts[1]
        and np.array_equal(one.role_of_rank, other.role_of_rank)
        and all(map(_same_role, one.roles, other.roles))
        and _touched(one) == _touched(other)
    )


def _same_role(one: Role, other: Role) -> bool:
    named = (one.name, one.streams) == (other.name, other.streams)
    columns = [(getattr(one, name), getattr(other, name)) for name in _COLUMNS]
    for name in _LISTS:
        mine, others = getattr(one, name), getattr(other, name)
        columns += [(mine.start, others.start), (mine.item, others.item)]
    return named and all(np.array_equal(*pair) for pair in columns)


def _touched(program: Program) -> tuple[object, ...]:
    """The tensors that ops touch, and the groups that they or their tensors are in."""
    names = dict.fromkeys(chain.from_iterable(map(_names, program.op_classes)))
    tensors = [program.tensor[name] for name in names]
    groups = {split.partition for tensor in tensors for split in tensor.splits}
    groups |= {partition for tensor in tensors for partition in tensor.partial}
    groups |= {op.partition for op in program.op_classes if op.partition}
    return tensors, {name: program.partitions[name].groups_GP.tolist() for name in groups}


def _names(op: OpClass) -> tuple[str, ...]:
    return (*op.reads, *op.writes, *op.accumulates, *op.frees)
