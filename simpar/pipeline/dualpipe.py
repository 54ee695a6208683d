"""DualPipeV: two chunks placed as a V; the forward of one overlaps the backward of the other."""

from __future__ import annotations

from simpar.pipeline.action import Action
from simpar.pipeline.build import RowCounter, require
from simpar.pipeline.order import Order, make_order, v_shape

TWO_HOMES = 'dualpipe'
"""The order in which micro-batches go both ways; of two mirrored ranks each does what a rank of ``dualpipe-v`` does."""


def dualpipe_v(ranks: int, micro_batches: int, chunks: int = 2) -> Order:
    """DualPipeV, the cut-in-half form of DeepSeek's DualPipe (arXiv 2412.19437; github.com/deepseek-ai/DualPipe).

    Rank r keeps at most 2 × ranks + 1 activations of one stage, those within an overlap included.
    Arguments: pipeline ranks, micro-batches, ``chunks`` 2; rank r holds stages r and 2 × ranks − 1 − r.
    Raises `ScheduleError` for fewer than 2 × ranks micro-batches. Equals torch's ScheduleDualPipeV.
    """
    require('dualpipe-v', micro_batches, 2 * ranks, f'one for each of {2 * ranks} stages')
    rows = (_row(rank, ranks, micro_batches) for rank in range(ranks))
    return make_order(rows, v_shape(ranks, chunks), micro_batches)


def _row(rank: int, ranks: int, micro_batches: int) -> list[Action]:
    down, up = rank, 2 * ranks - 1 - rank
    row = RowCounter()
    warm_up(row, rank, ranks)
    for number in range(micro_batches - 2 * ranks + rank + 1):
        # On the last rank the first backward needs the very forward that it would overlap.
        if number == 0 and rank == ranks - 1:
            row.do(down, 'F')
            row.do(up, 'B')
        else:
            row.overlap(down, up)
        row.overlap(up, down)
    for _ in range(ranks - rank - 1):
        row.do(up, 'B')
        row.overlap(up, down)
    _cool_down(row, rank, ranks)
    return row.row


def warm_up(row: RowCounter, rank: int, ranks: int) -> None:
    """What comes before the first overlap: forwards down, forwards both ways, then backwards and forwards up."""
    down, up = rank, 2 * ranks - 1 - rank
    for _ in range(2 * (ranks - rank - 1)):
        row.do(down, 'F')
    for _ in range(rank + 1):
        row.do(down, 'F')
        row.do(up, 'F')
    for _ in range(ranks - rank - 1):
        row.do(up, 'I')
        row.weight()
        row.do(up, 'F')


def _cool_down(row: RowCounter, rank: int, ranks: int) -> None:
    """The last backwards: from the middle of them on, in two parts, so that weight gradients fill the tail."""
    down, up = rank, 2 * ranks - 1 - rank
    for number in range(2 * (rank + 1)):
        # From the middle on only the gradient of the input is done at once: the rank before waits for it, for W nobody
        # does.
        row.do(down if number % 2 else up, 'I' if number >= rank + 1 else 'B')
    for _ in range(ranks - rank - 1):
        row.weight()
        row.do(down, 'I')
    while row.weight():
        pass
