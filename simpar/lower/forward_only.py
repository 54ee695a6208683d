"""``phase: forward``: the forward alone, as of prefill or an evaluation; no backward, no sums of gradients, no update.

Each micro-batch goes forward in the order in which it would in training; what only a backward reads is freed at once.
Does not model: a head for the last token alone, caches of keys and values, kernels that write less where nothing is
trained.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from simpar.lower.tape import Tape
from simpar.pipeline.action import Action
from simpar.pipeline.order import Order
from simpar.program import OpClass

_FORWARD = frozenset({'F', 'SEND_F', 'RECV_F'})


def without_backward(tape: Tape) -> None:
    """Take all but the forward off a tape."""
    tape.ops[:] = [op for op in tape.ops if op.phase == 'F']


def forward_order(order: Order) -> Order:
    """The same order without backwards, and without what travels for them."""
    rows = tuple(tuple(_forward(row)) for row in order.actions)
    return Order(rows, order.placement, order.micro_batches, order.sequence_chunks)


def _forward(row: Iterable[Action]) -> Iterable[Action]:
    return (part for action in row for part in action.parts if part.kind in _FORWARD)


def used(ops: Iterable[OpClass]) -> Collection[str]:
    """The tensors that some ops touch; gradients and states are then left out of a program."""
    return {name for op in ops for name in (*op.reads, *op.writes, *op.accumulates, *op.frees)}
