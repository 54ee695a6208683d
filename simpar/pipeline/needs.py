"""What an action needs to be done before it, and what it gives to others."""

from __future__ import annotations

from typing import Literal

from simpar.pipeline.action import Action
from simpar.pipeline.order import Order

Result = tuple[Literal['F', 'I'], int, int]
"""F: the activation that (stage, micro-batch) gives to the next stage; I: the gradient that it gives back."""
Message = tuple[Literal['F', 'I'], int, int]
"""A result on its way, named by the stage that sends it."""


def gives(action: Action) -> tuple[Result, ...]:
    """Results of an action."""
    # Nearly all actions are one part, and searches ask for hundreds of thousands of them.
    if not action.sub_actions:
        return _gives(action)
    return tuple(given for part in action.sub_actions for given in _gives(part))


def needs(action: Action, order: Order) -> tuple[Result, ...]:
    """Results that an action of this order needs; of a send, what it sends; of a receive, nothing."""
    if not action.sub_actions:
        return _needs(action, order)
    return tuple(need for part in action.sub_actions for need in _needs(part, order))


def _gives(part: Action) -> tuple[Result, ...]:
    if part.kind in ('F', 'I', 'B'):
        return (('F' if part.kind == 'F' else 'I', part.stage, part.micro_batch or 0),)
    return ()


def _needs(action: Action, order: Order) -> tuple[Result, ...]:
    stage, micro_batch = action.stage, action.micro_batch or 0
    if action.kind == 'F':
        before: tuple[Result, ...] = (('F', stage - 1, micro_batch),) if stage else ()
        # Attention reads keys and values of the chunks before, whose forward must be over.
        return (*before, ('F', stage, micro_batch - 1)) if micro_batch % order.sequence_chunks else before
    if action.kind in ('I', 'B'):
        # The last stage's gradient starts from its own forward: nothing comes from behind.
        later: tuple[Result, ...] = (('I', stage + 1, micro_batch),) if stage + 1 < order.stages else ()
        if (micro_batch + 1) % order.sequence_chunks:
            later = (*later, ('I', stage, micro_batch + 1))
        return (('F', stage, micro_batch), *later)
    if action.kind in ('W', 'SEND_B'):
        return (('I', stage, micro_batch),)
    return (('F', stage, micro_batch),) if action.kind == 'SEND_F' else ()


def message(action: Action) -> Message | None:
    """The message of a send or a receive; None for all other actions."""
    micro_batch = action.micro_batch or 0
    if action.kind in ('SEND_F', 'RECV_F'):
        return ('F', action.stage - (action.kind == 'RECV_F'), micro_batch)
    if action.kind in ('SEND_B', 'RECV_B'):
        return ('I', action.stage + (action.kind == 'RECV_B'), micro_batch)
    return None


def sends(action: Action, order: Order) -> tuple[tuple[Action, Action], ...]:
    """The sends that the results of an action cause, each with its receive; none where they stay on the rank."""
    found = (sides_of(result, order) for result in gives(action))
    return tuple(sides for sides in found if sides)


def sides_of(result: Result, order: Order) -> tuple[Action, Action] | None:
    """The send of a result, and its receive; None where it stays on its rank."""
    kind, stage, micro_batch = result
    if kind == 'F':
        if not order.crosses(stage):
            return None
        return Action(stage, 'SEND_F', micro_batch), Action(stage + 1, 'RECV_F', micro_batch)
    if not stage or not order.crosses(stage - 1):
        return None
    return Action(stage, 'SEND_B', micro_batch), Action(stage - 1, 'RECV_B', micro_batch)
