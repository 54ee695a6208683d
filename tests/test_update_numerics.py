"""Optimizers, clipping, loss scale and mean absolute error: random plans against torch.optim, to 1e-10 in fp64.

Some of the plans cut states, gradients or weights over the data ranks as well.
"""

from dataclasses import replace

import pytest
from plain_cases import MLP as FP64_MLP
from sabotage import change_ops, drop_sum

from simpar.errors import NumericsWrong
from simpar.lower import lower
from simpar.model import Dense, Network
from simpar.plans import Plan
from simpar.workload import Adam, AdamW, Momentum, Sgd, Transformer, Workload

torch = pytest.importorskip('torch', reason='needs the extra torch')

from executor.inprocess import InProcess
from executor.numerics import check
from executor.reference import Reference

pytestmark = pytest.mark.torch

GPT = Workload(
    model=Transformer(layers=2, hidden=8, heads=2, vocab=12, sequence=4, tied=True, init_std=0.3),
    batch=8,
    optimizer=Momentum(learning_rate=0.1),
    clip_norm=0.1,
)
MLP = replace(FP64_MLP, batch=8, loss='mae', precision='fp32', optimizer=Momentum(learning_rate=0.1))
FOUR = Plan(data=2, tensor=2, copies=2)
PIPELINE = Plan(pipeline=2, data=2, micro_batches=2)


# What is wrong is found


@pytest.mark.parametrize(
    ('name', 'attributes'),
    [
        ('layer1.update.U', {'clip_norm': 0.2}),
        ('layer1.update.U', {'loss_scale': 64.0}),
        ('layer1.update.U', {'momentum': 0.8}),
        ('layer1.update.U', {'nesterov': True}),
        ('layer1.update.U', {'weight_decay': 0.1}),
        ('loss.I', {'scale': 1 / 8}),
    ],
)
def test_a_wrong_rule_is_found(name, attributes):
    workload = replace(GPT, loss_scale=128.0)
    with pytest.raises(NumericsWrong):
        check(change_ops(lower(workload, FOUR, 4), name, attributes=attributes), workload, FOUR)


# Overflow

DEEP = Workload(
    model=Network(layers=tuple(Dense(inputs=8, outputs=8) for _ in range(4)), init_std=0.05),
    batch=8,
    loss='mae',
    precision='fp16',
    loss_scale=2.0**21,
)
"""An element of the loss's gradient is ±2¹⁵: two of a bias overflow fp16, and all that is behind them is finite."""
STAGES = Plan(pipeline=2, data=1, micro_batches=2)


def start(program, dtype=None):
    """The parameters that a program begins with."""
    names = {op.name for op in program.op_classes if 'learning_rate' in op.attributes}
    for name in names:
        program = change_ops(program, name, attributes={'learning_rate': 0.0, 'weight_decay': 0.0})
    return InProcess(program, dtype=dtype).run().parameters


def changed(result, before):
    """The parameters that are no longer what they were."""
    return {name for name, parameter in result.parameters.items() if not torch.equal(parameter, before[name])}


def infinite(result):
    """The gradients of the last step that are not finite."""
    return {name for name, gradient in result.gradients.items() if not gradient.isfinite().all()}


@pytest.mark.parametrize('optimizer', [Sgd(), Momentum(), AdamW()], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize('clip_norm', [0.0, 1.0])
def test_where_one_stage_overflows_no_rank_updates(optimizer, clip_norm):
    """Without the sum over all ranks, the other stage updates: its own gradients are finite."""
    workload = replace(DEEP, optimizer=replace(optimizer, learning_rate=0.1), clip_norm=clip_norm)
    program = lower(workload, STAGES, 2)
    result, before = InProcess(program, dtype=None).run(), start(program)
    assert infinite(result) == {'d:dense3.bias'}
    assert not changed(result, before)
    alone = InProcess(drop_sum(program, 'gradients.all_reduce.U'), dtype=None).run()
    assert changed(alone, before) == {f'dense{layer}.{kind}' for layer in (0, 1) for kind in ('weight', 'bias')}


@pytest.mark.parametrize('plan', [Plan(data=4), Plan(tensor=4), FOUR, replace(PIPELINE, copies=2)], ids=str)
def test_replicas_agree_on_what_overflows(plan):
    """The machine holds replicas of every gradient and parameter against one another."""
    workload = replace(DEEP, loss_scale=2.0**24, optimizer=AdamW(learning_rate=0.1))
    program = lower(workload, plan, 4)
    result = InProcess(program, dtype=None).run(2)
    assert infinite(result)
    assert not changed(result, start(program))


def test_fp16_keeps_small_gradients_with_a_loss_scale_and_loses_them_without():
    """Below 6e-8 nothing is left in fp16."""
    workload = replace(DEEP, batch=2048, loss='mse', model=replace(DEEP.model, init_std=0.02))
    plan = Plan(data=2)
    exact = Reference(replace(workload, loss_scale=1.0), plan).run().gradients['d:dense0.weight']
    errors = []
    for scale in (1.0, 2.0**12):
        program = lower(replace(workload, loss_scale=scale), plan, 2)
        found = InProcess(program, dtype=None).run().gradients['d:dense0.weight'].double() / scale
        errors.append(float((found - exact).norm() / exact.norm()))
    assert errors[0] > 0.5
    assert errors[1] < 0.02


@pytest.mark.parametrize(
    'optimizer', [Adam(learning_rate=1e-3), AdamW(learning_rate=1e-3, master_weights=True), Momentum(nesterov=True)]
)
def test_a_step_left_out_does_not_count(optimizer):
    """Some steps overflow and some do not; torch counts the calls of the optimizer."""
    plan = Plan(pipeline=2, tensor=2, data=1)
    model = replace(DEEP.model, init_std=0.5)
    workload = replace(DEEP, model=model, optimizer=optimizer, precision='fp32', loss='mse', batch=2)
    still = Reference(replace(workload, optimizer=Sgd(learning_rate=0.0), loss_scale=1.0), plan)
    largest = sorted(max(float(g.abs().max()) for g in still.run().gradients.values()) for _ in range(6))
    workload = replace(workload, loss_scale=torch.finfo(torch.float32).max / (largest[2] * largest[3]) ** 0.5)
    machine, reference = InProcess(lower(workload, plan, 4), dtype=None), Reference(workload, plan, dtype=torch.float32)
    results = [(machine.run(), reference.run()) for _ in range(6)]
    overflows = [bool(infinite(found)) for found, _ in results]
    assert overflows == [bool(infinite(wanted)) for _, wanted in results]
    assert 2 <= sum(overflows) <= 4
    found, wanted = results[-1]
    for name, parameter in wanted.parameters.items():
        torch.testing.assert_close(found.parameters[name], parameter, rtol=1e-5, atol=1e-6)
    assert changed(found, start(lower(workload, plan, 4)))
