"""Spaces of plans that are drawn, and what the engine says of the plans in them."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from simpar.case import cluster_of
from simpar.planner.judge import Judge
from simpar.planner.plan import Planned, plan
from simpar.planner.search import Path
from simpar.planner.space import KEYS, Space, refused, space_of
from simpar.schedule import Schedule, load_schedule
from simpar.schedule.contents import FREE, Planner
from simpar.sweep.answer import Outcome, predicted
from tests.tables import load_tree

FILE: str = load_tree(__file__, 'FILE')
MODELS: list[dict[str, Any]] = load_tree(__file__, 'MODELS')
CLUSTERS: list[dict[str, Any]] = load_tree(__file__, 'CLUSTERS')
PRECISION = {'ascend910a-8': 'fp16'}


GIVEN: dict[str, list[Any]] = load_tree(__file__, 'GIVEN')
"""Values of which one may be given, and the key is not free."""


@cache
def planned() -> Planned:
    """The plan of a small space, by a search that nothing interrupts."""
    return plan(FILE, jobs=1)


def drawn_space(draw: random.Random, further: Sequence[str] = ()) -> Space:
    """A space of all usual keys, or of all but one or two, for a drawn model, cluster and batch.

    Argument: ``further``, keys that are free, too.
    """
    cluster = draw.choice(CLUSTERS)
    schedule = load_schedule(
        {
            'simpar': 1,
            'cluster': cluster,
            'workload': {
                'transformer': draw.choice(MODELS),
                'batch': draw.choice([16, 32, 48, 64]),
                'precision': PRECISION.get(cluster['profile'], 'bf16'),
                # Only Hopper has products in 8 bits.
                'fp8': draw.choice(['none', 'e4m3']) if 'h100' in cluster['profile'] else 'none',
                'optimizer': 'adam',
            },
            'plan': {'exchange': 'fused', 'receive': 'late'} if 'stack' in cluster else {},
        }
    )
    given: dict[str, Any] = {
        f'plan.{key}': [draw.choice(GIVEN[key])] for key in draw.sample(sorted(GIVEN), draw.choice([0, 1, 2]))
    }
    given |= {f'plan.{key}': FREE for key in further}
    return space_of(replace(schedule, planner=Planner(keys=given)), cluster_of(schedule).world)


def drawn_path(space: Space, draw: random.Random) -> Path | None:
    """A plan of the space that no rule refuses; None where none was found soon."""
    path: Path = ()
    for values in space.values:
        places = list(range(len(values)))
        draw.shuffle(places)
        found = next((place for place in places if refused(space, (*path, place)) is None), None)
        if found is None:
            return None
        path = (*path, found)
    return path


def least(judge: Judge, path: Path) -> tuple[float, float, list[str]]:
    """The highest least seconds and bytes of all nodes above a plan, and what refuses it."""
    seconds, held, refusals = 0.0, 0.0, []
    for depth in range(1, len(path) + 1):
        for turn in range(judge.judges(depth)):
            judged = judge(path[:depth], turn)
            seconds, held = max(seconds, judged.seconds), max(held, judged.held)
            if judged.refusal:
                refusals.append(f'{judged.refusal.rule}: {judged.refusal.example}')
    return seconds, held, refusals


def is_steady(outcome: Outcome) -> bool:
    """Whether the third step is like the second: bounds are of the steady step."""
    return not any(note.startswith('not steady yet') for note in (outcome.figures.notes if outcome.figures else ()))


_FEW: dict[str, list[Any]] = load_tree(__file__, '_FEW')
_BESIDE = {'shard_group': 'zero', 'chunks': 'order', 'sequence_parallel': 'tensor'}
_ORDERS = ['1f1b', 'gpipe', 'zb-h1', 'zb-h2', 'interleaved-1f1b', 'looped-bfs', 'zb-v', 'v-half', 'v-min']
_TINY: list[dict[str, Any]] = [{**model, 'layers': 4} for model in MODELS[:4]]


def enumerable_space(draw: random.Random, first: Sequence[str] = ()) -> Space:
    """A space of some hundreds to two thousand plans: keys get values until there are enough.

    Arguments: ``first``, keys that have several values in any case.
    """
    cluster = draw.choice(CLUSTERS[:1] + CLUSTERS[2:3] + [{'profile': 'h100-sxm-8'}])
    model = _TINY[3] if 'expert' in first else draw.choice(_TINY)
    schedule = load_schedule(
        {
            'simpar': 1,
            'cluster': cluster,
            'workload': {
                'transformer': model,
                'batch': draw.choice([16, 32]),
                'precision': PRECISION.get(cluster['profile'], 'bf16'),
                'optimizer': 'adam',
            },
        }
    )
    keys: dict[str, list[Any]] = {key: [values[0]] for key, values in _FEW.items()}
    keys |= {'order': ['1f1b'], 'expert': [1], 'micro_batches': [8]}
    names = [*_FEW, 'order']
    draw.shuffle(names)
    # Groups of shards, chunks and a split sequence are something beside these alone.
    beside = [other for one, other in _BESIDE.items() if one in first]
    ahead = ['pipeline', 'micro_batches', *(['expert'] if 'experts' in model else []), *first, *beside]
    # Plans of several stages at least, so that orders and chunks are no names of one plan.
    for name in dict.fromkeys([*ahead, *names]):
        if len(keys[name]) == 1:
            chunked = ['interleaved-1f1b'] if 'chunks' in first else []
            orders = [*chunked, *draw.sample([one for one in _ORDERS if one not in chunked], 3 - len(chunked))]
            keys[name] = orders if name == 'order' else [1, 2, 4] if name == 'expert' else _FEW[name]
        space = small_space(schedule, {f'plan.{key}': values for key, values in keys.items()})
        count = sum(1 for _ in paths(space))
        if count > 1.5 * ENUMERATED and len(keys[name]) > 2:
            keys[name] = keys[name][:2]
            space = small_space(schedule, {f'plan.{key}': values for key, values in keys.items()})
            count = sum(1 for _ in paths(space))
        if count >= ENUMERATED and name not in ahead:
            break
    return space


ENUMERATED = 520
"""Plans of a space that is enumerated, at least."""


def small_space(schedule: Schedule, keys: dict[str, Any]) -> Space:
    """A space of few values."""
    return space_of(replace(schedule, planner=Planner(keys=keys)), cluster_of(schedule).world)


def asked(model: dict[str, Any], batch: int, cluster: dict[str, Any], **plan: Any) -> Schedule:
    """A schedule in 16 bits with Adam."""
    work = {'transformer': model, 'batch': batch, 'precision': 'bf16', 'optimizer': 'adam'}
    return load_schedule({'simpar': 1, 'cluster': cluster, 'workload': work, 'plan': plan})


def judged(schedule: Schedule, **keys: list[Any]) -> Iterator[tuple[Outcome, float, float, list[str]]]:
    """Each plan of a space whose other keys are as in the file: what the engine says, and what is known before."""
    space = small_space(schedule, {f'plan.{key}': keys.get(key, 'fixed') for key in KEYS})
    judge = Judge(space, cluster_of(space.base))
    for path in paths(space):
        yield predicted(space.schedule(path)), *least(judge, path)


def paths(space: Space) -> Iterator[Path]:
    """Every plan of a space that no rule refuses."""
    found: list[Path] = [()]
    for values in space.values:
        found = [(*path, place) for path in found for place in range(len(values)) if not refused(space, (*path, place))]
    yield from found


def outcomes(space: Space) -> Iterator[tuple[Path, Outcome]]:
    """Every plan of a space, predicted by the engine; those that a rule refuses are left out."""
    for path in paths(space):
        yield path, predicted(space.schedule(path))
