"""Stack: what a schedule has otherwise than the framework that it runs under."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from simpar.ablation.facts import Facts
from simpar.ablation.rules import INERT
from simpar.hardware import Stack
from simpar.schedule import Schedule

_PLAN: Final = 'plan.'
_ATTENTION: Final = 'workload.transformer.attention'


def unlike_stack(schedule: Schedule, stack: Stack | None, facts: Facts) -> Iterator[str]:
    """A sentence on keys of plan and model that a framework has otherwise, of those that may have an effect here.

    Keys on which the file is silent are the framework's own, so what differs was asked for, or is of the model.
    """
    if stack is None:
        return
    plan = {
        key: (value, getattr(facts.plan, key.removeprefix(_PLAN), None))
        for key, value in stack.schedule.items()
        if key.startswith(_PLAN) and tuple(key.split('.')) not in schedule.of_stack and not _inert(key, facts)
    }
    # Of its models' keys this one alone is what a framework does of itself: it has no other kernel.
    kernel = stack.model.get('attention')
    keys = {_ATTENTION: (kernel, getattr(facts.workload.model, 'attention', kernel))} if kernel else {}
    unlike = [
        f'{key} is {_shown(mine)}, there {_shown(value)}'
        for key, (value, mine) in {**plan, **keys}.items()
        if _plain(mine) != _plain(value)
    ]
    if unlike:
        yield f'Otherwise than {stack.name} has it of itself: {"; ".join(unlike)}.'


def _inert(key: str, facts: Facts) -> bool:
    # Without tensor ranks no value has parts to send.
    parts = key == 'plan.scatter_gather' and facts.plan.tensor == 1
    return parts or (key in INERT and bool(INERT[key](facts)))


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(_plain(value))
