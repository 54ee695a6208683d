"""Torch's FSDP2 and DDP train the same model, and get the parameters that the executor gets on gloo, in fp64."""

from collections import Counter
from dataclasses import replace
from typing import NamedTuple

import pytest
from rank_jobs import found_by

from executor.ranks.pool import Pool
from simpar.lower import lower
from simpar.model import Dense, Network, Relu
from simpar.plans import Plan
from simpar.workload import AdamW, Momentum, Sgd, Workload

RANKS, STEPS = 2, 3
MLP = Workload(
    model=Network(
        layers=(Dense(inputs=6, outputs=8), Relu(), Dense(inputs=8, outputs=12), Relu(), Dense(inputs=12, outputs=4)),
        init_std=0.4,
    ),
    batch=16,
    loss='mse',
    precision='fp64',
    optimizer=AdamW(learning_rate=0.01, epsilon=1e-5, weight_decay=0.1),
)
MOMENTUM = replace(MLP, optimizer=Momentum(learning_rate=0.1, nesterov=True, weight_decay=0.05))
CLIPPED = replace(MLP, optimizer=Momentum(learning_rate=0.1), clip_norm=0.05)
TINY, HUGE = 1e-6, 100.0
"""Sizes of DDP's buckets in MiB: a bucket for each gradient, or one for all."""


class Case(NamedTuple):
    """A plan and what torch calls it.

    Arguments: ``each``: gradients are summed behind every micro-batch.
    """

    workload: Workload
    plan: Plan
    engine: str
    each: bool = True
    bucket: float = HUGE


TWICE, ONCE = 'fsdp, gathered twice', 'fsdp, gathered once'
CASES = {
    'zero 3': Case(MLP, Plan(zero=3), TWICE),
    'zero 3, prefetched, clipped': Case(CLIPPED, Plan(zero=3, prefetch=1), TWICE),
    'zero 3, 2 micro-batches': Case(MOMENTUM, Plan(zero=3, micro_batches=2), TWICE),
    'zero 3, 4 micro-batches summed whole': Case(
        MLP, Plan(zero=3, micro_batches=4, accumulate='full'), TWICE, each=False
    ),
    'level 2': Case(MOMENTUM, Plan(hsdp='level2', shard_threshold=0.0), ONCE),
    'zero 2, clipped': Case(CLIPPED, Plan(zero=2), ONCE),
    'zero 0, a bucket for each gradient': Case(MOMENTUM, Plan(fusion='none'), 'ddp', bucket=TINY),
    'zero 0, one bucket, clipped': Case(CLIPPED, Plan(fusion='all'), 'ddp'),
    'zero 0, 2 micro-batches, AdamW': Case(MLP, Plan(fusion='all', micro_batches=2), 'ddp', each=False),
    'zero 0, sgd': Case(replace(MLP, optimizer=Sgd(learning_rate=0.1)), Plan(), 'ddp', bucket=TINY),
}
COUNTED = [name for name, case in CASES.items() if case.plan.fusion != 'layer' or case.engine != 'ddp']
"""Where torch's messages are as many: DDP has none for layers."""


@pytest.fixture(scope='module')
def theirs(tmp_path_factory):
    """What torch's ranks found, all cases one after the other."""
    jobs = {
        name: {**case._asdict(), 'seed': seed, 'steps': STEPS, 'micro_batches': case.plan.micro_batches}
        for seed, (name, case) in enumerate(CASES.items())
    }
    return found_by('fsdp_ranks', jobs, RANKS, tmp_path_factory.mktemp('fsdp'))


@pytest.fixture(scope='module')
def pool():
    with Pool(RANKS, timeout=60) as ranks:
        yield ranks


def lowered(name):
    return lower(CASES[name].workload, CASES[name].plan, RANKS)


def furthest(found, wanted):
    assert found.keys() == wanted.keys()
    return max(float((found[name] - value).norm() / value.norm()) for name, value in wanted.items())


@pytest.mark.parametrize('name', CASES)
def test_parameters_are_torchs(theirs, pool, name):
    run = pool.run(lowered(name), steps=STEPS, seed=list(CASES).index(name), dtype='fp64', keep=True)
    for rank in theirs:
        assert furthest(run.parameters, rank[name]['parameters']) <= 1e-12


@pytest.mark.parametrize('name', COUNTED)
def test_messages_are_as_many_as_torchs(theirs, name):
    """Gathers, reduce-scatters and all-reduces of one step; with zero 2, gathers behind the update for those before."""
    program = lowered(name)
    (role,) = program.roles
    ops = [program.op(role, slot) for slot in range(len(role))]
    kinds = Counter(op.operator for op in ops if op.kind == 'collective' and op.partition != 'world')
    assert dict(kinds) == theirs[0][name]['messages']


def test_another_rule_is_noticed(theirs, pool):
    """The same without clipping."""
    name = 'zero 2, clipped'
    workload = replace(CASES[name].workload, clip_norm=0.0)
    program = lower(workload, CASES[name].plan, RANKS)
    run = pool.run(program, steps=STEPS, seed=list(CASES).index(name), dtype='fp64', keep=True)
    assert furthest(run.parameters, theirs[0][name]['parameters']) > 1e-3
