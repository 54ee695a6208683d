"""Stack: what a framework does of itself with a plan, where the schedule does not say it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from simpar.ablation.facts import Facts
from simpar.ablation.rules import INERT
from simpar.hardware import Stack
from simpar.schedule import Schedule

_PLAN: Final = 'plan.'


def unlike_stack(schedule: Schedule, stack: Stack | None, facts: Facts) -> Iterator[str]:
    """A note on keys of the plan that a stack has otherwise, of those that may have an effect here.

    Keys that the user wrote are no mistake but a question.
    """
    unlike = []
    for key, value in (stack.schedule if stack else {}).items():
        mine = getattr(facts.plan, key.removeprefix(_PLAN), None)
        written = tuple(key.split('.')) in schedule.origins
        if key.startswith(_PLAN) and not written and mine != value and not _inert(key, facts):
            unlike.append(f'{key}: {_shown(value)} (here {_shown(mine)})')
    if stack and unlike:
        yield f'{stack.name} itself has {", ".join(unlike)}; write what it has, to predict what it does'


def _inert(key: str, facts: Facts) -> bool:
    # Without tensor ranks no value has parts to send.
    parts = key == 'plan.scatter_gather' and facts.plan.tensor == 1
    return parts or (key in INERT and bool(INERT[key](facts)))


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
