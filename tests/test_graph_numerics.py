"""Networks that are graphs of operators compute what autograd computes on the unsharded model, to 1e-10 in norm."""

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
import torch
from graph_cases import graph_case
from sabotage import change_ops
from tables import load_tree

from executor.bench.items import program_items, program_of
from executor.draws import batch_of
from executor.inprocess import InProcess
from executor.numerics import check
from executor.reference import Reference
from simpar.cost.compute import NO_WORK
from simpar.errors import NumericsWrong, ProgramError
from simpar.lower import lower
from simpar.lower.graph.loss import KINDS as LOSS_KINDS
from simpar.model import KINDS, Add, MatMul, Reshape
from simpar.model.library.blocks import block_network
from simpar.model.library.cross_entropy import LOSS_OPERATORS
from simpar.plans import Plan
from simpar.workload import Sgd, Workload

CASES = 120
GLOO = 4

case = cache(graph_case)


@cache
def made(seed):
    """The program of a case."""
    return lower(*case(seed))


def test_the_graphs_cover_what_can_be_combined():
    workloads, plans, _ = zip(*map(case, range(CASES)), strict=True)
    layers = [layer for workload in workloads for layer in workload.model.layers]
    cut = Counter(type(layer) for layer in layers if getattr(layer, 'strategy', ()))
    # An operator under a second name is trained under its first.
    kinds = {kind for kind in KINDS.values() if kind.__base__ not in KINDS.values()}
    assert {kind for kind in kinds if cut[kind] >= 8} == kinds - {Reshape}
    assert {(layer.transpose_a, layer.transpose_b) for layer in layers if isinstance(layer, MatMul)} == {
        (a, b) for a in (False, True) for b in (False, True)
    }
    assert any(isinstance(layer, Add) and layer.of[0] == layer.of[1] for layer in layers)
    assert sum(plan.pipeline > 1 for plan in plans) >= 20
    assert sum(bool(plan.zero or plan.shard or plan.hsdp != 'off') for plan in plans) >= 20
    assert sum(workload.loss == 'cross-entropy' for workload in workloads) >= 20
    cut = Counter(name for workload in workloads for name in workload.loss_strategies)
    assert all(cut[name] >= 4 for name in LOSS_OPERATORS)


def test_the_programs_use_every_operator_and_every_collective():
    ops = [op for seed in range(CASES) for op in made(seed).op_classes]
    operators = Counter((op.operator, op.phase) for op in ops)
    own = ('relu', 'gelu', 'silu', 'softmax', 'mul', 'multiply', 'norm', 'rms_norm', 'batch_matmul')
    shaped = ('transpose', 'reshape', 'sum', 'mean')
    moved = ('all_reduce', 'all_gather', 'reduce_scatter', 'all_to_all', 'scale')
    assert {(operator, phase) for operator in own + shaped + moved for phase in 'FI'} <= operators.keys()
    assert {('slice', 'F'), ('pad', 'I'), ('send', 'F'), ('send', 'I'), ('add', 'I')} <= operators.keys()
    assert {(kind.operator, 'F') for kind in LOSS_KINDS.values()} | {('cross_entropy_mean', 'I')} <= operators.keys()
    assert {(operator, 'W') for operator in ('norm', 'rms_norm', 'conv2d', 'embedding')} <= operators.keys()
    assert {('conv2d', 'I'), ('all_reduce', 'W'), ('reduce_scatter', 'W')} <= operators.keys()
    assert any(op.operator == 'embedding' and 'partition' in op.attributes for op in ops), 'a cut vocabulary'
    assert {op.operator for op in ops if 'recompute' in op.attributes} >= {'norm', 'softmax', 'batch_matmul'}


def test_every_operator_of_a_graph_can_be_measured_alone():
    measured = set()
    for seed in range(CASES):
        world = case(seed)[2]
        if world == GLOO:
            items = program_items(made(seed), world, 'alone')
            measured |= {item.ops[-1].operator for item in items}
            InProcess(program_of(items, world), dtype=torch.float32).run()
    assert {'batch_matmul', 'transpose', 'softmax', 'norm', 'rms_norm', 'mul', 'embedding', 'square_sum'} <= measured
    assert not measured & NO_WORK


# One block: by torch's own layer, in Megatron's layout, and made wrong.

SEQUENCE, HIDDEN, HEADS = 4, 16, 4
TORCHS = load_tree(__file__, 'TORCHS')
"""Parameters of torch's layer, and of a block."""


def block(data=1, tensor=1, samples=4):
    """A block cut by samples and by heads (Shoeybi et al. 2019); its mean squared error by samples."""
    rows, columns, sums = ((data, 1),), ((data, 1), (1, tensor)), ((data, tensor), (tensor, 1))
    heads = ((data, tensor, 1, 1),)
    strategies = {
        **dict.fromkeys(('norm1', 'norm2'), (*rows, (1,), (1,))),
        **dict.fromkeys(('q', 'k', 'v', 'up'), columns),
        **dict.fromkeys(('o', 'down'), sums),
        **{f'{name}_transpose': ((data, 1, tensor, 1),) for name in 'qkv'},
        **dict.fromkeys(('scores', 'values'), heads * 2),
        **dict.fromkeys(('scale', 'softmax', 'transpose'), heads),
        **dict.fromkeys(('add1', 'add2'), rows * 2),
        'gelu': ((data, tensor),),
    }
    model = block_network(SEQUENCE, HIDDEN, HEADS, 2 * HIDDEN, bias=True, init_std=0.3)
    layers = tuple(
        replace(layer, strategy=strategies[name])
        if (name := layer.name.removeprefix('layer0_')) in strategies
        else layer
        for layer in model.layers
    )
    return Workload(
        model=replace(model, layers=layers),
        batch=samples * SEQUENCE,
        loss='mse',
        loss_strategy=rows * 2,
        optimizer=Sgd(learning_rate=0.1),
    )


def test_the_reference_of_a_block_trains_as_torchs_own_layer():
    reference, steps, shape = Reference(block(), Plan(), seed=5), 3, (4 * SEQUENCE, HIDDEN)
    layer = torch.nn.TransformerEncoderLayer(
        HIDDEN, HEADS, 2 * HIDDEN, 0.0, 'gelu', batch_first=True, norm_first=True, dtype=torch.float64
    )

    def ours(parameters):
        of = {name.removeprefix('layer0_'): parameter.detach() for name, parameter in parameters.items()}
        return {name: torch.cat([of[one] for one in names]) for name, names in TORCHS.items()}

    layer.load_state_dict(ours(reference.parameters))
    optimizer, losses = torch.optim.SGD(layer.parameters(), lr=0.1), []
    for step in range(steps):
        x, target = (batch_of(name, 'normal:1', shape, torch.float64, 5, step) for name in ('x', 'target'))
        loss = torch.nn.functional.mse_loss(layer(x.unflatten(0, (-1, SEQUENCE))).flatten(0, 1), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    found = reference.run(steps)
    assert found.losses == pytest.approx(losses, rel=1e-12)
    for name, parameter in ours(found.parameters).items():
        torch.testing.assert_close(parameter, layer.state_dict()[name], rtol=1e-10, atol=1e-12)


def test_a_gradient_of_one_reader_that_is_left_out_is_found():
    """Wherever gradients of a value with several readers are added."""
    workload = block(2, 2)
    program = lower(workload, Plan(), 4)
    sums = [op for op in program.op_classes if op.operator == 'add']
    assert len(sums) >= 3, 'add1, and norm1 twice'
    for op in sums:
        for part in op.reads:
            with pytest.raises(NumericsWrong):
                check(change_ops(program, op.name, reads=(part, part)), workload, Plan(), steps=1)


def other_axis(program, op):
    """An op that goes by another axis of the same size; None where there is none."""
    name = op.partition or str(op.attributes['partition'])
    size = program.partitions[name].size
    others = [other for other, of in program.partitions.items() if of.size == size and other != name]
    if op.partition:
        return replace(op, partition=others[0]) if others else None
    return replace(op, attributes={**op.attributes, 'partition': others[0]}) if others else None


@pytest.mark.parametrize(
    'kind', [('slice', 'F'), ('pad', 'I'), ('all_to_all', 'F'), ('all_gather', 'F'), ('reduce_scatter', 'I'),
             ('embedding', 'F'), ('embedding', 'W')],
)  # fmt: skip
def test_a_step_along_another_axis_is_found_out(kind):
    for seed in range(CASES):
        (workload, plan, _), program = case(seed), made(seed)
        for op in program.op_classes:
            goes = (op.operator, op.phase) == kind and (op.partition or 'partition' in op.attributes)
            wrong = other_axis(program, op) if goes else None
            if wrong is not None:
                ops = tuple(wrong if other is op else other for other in program.op_classes)
                with pytest.raises((NumericsWrong, ProgramError)):
                    check(program.replace(op_classes=ops), workload, plan, steps=1)
                return
    raise AssertionError(f'no case has {kind}')


# On gloo.
