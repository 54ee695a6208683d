"""Baseline: which keys of ``against`` do not make it another program than the plan's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from simpar.ablation.same import same
from simpar.cost.price import price
from simpar.errors import SimparError
from simpar.hardware import Cluster
from simpar.program import Program
from simpar.schedule import Schedule
from simpar.schedule.without_effect import WithoutEffect

Made = tuple[Program, Cluster]
_SPELLED: Final = ('loss_strategy', 'loss_strategies', 'layers')
"""What may say how operators are sharded anyway."""


def unchanged_baseline(
    schedule: Schedule, made: Made, baseline: Made | None, make: Callable[[Schedule], Made]
) -> Iterator[WithoutEffect]:
    """The keys of ``against`` that change nothing of the baseline.

    Arguments:
        schedule: with its ``against``.
        made, baseline: program and cluster of both.
        make: lowers any schedule to a program and its cluster.
    """
    against = schedule.against or {}
    other = schedule.baseline() if against else None
    if baseline is not None and _alike(made, baseline):
        for key, value in against.items():
            yield WithoutEffect(f'against.{key}', value, 'the baseline is the same program, at the same prices')
        return
    for key, value in against.items():
        if key.rpartition('.')[2] in _SPELLED:
            continue
        rest = {name: one for name, one in against.items() if name != key}
        why = _unchanged(schedule, rest, other, baseline, make)
        if why:
            yield WithoutEffect(f'against.{key}', value, why)


def _unchanged(
    schedule: Schedule,
    rest: dict[str, object],
    other: Schedule | None,
    baseline: Made | None,
    make: Callable[[Schedule], Made],
) -> str:
    """Why the baseline without a key is the same; empty where it is not."""
    try:
        without = replace(schedule, against=rest).baseline() if rest else None
        if without == other or (without and other and replace(without, against=None) == replace(other, against=None)):
            return 'the plan has this value already'
        # An exact search takes seconds: what it makes of a baseline with one key less is not asked for.
        if not rest or without is None or baseline is None or without.plan.search == 'exact':
            return ''
        return 'the baseline is the same program without it' if _alike(make(without), baseline) else ''
    except SimparError:
        return ''


def _alike(one: Made, other: Made) -> bool:
    """The same program at the same prices."""
    if not same(one[0], other[0]):
        return False
    if one[1] == other[1]:
        return True
    costs = [price(*made) for made in (one, other)]
    arrays = all(
        (getattr(costs[0], name) == getattr(costs[1], name)).all()
        for name in ('compute', 'host', 'beside_communication', 'rank_speed')
    )
    queues = costs[0].work_queues == costs[1].work_queues
    return bool(arrays and queues and costs[0].communication == costs[1].communication)
