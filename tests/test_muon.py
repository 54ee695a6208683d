"""Muon: trained as an independent reference to 1e-10 over every way to shard, and its ops, bytes and price."""

from dataclasses import replace
from itertools import product
from math import prod

import pytest
import torch
from every import some
from trains import trains

from executor.kernels import Context, kernel
from executor.numerics import check
from simpar import Plan, load_profile
from simpar.cost.compute import DeviceCompute
from simpar.lower import lower
from simpar.model import Conv2d, Dense, Flatten, Network, Relu
from simpar.model.library.experts import Experts
from simpar.program import OpClass
from simpar.workload import Muon, Transformer, Workload

RULE = Muon(learning_rate=0.05, weight_decay=0.1)
MLP = Workload(
    model=Network(
        layers=(Dense(inputs=6, outputs=16), Relu(), Dense(inputs=16, outputs=8, bias=False), Relu(),
                Dense(inputs=8, outputs=4)),
        init_std=0.5,
    ),
    batch=8, loss='mse', optimizer=RULE,
)  # fmt: skip
GPT = Workload(
    model=Transformer(layers=2, hidden=8, heads=2, vocab=12, sequence=4, init_std=0.3), batch=8, optimizer=RULE
)
PLANS = {
    '1 rank': (Plan(), 1),
    **{f'data 2, zero {stage}': (Plan(data=2, zero=stage), 2) for stage in range(4)},
    'tensor 2': (Plan(tensor=2), 2),
    **{f'tensor 2, data 2, zero {stage}': (Plan(tensor=2, data=2, zero=stage), 4) for stage in (1, 3)},
    'hsdp level1': (Plan(data=2, hsdp='level1', shard_threshold=0.0), 2),
    'pipeline 2': (Plan(pipeline=2, micro_batches=2, zero=1, data=2), 4),
    'copies 2': (Plan(copies=2, data=2), 2),
}
TENSOR_DATA = PLANS['tensor 2, data 2, zero 3']


@pytest.mark.parametrize(('workload', 'plan'), some(product((MLP, GPT), PLANS), 2))
def test_a_plan_trains_as_the_reference_does(workload, plan):
    plan, world = PLANS[plan]
    trains(workload, plan, world)


def test_a_convolution_with_all_that_updates_can_have():
    """An image of 4 × 4 and a kernel of 3: [4, 18] and [3, 64] as matrices; and every option of an update."""
    layers = (Conv2d(inputs=2, outputs=4, kernel=3, padding=1), Flatten(), Dense(inputs=64, outputs=3))
    rule = replace(RULE, nesterov=False, master_weights=True)
    workload = Workload(
        model=Network(layers=layers, input=(2, 4, 4), init_std=0.5),
        batch=4, loss='mse', optimizer=rule, clip_norm=0.1, loss_scale=8.0,
    )  # fmt: skip
    plan = Plan(data=2, zero=2)
    program = lower(workload, plan, 2)
    # 3 rows do not divide by 2: the messages are flat, matrices and biases apart.
    assert {op.operator for op in program.op_classes if op.phase == 'U'} >= {'muon_step', 'muon_change', 'momentum'}
    check(program, workload, plan)


@pytest.mark.parametrize('shape', [(5, 8), (8, 5), (6, 6)])
@pytest.mark.parametrize('nesterov', [False, True])
def test_the_kernel_is_torchs(shape, nesterov, monkeypatch):
    """torch.optim.Muon, whose momentum is (1 − momentum) times ours: a factor that orthogonal matrices do not have."""
    # torch iterates in bf16; here in fp64, or rounding would hide what is wrong.
    to = torch.Tensor.to
    monkeypatch.setattr(torch.Tensor, 'bfloat16', lambda one: one.clone())
    monkeypatch.setattr(
        torch.Tensor,
        'to',
        lambda one, *by, **how: one.clone() if how.get('dtype') is torch.bfloat16 else to(one, *by, **how),
    )
    generator = torch.Generator().manual_seed(1)
    theirs = torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()
    ours, v = theirs.detach().clone(), torch.zeros(*shape, dtype=torch.float64)
    oracle = torch.optim.Muon([theirs], lr=0.1, weight_decay=0.3, momentum=0.9, nesterov=nesterov)
    first = OpClass('m', 'compute', 'muon_momentum', 'U', attributes={'momentum': 0.9, 'nesterov': nesterov})
    rule = {'learning_rate': 0.1, 'weight_decay': 0.3, 'rows': 1, 'iterations': 5, 'splits': '', 'partitions': ''}
    second, where = OpClass('u', 'compute', 'muon', 'U', attributes=rule), Context(0, {}, {})
    for _ in range(3):
        # Large, so that the 1e-7 beside the norm, which torch has as a lower bound of it, is rounding.
        gradient = 1e8 * torch.randn(*shape, generator=generator, dtype=torch.float64)
        theirs.grad = gradient.clone()
        oracle.step()
        v, change = kernel(first)(first, where, gradient, v)
        (ours,) = kernel(second)(second, where, change, ours)
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-12, atol=1e-12)


def test_a_gradient_that_is_not_finite_changes_nothing():
    first = OpClass(
        'm', 'compute', 'muon_momentum', 'U', attributes={'momentum': 0.9, 'nesterov': True, 'loss_scale': 8.0}
    )
    rule = {'learning_rate': 0.1, 'weight_decay': 0.3, 'rows': 1, 'iterations': 5, 'splits': '', 'partitions': '',
            'loss_scale': 8.0, 'master_weights': True}  # fmt: skip
    second, where = OpClass('u', 'compute', 'muon', 'U', attributes=rule), Context(0, {}, {})
    overflow, ones = torch.tensor([1.0]), torch.ones(2, 3)
    v, change = kernel(first)(first, where, torch.full((2, 3), torch.inf), ones.clone(), overflow)
    weight, master = kernel(second)(second, where, change, ones.clone(), ones.clone(), overflow)
    assert all(torch.equal(tensor, ones) for tensor in (v, weight, master))
    assert bool(change.isfinite().all())


# Ops, bytes and price


def test_a_matrix_is_gathered_over_all_that_shards_it_the_inner_split_first():
    plan, world = TENSOR_DATA
    program = lower(replace(GPT, precision='bf16'), plan, world)
    ops = {op.name: op for op in program.op_classes}
    chain = [name for name in ops if name.startswith('layer0.fc1.weight.') and name.endswith('.U')]
    gathers = [name for name in chain if ops[name].kind == 'collective']
    assert [ops[name].partition for name in gathers] == ['data', 'tensor']
    assert [ops[chain[0]].operator, ops[chain[-1]].operator] == ['muon_momentum', 'muon']
    # [32, 8] in bf16: what a tensor rank has of it, then all.
    assert [ops[name].bytes for name in gathers] == [32 * 8, 32 * 8 * 2]
    assert ops[chain[-1]].flops == 5 * (2 * 8 * 8 * 32 + 2 * 8**3 + 2 * 8 * 8 * 32)
    # Tables and vectors stay with momentum, in one op a layer.
    assert {op.operator for op in program.op_classes if op.name.endswith('.update.U')} == {'momentum', 'muon'}
    assert ops['embedding.update.U'].operator == ops['position.update.U'].operator == 'momentum'
    assert ops['layer0.update.U'].reads[0] == 'd:layer0.norm1.gain'


def test_newton_schulz_is_priced_as_its_products():
    compute = DeviceCompute(load_profile('h100-sxm-8'))
    op = next(op for op in lower(GPT, Plan(), 1).op_classes if op.name == 'layer0.fc2.weight.update.U')
    products = [
        compute.seconds(OpClass('p', 'compute', 'matmul', 'F', {'m': m, 'n': n, 'k': k}, 2.0 * m * n * k,
                                4.0 * (m * n + n * k + m * k)))
        for m, n, k in ((8, 8, 32), (8, 8, 8), (8, 32, 8))
    ]  # fmt: skip
    assert compute.seconds(op).seconds == pytest.approx(5 * sum(cost.seconds for cost in products), rel=1e-12)


@pytest.mark.parametrize('form', ['padded', 'flat'])
@pytest.mark.parametrize('zero', [1, 3])
def test_packed_shards_train_as_the_reference_does(form, zero):
    """Of a shard that is no slice of a matrix: gathered as one message, orthogonalised, and packed again."""
    rule = replace(RULE, master_weights=True)
    workload = replace(GPT, optimizer=rule, clip_norm=0.1, loss_scale=8.0)
    plan = Plan(data=2, tensor=2, zero=zero, shard_form=form)
    trains(workload, plan, 4)


EXPERTS = Experts(count=4, ffn=8, top_k=2)
MIXTURE = replace(GPT, model=replace(GPT.model, bias=(), experts=EXPERTS))


@pytest.mark.parametrize('plan', [Plan(data=4, expert=2, zero=1), Plan(data=2, expert=2, tensor=2, zero=3)])
def test_experts_are_a_matrix_each(plan):
    """A rank orthogonalises those that it updates: gathered over tensor ranks, never over ranks of experts."""
    program = trains(MIXTURE, plan, 4)
    ops = {op.name: op for op in program.op_classes}
    # Ranks with the same experts share them out by zero: no matrix is worked on twice but over tensor ranks.
    own = EXPERTS.count // plan.data
    # Where shards of zero are no slices of a dim, the change is an op of its own.
    (update,) = (op for op in ops.values() if 'muon' in op.operator and op.dims and 'experts.fc2' in op.name
                 and 'layer0' in op.name)  # fmt: skip
    assert update.dims == {'short': 8, 'long': 8, 'iterations': 5 * own}
    gathers = [op for name, op in ops.items() if name.startswith('layer0.experts.fc2') and 'change' in name]
    assert {op.partition for op in gathers if op.operator == 'all_gather'}.isdisjoint({'expert', 'data'})


# Matrices that ranks own


OWNED = {
    'data 4': (Plan(data=4, zero=1), 4),
    'data 3, two micro-batches, gradients sharded': (Plan(data=3, zero=2, micro_batches=2), 3),
    'tensor 2': (Plan(data=2, tensor=2, zero=1), 4),
    'pipeline 2, groups of 2': (Plan(data=4, pipeline=2, micro_batches=2, zero=1, shard_group=2), 8),
    'copies 2, all in one message': (Plan(data=2, copies=2, zero=1, fusion='all'), 2),
}


@pytest.mark.parametrize('name', OWNED)
def test_matrices_that_ranks_own_train_as_the_reference_does(name):
    plan, world = OWNED[name]
    rule = replace(RULE, master_weights=True)
    workload = replace(GPT, batch=24, optimizer=rule, clip_norm=0.1, loss_scale=8.0)
    program = trains(workload, replace(plan, shard_form='owned'), world)
    gathers = [op for op in program.op_classes if '.change.' in op.name and op.operator == 'all_gather']
    # What is orthogonalised lies on the rank already, but for what tensor ranks have of it.
    assert {op.partition for op in gathers} == ({'tensor'} if plan.tensor > 1 else set())


@pytest.mark.parametrize('plan', [Plan(data=4, expert=2, zero=1), Plan(data=2, expert=2, tensor=2, zero=2)])
def test_experts_are_dealt_out_one_by_one(plan):
    trains(MIXTURE, replace(plan, shard_form='owned'), 4)


def test_each_matrix_is_orthogonalised_on_one_rank():
    """6 layers over 4 ranks: two messages of each shape, a matrix of each on a rank, in place of all of them."""
    workload = replace(GPT, precision='bf16', model=replace(GPT.model, layers=6))

    def work(**keys):
        program = lower(workload, Plan(data=4, zero=1, **keys), 4)
        # Nobody holds the matrices that lack: three of every message's four are there.
        matrices = [one for one in program.tensors if one.kind == 'parameter' and one.name.endswith('.weight')]
        assert all(program.local_bytes(one) == 2 * prod(one.shape) for one in matrices)
        ops = program.op_classes
        return sum(op.flops for op in ops if op.operator in ('muon', 'muon_change')), ops

    (owned, ops), (gathered, _) = work(shard_form='owned'), work()
    shapes = [(8, 32), (8, 32), (8, 24), (8, 8), (8, 12)]
    flops = [5 * (4 * short**2 * long + 2 * short**3) for short, long in shapes]
    # The head, the last one, is alone of its shape.
    assert owned == 2 * sum(flops[:4]) + flops[4]
    assert gathered == 6 * sum(flops[:4]) + flops[4]
    sums = {op.name: op.bytes for op in ops if op.operator == 'reduce_scatter' and 'owned' in op.name}
    # Eight matrices of each shape travel, two of them padding; of heads four.
    assert sum(sums.values()) == 2 * (8 * (32 + 32 + 24 + 8) * 8 + 4 * 12 * 8)
