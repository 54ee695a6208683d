"""One exchange at a time: messages of an interleaved pipeline as Megatron-LM sends them without overlap.

Source: NVIDIA/Megatron-LM, megatron/core/pipeline_parallel/schedules.py, forward_backward_pipelining_with_interleaving:
send_forward_recv_forward while it warms up, send_forward_backward_recv_forward_backward behind each forward and the
backward that follows it, send_backward_recv_backward at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from simpar.pipeline.action import Action
from simpar.pipeline.needs import Message, Result, gives, message, needs, sides_of
from simpar.pipeline.order import Order, Row

_Turn = tuple[Action, ...]


class _Exchange(NamedTuple):
    """What a rank sends and receives between two turns."""

    sent: tuple[Result, ...]
    received: tuple[Result, ...]


def in_exchanges(order: Order) -> Order | None:
    """The order with one exchange between two turns of a rank: one sends what it gave, the next needs what is received.

    A turn is a forward with the backward behind it, or one action. An exchange ends when all of its messages have.
    None where ranks would wait for each other, or messages between two ranks would be received in another order.
    """
    pairs = [_turns(row) for row in order.actions]
    # A rank that does all forwards first has none with a backward; or, if it has one turn of both, looks the same.
    apart = [
        _one_by_one(row) if _all_forwards_first(row) else own for row, own in zip(order.actions, pairs, strict=True)
    ]
    return _exchanged(pairs, order) or _exchanged(apart, order)


def _exchanged(turns: Sequence[list[_Turn]], order: Order) -> Order | None:
    exchanges = [_exchanges(own, order) for own in turns]
    if not _ends(exchanges, order):
        return None
    rows = tuple(_row(own, between, order) for own, between in zip(turns, exchanges, strict=True))
    found = Order(rows, order.placement, order.micro_batches, order.sequence_chunks)
    return found if _alike(found) else None


def _turns(row: Row) -> list[_Turn]:
    turns: list[_Turn] = []
    for action in row:
        if action.kind == 'B' and turns and [one.kind for one in turns[-1]] == ['F']:
            turns[-1] = (*turns[-1], action)
        else:
            turns.append((action,))
    return turns


def _one_by_one(row: Row) -> list[_Turn]:
    return [(action,) for action in row]


def _all_forwards_first(row: Row) -> bool:
    kinds = [action.kind for action in row]
    return 'F' not in kinds[kinds.count('F') :]


def _exchanges(turns: Sequence[_Turn], order: Order) -> list[_Exchange]:
    """One before each turn, and one behind the last."""
    given = [tuple(one for action in turn for one in gives(action) if sides_of(one, order)) for turn in turns]
    needed = [tuple(one for action in turn for one in needs(action, order)) for turn in turns]
    own = {one for action in chain(*turns) for one in gives(action)}
    wanted = [tuple(one for one in dict.fromkeys(found) if one not in own) for found in needed]
    return [_Exchange(sent, received) for sent, received in zip([(), *given], [*wanted, ()], strict=True)]


def _ends(exchanges: Sequence[Sequence[_Exchange]], order: Order) -> bool:
    """Whether every exchange ends; ranks reach one when the one before has ended."""
    sender = {
        one: (rank, at) for rank, own in enumerate(exchanges) for at, found in enumerate(own) for one in found.sent
    }
    taker = {
        one: (rank, at) for rank, own in enumerate(exchanges) for at, found in enumerate(own) for one in found.received
    }
    if sender.keys() != taker.keys():
        return False
    reached = [0] * order.ranks
    moved = True
    while moved:
        moved = False
        for rank, own in enumerate(exchanges):
            while reached[rank] < len(own):
                sent, received = own[reached[rank]]
                peers = [*(taker[one] for one in sent), *(sender[one] for one in received)]
                if any(reached[peer] < at for peer, at in peers):
                    break
                reached[rank] += 1
                moved = True
    return all(at == len(own) for at, own in zip(reached, exchanges, strict=True))


def _row(turns: Sequence[_Turn], exchanges: Sequence[_Exchange], order: Order) -> Row:
    row: list[Action] = []
    for turn, (sent, received) in zip([*turns, ()], exchanges, strict=True):
        row += [_sides(one, order)[0] for one in sorted(sent)]
        row += [_sides(one, order)[1] for one in sorted(received)]
        row += turn
    return tuple(row)


def _sides(result: Result, order: Order) -> tuple[Action, Action]:
    sides = sides_of(result, order)
    assert sides, 'what crosses no ranks is in no exchange'
    return sides


def _alike(order: Order) -> bool:
    """Whether messages from one rank to another are received as they are sent."""
    found: dict[tuple[int, int], tuple[list[Message], list[Message]]] = {}
    for rank, row in enumerate(order.actions):
        for action in row:
            told = message(action)
            if told is None:
                continue
            kind, stage, _ = told
            ends = order.placement[stage], order.placement[stage + (1 if kind == 'F' else -1)]
            found.setdefault(ends, ([], []))[rank == ends[1]].append(told)
    return all(sent == received for sent, received in found.values())
