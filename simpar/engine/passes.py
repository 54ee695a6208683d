"""Passes: where a host goes from the forward or the backward of one micro-batch to other work, in issue order.

Frameworks that time every pass, or read a batch before it, wait for their device there. Collectives count to the work
that they stand in: which of two neighbours launches one makes no difference to a host that waits between them.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simpar.program import OpClass, Program

Ints = NDArray[np.signedinteger[Any]]
NEITHER, FORWARD, BACKWARD, MESSAGE, UPDATE = range(5)
_KIND: Final = {'F': FORWARD, 'I': BACKWARD, 'W': BACKWARD, 'U': UPDATE}


class Passes(NamedTuple):
    """Slots of a role.

    Arguments:
        first: the first op of every pass, of every exchange of messages, and of the update.
        reading: of these, where a forward begins on the first or the last stage, which read a batch.
    """

    first: Ints
    reading: Ints


def passes_of(program: Program, op_class: Ints, micro_batch: NDArray[np.uint16]) -> Passes:
    """The passes of a role; what begins a step has nothing before it, and is none of them.

    Arguments: ``op_class``, ``micro_batch``, shape [slots], those of the role.
    """
    kind = program.op_column(_kind, np.int8)[op_class]
    stages = program.op_column(_stage, np.int32)
    at = np.flatnonzero(kind != NEITHER)
    kind, stage, micro_batch = kind[at], stages[op_class][at], micro_batch[at]
    # Neighbours in an update, or in an exchange, are one work whatever their stage and micro-batch.
    one_of_many = (kind == FORWARD) | (kind == BACKWARD)
    other = (micro_batch[1:] != micro_batch[:-1]) | (stage[1:] != stage[:-1])
    begins = (kind[1:] != kind[:-1]) | (other & one_of_many[1:])
    first, kind, stage = at[1:][begins], kind[1:][begins], stage[1:][begins]
    ends = (stage == 0) | (stage == stages.max(initial=0))
    return Passes(first, first[(kind == FORWARD) & ends])


def _kind(op: OpClass) -> int:
    """Which work it is; of a collective, none by itself."""
    if op.kind == 'compute':
        return _KIND[op.part]
    return NEITHER if op.kind == 'collective' else MESSAGE


def _stage(op: OpClass) -> int:
    """Of the pipeline."""
    return op.stage
