"""ZB-V: zero bubble with the memory of 1F1B, over two chunks placed as a V."""

from __future__ import annotations

from simpar.pipeline.action import Action
from simpar.pipeline.build import RowCounter
from simpar.pipeline.order import Order, make_order, v_shape


def zb_v(ranks: int, micro_batches: int, chunks: int = 2) -> Order:
    """ZB-V (Qi et al., 2023, section 6), the handcrafted order for equal times of F, I and W.

    No bubble for equal times, in the steady state; every rank keeps at most 2 × ranks activations of one stage.
    Arguments: pipeline ranks, micro-batches, ``chunks`` 2; rank r holds stages r and 2 × ranks − 1 − r. With fewer
    than 2 × ranks − 1 micro-batches it is the order for that many, without those that are not there. Equals torch's
    ScheduleZBVZeroBubble.
    """
    # The order is defined from 2 × ranks − 1 micro-batches on; of a shorter one what is not there is left out, as torch
    # does.
    full = max(2 * ranks - 1, micro_batches)
    rows = (
        [action for action in _row(rank, ranks, full) if (action.micro_batch or 0) < micro_batches]
        for rank in range(ranks)
    )
    return make_order(rows, v_shape(ranks, chunks), micro_batches)


def _row(rank: int, ranks: int, micro_batches: int) -> list[Action]:
    down, up = rank, 2 * ranks - 1 - rank
    row = RowCounter()
    for _ in range(2 * (ranks - rank) - 1):
        row.do(down, 'F')
    for _ in range(rank):
        row.do(up, 'F')
        row.do(down, 'F')
    for _ in range(ranks - rank):
        row.do(up, 'F')
        _backward(row, up)
    for number in range(micro_batches - ranks):
        if 2 * ranks - rank - 1 + number < micro_batches:
            row.do(down, 'F')
        _backward(row, down)
        row.do(up, 'F')
        _backward(row, up)
    _cool_down(row, rank, ranks)
    return row.row


def _backward(row: RowCounter, stage: int) -> None:
    row.do(stage, 'I')
    row.weight(stage)


def _cool_down(row: RowCounter, rank: int, ranks: int) -> None:
    down, up = rank, 2 * ranks - 1 - rank
    for _ in range(rank):
        row.do(down, 'I')
        row.do(up, 'I')
    for _ in range(ranks - rank):
        _backward(row, down)
    for stage in (up, down):
        while row.weight(stage):
            pass
