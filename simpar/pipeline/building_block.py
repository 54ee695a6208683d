"""Building blocks: the cells of one micro-batch's actions, repeated for all and moved forward where memory allows.

A cell is a unit of time on one rank; F, I and W take one each, so a micro-batch of two stages on a rank takes six.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Final

from simpar.pipeline.action import Action
from simpar.pipeline.order import Order, make_order, v_shape

Block = Mapping[Action, int]
"""The cell of F and I of micro-batch 0, of every stage."""
PERIOD: Final = 6
"""Cells from one micro-batch to the next: F, I and W of two stages."""


def repeated(block: Block, ranks: int, micro_batches: int) -> Order:
    """The order of a building block: repeated for each micro-batch, W in the gaps, then moved forward.

    No rank keeps more activations than the repeated block does on the rank that keeps most.
    Arguments: ``block``, of 2 × ranks stages that lie as a V, with no two actions of a rank in cells that are equal
    modulo ``PERIOD``.
    """
    placement = v_shape(ranks)
    grid = _Grid(placement, micro_batches)
    for action, cell in block.items():
        for micro_batch in range(micro_batches):
            grid.put(Action(action.stage, action.kind, micro_batch), cell + PERIOD * micro_batch)
    grid.fill_gaps()
    limit = max(grid.peak(rank) for rank in range(ranks))
    grid.move_forward(limit)
    # Once all F are done memory only falls: there gradients of the input, for which other ranks wait, come first.
    grid.take_late_weights()
    grid.move_forward(limit)
    grid.fill_gaps()
    return make_order((_later_first(grid.row(rank)) for rank in range(ranks)), placement, micro_batches)


class _Grid:
    """Which action of each rank stands in which cell, and how much each rank keeps alive there."""

    def __init__(self, placement: tuple[int, ...], micro_batches: int) -> None:
        self._placement = placement
        self._micro_batches = micro_batches
        self._cells: dict[Action, int] = {}
        self._taken: list[dict[int, Action]] = [{} for _ in range(max(placement) + 1)]

    def put(self, action: Action, cell: int) -> None:
        self._cells[action] = cell
        self._taken[self._placement[action.stage]][cell] = action

    def row(self, rank: int) -> list[Action]:
        return [action for _, action in sorted(self._taken[rank].items(), key=lambda item: item[0])]

    def peak(self, rank: int) -> int:
        return max(self._live(rank))

    def fill_gaps(self) -> None:
        """Put each W that is missing into the first gap behind its I; the oldest I first."""
        for rank, taken in enumerate(self._taken):
            cell = 0
            for action in self.row(rank):
                weight = Action(action.stage, 'W', action.micro_batch)
                if action.kind == 'I' and weight not in self._cells:
                    cell = next(gap for gap in count(max(cell, self._cells[action] + 1)) if gap not in taken)
                    self.put(weight, cell)

    def take_late_weights(self) -> None:
        """Take away every W behind its rank's last F."""
        for taken in self._taken:
            last = max(cell for cell, action in taken.items() if action.kind == 'F')
            for cell, action in list(taken.items()):
                if action.kind == 'W' and cell > last:
                    del taken[cell], self._cells[action]

    def move_forward(self, limit: int) -> None:
        """Move each action of warm-up and cool-down to the first gap behind what it needs that keeps the limit."""
        live = [self._live(rank) for rank in range(len(self._taken))]
        # The steady state stays as the block has it: its distances are what absorbs times that are not equal.
        begin, end = self._cells[Action(0, 'I', 0)], self._cells[Action(0, 'F', self._micro_batches - 1)]
        for action, cell in sorted(self._cells.items(), key=lambda item: (item[1], item[0].stage)):
            if begin <= cell <= end:
                continue
            rank = self._placement[action.stage]
            earliest = 1 + max((self._cells[need] for need in self._needs(action)), default=-1)
            if action.kind == 'F':
                # Moved to a cell, it is alive from there on.
                full = (at for at in range(cell - 1, earliest - 1, -1) if live[rank][at] >= limit)
                earliest = next(full, earliest - 1) + 1
            gap = next((at for at in range(earliest, cell) if at not in self._taken[rank]), cell)
            if gap < cell:
                del self._taken[rank][cell]
                self.put(action, gap)
                _shift(live[rank], action, gap, cell)

    def _live(self, rank: int) -> list[int]:
        """Activations alive in each cell of a rank, the cell of their F and that of their W included."""
        alive, found = 0, []
        for cell in range(max(self._taken[rank]) + 1):
            action = self._taken[rank].get(cell)
            alive += action is not None and action.kind == 'F'
            found.append(alive)
            alive -= action is not None and action.kind == 'W'
        return found

    def _needs(self, action: Action) -> Iterable[Action]:
        """What must stand before: results of other actions, and the micro-batch before."""
        stage, micro_batch = action.stage, action.micro_batch or 0
        if micro_batch:
            yield Action(stage, action.kind, micro_batch - 1)
        if action.kind == 'F' and stage:
            yield Action(stage - 1, 'F', micro_batch)
        if action.kind == 'I':
            yield Action(stage, 'F', micro_batch)
            if stage + 1 < len(self._placement):
                yield Action(stage + 1, 'I', micro_batch)
        if action.kind == 'W':
            yield Action(stage, 'I', micro_batch)


def _later_first(row: Sequence[Action]) -> list[Action]:
    """The row with a W of the later stage first wherever several wait, and then the oldest."""
    waiting: list[tuple[int, int]] = []
    found = []
    for action in row:
        if action.kind == 'I':
            heappush(waiting, (-action.stage, action.micro_batch or 0))
        if action.kind == 'W':
            stage, micro_batch = heappop(waiting)
            found.append(Action(-stage, 'W', micro_batch))
        else:
            found.append(action)
    return found


def _shift(live: list[int], action: Action, gap: int, cell: int) -> None:
    """What is alive where an action moves from a cell to a gap before it."""
    if action.kind == 'F':
        live[gap:cell] = [alive + 1 for alive in live[gap:cell]]
    elif action.kind == 'W':
        live[gap + 1 : cell + 1] = [alive - 1 for alive in live[gap + 1 : cell + 1]]
