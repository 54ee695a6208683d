"""Receives as late as blocking sends allow."""

from __future__ import annotations

from collections import deque

from simpar.errors import Problem, ScheduleError
from simpar.pipeline.action import Action
from simpar.pipeline.needs import Result, gives, message, needs, sends
from simpar.pipeline.order import Order


def receive_late(order: Order) -> Order:
    """The order with each receive just before the first use of what it receives.

    Where ranks would then block each other, each sending, the lowest of them that is sent to receives first: torch's
    rule of rank parity (deferred receives) for two ranks, and for a ring of ranks, which that rule leaves waiting.
    """
    return _Late(order).run()


class _Late:
    """Carries the order out, sends blocking, and writes each receive where it is met."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._rows: list[list[Action]] = [[] for _ in order.actions]
        self._known: list[set[Result]] = [set() for _ in order.actions]
        self._left = [deque(row) for row in order.actions]
        self._pending: list[deque[tuple[Action, Action]]] = [deque() for _ in order.actions]

    def run(self) -> Order:
        while self._going():
            # Every rank does one thing a round; a list, as any() over a generator would stop at the first that moves.
            moved = [self._step(rank) for rank in self._going()]
            if not any(moved):
                self._receive_before(self._sender_in_ring())
        return Order(
            tuple(map(tuple, self._rows)), self._order.placement, self._order.micro_batches, self._order.sequence_chunks
        )

    def _going(self) -> list[int]:
        return [rank for rank in range(self._order.ranks) if self._left[rank] or self._pending[rank]]

    def _step(self, rank: int) -> bool:
        """One thing that a rank can do; False where it waits."""
        if self._pending[rank]:
            peer = self._peer(rank)
            # A peer that itself stands at a send cannot receive; the ring is broken only where nobody moves at all.
            if self._pending[peer] or rank not in self._wanted(peer):
                return False
            self._receive_before(rank)
            return True
        if self._wanted(rank) or not self._known[rank].issuperset(needs(self._left[rank][0], self._order)):
            return False
        action = self._left[rank].popleft()
        self._rows[rank].append(action)
        self._known[rank].update(gives(action))
        self._pending[rank].extend(sends(action, self._order))
        return True

    def _receive_before(self, rank: int) -> None:
        """The oldest pending send of a rank, and its receive before what the other rank does next."""
        peer = self._peer(rank)
        send, receive = self._pending[rank].popleft()
        self._rows[rank].append(send)
        self._rows[peer].append(receive)
        sent = message(send)
        if sent is not None:
            self._known[peer].add(sent)

    def _peer(self, rank: int) -> int:
        return self._order.placement[self._pending[rank][0][1].stage]

    def _wanted(self, rank: int) -> list[int]:
        """Ranks whose results the next action of a rank lacks."""
        if not self._left[rank]:
            return []
        lacks = [need for need in needs(self._left[rank][0], self._order) if need not in self._known[rank]]
        return [self._order.placement[stage] for _, stage, _ in lacks if self._order.placement[stage] != rank]

    def _sender_in_ring(self) -> int:
        """Of ranks that wait for each other in a ring, the one that sends to the lowest. All ranks wait."""
        rank, path = self._going()[0], []
        while rank not in path:
            path.append(rank)
            wanted = [self._peer(rank)] if self._pending[rank] else self._wanted(rank)
            if not wanted:
                raise ScheduleError(Problem('pipeline order', 'cannot be carried out: ranks wait for each other'))
            rank = wanted[0]
        ring = path[path.index(rank) :]
        senders = [rank for rank in ring if self._pending[rank]]
        if not senders:
            raise ScheduleError(Problem('pipeline order', 'cannot be carried out: ranks wait for each other'))
        # Any sender would break the ring; the lowest receiver is torch's choice for two ranks, and the same on every
        # run.
        return min(senders, key=self._peer)
