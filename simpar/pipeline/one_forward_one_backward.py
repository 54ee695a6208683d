"""1F1B: as few forwards ahead as keep the last rank busy, then one forward, one backward."""

from __future__ import annotations

from simpar.pipeline.build import alternate, backwards, forwards
from simpar.pipeline.order import Order, loop, make_order


def one_forward_one_backward(ranks: int, micro_batches: int, chunks: int = 1) -> Order:
    """One forward, one backward behind ranks − 1 − rank forwards (Narayanan et al., 2021; PipeDream-Flush).

    Bubble (ranks − 1)(T_F + T_B), as GPipe; rank r keeps at most ranks − r activations.
    Arguments: pipeline ranks, micro-batches, ``chunks`` 1. Equals torch's Schedule1F1B, which refuses fewer
    micro-batches than ranks; here they make an order like any other.
    """
    rows = (
        alternate(forwards(stage, micro_batches), backwards(stage, micro_batches), ranks - 1 - stage)
        for stage in range(ranks * chunks)
    )
    return make_order(rows, loop(ranks), micro_batches)
