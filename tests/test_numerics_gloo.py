"""On gloo: covering plans in one persistent pool of ranks train as the unsharded model does, and as in process."""

from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip('torch', reason='needs the extra torch')

from pipeline_cases import edited
from sabotage import change_ops, skip

from executor.inprocess import InProcess
from executor.numerics import compare
from executor.ranks.pool import Pool
from executor.reference import Reference
from executor.state import Result
from simpar.case import load_case
from simpar.lower import lower
from simpar.model import Dense, Network, Relu
from simpar.pipeline import ORDERS
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
SHARDED = Workload(
    model=Transformer(layers=2, hidden=16, heads=4, vocab=24, sequence=8, init_std=0.2),
    batch=16,
    optimizer=Sgd(learning_rate=0.05),
)
CLIPPED = replace(
    SHARDED, model=replace(SHARDED.model, tied=True), optimizer=AdamW(learning_rate=0.01, epsilon=1e-3), clip_norm=0.1
)
SHARDED_MLP = Workload(
    model=Network(
        layers=(Dense(inputs=12, outputs=16), Relu(), Dense(inputs=16, outputs=8), Relu(), Dense(inputs=8, outputs=10)),
        init_std=0.3,
    ),
    batch=16,
    optimizer=Adam(learning_rate=0.01, epsilon=1e-3),
)
OPTIMIZERS = {
    'zero 1': (SHARDED, Plan(data=4, zero=1, micro_batches=2)),
    'zero 2, 1 KB': (SHARDED, Plan(data=4, zero=2, micro_batches=2, fusion=1e3)),
    'zero 3, prefetched': (SHARDED, Plan(data=4, zero=3, micro_batches=2, prefetch=1)),
    'zero 3, groups of 2, one message': (SHARDED, Plan(data=4, zero=3, shard_group=2, fusion='all')),
    'level 1, none fused': (SHARDED_MLP, Plan(data=4, hsdp='level1', shard_threshold=0.0, fusion='none')),
    'level 3, tensor 2, copies 2': (SHARDED, Plan(data=2, tensor=2, copies=2, hsdp='level3', shard_threshold=0.0)),
    'zero 2, tensor 2, sequence parallel': (SHARDED, Plan(data=2, tensor=2, sequence_parallel=True, zero=2)),
    'zero 3 of a pipeline, tied': (CLIPPED, Plan(data=2, pipeline=2, micro_batches=4, zero=3, prefetch=2)),
    'zero 1 of a pipeline, tied': (
        CLIPPED,
        Plan(data=2, pipeline=2, micro_batches=4, zero=1, reduce_gradients='end'),
    ),
}
DROPPED = Workload(
    model=Transformer(
        layers=2, hidden=16, heads=4, vocab=24, sequence=8, init_std=0.2, dropout=0.2, attention='unfused'
    ),
    batch=8,
    optimizer=Sgd(learning_rate=0.05),
)
RECOMPUTED = {
    'full, tensor 4, copies 2': Plan(tensor=4, copies=2, recompute='full'),
    'full, sequence parallel, sums kept': Plan(
        data=2, tensor=2, sequence_parallel=True, copies=2, recompute='full', recompute_communication=False
    ),
    'selective, pipeline 2': Plan(pipeline=2, tensor=2, micro_batches=4, recompute='selective', reduce='late'),
    'full in the first stage, zero bubble': Plan(
        pipeline=2, data=2, micro_batches=4, order='zb-h1', recompute='full', recompute_stages=(0,)
    ),
}
HYBRID = Path(__file__).parents[1] / 'examples' / 'hybrid_strategies.yaml'


def network(*layers, batch=16, optimizer=None, **options):
    model = Network(layers=layers, init_std=0.3)
    return Workload(model=model, batch=batch, optimizer=optimizer or Sgd(learning_rate=0.1), **options)


def dense(strategy, out_strategy=(), inputs=16, outputs=16, **options):
    return Dense(inputs=inputs, outputs=outputs, strategy=strategy, out_strategy=out_strategy, **options)


ROWS_AND_COLUMNS = (dense(((4, 1), (1, 1))), Relu(strategy=((1, 4),)), dense(((2, 2), (2, 1))))
SCATTERED = (dense(((1, 4), (4, 1)), (4, 1)), Relu(), dense(((1, 1), (1, 4))))
STAGES = (
    dense(((2, 1), (1, 1)), pipeline_stage=0),
    Relu(recompute=True),
    dense(((1, 2), (2, 1)), pipeline_stage=1),
    dense(((1, 1), (1, 2))),
)
STRATEGIES = {
    'gathered and sliced': (network(*ROWS_AND_COLUMNS, loss='mse'), Plan(dataset='full-batch'), {'all_gather'}),
    'all-to-all': (network(*ROWS_AND_COLUMNS, loss='mse'), Plan(all_to_all=True), {'all_to_all'}),
    'scattered, copies 2': (network(*SCATTERED), Plan(copies=2, sum_loss=True), {'reduce_scatter'}),
    "the compiler's way, loss scale": (
        network(*ROWS_AND_COLUMNS, loss='mae', loss_scale=64.0),
        Plan(redistribution='mindspore-2.0', all_to_all=True),
        {'all_to_all'},
    ),
    'zero 3, all-to-all, clipped': (
        network(*ROWS_AND_COLUMNS, clip_norm=0.1, optimizer=AdamW(learning_rate=0.01, epsilon=1e-3)),
        Plan(zero=3, all_to_all=True, micro_batches=2),
        {'all_to_all', 'reduce_scatter'},
    ),
    'two stages, zero 2, momentum': (
        network(*STAGES, optimizer=Momentum(learning_rate=0.05)),
        Plan(pipeline=2, micro_batches=4, zero=2),
        {'send', 'reduce_scatter'},
    ),
    'two stages, zero bubble, level 3': (
        network(*STAGES),
        Plan(pipeline=2, micro_batches=4, order='zb-h1', hsdp='level3', shard_threshold=0.0),
        {'send', 'reduce_scatter'},
    ),
}
MINDSPORE = 'mindspore-2.10'
STAGED = Workload(
    model=Transformer(layers=4, hidden=16, heads=4, vocab=24, sequence=4, init_std=0.2),
    batch=16,
    optimizer=Sgd(learning_rate=0.05),
)
TIED = replace(STAGED, model=replace(STAGED.model, tied=True))
DEEP = replace(TIED, model=replace(TIED.model, layers=8, hidden=8, heads=2))
STAGED_MLP = Workload(
    model=Network(
        layers=tuple(layer for _ in range(8) for layer in (Dense(inputs=8, outputs=8), Relu()))[:-1],
        init_std=0.4,
    ),
    batch=32,
    optimizer=Sgd(learning_rate=0.1),
)
STAGED_MSE = replace(STAGED_MLP, loss='mse', optimizer=Adam(learning_rate=0.01))
FOUR = Plan(data=1, pipeline=4, micro_batches=4)
TWO = Plan(data=2, pipeline=2, micro_batches=4)
CUT = Plan(data=1, tensor=2, pipeline=2, micro_batches=4)
PIPELINES = {
    'gpipe, pipeline 4': (STAGED, replace(FOUR, order='gpipe')),
    'gpipe, pipeline 2, data 2, copies 2, tied': (TIED, replace(TWO, order='gpipe', copies=2)),
    '1f1b, pipeline 4, tied': (TIED, FOUR),
    '1f1b, pipeline 4, copies 2, late receives': (STAGED, replace(FOUR, copies=2, receive='late')),
    '1f1b, pipeline 4, tied, 6 micro-batches, uneven': (
        replace(TIED, batch=12),
        replace(FOUR, micro_batches=6, stages=(0, 2, 1, 1)),
    ),
    '1f1b, pipeline 2, tensor 2, copies 2, tied': (TIED, replace(CUT, copies=2)),
    '1f1b, pipeline 2, data 2, one stream, tied': (TIED, replace(TWO, streams='single')),
    '1f1b, pipeline 2, tensor 2, fused exchange': (STAGED, replace(CUT, exchange='fused')),
    'interleaved, pipeline 2, tensor 2, sequence parallel': (
        STAGED,
        replace(CUT, order='interleaved-1f1b', sequence_parallel=True),
    ),
    'interleaved, pipeline 4, copies 2, tied': (DEEP, replace(FOUR, order='interleaved-1f1b', copies=2)),
    'looped bfs, pipeline 2, data 2, late receives': (STAGED, replace(TWO, order='looped-bfs', receive='late')),
    'interleaved zero bubble, pipeline 4, a network': (STAGED_MLP, replace(FOUR, order='interleaved-zero-bubble')),
    'interleaved zero bubble, pipeline 2, tensor 2, copies 2': (
        STAGED,
        replace(CUT, order='interleaved-zero-bubble', copies=2, reduce='late'),
    ),
    'zb-h1, pipeline 4, a network, copies 2': (STAGED_MSE, replace(FOUR, order='zb-h1', copies=2)),
    'zb-h1, pipeline 2, data 2, tied, late receives': (TIED, replace(TWO, order='zb-h1', receive='late')),
    'zb-h2, pipeline 4, 8 micro-batches': (STAGED, replace(FOUR, micro_batches=8, order='zb-h2')),
    'zb-h2, pipeline 2, tensor 2, copies 2, summed': (STAGED, replace(CUT, order='zb-h2', copies=2, copies_loss='sum')),
    'zb-v, pipeline 4, tied on one rank': (DEEP, replace(FOUR, order='zb-v')),
    'zb-v, pipeline 2, data 2, copies 2, a network': (STAGED_MLP, replace(TWO, order='zb-v', copies=2)),
    'dualpipe-v, pipeline 4, a network, late receives': (
        STAGED_MLP,
        replace(FOUR, micro_batches=8, order='dualpipe-v', receive='late'),
    ),
    'dualpipe-v, pipeline 2, tensor 2, copies 2, overlapped': (STAGED, replace(CUT, order='dualpipe-v', copies=2)),
    'v-half, pipeline 4, tied on one rank': (DEEP, replace(FOUR, order='v-half')),
    'v-min, pipeline 2, tensor 2, copies 2, late receives': (
        STAGED,
        replace(CUT, order='v-min', copies=2, receive='late'),
    ),
    'MindSpore 1f1b, pipeline 2, chunks 2, data 2': (STAGED, replace(TWO, order=f'{MINDSPORE}/1f1b', chunks=2)),
    'MindSpore gpipe, pipeline 4, a network': (STAGED_MLP, replace(FOUR, order=f'{MINDSPORE}/gpipe')),
    'MindSpore seqpipe, pipeline 2, tensor 2, late sums': (
        STAGED,
        replace(CUT, order=f'{MINDSPORE}/seqpipe', copies=2, copies_loss='sum', reduce='late'),
    ),
    'MindSpore seqvpp, pipeline 2, data 2, tied': (
        TIED,
        replace(TWO, order=f'{MINDSPORE}/seqvpp', receive='late'),
    ),
    'MindSpore seqsmartvpp, pipeline 4, a network, copies 2': (
        STAGED_MSE,
        replace(FOUR, order=f'{MINDSPORE}/seqsmartvpp', copies=2),
    ),
    'MindSpore zero_bubble_v, pipeline 2, data 2, tied': (
        TIED,
        replace(TWO, order=f'{MINDSPORE}/zero_bubble_v'),
    ),
}


def sharded(program):
    return any('.whole' in tensor.name for tensor in program.tensors)


def recomputed(program):
    return any('recompute' in op.attributes for op in program.op_classes)


def communicates(operators):
    return lambda program: operators <= {op.operator for op in program.op_classes}


EVERY = {
    **{name: (*case, bool) for name, case in {**CASES, **PIPELINES}.items()},
    **{name: (*case, sharded) for name, case in OPTIMIZERS.items()},
    **{f'recomputed: {name}': (DROPPED, plan, recomputed) for name, plan in RECOMPUTED.items()},
    **{name: (*case, communicates(operators)) for name, (*case, operators) in STRATEGIES.items()},
}
"""Workload, plan, and what holds of its program."""


@pytest.fixture(scope='module')
def pool():
    with Pool(WORLD, timeout=60) as ranks:
        yield ranks


def trained(pool, program, workload, plan, steps=STEPS):
    """The largest deviation from the unsharded model, and the result."""
    run = pool.run(program, steps=steps, dtype='fp32', keep=True)
    found = Result(run.losses, run.parameters, run.gradients)
    worst = max(compare(found, Reference(workload, plan).run(steps)), key=lambda deviation: deviation.error)
    return worst, found


@pytest.mark.parametrize('name', EVERY)
def test_a_plan_on_gloo_trains_as_the_unsharded_model(pool, name):
    workload, plan, holds = EVERY[name]
    program = lower(workload, plan, WORLD)
    assert holds(program)
    # Of eight layers, rounding in single precision is more after three.
    steps = 2 if name in PIPELINES else STEPS
    worst, found = trained(pool, program, workload, plan, steps)
    assert worst.error <= 1e-5, worst
    in_process = InProcess(program, dtype=torch.float32).run(steps)
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
    assert trained(pool, program, workload, plan)[0].error > 1e-3


def test_an_overflow_on_gloo_leaves_all_weights_as_they_are(pool):
    model, plan = replace(MSE.model, init_std=3.0), Plan(data=2, tensor=2)
    workload = replace(MSE, model=model, loss_scale=1e38, optimizer=AdamW())
    program = lower(workload, plan, WORLD)
    run = pool.run(program, steps=STEPS, dtype='fp32', keep=True)
    assert not all(gradient.isfinite().all() for gradient in run.gradients.values())
    for name, wanted in Reference(workload, plan, dtype=torch.float32).parameters.items():
        assert torch.equal(run.parameters[name], wanted), name


def test_a_mask_that_comes_back_otherwise_is_found(pool):
    plan = RECOMPUTED['full, tensor 4, copies 2']
    program = change_ops(lower(DROPPED, plan, WORLD), 'layer0.residual1.F.recompute', attributes={'site': 'elsewhere'})
    assert trained(pool, program, DROPPED, plan)[0].error > 1e-3


def test_the_hybrid_tutorial_on_eight_ranks():
    hybrid = load_case(HYBRID)
    with Pool(8, timeout=60) as ranks:
        worst, _ = trained(ranks, hybrid.program, hybrid.workload, hybrid.plan)
    assert worst.error <= 1e-5, worst


def test_an_all_to_all_that_joins_in_another_order_is_found(pool):
    """Negative control: slices that land at another place."""
    workload, plan, _ = STRATEGIES['all-to-all']
    program = lower(workload, plan, WORLD)
    turned = next(op for op in program.op_classes if op.operator == 'all_to_all')
    partition = program.partitions[turned.partition]
    wrong = program.replace(
        partitions={**program.partitions, 'turned': type(partition)('turned', partition.groups_GP[:, ::-1].copy())}
    )
    wrong = change_ops(wrong, turned.name, partition='turned')
    assert trained(pool, wrong, workload, plan)[0].error > 1e-3


def test_the_cases_cover_every_order():
    plans = [plan for _, plan in PIPELINES.values()]
    assert len(plans) >= 24
    assert {plan.order for plan in plans} == set(ORDERS)
    assert {(plan.pipeline, plan.copies, plan.receive) for plan in plans} >= {
        (pipeline, copies, receive) for pipeline in (2, 4) for copies, receive in ((1, 'late'), (2, 'early'))
    }


def test_a_gradient_that_one_stage_leaves_out_is_found(pool):
    """Negative control: the same comparison fails where one micro-batch's gradient is left out in one stage."""
    workload, plan = PIPELINES['zb-v, pipeline 2, data 2, copies 2, a network']
    program = edited(
        lower(workload, plan, WORLD), lambda slots: [s for s in slots if s[:1] + s[2:] != ('dense7.W', 3, 1)]
    )
    assert trained(pool, program, workload, plan)[0].error > 1e-3
