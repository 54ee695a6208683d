"""Whether an order is plainly right, found in one walk; what is wrong is told by `simpar.pipeline.checks`."""

from __future__ import annotations

from simpar.pipeline.order import Order, Row


def is_plainly_right(order: Order) -> bool:
    """Whether an order of F, B, I and W alone does all, once, in its place, and ends.

    False of an order that is wrong, and of one with messages, overlaps, parts of a sequence or sharded weights.
    """
    homes = all(0 <= rank < order.ranks for rank in order.placement)
    if order.sequence_chunks != 1 or not all(order.actions) or not homes or not _are_plain(order):
        return False
    return _Walk(order).ends()


def _are_plain(order: Order) -> bool:
    """Whether ranks do F, B, I and W of their own stages and of micro-batches that are there."""
    return all(
        action.kind in ('F', 'B', 'I', 'W')
        and 0 <= action.stage < order.stages
        and order.placement[action.stage] == rank
        and action.micro_batch is not None
        and 0 <= action.micro_batch < order.micro_batches
        for rank, row in enumerate(order.actions)
        for action in row
    )


class _Walk:
    """Each rank goes on until it lacks a result, and is looked at again when a neighbour has gone on."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._at = [0] * order.ranks
        # By stage and micro-batch: whether F, I and W are done.
        self._done = tuple(bytearray(order.stages * order.micro_batches) for _ in range(3))

    def ends(self) -> bool:
        """Whether all is done, once."""
        rows, around = self._order.actions, [self._around(rank) for rank in range(self._order.ranks)]
        ready = [*range(len(rows))]
        while ready:
            rank = ready.pop()
            before = self._at[rank]
            self._go_on(rank, rows[rank])
            if self._at[rank] > before:
                ready += around[rank]
        ended = all(at == len(row) for at, row in zip(self._at, rows, strict=True))
        return ended and all(map(all, self._done))

    def _around(self, rank: int) -> list[int]:
        """The ranks of the stages before and behind those of a rank."""
        order = self._order
        near = {beside for stage in order.stages_of(rank) for beside in (stage - 1, stage + 1)}
        return sorted({order.placement[stage] for stage in near if 0 <= stage < order.stages} - {rank})

    def _go_on(self, rank: int, row: Row) -> None:
        """Do what a rank can do now; what was done before cannot be done."""
        forward, gradient, weight = self._done
        count, last = self._order.micro_batches, self._order.stages - 1
        for at in range(self._at[rank], len(row)):
            action = row[at]
            kind, stage = action.kind, action.stage
            place = stage * count + (action.micro_batch or 0)
            if kind == 'F':
                if forward[place] or (stage and not forward[place - count]):
                    return
                forward[place] = 1
            elif kind == 'W':
                if weight[place] or not gradient[place]:
                    return
                weight[place] = 1
            else:
                if gradient[place] or not forward[place] or (stage < last and not gradient[place + count]):
                    return
                gradient[place] = 1
                # A full backward does both; its W cannot have been done, as that needs the gradient.
                if kind == 'B':
                    weight[place] = 1
            self._at[rank] = at + 1
