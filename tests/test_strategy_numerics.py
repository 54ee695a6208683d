"""Networks with strategies compute what autograd computes on the unsharded model, to 1e-10 in norm in fp64."""

from dataclasses import replace

import pytest
from strategy_cases import random_case

from simpar.errors import NumericsWrong
from simpar.lower import lower
from simpar.model import Dense, Network, Relu
from simpar.plans import Plan
from simpar.workload import Sgd, Workload

torch = pytest.importorskip('torch', reason='needs the extra torch')


from executor.inprocess import InProcess
from executor.numerics import check

CASES = 120


def tutorial(batch=16):
    """The quick-start tutorial's network, all operators sharded."""
    layers = (
        Dense(inputs=32, outputs=16, bias=False, name='matmul', strategy=((2, 4), (4, 1))),
        Relu(strategy=((2, 4),)),
        Dense(inputs=16, outputs=16, bias=False, name='matmul2', strategy=((2, 4), (4, 1))),
    )
    model = Network(layers=layers, init_std=0.3)
    return Workload(model=model, batch=batch, loss='mse', optimizer=Sgd(learning_rate=0.5))


@pytest.mark.parametrize('dataset', ['full-batch', 'data-parallel'])
def test_the_tutorials_network_learns(dataset):
    plan = Plan(dataset=dataset)
    program = lower(tutorial(), plan, 8)
    check(program, tutorial(), plan, steps=4)
    losses = InProcess(program, 0, torch.float64).run(20).losses
    assert sum(losses[-5:]) < sum(losses[:5])


def other_axis(program, op):
    """An op that goes by another axis of the same size, or takes the maximum; None where there is no such axis."""
    if op.kind == 'collective':
        return replace(op, reduce='max')
    size = program.partitions[op.attributes['partition']].size
    others = [name for name, of in program.partitions.items() if of.size == size and name != op.attributes['partition']]
    return replace(op, attributes={**op.attributes, 'partition': others[0]}) if others else None


@pytest.mark.parametrize('kind', [('pad', 'I'), ('slice', 'F'), ('reduce_scatter', 'I'), ('all_reduce', 'W')])
def test_a_step_along_another_axis_is_found_out(kind):
    for seed in range(CASES):
        workload, plan, world = random_case(seed)
        program = lower(workload, plan, world)
        for op in program.op_classes:
            wrong = other_axis(program, op) if (op.operator, op.phase) == kind else None
            if wrong is not None:
                ops = tuple(wrong if other is op else other for other in program.op_classes)
                with pytest.raises(NumericsWrong):
                    check(program.replace(op_classes=ops), workload, plan)
                return
    raise AssertionError(f'no case has {kind}')
