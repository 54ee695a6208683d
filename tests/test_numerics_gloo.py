"""On gloo: covering plans in one persistent pool of ranks train as the unsharded model does, and as in process."""

from dataclasses import replace

import pytest

torch = pytest.importorskip('torch', reason='needs the extra torch')

from sabotage import change_ops, skip

from executor.inprocess import InProcess
from executor.numerics import compare
from executor.ranks.pool import Pool
from executor.reference import Reference
from executor.state import Result
from simpar.lower import lower
from simpar.model import Dense, Network, Relu
from simpar.plans import Plan
from simpar.workload import Adam, AdamW, Momentum, Muon, Sgd, Transformer, Workload

pytestmark = pytest.mark.torch

WORLD = 4
STEPS = 3
GPT = Workload(
    model=Transformer(layers=2, hidden=16, heads=4, vocab=24, sequence=8, init_std=0.2),
    batch=8,
    optimizer=Sgd(learning_rate=0.05),
)
GQA = replace(GPT, model=replace(GPT.model, kv_heads=2, tied=True, vocab=25))
LONG = replace(GPT, model=replace(GPT.model, kv_heads=2, sequence=16, position='rotary', window=(0, 5)))
MLP = Workload(
    model=Network(
        layers=(Dense(inputs=12, outputs=16), Relu(), Dense(inputs=16, outputs=8), Relu(), Dense(inputs=8, outputs=10)),
        init_std=0.3,
    ),
    batch=16,
    optimizer=Sgd(learning_rate=0.1),
)
MSE = replace(MLP, loss='mse', optimizer=Adam(learning_rate=0.01))
CASES = {
    'data 4': (GPT, Plan(data=4)),
    'data 4, copies 2': (GPT, Plan(data=4, copies=2)),
    'tensor 4': (GPT, Plan(tensor=4)),
    'tensor 4, copies 2': (GPT, Plan(tensor=4, copies=2)),
    'tensor 4, copies 4, late': (GPT, Plan(tensor=4, copies=4, reduce='late')),
    'tensor 4, sequence parallel, copies 2': (GPT, Plan(tensor=4, sequence_parallel=True, copies=2)),
    'data 2, tensor 2': (GPT, Plan(data=2, tensor=2)),
    'data 2, tensor 2, copies 4, summed': (GPT, Plan(data=2, tensor=2, copies=4, copies_loss='sum', sum_loss=True)),
    'data 2, tensor 2, sequence parallel': (GPT, Plan(data=2, tensor=2, sequence_parallel=True)),
    'data 2, tensor 2, sequence parallel, copies 2, late': (
        GPT,
        Plan(data=2, tensor=2, sequence_parallel=True, copies=2, reduce='late'),
    ),
    'grouped queries, tied, whole vocabulary': (GQA, Plan(data=2, tensor=2, copies=2)),
    'single stream': (GPT, Plan(tensor=4, copies=2, streams='single')),
    'streams of messages': (GPT, Plan(tensor=2, pipeline=2, micro_batches=2, streams='messages')),
    'context 4, ring': (LONG, Plan(context=4, context_kind='ring')),
    'context 2, gathered, tensor 2, sequence parallel, copies 2': (
        LONG,
        Plan(context=2, tensor=2, sequence_parallel=True, copies=2),
    ),
    'context 2, heads exchanged, data 2, zero': (LONG, Plan(context=2, context_kind='all_to_all', data=2, zero=1)),
    'context 2, ring of runs, pipeline 2, recomputed': (
        LONG,
        Plan(context=2, context_kind='ring', context_split='contiguous', pipeline=2, micro_batches=2, recompute='full'),
    ),
    'both ways through a pipeline of 4, copies 2': (
        replace(GPT, model=replace(GPT.model, layers=4), batch=16),
        Plan(pipeline=4, micro_batches=8, copies=2, order='dualpipe'),
    ),
    'network, tensor 4, copies 2': (MLP, Plan(tensor=4, copies=2)),
    'network, data 2, tensor 2, late': (MLP, Plan(data=2, tensor=2, copies=2, reduce='late')),
    'network, mean squared error, Adam': (MSE, Plan(data=2, tensor=2, copies=2)),
    'network, mean squared error, tensor 4, late': (MSE, Plan(tensor=4, copies=4, reduce='late')),
    'AdamW, clipped, loss scale': (
        replace(GPT, optimizer=AdamW(learning_rate=0.01, epsilon=1e-3), clip_norm=0.1, loss_scale=1024.0),
        Plan(data=2, tensor=2),
    ),
    'Muon, clipped, loss scale': (
        replace(GPT, optimizer=Muon(learning_rate=0.01, weight_decay=0.1), clip_norm=0.1, loss_scale=1024.0),
        Plan(data=2, tensor=2, zero=1),
    ),
    'network, mean absolute error, momentum, clipped': (
        replace(MLP, loss='mae', optimizer=Momentum(learning_rate=0.1, nesterov=True), clip_norm=0.1),
        Plan(data=4),
    ),
    'tied over two stages, momentum, clipped, loss scale': (
        replace(GQA, batch=16, optimizer=Momentum(learning_rate=0.05), clip_norm=0.1, loss_scale=256.0),
        Plan(pipeline=2, data=2, micro_batches=2),
    ),
}


@pytest.fixture(scope='module')
def pool():
    with Pool(WORLD, timeout=60) as ranks:
        yield ranks


@pytest.mark.parametrize('name', CASES)
def test_a_plan_on_gloo_trains_as_the_unsharded_model(pool, name):
    workload, plan = CASES[name]
    program = lower(workload, plan, WORLD)
    run = pool.run(program, steps=STEPS, dtype='fp32', keep=True)
    found = Result(run.losses, run.parameters, run.gradients)
    wanted = Reference(workload, plan).run(STEPS)
    worst = max(compare(found, wanted), key=lambda deviation: deviation.error)
    assert worst.error <= 1e-5, worst
    in_process = InProcess(program, dtype=torch.float32).run(STEPS)
    assert found.losses == pytest.approx(in_process.losses, rel=1e-6)


@pytest.mark.parametrize('control', ['a gradient skipped', 'a mask wrong'])
def test_what_is_wrong_is_found_wrong(pool, control):
    """Negative controls: the same comparison fails where the program is not right."""
    workload, plan = CASES['tensor 4, copies 2']
    program = lower(workload, plan, WORLD)
    if control == 'a gradient skipped':
        program = skip(program, 'layer1.fc2.W', 1)
    else:
        program = change_ops(program, 'layer0.attention.F', attributes={'causal': False})
    run = pool.run(program, steps=STEPS, dtype='fp32', keep=True)
    found = Result(run.losses, run.parameters, run.gradients)
    deviations = compare(found, Reference(workload, plan).run(STEPS))
    assert max(deviation.error for deviation in deviations) > 1e-3


def test_an_overflow_on_gloo_leaves_all_weights_as_they_are(pool):
    model, plan = replace(MSE.model, init_std=3.0), Plan(data=2, tensor=2)
    workload = replace(MSE, model=model, loss_scale=1e38, optimizer=AdamW())
    program = lower(workload, plan, WORLD)
    run = pool.run(program, steps=STEPS, dtype='fp32', keep=True)
    assert not all(gradient.isfinite().all() for gradient in run.gradients.values())
    for name, wanted in Reference(workload, plan, dtype=torch.float32).parameters.items():
        assert torch.equal(run.parameters[name], wanted), name
