"""On gloo: covering plans in one persistent pool of ranks train as the unsharded model does, and as in process."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from every import EVERY, covering, some
from sabotage import change_ops, skip
from trained_cases import GROUPS, ROWS, WORKLOADS, trained_case, workload_of

from executor.inprocess import InProcess
from executor.numerics import compare
from executor.ranks.pool import Pool
from executor.reference import Reference
from executor.state import Result
from simpar import Plan, load_case
from simpar.lower import lower
from simpar.pipeline import ORDERS
from simpar.workload import AdamW, Transformer, Workload

WORLD = 4
STEPS = 3 if EVERY == 1 else 2
HYBRID = Path(__file__).parents[1] / 'examples' / 'hybrid_strategies.yaml'


def sharded(program):
    return any('.whole' in tensor.name for tensor in program.tensors)


def recomputed(program):
    return any('recompute' in op.attributes for op in program.op_classes)


HOLDS = {'sharded': sharded, 'recomputed': recomputed}
"""What holds of every program of a group of cases."""
OF_ORDERS = {row['plan'].get('order', '1f1b'): name for name, row in reversed(GROUPS['pipelines'].items())}
"""The first row of each order."""
TREES = {name: [{**row.get('plan', {}), 'order': ''}, WORKLOADS[row['train']]] for name, row in ROWS.items()}
COVERING = list(dict.fromkeys([*covering(TREES), *some(OF_ORDERS.values())]))
"""Rows of the suite: all that plans and models have, and a third of the orders, of which all train in process.

`make prove NAME=every` trains all.
"""


@pytest.fixture(scope='module')
def pool():
    with Pool(WORLD, timeout=60) as ranks:
        yield ranks


def trained(pool, program, workload, plan):
    """The largest deviation from the unsharded model, and the result."""
    run = pool.run(program, steps=STEPS, dtype='fp64', keep=True)
    found = Result(run.losses, run.parameters, run.gradients)
    worst = max(compare(found, Reference(workload, plan).run(STEPS)), key=lambda deviation: deviation.error)
    return worst, found


@pytest.mark.parametrize('name', COVERING)
def test_a_plan_on_gloo_trains_as_the_unsharded_model(pool, name):
    workload, plan = trained_case(name)
    program = lower(workload, plan, WORLD)
    group = next(group for group, rows in GROUPS.items() if name in rows)
    assert HOLDS.get(group, bool)(program)
    assert set(ROWS[name].get('has', ())) <= {op.operator for op in program.op_classes}
    worst, found = trained(pool, program, workload, plan)
    assert worst.error <= 1e-10, worst
    assert found.losses == pytest.approx(InProcess(program).run(STEPS).losses, rel=1e-12)


@pytest.mark.parametrize('control', ['a gradient skipped', 'a mask wrong'])
def test_what_is_wrong_is_found_wrong(pool, control):
    """Negative controls: the same comparison fails where the program is not right."""
    workload, plan = trained_case('tensor 4, copies 2')
    program = lower(workload, plan, WORLD)
    if control == 'a gradient skipped':
        program = skip(program, 'layer1.fc2.W', 1)
    else:
        program = change_ops(program, 'layer0.attention.F', attributes={'causal': False})
    assert trained(pool, program, workload, plan)[0].error > 1e-3


def test_an_overflow_on_gloo_leaves_all_weights_as_they_are(pool):
    squared, plan = workload_of('network, squared error'), Plan(data=2, tensor=2)
    model = replace(squared.model, init_std=3.0)
    workload = replace(squared, model=model, loss_scale=1e38, optimizer=AdamW())
    program = lower(workload, plan, WORLD)
    run = pool.run(program, steps=STEPS, dtype='fp32', keep=True)
    assert not all(gradient.isfinite().all() for gradient in run.gradients.values())
    for name, wanted in Reference(workload, plan, dtype=torch.float32).parameters.items():
        assert torch.equal(run.parameters[name], wanted), name


@pytest.mark.skipif(EVERY > 1, reason='strategies over two stages train on four ranks')
def test_the_hybrid_tutorial_on_eight_ranks():
    hybrid = load_case(HYBRID)
    with Pool(8, timeout=60) as ranks:
        worst, _ = trained(ranks, hybrid.program, hybrid.workload, hybrid.plan)
    assert worst.error <= 1e-10, worst


def test_the_cases_cover_every_order():
    plans = [trained_case(name)[1] for name in GROUPS['pipelines']]
    assert len(plans) >= 24
    assert {plan.order for plan in plans} == set(ORDERS) == set(OF_ORDERS)
    assert len({trained_case(name)[1].order for name in COVERING}) >= 8
    assert {(plan.pipeline, plan.copies, plan.receive) for plan in plans} >= {
        (pipeline, copies, receive) for pipeline in (2, 4) for copies, receive in ((1, 'late'), (2, 'early'))
    }


def test_a_stage_hands_on_several_values_in_one_message(pool):
    """A module of further tokens alone on a stage: the stage of the loss gets its hidden state and the model's."""
    model = Transformer(
        layers=3, hidden=16, heads=4, ffn=24, vocab=24, sequence=8, init_std=0.3, norm='rms_norm', activation='swiglu',
        bias=(), position='rotary', mtp_layers=1, mtp_loss=0.3,
    )  # fmt: skip
    workload = Workload(model=model, batch=8, optimizer=AdamW(learning_rate=0.01, epsilon=1e-3))
    plan = Plan(pipeline=4, stages=(2, 1, 1, 0), micro_batches=4, data=1)
    program = lower(workload, plan, WORLD)
    assert max(len(op.reads) for op in program.op_classes if op.kind == 'send') == 2
    worst, _ = trained(pool, program, workload, plan)
    assert worst.error <= 1e-10, worst
