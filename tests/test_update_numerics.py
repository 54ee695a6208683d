"""Optimizers, clipping, loss scale and mean absolute error: random plans against torch.optim, to 1e-10 in fp64.

Some of the plans cut states, gradients or weights over the data ranks as well.
"""

from dataclasses import replace
from functools import partial

import pytest
import torch
from plain_cases import MLP as FP64_MLP
from sabotage import change_ops, drop_sum

from executor.inprocess import InProcess
from executor.kernels import KERNELS, Context
from executor.kernels.update import STATES
from executor.numerics import check
from executor.reference import Reference
from simpar.errors import NumericsWrong
from simpar.lower import lower
from simpar.model import Dense, Network
from simpar.plans import Plan
from simpar.program import OpClass
from simpar.workload import Adam, AdamW, Momentum, Sgd, Transformer, Workload

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


# Kernels of updates, of the norm of gradients and of the finite check, against torch.optim and torch's clipping


ALONE = Context(rank=0, position={}, size={})


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(11)


def run(operator, *tensors, writes=1, **attributes):
    """The kernel's one result, or all of them."""
    names = tuple(f'result{index}' for index in range(writes))
    op = OpClass(
        name=f'{operator}.U', kind='compute', operator=operator, phase='U', writes=names, attributes=attributes
    )
    found = KERNELS[operator, 'U'](op, ALONE, *tensors)
    assert len(found) == writes
    return found[0] if writes == 1 else found


def random(*shape):
    return torch.randn(shape, dtype=torch.float64)


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ('operator', 'optimizer', 'attributes'),
    [
        ('sgd', partial(torch.optim.SGD, lr=0.1), {'learning_rate': 0.1}),
        (
            'adam',
            partial(torch.optim.Adam, lr=0.1, betas=(0.8, 0.95), eps=1e-3),
            {'learning_rate': 0.1, 'beta1': 0.8, 'beta2': 0.95, 'epsilon': 1e-3},
        ),
        (
            'adam',
            partial(torch.optim.AdamW, lr=0.1, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.2),
            {'learning_rate': 0.1, 'beta1': 0.8, 'beta2': 0.95, 'epsilon': 1e-3, 'weight_decay': 0.2},
        ),
        *(
            (
                'momentum',
                partial(torch.optim.SGD, lr=0.1, momentum=0.7, nesterov=nesterov, weight_decay=decay),
                {'learning_rate': 0.1, 'momentum': 0.7, 'nesterov': nesterov, 'weight_decay': decay},
            )
            for nesterov in (False, True)
            for decay in (0.0, 0.2)
        ),
    ],
)
def test_updates(operator, optimizer, attributes):
    weights = [random(2, 3), random(5)]
    expected = [torch.nn.Parameter(weight.clone()) for weight in weights]
    torch_optimizer = optimizer(expected)
    moments = [torch.zeros_like(w) for w in weights] * STATES[operator]
    moments = [moment.clone() for moment in moments]
    op = OpClass(name='u', kind='compute', operator=operator, phase='U', attributes=attributes)
    for step in range(4):
        gradients = [random(2, 3), random(5)]
        for parameter, gradient in zip(expected, gradients, strict=True):
            parameter.grad = gradient.clone()
        torch_optimizer.step()
        where = Context(rank=0, position={}, size={}, step=step)
        found = KERNELS[operator, 'U'](op, where, *gradients, *weights, *moments)
        weights, moments = found[:2], found[2:]
        for a, b in zip(weights, expected, strict=True):
            close(a, b.detach())


@pytest.mark.parametrize('operator', ['sgd', 'momentum', 'adam'])
def test_masters_are_updated_in_their_precision_and_cast(operator):
    """Changes far below the rounding of a weight in bf16 add up."""
    attributes = {
        'sgd': {'learning_rate': 2.0**-20},
        'momentum': {'learning_rate': 2.0**-20, 'momentum': 0.0, 'nesterov': False, 'weight_decay': 0.0},
        'adam': {'learning_rate': 2.0**-20, 'beta1': 0.0, 'beta2': 0.0, 'epsilon': 1e-12},
    }[operator]
    op = OpClass(name='u', kind='compute', operator=operator, phase='U',
                 attributes={**attributes, 'master_weights': True})  # fmt: skip
    weights, masters = [torch.ones(3, dtype=torch.bfloat16)], [torch.ones(3)]
    states = [torch.zeros(3) for _ in range(STATES[operator])]
    for step in range(1024):
        gradients = [torch.ones(3, dtype=torch.bfloat16)]
        where = Context(rank=0, position={}, size={}, step=step)
        found = KERNELS[operator, 'U'](op, where, *gradients, *weights, *states, *masters)
        assert [id(tensor) for tensor in found] == [id(tensor) for tensor in (*weights, *states, *masters)]
    torch.testing.assert_close(masters[0], torch.full((3,), 1 - 2.0**-10), rtol=0, atol=1e-7)
    assert weights[0].tolist() == masters[0].bfloat16().tolist()


def test_what_a_weight_of_16_bits_lacks_is_kept_beside_it_and_moments_of_16_bits_are_computed_in_fp32():
    """Changes of 2⁻²⁰ add up, where the weight of 1 has digits of 2⁻⁸ and what it lacks has as many below."""
    attributes = {'learning_rate': 2.0**-20, 'beta1': 0.0, 'beta2': 0.0, 'epsilon': 1e-12, 'master_weights': 'shared'}
    op = OpClass(name='u', kind='compute', operator='adam', phase='U', attributes=attributes)
    weights, rest = torch.ones(3, dtype=torch.bfloat16), torch.zeros(3, dtype=torch.bfloat16)
    moments = [torch.zeros(3, dtype=torch.bfloat16) for _ in range(2)]
    for step in range(128):
        where = Context(rank=0, position={}, size={}, step=step)
        gradients = torch.full((3,), 1.01)
        found = KERNELS['adam', 'U'](op, where, gradients, weights, *moments, rest)
        assert [id(tensor) for tensor in found] == [id(tensor) for tensor in (weights, *moments, rest)]
    torch.testing.assert_close(weights.float() + rest.float(), torch.full((3,), 1 - 2.0**-13), rtol=0, atol=2.0**-20)
    assert moments[0].tolist() == torch.full((3,), 1.01).bfloat16().tolist()


@pytest.mark.parametrize(('clip_norm', 'loss_scale'), [(0.5, 1.0), (1e3, 1.0), (0.5, 8.0), (0.0, 8.0)])
def test_gradients_are_unscaled_and_clipped_as_torch_does(clip_norm, loss_scale):
    """Two pieces, the second on four ranks."""
    gradients, weights = [random(2, 3), random(5)], [random(2, 3), random(5)]
    expected = [torch.nn.Parameter(weight.clone()) for weight in weights]
    for parameter, gradient in zip(expected, gradients, strict=True):
        parameter.grad = gradient / loss_scale
    whole = torch.cat([gradients[0].flatten(), gradients[1] / 2]) / loss_scale
    total = whole.norm()
    close(run('square_sum', *gradients, ranks='1 4', loss_scale=loss_scale), total.square())
    if clip_norm:
        torch.nn.utils.clip_grads_with_norm_(expected, clip_norm, total)
    torch.optim.SGD(expected, lr=0.1).step()
    attributes = {'clip_norm': clip_norm} if clip_norm else {}
    attributes |= {'loss_scale': loss_scale} if loss_scale != 1 else {}
    numbers = [total.square()] * bool(clip_norm) + [torch.zeros(1)] * (loss_scale != 1)
    found = run('sgd', *gradients, *weights, *numbers, writes=2, learning_rate=0.1, **attributes)
    for a, b in zip(found, expected, strict=True):
        close(a, b.detach())


def test_squares_in_sixteen_bits_do_not_overflow():
    gradient = torch.full((100,), 3e4, dtype=torch.float16)
    assert float(run('square_sum', gradient, ranks='1')) == pytest.approx(100 * 9e8, rel=1e-5)
    assert float(run('square_sum', ranks='')) == 0


@pytest.mark.parametrize('wrong', [float('inf'), float('-inf'), float('nan')])
def test_what_is_not_finite_is_counted_and_changes_nothing(wrong):
    gradients = [random(2, 3), random(5), random(1)]
    assert float(run('finite_check', *gradients)) == 0
    gradients[1][3] = wrong
    (overflow,) = [run('finite_check', *gradients)]
    assert float(overflow) == 1
    states = [random(*gradient.shape) for _ in range(3) for gradient in gradients]
    before = [tensor.clone() for tensor in states]
    count = torch.tensor([5])
    found = run('adam', *gradients, *states, count, overflow, writes=10, learning_rate=0.1, beta1=0.9,
                beta2=0.9, epsilon=1e-3, weight_decay=0.1, loss_scale=8.0)  # fmt: skip
    for a, b in zip(found, [*before, torch.tensor([5])], strict=True):
        assert torch.equal(a, b)
