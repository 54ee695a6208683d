"""On gloo: networks with strategies train as the unsharded model does, with every collective and every combination."""

from pathlib import Path

import pytest

torch = pytest.importorskip('torch', reason='needs the extra torch')

from sabotage import change_ops

from executor.inprocess import InProcess
from executor.numerics import compare
from executor.ranks.pool import Pool
from executor.reference import Reference
from executor.state import Result
from simpar.case import load_case
from simpar.lower import lower
from simpar.model import Dense, Network, Relu
from simpar.plans import Plan
from simpar.workload import AdamW, Momentum, Sgd, Workload

pytestmark = pytest.mark.torch

WORLD, STEPS = 4, 3
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
CASES = {
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


@pytest.fixture(scope='module')
def pool():
    with Pool(WORLD, timeout=60) as ranks:
        yield ranks


def trained(pool, program, workload, plan):
    """The worst deviation from the unsharded model."""
    run = pool.run(program, steps=STEPS, dtype='fp32', keep=True)
    found = Result(run.losses, run.parameters, run.gradients)
    in_process = InProcess(program, dtype=torch.float32).run(STEPS)
    assert found.losses == pytest.approx(in_process.losses, rel=1e-6)
    return max(compare(found, Reference(workload, plan).run(STEPS)), key=lambda deviation: deviation.error)


@pytest.mark.parametrize('name', CASES)
def test_strategies_on_gloo_train_as_the_unsharded_model(pool, name):
    workload, plan, operators = CASES[name]
    program = lower(workload, plan, WORLD)
    assert operators <= {op.operator for op in program.op_classes}
    worst = trained(pool, program, workload, plan)
    assert worst.error <= 1e-5, worst


def test_the_hybrid_tutorial_on_eight_ranks():
    hybrid = load_case(HYBRID)
    with Pool(8, timeout=60) as ranks:
        worst = trained(ranks, hybrid.program, hybrid.workload, hybrid.plan)
    assert worst.error <= 1e-5, worst


def test_an_all_to_all_that_joins_in_another_order_is_found(pool):
    """Negative control: slices that land at another place."""
    workload, plan, _ = CASES['all-to-all']
    program = lower(workload, plan, WORLD)
    turned = next(op for op in program.op_classes if op.operator == 'all_to_all')
    partition = program.partitions[turned.partition]
    wrong = program.replace(
        partitions={**program.partitions, 'turned': type(partition)('turned', partition.groups_GP[:, ::-1].copy())}
    )
    wrong = change_ops(wrong, turned.name, partition='turned')
    run = pool.run(wrong, steps=1, dtype='fp32', keep=True)
    found = Result(run.losses, run.parameters, run.gradients)
    assert max(one.error for one in compare(found, Reference(workload, plan).run(1))) > 1e-3
