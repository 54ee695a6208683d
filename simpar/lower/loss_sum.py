"""The loss summed over the ranks for display: one number a copy of a micro-batch, behind the loss, read by nobody.

MindSpore's compiler puts it into every graph, Megatron-LM calls it for every micro-batch. The backward does not wait.
"""

from __future__ import annotations

from typing import Final

from simpar.lower.tape import Tape
from simpar.program import OpClass, Tensor
from simpar.program.tensor import BYTES

LOSS: Final = 'loss'
TOTAL: Final = 'loss.total'


def sum_loss(tape: Tape) -> None:
    """Put the sum behind the op that makes the loss; nothing where no rank has a shard that another has not."""
    partition = tape.sharded_over(LOSS)
    if not partition:
        return
    loss = tape.tensors[LOSS]
    place = next(place for place, op in enumerate(tape.ops) if LOSS in op.writes)
    # No pending sum in the source: shards of what has one number for each rank and copy are added.
    tape.tensors[TOTAL] = Tensor(TOTAL, 'activation', (tape.mesh.copies,), loss.dtype, batch_dim=0)
    summed = OpClass(
        name=f'{TOTAL}.all_reduce.F',
        kind='collective',
        operator='all_reduce',
        phase='F',
        bytes=float(BYTES[loss.dtype]),
        dtype=loss.dtype,
        partition=partition,
        reduce='sum',
        reads=(LOSS,),
        writes=(TOTAL,),
        stage=tape.ops[place].stage,
    )
    tape.ops.insert(place + 1, summed)
