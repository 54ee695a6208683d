"""Draws plans and spaces: bounds below the engine's answer, and the winner of brute force (`make prove-planner`).

python -m tests.prove_planner --plans 10000 --spaces 20 --seed 1
"""

from __future__ import annotations

import argparse
import random
import time

from simpar.case import cluster_of
from simpar.planner.judge import Judge
from simpar.planner.search import search
from simpar.planner.space import Space
from simpar.schedule import load_schedule
from simpar.sweep.outcome import predicted
from tests.planner_cases import (
    CLUSTERS,
    MODELS,
    PRECISION,
    drawn_path,
    drawn_space,
    is_steady,
    least,
    outcomes,
    small_space,
)

LEAST: int = 500
"""Plans of a space that fit, at least."""


def bounds(count: int, seed: int) -> int:
    """Draw plans; print every one of which more is known than is true; return how many."""
    draw = random.Random(seed)
    seen = wrong = without = unsteady = 0
    shares: list[tuple[float, float]] = []
    while seen < count:
        space = drawn_space(draw)
        judge = Judge(space, cluster_of(space.base))
        for path in filter(None, (drawn_path(space, draw) for _ in range(6))):
            seconds, held, refusals = least(judge, path)
            outcome = predicted(space.schedule(path))
            if outcome.figures is None:
                without += 1
                continue
            seen += 1
            step = outcome.figures.step
            shares.append((seconds / step, held / outcome.peak))
            if seconds > step and not is_steady(outcome):
                unsteady += 1
            elif seconds > step or held > outcome.peak or (refusals and outcome.peak <= outcome.device):
                wrong += 1
                told = f'{seconds / step:.5f} of the step, {held / outcome.peak:.5f} of the peak, {refusals[:1]}'
                print(f'WRONG {told}: {space.base.workload} {space.base.cluster} {space.chosen(path)}', flush=True)
    for name, values in zip(('step', 'peak'), zip(*shares, strict=True), strict=True):
        ordered = sorted(values)
        print(f'least share of the {name}: median {ordered[len(ordered) // 2]:.3f}, highest {ordered[-1]:.5f}')
    print(f'{seen} plans drawn from seed {seed}: {wrong} wrong; {without} more have no program')
    print(f'{unsteady} are above a third step that is not steady yet')
    return wrong


def winners(count: int, seed: int) -> int:
    """Enumerate spaces by the engine; return how many have another winner than the search found."""
    draw = random.Random(seed)
    done = wrong = 0
    while done < count:
        space = _space(draw)
        begin = time.process_time()
        every = [(one.figures.step, path) for path, one in outcomes(space) if one.feasible and one.figures]
        brute = time.process_time() - begin
        if len(every) < LEAST:
            continue
        done += 1
        begin = time.process_time()
        judge = Judge(space, cluster_of(space.base))
        found = search(space, judge, lambda paths, space=space: [(p, predicted(space.schedule(p))) for p in paths])  # type: ignore[misc]
        same = found.complete and found.best == min(every)
        wrong += not same
        spent = time.process_time() - begin
        print(
            f'{"same " if same else "OTHER"} {len(every)} of {space.count} plans fit; {len(found.outcomes)} predicted; '
            f'CPU {brute:.0f} s by brute force, {spent:.0f} s by the search',
            flush=True,
        )
    print(f'{done} spaces drawn from seed {seed}: {wrong} with another winner')
    return wrong


def _space(draw: random.Random) -> Space:
    """A space in which most keys vary in three values."""
    cluster = draw.choice(CLUSTERS)
    schedule = load_schedule(
        {
            'simpar': 1,
            'cluster': cluster,
            'workload': {
                'transformer': draw.choice(MODELS),
                'batch': draw.choice([16, 32, 64]),
                'precision': PRECISION.get(cluster['profile'], 'bf16'),
                'optimizer': 'adam',
            },
        }
    )
    return small_space(
        schedule,
        {
            'plan.tensor': [1, 2, 4],
            'plan.sequence_parallel': [False, True],
            'plan.context': [1],
            'plan.expert': [1],
            'plan.pipeline': [1, 2, 4],
            'plan.micro_batches': draw.choice([[1, 2, 4], [2, 4, 8]]),
            'plan.order': draw.sample(['1f1b', 'gpipe', 'zb-h1', 'zb-h2', 'interleaved-1f1b', 'zb-v', 'v-half'], 3),
            'plan.chunks': [0],
            'plan.recompute': ['none', 'selective', 'full'],
            'plan.copies': draw.choice([[1, 2, 4], [1, 2]]),
            'plan.tiles': [1],
            'plan.zero': draw.sample([0, 1, 2, 3], 3),
            'plan.shard_group': [0],
            'plan.fusion': ['layer'],
        },
    )


def main() -> int:
    """Both proofs; exit code 1 where anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--plans', type=int, default=10_000)
    parser.add_argument('--spaces', type=int, default=20)
    parser.add_argument('--seed', type=int, default=1)
    options = parser.parse_args()
    wrong = bounds(options.plans, options.seed) if options.plans else 0
    wrong += winners(options.spaces, options.seed) if options.spaces else 0
    return 1 if wrong else 0


if __name__ == '__main__':
    raise SystemExit(main())
