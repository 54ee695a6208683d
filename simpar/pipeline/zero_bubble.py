"""Zero-bubble schedules: weight gradients fill the bubbles. ZB-H1, ZB-H2, ZB-V, V-Min, V-Half and DualPipeV."""

from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Final

from simpar.pipeline.order import NO_STAGE, Action, Order, RowCounter, loop, make_order, require, v_shape


def zb_h1(ranks: int, micro_batches: int, chunks: int = 1) -> Order:
    """ZB-H1: 1F1B whose weight gradients lag by the rank's number, so that they fill the tail.

    Bubble (ranks − 1)(T_F + T_I − T_W), for T_W ≤ T_F; every rank keeps at most as many activations as the first of
    1F1B, ranks.
    Where an I frees a part of an activation, rank r keeps ranks − r full ones and r that only wait for their W.
    Arguments: pipeline ranks, micro-batches, ``chunks`` 1.
    """
    return of_letters(lagging(ranks, micro_batches, 1, 1), micro_batches)


def zb_h2(ranks: int, micro_batches: int, chunks: int = 1) -> Order:
    """ZB-H2: twice the warm-up and twice the lag of ZB-H1; no bubble for equal times, in the steady state.

    Bubble (ranks − 1)(T_F + T_I − 2 T_W) of the rank that takes longest, for T_W ≤ T_F, T_I; every rank keeps at most
    2 ranks − 1 activations: rank r keeps 2(ranks − r) − 1 full ones and 2r that only wait for their W.
    Arguments: pipeline ranks, micro-batches (the closed forms need 2 ranks − 1 of them), ``chunks`` 1.
    """
    return of_letters(lagging(ranks, micro_batches, 2, 2), micro_batches)


def lagging(ranks: int, micro_batches: int, ahead: int, lag: int) -> tuple[str, ...]:
    """Letters of all ranks, whose warm-up grows by ``ahead`` from the last on, and lag by ``lag`` from the first."""
    return tuple(letters(micro_batches, ahead * (ranks - 1 - rank), lag * rank) for rank in range(ranks))


def letters(micro_batches: int, warm_up: int, lag: int) -> str:
    """A rank's work as letters F, I and W, micro-batches in order. Arguments: ``lag``, how many I a W lags behind."""
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
    numbers = {kind: count() for kind in 'FIW'}
    return [Action(rank, kind, next(numbers[kind])) for kind in letters]  # type: ignore[arg-type]


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
        [action for action in _v_row(rank, ranks, full) if (action.micro_batch or 0) < micro_batches]
        for rank in range(ranks)
    )
    return make_order(rows, v_shape(ranks, chunks), micro_batches)


def _v_row(rank: int, ranks: int, micro_batches: int) -> list[Action]:
    down, up = rank, 2 * ranks - 1 - rank
    row = RowCounter()
    row.do(2 * (ranks - rank) - 1, (down, 'F'))
    row.do(rank, (up, 'F'), (down, 'F'))
    row.do(ranks - rank, (up, 'F'), (up, 'I'), (up, 'W'))
    last = ranks - rank - 1
    row.do(micro_batches - ranks - last, (down, 'F'), (down, 'I'), (down, 'W'), (up, 'F'), (up, 'I'), (up, 'W'))
    row.do(last, (down, 'I'), (down, 'W'), (up, 'F'), (up, 'I'), (up, 'W'))
    row.do(rank, (down, 'I'), (up, 'I'))
    row.do(ranks - rank, (down, 'I'), (down, 'W'))
    row.do(micro_batches, (up, 'W'))
    row.do(micro_batches, (down, 'W'))
    return row.row


TWO_HOMES = 'dualpipe'
"""The order in which micro-batches go both ways; of two mirrored ranks each does what a rank of ``dualpipe-v`` does."""


def dualpipe_v(ranks: int, micro_batches: int, chunks: int = 2) -> Order:
    """DualPipeV, the cut-in-half form of DeepSeek's DualPipe (arXiv 2412.19437; github.com/deepseek-ai/DualPipe).

    Rank r keeps at most 2 × ranks + 1 activations of one stage, those within an overlap included.
    Arguments: pipeline ranks, micro-batches, ``chunks`` 2; rank r holds stages r and 2 × ranks − 1 − r.
    Raises `ScheduleError` for fewer than 2 × ranks micro-batches. Equals torch's ScheduleDualPipeV.
    """
    require('dualpipe-v', micro_batches, 2 * ranks, f'one for each of {2 * ranks} stages')
    rows = (_overlapped_row(rank, ranks, micro_batches) for rank in range(ranks))
    return make_order(rows, v_shape(ranks, chunks), micro_batches)


def _overlapped_row(rank: int, ranks: int, micro_batches: int) -> list[Action]:
    down, up = rank, 2 * ranks - 1 - rank
    row = RowCounter()
    warm_up(row, rank, ranks)
    for number in range(micro_batches - 2 * ranks + rank + 1):
        # On the last rank the first backward needs the very forward that it would overlap.
        if number == 0 and rank == ranks - 1:
            row.do(1, (down, 'F'), (up, 'B'))
        else:
            row.overlap(down, up)
        row.overlap(up, down)
    for _ in range(ranks - rank - 1):
        row.do(1, (up, 'B'))
        row.overlap(up, down)
    cool_down(row, rank, ranks)
    row.do(ranks - rank - 1, (NO_STAGE, 'W'), (down, 'I'))
    row.do(2 * micro_batches, (NO_STAGE, 'W'))
    return row.row


def warm_up(row: RowCounter, rank: int, ranks: int) -> None:
    """What comes before the first overlap: forwards down, forwards both ways, then backwards and forwards up."""
    down, up = rank, 2 * ranks - 1 - rank
    row.do(2 * (ranks - rank - 1), (down, 'F'))
    row.do(rank + 1, (down, 'F'), (up, 'F'))
    row.do(ranks - rank - 1, (up, 'I'), (NO_STAGE, 'W'), (up, 'F'))


def cool_down(row: RowCounter, rank: int, ranks: int) -> None:
    """Backwards behind the last forward: from the middle of them on, in two parts, so that W can fill the tail."""
    down, up = rank, 2 * ranks - 1 - rank
    for number in range(2 * (rank + 1)):
        # From the middle on only the gradient of the input is done at once: the rank before waits for it, for W nobody
        # does.
        row.do(1, (down if number % 2 else up, 'I' if number >= rank + 1 else 'B'))


# A building block: the cells of one micro-batch's actions, repeated for all and moved forward where memory allows. A
# cell is a unit of time on one rank; F, I and W take one each, so a micro-batch of two stages on a rank takes six.
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
        for rank, cells in enumerate(self._taken):
            cell = 0
            for action in self.row(rank):
                weight = Action(action.stage, 'W', action.micro_batch)
                if action.kind == 'I' and weight not in self._cells:
                    cell = next(gap for gap in count(max(cell, self._cells[action] + 1)) if gap not in cells)
                    self.put(weight, cell)

    def take_late_weights(self) -> None:
        """Take away every W behind its rank's last F."""
        for cells in self._taken:
            last = max(cell for cell, action in cells.items() if action.kind == 'F')
            for cell, action in list(cells.items()):
                if action.kind == 'W' and cell > last:
                    del cells[cell], self._cells[action]

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
        alive, counts = 0, []
        for cell in range(max(self._taken[rank]) + 1):
            action = self._taken[rank].get(cell)
            alive += action is not None and action.kind == 'F'
            counts.append(alive)
            alive -= action is not None and action.kind == 'W'
        return counts

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
    new_row = []
    for action in row:
        if action.kind == 'I':
            heappush(waiting, (-action.stage, action.micro_batch or 0))
        if action.kind == 'W':
            stage, micro_batch = heappop(waiting)
            new_row.append(Action(-stage, 'W', micro_batch))
        else:
            new_row.append(action)
    return new_row


def _shift(live: list[int], action: Action, gap: int, cell: int) -> None:
    """What is alive where an action moves from a cell to a gap before it."""
    if action.kind == 'F':
        live[gap:cell] = [alive + 1 for alive in live[gap:cell]]
    elif action.kind == 'W':
        live[gap + 1 : cell + 1] = [alive - 1 for alive in live[gap + 1 : cell + 1]]


def v_min(ranks: int, micro_batches: int, chunks: int = 2) -> Order:
    """V-Min (Qi et al., 2024, arXiv 2405.15362): the least memory of all orders that repeat a V.

    Every rank keeps at most 2 · ⌊(ranks + 4) / 3⌋ activations of one stage, about a third of 1F1B's.
    Arguments: pipeline ranks, micro-batches, ``chunks`` 2; rank r holds stages r and 2 × ranks − 1 − r.
    """
    # Each action follows at once what it waits for. With a multiple of 3 ranks, F of the way down and I of the way up
    # would then share a cell modulo 6, so the backward waits for two cells.
    wait = 2 if ranks % 3 == 0 else 0
    return repeated(_v_block(ranks, 1, 2 * ranks - 1, 2 * ranks + wait, 4 * ranks + wait - 1), ranks, micro_batches)


def _v_block(ranks: int, hop: int, turned: int, back: int, last: int) -> Block:
    """A block whose actions take ``hop`` cells to the next rank on, and one to the next rank back.

    Arguments: the cells of the first rank's F of the way up, of its I of that way, and of its I of the way down.
    """
    ways = [(rank, 2 * ranks - 1 - rank) for rank in range(ranks)]
    ahead = {Action(down, 'F', 0): hop * down for down, _ in ways} | {Action(up, 'F', 0): turned - r for r, up in ways}
    behind = {Action(up, 'I', 0): back + hop * r for r, up in ways}
    return ahead | behind | {Action(down, 'I', 0): last - down for down, _ in ways}


def v_half(ranks: int, micro_batches: int, chunks: int = 2) -> Order:
    """V-Half (Qi et al., 2024, arXiv 2405.15362): half the activations of 1F1B, and fewer bubbles than V-Min.

    Every rank keeps at most 2 · ⌊(ranks + 2) / 2⌋ activations of one stage.
    Arguments: pipeline ranks, micro-batches, ``chunks`` 2; rank r holds stages r and 2 × ranks − 1 − r.
    """
    # What goes towards the last rank takes two cells a hop, what comes back takes one. With an even number of ranks two
    # actions would share a cell modulo 6, so the backward waits for three cells.
    wait = 3 if ranks % 2 == 0 else 0
    cells = _v_block(ranks, 2, 3 * ranks - 2, 3 * ranks + wait - 1, 6 * ranks + wait - 2)
    return repeated(cells, ranks, micro_batches)
