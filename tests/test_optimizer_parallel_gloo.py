"""On gloo: plans that cut states, gradients and weights train as the unsharded model does."""

from dataclasses import replace

import pytest

torch = pytest.importorskip('torch', reason='needs the extra torch')

from executor.inprocess import InProcess
from executor.numerics import compare
from executor.ranks.pool import Pool
from executor.reference import Reference
from executor.state import Result
from simpar.lower import lower
from simpar.model import Dense, Network, Relu
from simpar.plans import Plan
from simpar.workload import Adam, AdamW, Sgd, Transformer, Workload

pytestmark = pytest.mark.torch

WORLD, STEPS = 4, 3
GPT = Workload(
    model=Transformer(layers=2, hidden=16, heads=4, vocab=24, sequence=8, init_std=0.2),
    batch=16,
    optimizer=Sgd(learning_rate=0.05),
)
TIED = replace(
    GPT, model=replace(GPT.model, tied=True), optimizer=AdamW(learning_rate=0.01, epsilon=1e-3), clip_norm=0.1
)
MLP = Workload(
    model=Network(
        layers=(Dense(inputs=12, outputs=16), Relu(), Dense(inputs=16, outputs=8), Relu(), Dense(inputs=8, outputs=10)),
        init_std=0.3,
    ),
    batch=16,
    optimizer=Adam(learning_rate=0.01, epsilon=1e-3),
)
CASES = {
    'zero 1': (GPT, Plan(data=4, zero=1, micro_batches=2)),
    'zero 2, 1 KB': (GPT, Plan(data=4, zero=2, micro_batches=2, fusion=1e3)),
    'zero 3, prefetched': (GPT, Plan(data=4, zero=3, micro_batches=2, prefetch=1)),
    'zero 3, groups of 2, one message': (GPT, Plan(data=4, zero=3, shard_group=2, fusion='all')),
    'level 1, none fused': (MLP, Plan(data=4, hsdp='level1', shard_threshold=0.0, fusion='none')),
    'level 3, tensor 2, copies 2': (GPT, Plan(data=2, tensor=2, copies=2, hsdp='level3', shard_threshold=0.0)),
    'zero 2, tensor 2, sequence parallel': (GPT, Plan(data=2, tensor=2, sequence_parallel=True, zero=2)),
    'zero 3 of a pipeline, tied': (TIED, Plan(data=2, pipeline=2, micro_batches=4, zero=3, prefetch=2)),
    'zero 1 of a pipeline, tied': (TIED, Plan(data=2, pipeline=2, micro_batches=4, zero=1, reduce_gradients='end')),
}


@pytest.fixture(scope='module')
def pool():
    with Pool(WORLD, timeout=60) as ranks:
        yield ranks


@pytest.mark.parametrize('name', CASES)
def test_a_plan_on_gloo_trains_as_the_unsharded_model(pool, name):
    workload, plan = CASES[name]
    program = lower(workload, plan, WORLD)
    assert any('.whole' in tensor.name for tensor in program.tensors)
    run = pool.run(program, steps=STEPS, dtype='fp32', keep=True)
    found = Result(run.losses, run.parameters, run.gradients)
    worst = max(compare(found, Reference(workload, plan).run(STEPS)), key=lambda deviation: deviation.error)
    assert worst.error <= 1e-5, worst
    in_process = InProcess(program, dtype=torch.float32).run(STEPS)
    assert found.losses == pytest.approx(in_process.losses, rel=1e-6)
