"""Sends and receives written into an order."""

from __future__ import annotations

from typing import Literal

from simpar.errors import Problem, ScheduleError
from simpar.pipeline.action import Action
from simpar.pipeline.late import receive_late
from simpar.pipeline.needs import Result, gives, needs, sides_of
from simpar.pipeline.order import Order

Receive = Literal['early', 'late']


def with_communication(order: Order, receive: Receive = 'early') -> Order:
    """The order with a send behind each result that leaves its rank, and its receive on the other rank.

    Arguments: ``receive``: ``early``, as soon as the result is sent, whatever the other rank does meanwhile, as torch
    does; ``late``, just before its first use, or earlier where two ranks would else wait for each other.
    Both end though sends and receives block, and between two ranks, messages of one direction are sent and received in
    the same order. Raises `ScheduleError` where the order communicates already or cannot be carried out.
    """
    if order.communicates:
        raise ScheduleError(Problem('pipeline order', 'has sends and receives already'))
    return _early(order) if receive == 'early' else receive_late(order)


def _early(order: Order) -> Order:
    """Ranks take turns, one action a turn; a receive is written when its send is (as torch's _add_send_recv)."""
    rows: list[list[Action]] = [[] for _ in order.actions]
    known: list[set[Result]] = [set() for _ in order.actions]
    position = [0] * order.ranks
    going = [rank for rank, row in enumerate(order.actions) if row]
    # What each rank's next action needs: asked again each turn, it would be worked out again each turn.
    lacks = {rank: needs(order.actions[rank][0], order) for rank in going}
    while going:
        # If a full round moves nobody, nobody will ever move.
        moved, ended = False, False
        for rank in going:
            if not known[rank].issuperset(lacks[rank]):
                continue
            row, at = order.actions[rank], position[rank]
            _do(order, row[at], rank, rows, known)
            position[rank] = at = at + 1
            moved = True
            if at < len(row):
                lacks[rank] = needs(row[at], order)
            else:
                ended = True
        if not moved:
            raise ScheduleError(Problem('pipeline order', 'cannot be carried out: ranks wait for each other'))
        if ended:
            going = [rank for rank in going if position[rank] < len(order.actions[rank])]
    return Order(tuple(map(tuple, rows)), order.placement, order.micro_batches, order.sequence_chunks)


def _do(order: Order, action: Action, rank: int, rows: list[list[Action]], known: list[set[Result]]) -> None:
    rows[rank].append(action)
    given = gives(action)
    # A W gives nothing to anybody.
    if not given:
        return
    known[rank].update(given)
    for result in given:
        sides = sides_of(result, order)
        if sides:
            send, receive = sides
            peer = order.placement[receive.stage]
            rows[rank].append(send)
            # The receive is written at once, whatever the peer is doing: both ranks see their messages in one order,
            # so blocking ends.
            rows[peer].append(receive)
            # Known as soon as it is received; whether the peer then waits for it is the engine's business.
            known[peer].add(result)
