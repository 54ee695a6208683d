"""Random choices of optimizer parallelism and fusion."""

import random

CUTS = [('state',), ('state', 'gradients'), ('state', 'weights'), ('state', 'gradients', 'weights')]
FUSIONS = ['layer', 'layer', 'none', 'all', 'auto', 'ids', 300.0, 1000.0, (2,), (1, 4)]


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
