"""What a schedule file may hold."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from pydantic import Field, WithJsonSchema

from simpar.document import Bytes, Short
from simpar.errors import Problem
from simpar.hardware.profile import Mode
from simpar.hardware.stack import MOST_QUEUES
from simpar.keys import described
from simpar.plans import Plan
from simpar.stacks import NONE
from simpar.workload import Workload

FREE: Final = 'free'
FIXED: Final = 'fixed'
BOUNDS: Final = ('least', 'most')
MOST_VALUES: Final = 256
"""Values of one key."""
_KEY: Final = ('planner', 'keys')
_EXAMPLE: Final = 'plan.tensor: [1, 2, 4, 8], {least: 2, most: 8}, free or fixed'
KEYS_SCHEMA: Final[dict[str, Any]] = {
    'type': 'object',
    'additionalProperties': {
        'anyOf': [
            {'enum': [FREE, FIXED]},
            {'type': 'array', 'minItems': 1, 'maxItems': MOST_VALUES},
            {
                'type': 'object',
                'properties': {bound: {'type': 'integer', 'minimum': 0} for bound in BOUNDS},
                'additionalProperties': False,
                'minProperties': 1,
            },
        ]
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
@described('planner')
class Planner:
    """What `simpar plan` may choose.

    Arguments:
        keys: dotted keys of the plan: a list of values, ``{least, most}``, ``free``, or ``fixed`` to the plan's value.
        gap: share of the best step by which another plan may still be faster when the search ends.
        margin: plans within this share of the fastest step are one class; None: as measured pairs spread, else 3 %.
    """

    keys: Annotated[Any, WithJsonSchema(KEYS_SCHEMA)] = field(default_factory=dict)
    gap: float = 0.0
    margin: Annotated[float, Field(ge=0, lt=1)] | None = None


def planner_fits(planner: Planner | None, known: Mapping[str, Any]) -> Iterator[Problem]:
    """What is wrong with the section by itself, each at its key; ``known``, the keys that may be free and why not."""
    if planner is None:
        return
    if not isinstance(planner.keys, dict):
        yield Problem(_KEY, f'{kind_of(planner.keys)}, not a mapping', f'write dotted keys, e.g. {_EXAMPLE}')
        return
    for key, value in planner.keys.items():
        name = str(key).removeprefix('plan.')
        at = (*_KEY, key)
        if not str(key).startswith('plan.') or name not in known:
            yield Problem(at, 'not a key of the plan', f'write one of plan.{", plan.".join(sorted(known)[:40])}')
        elif isinstance(value, list):
            yield from _list_fits(at, value)
        elif isinstance(value, dict):
            yield from _bounds_fit(at, value)
        elif value not in (FREE, FIXED):
            yield Problem(at, f'{kind_of(value)} is no choice of values', f'write e.g. {_EXAMPLE}')


def _list_fits(at: tuple[str, ...], values: list[Any]) -> Iterator[Problem]:
    if not 0 < len(values) <= MOST_VALUES:
        yield Problem(at, f'{len(values)} values', f'write 1 to {MOST_VALUES}')
    shown = [json.dumps(value) for value in values]
    if len(set(shown)) < len(shown):
        again = next(one for place, one in enumerate(shown) if one in shown[:place])
        yield Problem(at, f'{again[:40]} stands twice', 'write each value once')


def _bounds_fit(at: tuple[str, ...], bounds: dict[str, Any]) -> Iterator[Problem]:
    wrong = [key for key in bounds if key not in BOUNDS]
    if wrong or not bounds:
        what = f'unknown: {", ".join(map(str, wrong))[:60]}' if wrong else 'no bound'
        yield Problem(at, what, 'write {least: 2}, {most: 8} or both')
    elif not all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in bounds.values()):
        yield Problem(at, 'bounds are whole numbers', 'write e.g. {least: 2, most: 8}')
    elif bounds.get('least', 0) > bounds.get('most', bounds.get('least', 0)):
        yield Problem(at, f'least {bounds["least"]} is above most {bounds["most"]}', 'write the smaller as least')


def kind_of(value: Any) -> str:
    """What a value is, for a message."""
    return 'a mapping' if isinstance(value, dict) else 'a list' if isinstance(value, list) else json.dumps(value)[:40]


VERSION: Final = 1
MOST_DIFFERENCES: Final = 64
SWEEP_SCHEMA: Final[dict[str, Any]] = {
    'anyOf': [
        {'type': 'object', 'additionalProperties': {'type': 'array', 'minItems': 1}, 'minProperties': 1},
        {'type': 'array', 'items': {'type': 'object', 'minProperties': 1}, 'minItems': 1},
        {'type': 'null'},
    ]
}


@dataclass(frozen=True, slots=True, kw_only=True)
@described('cluster')
class ClusterReference:
    """A profile by its name or path, and what is changed of it; `simpar.hardware` makes the cluster of it."""

    profile: str
    nodes: int = 1
    devices: int = 0
    slow: dict[Annotated[int, Field(ge=0)], Annotated[float, Field(gt=0, le=1)]] = field(default_factory=dict)
    spread: float = 0.0
    links: dict[Annotated[str, Field(min_length=1, max_length=1000)], Annotated[float, Field(gt=0, le=1_000_000)]] = (
        field(default_factory=dict)
    )
    reserve: Bytes = 0.0
    stack: str = ''
    work_queues: Annotated[int, Field(ge=1, le=MOST_QUEUES)] | None = None
    expansion_mode: Mode | None = None

    @property
    def has_stack(self) -> bool:
        """Whether a framework runs on it, not the device alone."""
        return self.stack not in ('', NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
@described('')
class Contents:
    """A schedule as it stands in a file."""

    simpar: int
    cluster: Annotated[ClusterReference, Short('profile')]
    workload: Workload
    plan: Plan = field(default_factory=Plan)
    gaps: tuple[Annotated[str, Field(max_length=400)], ...] = ()
    against: dict[str, Any] | None = None
    sweep: Annotated[Any, WithJsonSchema(SWEEP_SCHEMA)] = None
    planner: Planner | None = None
