"""`plan.scatter_gather`: tensor ranks send their parts of what they all hold, and the next stage gathers it."""

from dataclasses import replace

import pytest
from every import some
from trains import ONCE, trains

from simpar.lower import lower
from simpar.plans import Plan
from simpar.workload import Adam, Transformer, Workload

GPT = Workload(
    model=Transformer(layers=4, hidden=8, heads=4, vocab=12, sequence=4, tied=True, init_std=0.3, dropout=0.1),
    batch=16,
    precision='fp64',
    optimizer=Adam(learning_rate=0.01),
)
PLAIN = replace(GPT, model=replace(GPT.model, dropout=0.0, tied=False))
PLAN = Plan(pipeline=2, tensor=2, data=2, micro_batches=4, scatter_gather=True)
PLANS = {
    'whole backward': PLAN,
    'four tensor ranks': replace(PLAN, tensor=4, data=1),
    'late sums': replace(PLAN, reduce='late'),
    'split backward': replace(PLAN, order='zb-v', chunks=2),
    'chunks and one exchange': replace(PLAN, order='interleaved-1f1b', chunks=2, exchange='fused', receive='late'),
    'copies, recomputed': replace(PLAN, copies=2, micro_batches=2, recompute='full'),
}


def sent(program):
    return [op.bytes for op in program.op_classes if op.kind == 'send']


@pytest.mark.parametrize('name', some(PLANS, 2))
def test_it_trains_as_autograd_does(name):
    plan = PLANS[name]
    trains(GPT, plan, 8, steps=ONCE, seed=1)


@pytest.mark.parametrize('tensor', [2, 4])
def test_each_tensor_rank_sends_its_part(tensor):
    plan = replace(PLAN, tensor=tensor, data=1)
    chunked, full = (sent(lower(PLAIN, replace(plan, scatter_gather=on), 2 * tensor)) for on in (True, False))
    assert [bytes_ * tensor for bytes_ in chunked] == full


@pytest.mark.parametrize('change', [{'sequence_parallel': True}, {'tensor': 1, 'data': 4}])
def test_what_ranks_hold_in_parts_or_alone_is_sent_as_without_it(change):
    plan = replace(PLAN, **change)
    assert lower(GPT, plan, 8).hash == lower(GPT, replace(plan, scatter_gather=False), 8).hash
