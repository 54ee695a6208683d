"""V-Min and V-Half: a third and a half of the activations of 1F1B, over two chunks placed as a V."""

from __future__ import annotations

from simpar.pipeline.action import Action
from simpar.pipeline.building_block import repeated
from simpar.pipeline.order import Order


def v_min(ranks: int, micro_batches: int, chunks: int = 2) -> Order:
    """V-Min (Qi et al., 2024, arXiv 2405.15362): the least memory of all orders that repeat a V.

    Every rank keeps at most 2 · ⌊(ranks + 4) / 3⌋ activations of one stage, about a third of 1F1B's.
    Arguments: pipeline ranks, micro-batches, ``chunks`` 2; rank r holds stages r and 2 × ranks − 1 − r.
    """
    # Each action follows at once what it waits for. With a multiple of 3 ranks, F of the way down and I of the way up
    # would then share a cell modulo 6, so the backward waits for two cells.
    wait = 2 if ranks % 3 == 0 else 0
    cells = {}
    for rank in range(ranks):
        down, up = rank, 2 * ranks - 1 - rank
        cells[Action(down, 'F', 0)] = rank
        cells[Action(up, 'F', 0)] = 2 * ranks - rank - 1
        cells[Action(up, 'I', 0)] = 2 * ranks + wait + rank
        cells[Action(down, 'I', 0)] = 4 * ranks + wait - rank - 1
    return repeated(cells, ranks, micro_batches)


def v_half(ranks: int, micro_batches: int, chunks: int = 2) -> Order:
    """V-Half (Qi et al., 2024, arXiv 2405.15362): half the activations of 1F1B, and fewer bubbles than V-Min.

    Every rank keeps at most 2 · ⌊(ranks + 2) / 2⌋ activations of one stage.
    Arguments: pipeline ranks, micro-batches, ``chunks`` 2; rank r holds stages r and 2 × ranks − 1 − r.
    """
    # What goes towards the last rank takes two cells a hop, what comes back takes one. With an even number of ranks two
    # actions would share a cell modulo 6, so the backward waits for three cells.
    wait = 3 if ranks % 2 == 0 else 0
    cells = {}
    for rank in range(ranks):
        down, up = rank, 2 * ranks - 1 - rank
        cells[Action(down, 'F', 0)] = 2 * rank
        cells[Action(up, 'F', 0)] = 3 * ranks - rank - 2
        cells[Action(up, 'I', 0)] = 3 * ranks + wait + 2 * rank - 1
        cells[Action(down, 'I', 0)] = 6 * ranks + wait - rank - 2
    return repeated(cells, ranks, micro_batches)
