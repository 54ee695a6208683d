"""On gloo: covering pipelines in one persistent pool of ranks train as the unsharded model does, and as in process."""

from dataclasses import replace

import pytest

torch = pytest.importorskip('torch', reason='needs the extra torch')

from pipeline_cases import edited

from executor.inprocess import InProcess
from executor.numerics import compare
from executor.ranks.pool import Pool
from executor.reference import Reference
from executor.state import Result
from simpar.lower import lower
from simpar.model import Dense, Network, Relu
from simpar.pipeline import ORDERS
from simpar.plans import Plan
from simpar.workload import Adam, Sgd, Transformer, Workload

pytestmark = pytest.mark.torch

WORLD = 4
STEPS = 2
MINDSPORE = 'mindspore-2.10'
GPT = Workload(
    model=Transformer(layers=4, hidden=16, heads=4, vocab=24, sequence=4, init_std=0.2),
    batch=16,
    optimizer=Sgd(learning_rate=0.05),
)
TIED = replace(GPT, model=replace(GPT.model, tied=True))
DEEP = replace(TIED, model=replace(TIED.model, layers=8, hidden=8, heads=2))
MLP = Workload(
    model=Network(
        layers=tuple(layer for _ in range(8) for layer in (Dense(inputs=8, outputs=8), Relu()))[:-1],
        init_std=0.4,
    ),
    batch=32,
    optimizer=Sgd(learning_rate=0.1),
)
MSE = replace(MLP, loss='mse', optimizer=Adam(learning_rate=0.01))
FOUR = Plan(data=1, pipeline=4, micro_batches=4)
TWO = Plan(data=2, pipeline=2, micro_batches=4)
CUT = Plan(data=1, tensor=2, pipeline=2, micro_batches=4)
CASES = {
    'gpipe, pipeline 4': (GPT, replace(FOUR, order='gpipe')),
    'gpipe, pipeline 2, data 2, copies 2, tied': (TIED, replace(TWO, order='gpipe', copies=2)),
    '1f1b, pipeline 4, tied': (TIED, FOUR),
    '1f1b, pipeline 4, copies 2, late receives': (GPT, replace(FOUR, copies=2, receive='late')),
    '1f1b, pipeline 4, tied, 6 micro-batches, uneven': (
        replace(TIED, batch=12),
        replace(FOUR, micro_batches=6, stages=(0, 2, 1, 1)),
    ),
    '1f1b, pipeline 2, tensor 2, copies 2, tied': (TIED, replace(CUT, copies=2)),
    '1f1b, pipeline 2, data 2, one stream, tied': (TIED, replace(TWO, streams='single')),
    '1f1b, pipeline 2, tensor 2, fused exchange': (GPT, replace(CUT, exchange='fused')),
    'interleaved, pipeline 2, tensor 2, sequence parallel': (
        GPT,
        replace(CUT, order='interleaved-1f1b', sequence_parallel=True),
    ),
    'interleaved, pipeline 4, copies 2, tied': (DEEP, replace(FOUR, order='interleaved-1f1b', copies=2)),
    'looped bfs, pipeline 2, data 2, late receives': (GPT, replace(TWO, order='looped-bfs', receive='late')),
    'interleaved zero bubble, pipeline 4, a network': (MLP, replace(FOUR, order='interleaved-zero-bubble')),
    'interleaved zero bubble, pipeline 2, tensor 2, copies 2': (
        GPT,
        replace(CUT, order='interleaved-zero-bubble', copies=2, reduce='late'),
    ),
    'zb-h1, pipeline 4, a network, copies 2': (MSE, replace(FOUR, order='zb-h1', copies=2)),
    'zb-h1, pipeline 2, data 2, tied, late receives': (TIED, replace(TWO, order='zb-h1', receive='late')),
    'zb-h2, pipeline 4, 8 micro-batches': (GPT, replace(FOUR, micro_batches=8, order='zb-h2')),
    'zb-h2, pipeline 2, tensor 2, copies 2, summed': (GPT, replace(CUT, order='zb-h2', copies=2, copies_loss='sum')),
    'zb-v, pipeline 4, tied on one rank': (DEEP, replace(FOUR, order='zb-v')),
    'zb-v, pipeline 2, data 2, copies 2, a network': (MLP, replace(TWO, order='zb-v', copies=2)),
    'dualpipe-v, pipeline 4, a network, late receives': (
        MLP,
        replace(FOUR, micro_batches=8, order='dualpipe-v', receive='late'),
    ),
    'dualpipe-v, pipeline 2, tensor 2, copies 2, overlapped': (GPT, replace(CUT, order='dualpipe-v', copies=2)),
    'v-half, pipeline 4, tied on one rank': (DEEP, replace(FOUR, order='v-half')),
    'v-min, pipeline 2, tensor 2, copies 2, late receives': (
        GPT,
        replace(CUT, order='v-min', copies=2, receive='late'),
    ),
    'MindSpore 1f1b, pipeline 2, chunks 2, data 2': (GPT, replace(TWO, order=f'{MINDSPORE}/1f1b', chunks=2)),
    'MindSpore gpipe, pipeline 4, a network': (MLP, replace(FOUR, order=f'{MINDSPORE}/gpipe')),
    'MindSpore seqpipe, pipeline 2, tensor 2, late sums': (
        GPT,
        replace(CUT, order=f'{MINDSPORE}/seqpipe', copies=2, copies_loss='sum', reduce='late'),
    ),
    'MindSpore seqvpp, pipeline 2, data 2, tied': (TIED, replace(TWO, order=f'{MINDSPORE}/seqvpp', receive='late')),
    'MindSpore seqsmartvpp, pipeline 4, a network, copies 2': (
        MSE,
        replace(FOUR, order=f'{MINDSPORE}/seqsmartvpp', copies=2),
    ),
    'MindSpore zero_bubble_v, pipeline 2, data 2, tied': (TIED, replace(TWO, order=f'{MINDSPORE}/zero_bubble_v')),
}


@pytest.fixture(scope='module')
def pool():
    with Pool(WORLD, timeout=60) as ranks:
        yield ranks


def test_the_cases_cover_every_order():
    plans = [plan for _, plan in CASES.values()]
    assert len(plans) >= 24
    assert {plan.order for plan in plans} == set(ORDERS)
    assert {(plan.pipeline, plan.copies, plan.receive) for plan in plans} >= {
        (pipeline, copies, receive) for pipeline in (2, 4) for copies, receive in ((1, 'late'), (2, 'early'))
    }


@pytest.mark.parametrize('name', CASES)
def test_a_pipeline_on_gloo_trains_as_the_unsharded_model(pool, name):
    workload, plan = CASES[name]
    program = lower(workload, plan, WORLD)
    run = pool.run(program, steps=STEPS, dtype='fp32', keep=True)
    found = Result(run.losses, run.parameters, run.gradients)
    worst = max(compare(found, Reference(workload, plan).run(STEPS)), key=lambda deviation: deviation.error)
    assert worst.error <= 1e-5, worst
    in_process = InProcess(program, dtype=torch.float32).run(STEPS)
    assert found.losses == pytest.approx(in_process.losses, rel=1e-6)


def test_what_is_wrong_is_found_wrong(pool):
    """Negative control: the same comparison fails where one micro-batch's gradient is left out in one stage."""
    workload, plan = CASES['zb-v, pipeline 2, data 2, copies 2, a network']
    program = edited(
        lower(workload, plan, WORLD), lambda slots: [s for s in slots if s[:1] + s[2:] != ('dense7.W', 3, 1)]
    )
    run = pool.run(program, steps=STEPS, dtype='fp32', keep=True)
    deviations = compare(Result(run.losses, run.parameters, run.gradients), Reference(workload, plan).run(STEPS))
    assert max(deviation.error for deviation in deviations) > 1e-3
