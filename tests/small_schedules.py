"""Random small schedules whose plans have many keys, of which some have no effect where they stand."""

import random
from dataclasses import replace
from functools import cache

from simpar.case import choices, cluster_of
from simpar.errors import SimparError
from simpar.lower import lower
from simpar.model import Dense, Flatten, Gelu, LayerNorm, Network, Relu
from simpar.plans import Plan
from simpar.schedule import ClusterReference, Schedule
from simpar.workload import Adam, AdamW, Sgd, Transformer, Workload

RANKS = (1, 2, 4)
SHARDING = ('zero', 'hsdp', 'shard')
VALUES = {
    'dataset': ['full-batch'],
    'redistribution': ['mindspore-2.0', 'mindspore-2.10'],
    'all_to_all': [True],
    'device_matrix': [{'a': 2}],
    'reduce': ['late'],
    'receive': ['late'],
    'exchange': ['fused'],
    'copies': [2],
    'copies_loss': ['sum'],
    'sum_loss': [True],
    'micro_batches': [2],
    'zero': [1, 2, 3],
    'hsdp': ['level1', 'level2', 'level3'],
    'shard': [('state',), ('weights', 'state')],
    'gather': ['on-use-twice', 'on-use'],
    'shard_group': [2],
    'shard_threshold': [0.0, 0.0, 300.0, 1e6],
    'unsharded': [('*.bias',), ('zzz*',), ('*',), ('*.bias', 'zzz')],
    'accumulate': ['full', 'sharded'],
    'prefetch': [0, 2, 5],
    'reduce_gradients': ['end'],
    'fusion': ['none', 'all', 300.0, 'auto', 'ids'],
    'tiles': [2, 3],
    'streams': ['single'],
    'order': ['gpipe', 'zb-h1'],
    'recompute': [('*',), ('*norm*', '*.gelu')],
    'recompute_stages': [(0,)],
    'recompute_communication': [False],
    'overlap': [
        (),
        ('matmul_grad_comm_overlap',),
        ('enable_grad_comm_opt', 'recompute_comm_overlap'),
        ('enable_opt_shard_comm_opt', 'matmul_grad_comm_overlap', 'enable_grad_comm_opt'),
    ],
    'compat': ['2.0'],
    'objective': ['time'],
}
"""Values other than the default, of every key that may have no effect."""


@cache
def small_schedule(seed):
    """A schedule with some of these values, its plan with every choice made, and its program."""
    draw = random.Random(seed)
    while True:
        world = draw.choice((1, 2, 2, 4, 4))
        workload, plan = _workload(draw, world), _plan(draw, world)
        schedule = Schedule(
            simpar=1,
            cluster=ClusterReference(profile='h100-sxm-8', devices=world, stack='none'),
            workload=workload,
            plan=plan,
        )
        try:
            found, chosen = choices(schedule, cluster_of(schedule))
            return schedule, chosen, lower(found.workload, chosen, world)
        except SimparError:
            continue


def _plan(draw, world):
    pipeline = draw.choice([1, 1, 2]) if world > 1 else 1
    tensor = draw.choice([1, 2]) if world // pipeline > 1 else 1
    wanted = set(draw.sample(sorted(VALUES), draw.randint(3, 8)))
    wanted |= {draw.choice(SHARDING)} if draw.random() < 0.5 else set()
    wanted |= {'recompute'} if draw.random() < 0.4 else set()
    wanted |= {'shard_threshold'} if 'hsdp' in wanted else set()
    wanted |= {'all_to_all'} if draw.random() < 0.3 else set()
    values = {key: draw.choice(VALUES[key]) for key in sorted(wanted)}
    if 'gather' in wanted and draw.random() < 0.7:
        values |= {'shard': ('weights', 'state'), 'zero': 0, 'hsdp': 'off', 'gather': 'on-use-twice'}
    return replace(Plan(pipeline=pipeline, tensor=tensor), **values)


def _workload(draw, world):
    return Workload(
        model=draw.choice([_transformer, _chain, _strategies, _strategies])(draw, world),
        batch=16,
        optimizer=draw.choice([Sgd(), Adam(master_weights=True), AdamW(learning_rate=0.1)]),
        clip_norm=draw.choice([0.0, 0.0, 1.0]),
        precision=draw.choice(['fp32', 'bf16']),
        gradients=draw.choice([None, 'fp32']),
    )


def _transformer(draw, world):
    return Transformer(
        layers=draw.choice([2, 3]),
        hidden=8,
        heads=2,
        vocab=16,
        sequence=4,
        ffn=draw.choice([0, 32, 16]),
        kv_heads=draw.choice([0, 2]),
        tied=draw.random() < 0.3,
    )


def _dense(draw, **keys):
    marks = {'comm_fusion': draw.choice([None, None, 1, 2]), 'recompute': draw.random() < 0.2}
    return Dense(inputs=8, outputs=8, bias=draw.random() < 0.7, **marks, **keys)


def _chain(draw, world):
    relus = [Relu(recompute=draw.random() < 0.3) for _ in range(2)]
    return Network(layers=(Flatten(), _dense(draw), relus[0], _dense(draw), relus[1], _dense(draw)))


def _strategies(draw, world):
    rows = draw.choice([count for count in RANKS if world % count == 0])
    first = _dense(draw, strategy=((rows, 1), (1, world // rows))) if draw.random() < 0.7 else _dense(draw)
    between = [Gelu(recompute=draw.random() < 0.3), *([LayerNorm()] if draw.random() < 0.5 else [])]
    second = _dense(draw, strategy=((1, world), (world, 1))) if draw.random() < 0.5 else _dense(draw)
    return Network(layers=(first, *between, second, Relu(), _dense(draw)), input=(8,))
