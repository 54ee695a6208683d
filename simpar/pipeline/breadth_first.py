"""Looped BFS: every chunk does all micro-batches before the next chunk begins."""

from __future__ import annotations

from simpar.pipeline.action import Action
from simpar.pipeline.build import backwards, forwards
from simpar.pipeline.order import Order, loop, make_order


def looped_bfs(ranks: int, micro_batches: int, chunks: int) -> Order:
    """Breadth-first pipeline (Lamy-Poirier, 2022): GPipe over several chunks, backwards in reverse.

    Bubble (ranks − 1)(T_F + T_B) / chunks of the work of a rank's stages; every activation is kept.
    Arguments: pipeline ranks, micro-batches, chunks on each rank. Equals torch's ScheduleLoopedBFS.
    """

    def row(rank: int) -> list[Action]:
        stages = range(rank, ranks * chunks, ranks)
        ahead = [action for stage in stages for action in forwards(stage, micro_batches)]
        back = [action for stage in stages for action in backwards(stage, micro_batches)]
        return [*ahead, *reversed(back)]

    return make_order(map(row, range(ranks)), loop(ranks, chunks), micro_batches)
