"""On gloo: plans that recompute train as the unsharded model does, in a pool of ranks."""

import pytest

torch = pytest.importorskip('torch', reason='needs the extra torch')

from sabotage import change_ops

from executor.numerics import compare
from executor.ranks.pool import Pool
from executor.reference import Reference
from executor.state import Result
from simpar.lower import lower
from simpar.plans import Plan
from simpar.workload import Sgd, Transformer, Workload

pytestmark = pytest.mark.torch

WORLD = 4
STEPS = 3
GPT = Workload(
    model=Transformer(
        layers=2, hidden=16, heads=4, vocab=24, sequence=8, init_std=0.2, dropout=0.2, attention='unfused'
    ),
    batch=8,
    optimizer=Sgd(learning_rate=0.05),
)
CASES = {
    'full, tensor 4, copies 2': Plan(tensor=4, copies=2, recompute='full'),
    'full, sequence parallel, sums kept': Plan(
        data=2, tensor=2, sequence_parallel=True, copies=2, recompute='full', recompute_communication=False
    ),
    'selective, pipeline 2': Plan(pipeline=2, tensor=2, micro_batches=4, recompute='selective', reduce='late'),
    'full in the first stage, zero bubble': Plan(
        pipeline=2, data=2, micro_batches=4, order='zb-h1', recompute='full', recompute_stages=(0,)
    ),
}


@pytest.fixture(scope='module')
def pool():
    with Pool(WORLD, timeout=60) as ranks:
        yield ranks


def worst(pool, program, plan):
    """The largest deviation from the unsharded model."""
    run = pool.run(program, steps=STEPS, dtype='fp32', keep=True)
    wanted = Reference(GPT, plan).run(STEPS)
    return max(deviation.error for deviation in compare(Result(run.losses, run.parameters, run.gradients), wanted))


@pytest.mark.parametrize('name', CASES)
def test_a_plan_that_recomputes_trains_as_the_unsharded_model(pool, name):
    plan = CASES[name]
    program = lower(GPT, plan, WORLD)
    assert any('recompute' in op.attributes for op in program.op_classes)
    assert worst(pool, program, plan) <= 1e-5


def test_a_mask_that_comes_back_otherwise_is_found(pool):
    plan = CASES['full, tensor 4, copies 2']
    program = change_ops(lower(GPT, plan, WORLD), 'layer0.residual1.F.recompute', attributes={'site': 'elsewhere'})
    assert worst(pool, program, plan) > 1e-3
