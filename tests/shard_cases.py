"""Random plans of optimizer parallelism and fusion, over all that other random plans vary."""

import random
from dataclasses import replace

from drawn_orders import DRAWN
from pipeline_cases import any_case, named_case
from test_numerics_fuzz import random_case

from simpar.pipeline.order import Order
from simpar.plans import Plan
from simpar.workload import Workload

RANKS = 8
CUTS = [('state',), ('state', 'gradients'), ('state', 'weights'), ('state', 'gradients', 'weights')]
FUSIONS = ['layer', 'layer', 'none', 'all', 'auto', 'ids', 300.0, 1000.0, (2,), (1, 4)]


def shard_case(seed: int) -> tuple[Workload, Plan, int, Order | None]:
    """A workload, its plan, the number of ranks, and the order of a pipeline that no name has."""
    draw = random.Random(seed)
    while True:
        workload, plan, world, order = _case(draw)
        data = world // plan.tensor // plan.pipeline
        chosen = replace(plan, **choices(draw))
        if data > 1 and data % min(chosen.shard_group or data, data) == 0:
            return workload, chosen, world, order


def _case(draw: random.Random) -> tuple[Workload, Plan, int, Order | None]:
    seed, kind = draw.randrange(10**6), draw.random()
    if kind < 0.35:
        return (*random_case(seed), None)
    if kind < 0.8:
        return (*named_case(seed, draw.choice(list(DRAWN)), RANKS), None)
    return any_case(seed, RANKS)


def choices(draw: random.Random) -> dict[str, object]:
    return {
        **_cut(draw),
        'shard_group': draw.choice([0, 0, 2, 3]),
        'shard_threshold': draw.choice([0.0, 0.0, 200.0]),
        'unsharded': draw.choice([(), (), ('*.bias',)]),
        'accumulate': draw.choice(['', '', 'full', 'sharded']),
        'prefetch': draw.choice([0, 0, 1, 2, 5, 100]),
        'reduce_gradients': draw.choice(['overlapped', 'overlapped', 'end']),
        'fusion': draw.choice(FUSIONS),
    }


def _cut(draw: random.Random) -> dict[str, object]:
    kind = draw.choice(['zero', 'hsdp', 'keys'])
    if kind == 'zero':
        return {'zero': draw.choice([1, 2, 3, 3])}
    if kind == 'hsdp':
        return {'hsdp': draw.choice(['level1', 'level2', 'level3'])}
    parts = draw.choice(CUTS)
    gathers = ['', 'on-use', 'on-use-twice'] if 'weights' in parts else ['', 'after-update']
    return {'shard': parts, 'gather': draw.choice(gathers)}
