"""Recordings that are kept: neighbours in a sweep often differ by what recording does not look at."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Final, NamedTuple

from simpar.kept import Kept
from simpar.lower.record import Recorded, record
from simpar.pipeline.dualpipe import TWO_HOMES
from simpar.plan import Plan
from simpar.workload import Workload

READ: Final = frozenset(
    {
        *('data', 'tensor', 'expert', 'pipeline', 'stages', 'micro_batches', 'copies', 'copies_loss'),
        *('sequence_parallel', 'scatter_gather', 'context', 'context_kind', 'context_split', 'sequence_chunks'),
        *('reduce', 'dataset', 'shard_group', 'device_matrix', 'redistribution', 'all_to_all', 'strategies', 'layouts'),
    }
)
"""Keys of a plan that recording looks at."""
_PLAN: Final = Plan()
_UNREAD: Final = {one.name: getattr(_PLAN, one.name) for one in fields(Plan) if one.name not in READ | {'order'}}


def of_order(plan: Plan) -> dict[str, Any]:
    """What of its order a recording looks at: whether stages have two homes."""
    return {'order': TWO_HOMES} if plan.order == TWO_HOMES else {'order': _PLAN.order}


class _Asked(NamedTuple):
    """All that a recording depends on."""

    workload: Workload
    plan: Plan
    world: int
    placement: tuple[int, ...]


_recordings: Final[Kept[_Asked, Recorded]] = Kept(2)
"""Of a plan and its baseline."""


def recorded(workload: Workload, plan: Plan, world: int, placement: tuple[int, ...]) -> Recorded:
    """What ``record`` gives, which the caller may change; arguments and errors as there."""
    # Keys that recording does not look at are not told to it: so it cannot depend on them.
    asked = _Asked(workload, replace(plan, **_UNREAD, **of_order(plan)), world, placement)
    found = _recordings.get(asked, lambda: record(*asked))
    return Recorded(found.tape.copy(), found.graph)
