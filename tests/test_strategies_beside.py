"""Strategies of single operators, capacity and unfused attention beside experts, context ranks and DualPipe, trained.

Every loss, gradient and parameter is that of the unsharded model in torch, in fp64. ``tests/pairs.py`` has all pairs.
"""

import pytest
from trains import trains

from simpar.lower import lower
from simpar.model.library.experts import Experts
from simpar.plans import Plan
from simpar.workload import Transformer, Workload

torch = pytest.importorskip('torch', reason='needs the extra torch')


pytestmark = pytest.mark.torch

MODEL = {'layers': 2, 'hidden': 16, 'heads': 4, 'kv_heads': 4, 'vocab': 16, 'sequence': 16, 'init_std': 0.3,
         'position': 'rotary', 'bias': ()}  # fmt: skip
EXPERTS = Experts(count=4, ffn=8, top_k=2, aux_loss=0.1)
DROPS = Experts(count=4, ffn=8, top_k=2, capacity=0.5)
SPLIT = {'layer*.proj': ((1, 1, 4), (4, 1)), 'layer*.qkv': ((2, 2, 1), (1, 1)), 'head': ((1, 4, 1), (1, 1))}
RING = {'context_kind': 'ring', 'context_split': 'contiguous'}
CASES = {
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


@pytest.mark.parametrize('name', CASES)
def test_a_plan_trains_as_the_unsharded_model_does(name):
    plan, more = CASES[name]
    workload = Workload(model=Transformer(**{**MODEL, **more}), batch=8)
    trains(workload, plan, plan.data * plan.context * plan.tensor * plan.pipeline if plan.data else 4)


def test_a_ring_sends_keys_and_values_once_for_scores_and_once_for_values():
    """Of N ranks N − 1 messages a round: two rounds forward, two backward, and N − 1 of gradients going home."""
    workload = Workload(model=Transformer(**{**MODEL, 'layers': 1, 'attention': 'unfused'}), batch=4)
    program = lower(workload, Plan(context=4, context_kind='ring'), 4)
    sent = [op for op in program.op_classes if op.operator == 'send_recv']
    assert [sum(op.phase == phase for op in sent) for phase in 'FI'] == [2 * 3, 3 * 3]
    # A rank's own tokens: keys and values of 4 heads of 4 features, of 4 samples and 4 of 16 tokens, in fp32.
    assert {op.bytes for op in sent} == {4 * 4 * 4 * (4 + 4) * 4.0}
