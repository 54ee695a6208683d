"""The numerics check finds what is wrong: a sum dropped, a copy's gradient skipped, a mask, scale or rate changed."""

import re
from dataclasses import replace

import pytest
from every import some
from plain_cases import MLP as FP64_MLP
from sabotage import change_ops, drop_sum, skip

from executor.numerics import check
from simpar.errors import NumericsWrong
from simpar.lower import lower
from simpar.plans import Plan
from simpar.workload import Adam, Sgd, Transformer, Workload

GPT = Workload(
    model=Transformer(layers=1, hidden=8, heads=2, vocab=12, sequence=4, init_std=0.3),
    batch=8,
    optimizer=Adam(learning_rate=0.01),
)
MLP = replace(FP64_MLP, batch=8, precision='fp32', optimizer=Sgd())
EARLY = Plan(data=2, tensor=2, copies=2)
LATE = Plan(data=2, tensor=2, copies=2, reduce='late', copies_loss='sum')
CASES = [(GPT, EARLY), (MLP, LATE)]


SUMS = [(w, p, op.name) for w, p in CASES for op in lower(w, p, 4).op_classes if op.operator == 'all_reduce']
WEIGHTS = [
    (w, p, op.name) for w, p in CASES for op in lower(w, p, 4).op_classes if op.phase == 'W' and op.kind == 'compute'
]


@pytest.mark.parametrize(('workload', 'plan'), CASES)
def test_the_right_program_passes(workload, plan):
    assert check(lower(workload, plan, 4), workload, plan).worst.error <= 1e-10


@pytest.mark.parametrize(('workload', 'plan', 'name'), some(SUMS))
def test_every_all_reduce_is_missed_when_dropped(workload, plan, name):
    with pytest.raises(NumericsWrong):
        check(drop_sum(lower(workload, plan, 4), name), workload, plan)


@pytest.mark.parametrize(('workload', 'plan', 'name'), some(WEIGHTS))
def test_every_weight_gradient_of_one_copy_is_missed_when_skipped(workload, plan, name):
    with pytest.raises(NumericsWrong, match=re.escape('d:' + name.split('.')[0])):
        check(skip(lower(workload, plan, 4), name, copy=1), workload, plan)


@pytest.mark.parametrize(
    ('workload', 'plan', 'name', 'attributes'),
    [
        (GPT, EARLY, 'layer0.attention.F', {'causal': False}),
        (GPT, EARLY, 'layer0.attention.I', {'causal': False}),
        (GPT, EARLY, 'loss.F', {'scale': 1 / 64}),
        (GPT, EARLY, 'loss.I', {'scale': 1 / 64}),
        (GPT, EARLY, 'norm.F', {'epsilon': 1e-3}),
        (GPT, EARLY, 'head.update.U', {'learning_rate': 0.011}),
        (GPT, EARLY, 'head.update.U', {'epsilon': 1e-7}),
        (GPT, EARLY, 'head.update.U', {'beta2': 0.99}),
        (MLP, LATE, 'loss.I', {'partial_share': 1.0}),
        (MLP, EARLY, 'dense0.update.U', {'learning_rate': 0.011}),
    ],
    ids=str,
)
def test_a_wrong_mask_scale_or_rate_is_found(workload, plan, name, attributes):
    program = lower(workload, plan, 4)
    with pytest.raises(NumericsWrong):
        check(change_ops(program, name, attributes=attributes), workload, plan)


def test_a_mean_over_copies_is_not_their_sum():
    program = lower(MLP, EARLY, 4)
    with pytest.raises(NumericsWrong, match='loss'):
        check(program, MLP, Plan(data=2, tensor=2, copies=2, copies_loss='sum'))


def test_the_message_names_the_worst_first():
    program = change_ops(lower(MLP, EARLY, 4), 'dense2.update.U', attributes={'learning_rate': 1.0})
    with pytest.raises(NumericsWrong, match='differ from the reference') as caught:
        check(program, MLP, EARLY, steps=1)
    first, worst, *_ = str(caught.value).splitlines()
    assert first.startswith('2 of 13 losses, gradients and parameters differ')
    assert worst.strip().startswith('step 0: dense2.bias is off by')


def test_a_parameter_that_is_never_updated_is_found():
    (role,) = lower(MLP, EARLY, 4).roles
    assert role.copy[-1] == 0
    with pytest.raises(NumericsWrong, match=re.escape('d:dense0.weight is off by inf')):
        check(skip(lower(MLP, EARLY, 4), 'dense0.update.U', copy=0), MLP, EARLY, steps=1)
