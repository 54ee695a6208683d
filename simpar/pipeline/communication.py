"""Sends and receives written into an order."""

from __future__ import annotations

from collections import defaultdict
from typing import Literal

from simpar.errors import Problem, ScheduleError
from simpar.pipeline.action import Action
from simpar.pipeline.late import receive_late
from simpar.pipeline.needs import Result, gives, message, needs, sends
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
    known: defaultdict[int, set[Result]] = defaultdict(set)
    position = [0] * order.ranks
    going = [rank for rank, row in enumerate(order.actions) if row]
    while going:
        # If a full round moves nobody, nobody will ever move.
        before = sum(position)
        for rank in going:
            action = order.actions[rank][position[rank]]
            if known[rank].issuperset(needs(action, order)):
                _do(order, action, rank, rows, known)
                position[rank] += 1
        if sum(position) == before:
            raise ScheduleError(Problem('pipeline order', 'cannot be carried out: ranks wait for each other'))
        going = [rank for rank in going if position[rank] < len(order.actions[rank])]
    return Order(tuple(map(tuple, rows)), order.placement, order.micro_batches, order.sequence_chunks)


def _do(
    order: Order, action: Action, rank: int, rows: list[list[Action]], known: defaultdict[int, set[Result]]
) -> None:
    rows[rank].append(action)
    known[rank].update(gives(action))
    for send, receive in sends(action, order):
        peer = order.placement[receive.stage]
        rows[rank].append(send)
        # The receive is written at once, whatever the peer is doing: both ranks see their messages in one order, so
        # blocking ends.
        rows[peer].append(receive)
        sent = message(send)
        if sent is not None:
            # Known as soon as it is received; whether the peer then waits for it is the engine's business.
            known[peer].add(sent)
