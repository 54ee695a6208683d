"""Strategies with pipelines, optimizer parallelism and recomputation compute what autograd computes on the model."""

from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from combined_cases import combined_case
from every import some
from sabotage import change_ops
from trains import ONCE, trains

from executor import draws
from executor.inprocess import InProcess
from executor.numerics import check
from executor.ranks import real
from simpar import Plan, Transformer, Workload, load_case
from simpar.errors import NumericsWrong
from simpar.lower import lower
from simpar.model.library.experts import Experts

CASES = 120
HYBRID = Path(__file__).parents[1] / 'examples' / 'hybrid_strategies.yaml'

case = cache(combined_case)


def test_the_plans_cover_what_can_be_combined():
    programs = [lower(*case(seed)) for seed in range(CASES)]
    operators = Counter((op.operator, op.phase) for program in programs for op in program.op_classes)
    for operator in ('all_to_all', 'all_gather', 'reduce_scatter', 'send', 'scale'):
        assert {(operator, 'F'), (operator, 'I')} <= operators.keys(), operator
    assert {('reduce_scatter', 'W'), ('all_gather', 'U'), ('piece', 'U'), ('reshard', 'I')} <= operators.keys()
    assert {('square_sum', 'U'), ('finite_check', 'U'), ('momentum', 'U'), ('adam', 'U')} <= operators.keys()
    plans = [case(seed)[1] for seed in range(CASES)]
    assert len({plan.order for plan in plans if plan.pipeline > 1}) >= 8
    several = [{op.partition for op in program.op_classes if '.reduce_scatter.W' in op.name} for program in programs]
    assert sum(len(partitions) > 1 for partitions in several) >= 10, 'parameters cut over different ranks'
    again = [any('recompute' in op.attributes for op in program.op_classes) for program in programs]
    assert sum(again) >= 20


# The hybrid tutorial: two stages, four micro-batches, optimizer parallelism, recomputed relus, strategies by hand.


@pytest.mark.parametrize('level', ['off', 'level1', 'level2', 'level3'])
def test_the_hybrid_tutorial_trains_as_the_unsharded_model(level):
    hybrid = load_case(HYBRID, [f'plan.hsdp={level}'])
    check(hybrid.program, hybrid.workload, hybrid.plan, steps=2)


def test_every_stage_has_the_same_groups():
    program = load_case(HYBRID).program
    assert program.partitions['2x2'].groups_GP.tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert program.partitions['stage'].groups_GP.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    # layer1's weight is cut over the two ranks with the same half, layer3's is too small.
    shapes = {one.name: program.local_shape(one) for one in program.tensors if one.kind == 'parameter'}
    assert shapes['layer1.weight'] == (512 // 2 // 2, 784)
    assert shapes['layer3.weight'] == (1, 512)


# What is wrong is found wrong.


def test_a_weight_gathered_over_other_ranks_is_found():
    hybrid = load_case(HYBRID)
    wrong = change_ops(hybrid.program, 'layer1.weights.2x2.all_gather.F', partition='2x1')
    with pytest.raises(NumericsWrong):
        check(wrong, hybrid.workload, hybrid.plan, steps=1)


# Strategies of single operators, capacity and unfused attention beside experts, context ranks and DualPipe, trained


MODEL = {'layers': 2, 'hidden': 16, 'heads': 4, 'kv_heads': 4, 'vocab': 16, 'sequence': 16, 'init_std': 0.3,
         'position': 'rotary', 'bias': ()}  # fmt: skip
EXPERTS = Experts(count=4, ffn=8, top_k=2, aux_loss=0.1)
DROPS = Experts(count=4, ffn=8, top_k=2, capacity=0.5)
SPLIT = {'layer*.proj': ((1, 1, 4), (4, 1)), 'layer*.qkv': ((2, 2, 1), (1, 1)), 'head': ((1, 4, 1), (1, 1))}
RING = {'context_kind': 'ring', 'context_split': 'contiguous'}
BESIDE = {
    'strategies beside experts': (Plan(data=4, expert=2, strategies=SPLIT), {'experts': EXPERTS}),
    'strategies beside tensor ranks of experts': (
        Plan(data=2, tensor=2, expert=2, sequence_parallel=True, strategies=SPLIT), {'experts': DROPS}
    ),
    'strategies beside gathered keys': (Plan(data=2, context=2, strategies=SPLIT, copies=2), {}),
    'strategies beside a ring and experts': (
        Plan(data=2, context=2, expert=2, strategies=SPLIT, **RING), {'experts': EXPERTS}
    ),
    'strategies beside both directions': (
        Plan(data=2, pipeline=2, micro_batches=4, order='dualpipe', strategies=SPLIT), {}
    ),
    'capacity beside context ranks': (Plan(data=2, context=2, expert=2), {'experts': DROPS}),
    'capacity beside context and tensor ranks': (
        Plan(context=2, tensor=2, sequence_parallel=True, context_split='contiguous'), {'experts': DROPS}
    ),
    'unfused beside gathered keys': (Plan(data=2, context=2, tensor=1), {'attention': 'unfused', 'window': 5}),
    'unfused beside a ring': (
        Plan(context=4, context_kind='ring', recompute='selective'), {'attention': 'unfused', 'documents': (5, 11)}
    ),
    'unfused beside a ring and tensor ranks': (
        Plan(context=2, tensor=2, reduce='late', copies=2, **RING), {'attention': 'unfused', 'attention_softcap': 2.0}
    ),
}  # fmt: skip


@pytest.mark.parametrize('name', some(BESIDE, 2))
def test_a_plan_trains_as_the_unsharded_model_does(name):
    plan, more = BESIDE[name]
    workload = Workload(model=Transformer(**{**MODEL, **more}), batch=8)
    trains(workload, plan, plan.data * plan.context * plan.tensor * plan.pipeline if plan.data else 4, steps=ONCE)


def test_a_ring_sends_keys_and_values_once_for_scores_and_once_for_values():
    """Of N ranks N − 1 messages a round: two rounds forward, two backward, and N − 1 of gradients going home."""
    workload = Workload(model=Transformer(**{**MODEL, 'layers': 1, 'attention': 'unfused'}), batch=4)
    program = lower(workload, Plan(context=4, context_kind='ring'), 4)
    sent = [op for op in program.op_classes if op.operator == 'send_recv']
    assert [sum(op.phase == phase for op in sent) for phase in 'FI'] == [2 * 3, 3 * 3]
    # A rank's own tokens: keys and values of 4 heads of 4 features, of 4 samples and 4 of 16 tokens, in fp32.
    assert {op.bytes for op in sent} == {4 * 4 * 4 * (4 + 4) * 4.0}


# The quick-start tutorial trains: its data, 5 epochs of 4 steps on 8 ranks in process, as torch alone does


EXAMPLES = Path(__file__).parent.parent / 'examples'
STEPS = 5 * 4


def tutorial_data():
    """Its generator: every rank draws the same two samples, and every step has them."""
    random = np.random.RandomState(1)
    x, label = random.rand(2, 32), random.rand(2, 16)
    return {'x': torch.tensor(np.tile(x, (8, 1))), 'target': torch.tensor(np.tile(label, (8, 1)))}


def trained_by_torch(data):
    """The losses of the whole model with torch's own momentum, from the same weights."""
    shapes = {'matmul.weight': (16, 32), 'matmul2.weight': (16, 16)}
    weights = [
        draws.draw('normal:0.01', shape, torch.float64, 0, name).requires_grad_() for name, shape in shapes.items()
    ]
    optimizer = torch.optim.SGD(weights, lr=0.2, momentum=0.1)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(torch.relu(data['x'] @ weights[0].T) @ weights[1].T, data['target'])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_the_quick_start_tutorial_trains_on_eight_ranks(monkeypatch):
    data = tutorial_data()
    monkeypatch.setattr(real, 'batch_of', lambda name, *_: data[name])
    losses = InProcess(load_case(EXAMPLES / 'sharding_propagation.yaml').program, 0, torch.float64).run(STEPS).losses
    assert losses == pytest.approx(trained_by_torch(data), rel=1e-12)
    assert all(later < earlier for earlier, later in pairwise(losses))
    assert losses[-1] < 0.85 * losses[0]


@pytest.mark.parametrize('name', ['sharding_propagation', 'double_recursive'])
@pytest.mark.parametrize('search', ['', 'exact'])
def test_searched_examples_compute_what_autograd_computes(name, search):
    case = load_case(EXAMPLES / f'{name}.yaml', [f'plan.search={search}'] if search else [])
    report = check(case.program, case.workload, case.plan, steps=ONCE)
    parameters = sum(tensor.kind == 'parameter' for tensor in case.program.tensors)
    assert len(report.deviations) == ONCE * (1 + 2 * parameters)
