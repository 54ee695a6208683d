"""Rules: why no plan below a node can be, in the words of the schedule's own checks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from simpar.document import dotted
from simpar.errors import Infeasible, Problem, ScheduleError
from simpar.pipeline.orders import ORDERS, family
from simpar.plan import Plan
from simpar.planner.space import Space
from simpar.schedule.checks import check
from simpar.workload import Transformer, Workload

DEVICES: Final = 'devices'
SAME: Final = 'same plan'
MEMORY: Final = 'memory'
ORDER: Final = 'plan.order'
CHUNKS: Final = 'plan.chunks'
STAGES: Final = 'stages'
TIME: Final = 'time'


PIPELINED: Final = ('order', 'chunks')


class Refusal(NamedTuple):
    """Why plans cannot be, or need not be looked at.

    Arguments: ``rule``, its name; ``example``, what it says of the first of them.
    """

    rule: str
    example: str


class Judged(NamedTuple):
    """Least seconds of a step of all plans below a node; why none of them can be; least bytes at the peak."""

    seconds: float = 0.0
    refusal: Refusal | None = None
    held: float = 0.0


def refused(space: Space, path: Sequence[int]) -> Refusal | None:
    """Why no plan below a node can be; None where none of what is chosen speaks against it."""
    key = space.keys[len(path) - 1]
    if key == 'order' and path[-1] == 0:
        return None
    # What is behind order and chunks does not look at them.
    place = tuple(-1 if one in PIPELINED else number for one, number in zip(space.keys, path, strict=False))
    if key in PIPELINED:
        return _refused(space, path)
    if place not in space.refused:
        space.refused[place] = _refused(space, path)
    found: Refusal | None = space.refused[place]
    return found


def _refused(space: Space, path: Sequence[int]) -> Refusal | None:
    key = space.keys[len(path) - 1]
    chosen = space.chosen(path)
    if key == 'order':
        same = _same(space, chosen, path)
        return Refusal(SAME, same) if same else None
    plan = space.plan(path)
    inner = plan.pipeline * plan.tensor * plan.context
    if space.world % inner:
        return Refusal(DEVICES, f'{inner} does not divide {space.world} devices')
    if same := _same(space, chosen, path):
        return Refusal(SAME, same)
    # What data is, is known when all other degrees are.
    degrees = all(one in chosen or one not in space.keys for one in ('pipeline', 'tensor', 'context'))
    if degrees and plan.data * inner != space.world:
        return Refusal(DEVICES, f'{plan.data} × {inner} are not {space.world} devices')
    if key == 'chunks':
        return _order(space.base.workload, plan)
    # Orders are asked apart: making one for each node would take longest.
    alone = replace(plan, pipeline=1, order='1f1b', chunks=0, stages=(), data=plan.data if degrees else 0)
    return _first(check(replace(space.base, workload=space.few, plan=alone, sweep=None, planner=None)))


def _order(workload: Workload, plan: Plan) -> Refusal | None:
    """Why an order cannot have its chunks, or the layers its stages; to make it takes longer."""
    if (plan.pipeline == 1 and plan.chunks <= 1) or plan.order not in ORDERS:
        return None
    least, most = family(plan.order).chunks
    if plan.chunks and not least <= plan.chunks <= most:
        return Refusal(CHUNKS, f'{plan.order} has no {plan.chunks} chunks')
    stages, layers = plan.pipeline * (plan.chunks or least), max(workload.model.counts.values())
    return Refusal(STAGES, f'{stages} stages for {layers} layers') if not plan.stages and layers < stages else None


def _first(problems: Iterator[Problem]) -> Refusal | None:
    try:
        for problem in problems:
            return Refusal(dotted(problem.key), problem.what)
    except (ScheduleError, Infeasible) as wrong:
        return Refusal('plan', str(wrong).partition('\n')[0])
    return None


def _same(space: Space, chosen: dict[str, object], path: Sequence[int]) -> str:
    """What makes a plan the same as another one of the space; empty where it is none."""
    place = dict(zip(space.keys, path, strict=False))
    alone = chosen.get('pipeline', space.base.plan.pipeline) == 1
    if alone and place.get('order') and chosen.get('order') in ORDERS and 0 in space.values_of('chunks'):
        return 'one stage has one order'
    if alone and place.get('chunks') and chosen.get('chunks') == 1:
        return 'one stage has one chunk'
    if place.get('tiles') and space.values_of('tiles')[0] == 1 and _untiled(space, chosen):
        return 'no product has a sum or a gather beside it that tiles could hide'
    sharded = chosen.get('zero', space.base.plan.zero)
    if place.get('shard_group') and not sharded and not (space.base.plan.shard or space.base.plan.hsdp != 'off'):
        return 'nothing is sharded in groups'
    return ''


def _untiled(space: Space, chosen: dict[str, object]) -> bool:
    """Whether a model of the library surely has no collective that tiles travel in: nothing splits its products."""
    degrees = [chosen.get(key, getattr(space.base.plan, key)) for key in ('tensor', 'context')]
    workload, plan = space.base.workload, space.base.plan
    given = (plan.strategies, plan.layouts, workload.loss_strategy, workload.loss_strategies)
    return isinstance(workload.model, Transformer) and not any(given) and degrees == [1, 1]
