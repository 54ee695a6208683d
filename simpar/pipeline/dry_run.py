"""Carry an order out without seconds, to find where it would wait for ever."""

from __future__ import annotations

from collections import defaultdict

from simpar.pipeline.needs import Message, Result, gives, message, needs
from simpar.pipeline.order import Order


def stuck(order: Order) -> dict[int, tuple[int, tuple[Result, ...]]]:
    """Ranks that do not reach their end, each with the position of the action it waits at and the results it lacks.

    Sends and receives block: a rank goes on only when the other rank is at the matching action. So an order that ends
    here ends on every machine that does more at once. Without sends and receives, results reach all ranks at once.
    An empty tuple of results: the rank waits at a send or a receive for the other side.
    """
    return _DryRun(order).run()


class _DryRun:
    def __init__(self, order: Order) -> None:
        self._order = order
        self._position = [0] * order.ranks
        # Without messages all ranks look into one set: a result is everywhere as soon as it exists.
        shared: set[Result] = set()
        self._known = [set() if order.communicates else shared for _ in order.actions]
        self._waiting: defaultdict[Result, list[int]] = defaultdict(list)
        self._posted: dict[tuple[Message, bool], int] = {}

    def run(self) -> dict[int, tuple[int, tuple[Result, ...]]]:
        ready = list(range(self._order.ranks))
        while ready:
            ready += self._advance(ready.pop())
        return {
            rank: (self._position[rank], self._lacks(rank))
            for rank, row in enumerate(self._order.actions)
            if self._position[rank] < len(row)
        }

    def _lacks(self, rank: int) -> tuple[Result, ...]:
        action = self._order.actions[rank][self._position[rank]]
        return tuple(need for need in needs(action, self._order) if need not in self._known[rank])

    def _advance(self, rank: int) -> list[int]:
        """Do what a rank can do now; returns ranks that may go on because of it."""
        freed: list[int] = []
        row = self._order.actions[rank]
        while self._position[rank] < len(row):
            action = row[self._position[rank]]
            lacks = self._lacks(rank)
            if lacks:
                # One lack is enough to wait for; the others are looked at when it is there.
                self._waiting[lacks[0]].append(rank)
                break
            sent = message(action)
            if sent is not None:
                # The rank stops here either way: where both sides meet, it comes back as ready.
                return freed + self._meet(rank, sent, action.kind.startswith('SEND'))
            for result in gives(action):
                self._known[rank].add(result)
                freed += self._waiting.pop(result, [])
            self._position[rank] += 1
        return freed

    def _meet(self, rank: int, sent: Message, sending: bool) -> list[int]:
        """A rank is at one side of a message: both go on where the other rank is at the other side."""
        other = self._posted.pop((sent, not sending), None)
        if other is None:
            self._posted[sent, sending] = rank
            return []
        self._known[other if sending else rank].add(sent)
        self._position[rank] += 1
        self._position[other] += 1
        return [rank, other]
