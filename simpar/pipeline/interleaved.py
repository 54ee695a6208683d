"""Interleaved 1F1B (VPP) and interleaved zero bubble: several chunks on a rank, depth first in rounds."""

from __future__ import annotations

from collections.abc import Iterable

from simpar.pipeline.action import Action
from simpar.pipeline.build import alternate, refuse, split, with_weights
from simpar.pipeline.order import Order, loop, make_order


def interleaved_1f1b(ranks: int, micro_batches: int, chunks: int) -> Order:
    """Interleaved 1F1B, Megatron's virtual pipeline (Narayanan et al., 2021), rounds as in torch.

    Bubble (ranks − 1)(T_F + T_B) / chunks of the work of a rank's stages. Rank r is ahead by at most
    (chunks − 1) × round + 2(ranks − 1 − r) + 1 activations of one stage.
    Arguments: pipeline ranks, micro-batches, chunks on each rank. The micro-batches must divide evenly into
    max(1, micro-batches // ranks) rounds. Raises `ScheduleError` where not. Equals torch's ScheduleInterleaved1F1B.
    """
    size = round_size('interleaved-1f1b', ranks, micro_batches)

    def row(rank: int) -> list[Action]:
        ahead, back = _directions(rank, ranks, chunks, [size] * (micro_batches // size))
        # Megatron's warm-up: all chunks but the last for a round, and there and back again to the last rank.
        return alternate(ahead, back, (chunks - 1) * size + 2 * (ranks - 1 - rank))

    return make_order(map(row, range(ranks)), loop(ranks, chunks), micro_batches)


def interleaved_zero_bubble(ranks: int, micro_batches: int, chunks: int) -> Order:
    """Interleaved 1F1B with half the warm-up, and weight gradients that lag by the rank's number.

    Over one chunk this is ZB-H1. Every rank is ahead by (chunks − 1) × round + ranks activations of one stage.
    Arguments and what it raises: see ``interleaved_1f1b``. Equals torch's ScheduleInterleavedZeroBubble.
    """
    size = round_size('interleaved-zero-bubble', ranks, micro_batches)

    def row(rank: int) -> list[Action]:
        ahead, back = _directions(rank, ranks, chunks, [size] * (micro_batches // size))
        return with_weights(alternate(ahead, split(back), (chunks - 1) * size + ranks - 1 - rank), rank)

    return make_order(map(row, range(ranks)), loop(ranks, chunks), micro_batches)


def round_size(name: str, ranks: int, micro_batches: int) -> int:
    """Micro-batches that a chunk does before the next chunk begins. Raises `ScheduleError` where they are not even."""
    # torch's rule, where Megatron wants the ranks to divide the micro-batches: rounds may be longer than ranks.
    rounds = max(1, micro_batches // ranks)
    if micro_batches % rounds:
        below, above = micro_batches - micro_batches % rounds, micro_batches + 1
        while above % max(1, above // ranks):
            above += 1
        what = f'{micro_batches} micro-batches do not divide into {rounds} rounds on {ranks} ranks'
        raise refuse(name, what, f'write {below} or {above} micro-batches')
    return micro_batches // rounds


def _directions(rank: int, ranks: int, chunks: int, rounds: Iterable[int]) -> tuple[list[Action], list[Action]]:
    return in_rounds(rank, ranks, chunks, rounds, 'F'), in_rounds(rank, ranks, chunks, rounds, 'B')


def in_rounds(rank: int, ranks: int, chunks: int, rounds: Iterable[int], kind: str) -> list[Action]:
    """All F or B of a rank: in each round of micro-batches, chunk after chunk, for B from the last.

    Arguments: ``rounds``, micro-batches in each; ``kind``, F or B.
    """
    actions: list[Action] = []
    first = 0
    for size in rounds:
        for chunk in range(chunks) if kind == 'F' else reversed(range(chunks)):
            stage = chunk * ranks + rank
            actions += [Action(stage, 'F' if kind == 'F' else 'B', first + number) for number in range(size)]
        first += size
    return actions
