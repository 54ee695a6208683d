"""Programs made wrong on purpose: each takes a right program and gives one that computes something else."""

from dataclasses import replace

import numpy as np
from pipeline_cases import Slot, edited

from simpar.program import Partition, Program

ALONE = 'alone'


def change_ops(program: Program, named: str, **changes: object) -> Program:
    """The ops of one name with other fields or attributes."""
    attributes = changes.pop('attributes', {})
    op_classes = tuple(
        replace(op, attributes={**op.attributes, **attributes}, **changes) if op.name == named else op
        for op in program.op_classes
    )
    if op_classes == program.op_classes:
        raise ValueError(f'nothing to change: no op {named}, or it is so already')
    return program.replace(op_classes=op_classes)


def drop_sum(program: Program, named: str) -> Program:
    """A collective in which every rank is alone: nothing is summed."""
    alone = Partition(ALONE, np.arange(program.world, dtype=np.int32).reshape(-1, 1))
    program = program.replace(partitions={**program.partitions, ALONE: alone})
    return change_ops(program, named, partition=ALONE)


def skip(program: Program, named: str, copy: int) -> Program:
    """One copy without this op; needs are derived again."""

    def without(slots: list[Slot]) -> list[Slot]:
        kept = [slot for slot in slots if (slot[0], slot[3]) != (named, copy)]
        if len(kept) != len(slots) - 1:
            raise ValueError(f'{len(slots) - len(kept)} ops are {named} of copy {copy}')
        return kept

    return edited(program, without)
