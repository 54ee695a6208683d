"""Spaces of plans that are drawn, and what the engine says of the plans in them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from simpar.case import cluster_of
from simpar.planner.judge import Judge
from simpar.planner.rules import refused
from simpar.planner.search import Path
from simpar.planner.space import Space, space_of
from simpar.schedule import Schedule, load_schedule
from simpar.schedule.planner import Planner
from simpar.sweep.outcome import Outcome, predicted

MODELS: list[dict[str, Any]] = [
    {'layers': 4, 'hidden': 1024, 'heads': 8, 'vocab': 8192, 'sequence': 512},
    {'layers': 8, 'hidden': 2048, 'heads': 16, 'vocab': 32000, 'sequence': 1024, 'tied': True},
    {'layers': 8, 'hidden': 1024, 'heads': 16, 'kv_heads': 4, 'vocab': 16384, 'sequence': 1024, 'norm': 'rms_norm',
     'activation': 'swiglu', 'bias': [], 'position': 'rotary'},
    {'layers': 6, 'hidden': 1024, 'heads': 8, 'vocab': 8192, 'sequence': 512, 'norm': 'rms_norm',
     'activation': 'swiglu', 'bias': [], 'experts': {'count': 8, 'top_k': 2, 'ffn': 512}},
    {'layers': 6, 'hidden': 1024, 'heads': 8, 'vocab': 8192, 'sequence': 512, 'norm': 'rms_norm',
     'activation': 'swiglu', 'bias': [], 'experts': {'count': 8, 'top_k': 2, 'ffn': 512, 'first_dense': 1}},
]  # fmt: skip
CLUSTERS: list[dict[str, Any]] = [
    {'profile': 'a100-sxm-8'},
    {'profile': 'h100-sxm-8', 'nodes': 2},
    {'profile': 'ascend910a-8'},
    {'profile': 'h100-sxm-8', 'nodes': 4, 'devices': 4},
]
PRECISION = {'ascend910a-8': 'fp16'}


def drawn_space(draw: random.Random) -> Space:
    """A space of all usual keys, for a drawn model, cluster and batch."""
    cluster = draw.choice(CLUSTERS)
    schedule = load_schedule(
        {
            'simpar': 1,
            'cluster': cluster,
            'workload': {
                'transformer': draw.choice(MODELS),
                'batch': draw.choice([16, 32, 48, 64]),
                'precision': PRECISION.get(cluster['profile'], 'bf16'),
                'optimizer': 'adam',
            },
            'plan': {},
        }
    )
    return space_of(replace(schedule, planner=Planner()), cluster_of(schedule).world)


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


def small_space(schedule: Schedule, keys: dict[str, Any]) -> Space:
    """A space of few values."""
    return space_of(replace(schedule, planner=Planner(keys=keys)), cluster_of(schedule).world)


def outcomes(space: Space) -> Iterator[tuple[Path, Outcome]]:
    """Every plan of a space, predicted by the engine; those that a rule refuses are left out."""
    for path in product(*(range(len(values)) for values in space.values)):
        if all(refused(space, path[: depth + 1]) is None for depth in range(len(path))):
            yield path, predicted(space.schedule(path))
