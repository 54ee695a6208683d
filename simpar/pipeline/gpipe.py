"""GPipe: all forwards, then all backwards."""

from __future__ import annotations

from simpar.pipeline.build import backwards, forwards
from simpar.pipeline.order import Order, loop, make_order


def gpipe(ranks: int, micro_batches: int, chunks: int = 1) -> Order:
    """All forwards, then all backwards, in the order of the micro-batches (Huang et al., 2019).

    Bubble (ranks − 1)(T_F + T_B); every rank keeps the activations of all micro-batches.
    Arguments: pipeline ranks, micro-batches, ``chunks`` 1. Equals torch's ScheduleGPipe.
    """
    rows = ([*forwards(stage, micro_batches), *backwards(stage, micro_batches)] for stage in range(ranks * chunks))
    return make_order(rows, loop(ranks), micro_batches)
