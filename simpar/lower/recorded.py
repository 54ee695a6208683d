"""Recordings that are kept: neighbours in a sweep often differ by what recording does not look at."""

from __future__ import annotations

from collections import deque
from dataclasses import fields, replace
from typing import Final, NamedTuple

from simpar.lower.record import Recorded, record
from simpar.plan import Plan
from simpar.workload import Workload

_KEPT: Final = 2
"""How many are kept: a plan and its baseline."""
_READ: Final = frozenset(
    {
        *('data', 'tensor', 'pipeline', 'stages', 'micro_batches', 'copies', 'copies_loss', 'sequence_parallel'),
        *('context', 'context_kind', 'context_split'),
        *('reduce', 'dataset', 'shard_group', 'device_matrix', 'redistribution', 'all_to_all', 'strategies', 'layouts'),
    }
)
"""Keys of a plan that recording looks at."""
_PLAN: Final = Plan()
_UNREAD: Final = {one.name: getattr(_PLAN, one.name) for one in fields(Plan) if one.name not in _READ}


class _Asked(NamedTuple):
    """All that a recording depends on."""

    workload: Workload
    plan: Plan
    world: int
    placement: tuple[int, ...]


_recordings: deque[tuple[_Asked, Recorded]] = deque(maxlen=_KEPT)


def recorded(workload: Workload, plan: Plan, world: int, placement: tuple[int, ...]) -> Recorded:
    """What ``record`` gives, which the caller may change; arguments and errors as there."""
    # Keys that recording does not look at are not told to it: so it cannot depend on them.
    asked = _Asked(workload, replace(plan, **_UNREAD), world, placement)
    found = next((known for other, known in tuple(_recordings) if other == asked), None)
    if found is None:
        found = record(*asked)
        _recordings.append((asked, found))
    return Recorded(found.tape.copy(), found.graph)
