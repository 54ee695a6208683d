"""written_out: a case as a schedule file that leaves no choice to simpar; what can have no effect is left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from simpar.ablation.rules import Facts, inert_keys
from simpar.case import Case
from simpar.plans import Plan
from simpar.resolve.settle import settled_plan, settled_workload
from simpar.schedule import Schedule, written
from simpar.stacks import NONE

_ALL: Final[tuple[Any, ...]] = ('', [], {}, None)
_HARMLESS: Final = frozenset(
    {'gather', 'shard_group', 'shard_threshold', 'accumulate', 'copies_loss', 'receive', 'exchange'}
)
"""Keys of a plan that fit whatever the baseline has, where they have no effect on it."""


def written_out(case: Case) -> dict[str, Any]:
    """The plain tree of a case's schedule with every choice made: the same program, and the same baseline.

    A key that is not there is off, or can have no effect. The sweep is left out: every row makes choices of its own.
    """
    settled = _settled(case)
    tree = written(settled)
    del tree['sweep'], tree['planner']
    unused = _inert(case)
    # An empty list says something where it is not the default, as of overlap.
    tree['plan'] = {
        key: value
        for key, value in tree['plan'].items()
        if key not in unused and (value not in _ALL or getattr(Plan(), key) != getattr(settled.plan, key))
    }
    workload = {key: _without_empty(key, value) for key, value in tree['workload'].items()}
    tree['workload'] = {key: value for key, value in workload.items() if value not in _ALL}
    tree['cluster'] = {key: value for key, value in tree['cluster'].items() if value not in _ALL}
    tree['against'] = _against(case, settled)
    return tree


def _settled(case: Case) -> Schedule:
    """The schedule with the values of all choices, and defaults where no value has an effect."""
    plan = settled_plan(case.workload, case.plan)
    plan = replace(plan, **{key: getattr(Plan(), key) for key in _inert(case)})
    mine = case.schedule.cluster
    cluster = replace(mine, devices=case.cluster.devices, stack=mine.stack or NONE)
    return replace(case.schedule, workload=settled_workload(case.workload), plan=plan, cluster=cluster)


def _inert(case: Case) -> frozenset[str]:
    """Keys of the plan of which no value has an effect; those of a search, when it is done."""
    facts = Facts(
        program=case.program, workload=case.workload, plan=case.plan, workload_asked=case.workload, asked=case.plan
    )
    return frozenset(key.removeprefix('plan.') for key in inert_keys(facts) if key.startswith('plan.'))


def _without_empty(key: str, value: Any) -> Any:
    """A network's layers without what they leave empty."""
    if key != 'network':
        return value
    if isinstance(value, dict):
        rest = {name: one for name, one in value.items() if one not in _ALL}
        return {**rest, 'layers': _without_empty(key, value['layers'])}
    return [
        {kind: {name: one for name, one in keys.items() if one not in _ALL} for kind, keys in layer.items()}
        for layer in value
    ]


def _against(case: Case, settled: Schedule) -> dict[str, Any]:
    """The values of the baseline, all its choices made, that are not the plan's."""
    if case.baseline is None:
        return {}
    mine, other = written(settled), written(_settled(case.baseline))
    if set(mine['workload']) != set(other['workload']):
        return dict(case.schedule.differences)
    found: dict[str, Any] = {}
    for part in ('workload', 'plan', 'cluster'):
        found |= dict(_differences(mine[part], other[part], part))
    idle = {f'plan.{key}' for key in _inert(case.baseline) & _HARMLESS}
    return {key: value for key, value in found.items() if key not in idle}


def _differences(one: Mapping[str, Any], other: Mapping[str, Any], at: str) -> Iterator[tuple[str, Any]]:
    for key, value in other.items():
        mine = one.get(key)
        if isinstance(mine, dict) and isinstance(value, dict) and mine.keys() == value.keys():
            yield from _differences(mine, value, f'{at}.{key}')
        elif mine != value:
            yield f'{at}.{key}', value
