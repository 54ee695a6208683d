"""ZB-H1 and ZB-H2, the handcrafted zero-bubble orders of Qi et al., 2023 (arXiv 2401.10241, section 2).

What the paper calls B, the gradient of the input, is I here and in torch; B is the full backward, I + W.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from simpar.pipeline.action import Action
from simpar.pipeline.order import Order, loop, make_order


def zb_h1(ranks: int, micro_batches: int, chunks: int = 1) -> Order:
    """ZB-H1: 1F1B whose weight gradients lag by the rank's number, so that they fill the tail.

    Bubble (ranks − 1)(T_F + T_I − T_W), for T_W ≤ T_F; every rank keeps at most as many activations as the first of
    1F1B, ranks.
    Where an I frees a part of an activation, rank r keeps ranks − r full ones and r that only wait for their W.
    Arguments: pipeline ranks, micro-batches, ``chunks`` 1.
    """
    return lagging(ranks, micro_batches, lambda rank: ranks - 1 - rank, lambda rank: rank)


def zb_h2(ranks: int, micro_batches: int, chunks: int = 1) -> Order:
    """ZB-H2: twice the warm-up and twice the lag of ZB-H1; no bubble for equal times, in the steady state.

    Bubble (ranks − 1)(T_F + T_I − 2 T_W) of the rank that takes longest, for T_W ≤ T_F, T_I; every rank keeps at most
    2 ranks − 1 activations: rank r keeps 2(ranks − r) − 1 full ones and 2r that only wait for their W.
    Arguments: pipeline ranks, micro-batches (the closed forms need 2 ranks − 1 of them), ``chunks`` 1.
    """
    return lagging(ranks, micro_batches, lambda rank: 2 * (ranks - 1 - rank), lambda rank: 2 * rank)


def lagging(ranks: int, micro_batches: int, warm_up: Callable[[int], int], lag: Callable[[int], int]) -> Order:
    """An order of F, I and W over one chunk from each rank's warm-up, and by how many I its W lag behind."""

    rows = (letters(micro_batches, warm_up(rank), lag(rank)) for rank in range(ranks))
    return of_letters(rows, micro_batches)


def letters(micro_batches: int, warm_up: int, lag: int) -> str:
    """A rank's work as letters F, I and W, micro-batches in order; arguments as of ``lagging``, of one rank."""
    warm_up = min(warm_up, micro_batches)
    # The forward goes first: torch's and Megatron's 1F1B send it before they wait for a gradient.
    row = 'F' * warm_up + 'FI' * (micro_batches - warm_up) + 'I' * warm_up
    # What stands before each I; behind it the W that lags so far.
    before = row.split('I')[:micro_batches]
    done = [forwards + ('IW' if number >= lag else 'I') for number, forwards in enumerate(before)]
    return ''.join(done) + 'W' * min(lag, micro_batches)


def of_letters(rows: Iterable[str], micro_batches: int) -> Order:
    """The order of letters F, I and W, a stage on each rank; micro-batches in order."""
    done = [_row(rank, row) for rank, row in enumerate(rows)]
    return make_order(done, loop(len(done)), micro_batches)


def _row(rank: int, letters: str) -> list[Action]:
    count = {'F': 0, 'I': 0, 'W': 0}
    row = []
    for kind in letters:
        row.append(Action(rank, kind, count[kind]))  # type: ignore[arg-type]
        count[kind] += 1
    return row
