"""Lowering: which ops, collectives, groups and orders a plan implies."""

import re
from collections import Counter
from dataclasses import replace

import pytest

from simpar.errors import Infeasible
from simpar.lower import lower
from simpar.model import Dense, Network
from simpar.plans import Plan
from simpar.workload import Adam, Transformer, Workload

GPT = Workload(
    model=Transformer(layers=2, hidden=32, heads=4, vocab=64, sequence=8), batch=16, precision='fp16', optimizer=Adam()
)


def collectives(program):
    """How often each collective stands in the step, by (operator, partition, phase)."""
    role = program.roles[0]
    ops = [program.op(role, slot) for slot in range(len(role))]
    return Counter((op.operator, op.partition, op.phase) for op in ops if op.kind == 'collective')


def test_one_rank_needs_no_communication():
    assert collectives(lower(GPT, Plan(), 1)) == {}


def test_megatron_has_two_all_reduces_a_layer_each_way():
    """Shoeybi et al. 2019, figure 4: f and g, twice a layer; plus embedding, head and the vocabulary-parallel loss."""
    counts = collectives(lower(GPT, Plan(tensor=4), 4))
    assert counts['all_reduce', 'tensor', 'F'] == 2 * 2 + 1 + 2  # layers, embedding, loss: maximum and sums
    assert counts['all_reduce', 'tensor', 'I'] == 2 * 2 + 1  # layers, head


def test_late_reduction_keeps_the_number_of_all_reduces_but_moves_them():
    """MindSpore: no sum behind the column-cut product; the sum stands at the backward of the earlier all-reduce."""
    early = lower(GPT, Plan(tensor=4), 4)
    late = lower(GPT, Plan(tensor=4, reduce='late'), 4)
    assert collectives(late)['all_reduce', 'tensor', 'I'] == collectives(early)['all_reduce', 'tensor', 'I']
    row = [op.name for op in late.op_classes if op.kind == 'collective' and op.phase == 'I']
    assert any('residual2' in name for name in row)


def test_sequence_parallelism_turns_all_reduces_into_scatters_and_gathers():
    """Korthikanti et al. 2022, figure 5, with the gather before a product repeated for its weight's gradient."""
    counts = collectives(lower(GPT, Plan(tensor=4, sequence_parallel=True), 4))
    layers = 2
    assert counts['reduce_scatter', 'tensor', 'F'] == 2 * layers + 1
    assert counts['all_gather', 'tensor', 'F'] == 2 * layers + 1
    assert counts['reduce_scatter', 'tensor', 'I'] == 2 * layers + 1
    assert counts['all_gather', 'tensor', 'I'] == 2 * layers + 1
    assert counts['all_gather', 'tensor', 'W'] == 2 * layers + 1


@pytest.mark.parametrize('copies', [1, 2, 4])
@pytest.mark.parametrize('sequence_parallel', [False, True])
def test_copies_change_neither_work_nor_bytes(copies, sequence_parallel):
    """FLOPs and message bytes of a step are those of the batch, however it is sliced."""

    def totals(plan):
        program = lower(GPT, plan, 8)
        role = program.roles[0]
        ops = [program.op(role, slot) for slot in range(len(role))]
        compute = sum(op.flops for op in ops if op.kind == 'compute')
        return compute, sum(op.bytes for op in ops if op.kind == 'collective')

    plan = Plan(tensor=4, sequence_parallel=sequence_parallel)
    assert totals(replace(plan, copies=copies)) == totals(plan)


def test_flops_of_matrix_products_are_three_times_the_forward():
    """2·m·n·k for F, I and W each (no I for the first layer's input): Kaplan et al. 2020, 6·N·D."""
    program = lower(GPT, Plan(tensor=2), 4)
    flops = Counter()
    for op in program.op_classes:
        if op.operator == 'matmul':
            flops[op.phase] += op.flops
    weights = 2 * (4 * 32 * 32 + 2 * 32 * 128) + 32 * 64
    assert flops['F'] == flops['I'] == flops['W'] == 2 * weights * 16 * 8 / 4


def test_what_does_not_divide_stays_whole_and_says_so():
    odd = Workload(model=Network(layers=(Dense(inputs=8, outputs=10),)), batch=8)
    program = lower(odd, Plan(tensor=4), 4)
    assert program.notes == (
        'dense0 stays unsharded on every tensor rank: its 10 outputs are not divisible by tensor 4',
    )
    assert program.local_shape(program.tensor['dense0.weight']) == (10, 8)


def test_a_sequence_that_does_not_divide_stays_whole():
    odd = replace(GPT, model=replace(GPT.model, sequence=7))
    program = lower(odd, Plan(tensor=2, sequence_parallel=True), 2)
    assert program.notes == (
        'the sequence of norms and residuals stays unsharded on every tensor rank: 7 is not divisible by tensor 2',
    )
    assert set(collectives(program)) == {('all_reduce', 'tensor', 'F'), ('all_reduce', 'tensor', 'I')}


def test_degrees_that_do_not_fit_are_infeasible():
    with pytest.raises(Infeasible, match=re.escape('data 2 × tensor 3 = 6 ranks, but the cluster has 8')):
        lower(GPT, Plan(data=2, tensor=3), 8)
    with pytest.raises(Infeasible, match='a batch of 16 cannot be split into data 8 × copies 4'):
        lower(GPT, Plan(copies=4), 8)


def test_gradients_of_cut_norms_are_summed_over_all_ranks():
    """Every tensor rank sees only its tokens, so a norm's gradient is summed over data × tensor."""
    program = lower(GPT, Plan(tensor=2, sequence_parallel=True), 4)
    over = {name: op.partition for op in program.op_classes if op.name.count('gradients') for name in op.reads}
    assert over['d:layer0.norm1.gain'] == 'stage'
    assert over['d:layer0.qkv.weight'] == 'data'


def test_tied_embedding_is_one_parameter():
    tied = replace(GPT, model=replace(GPT.model, tied=True))
    program = lower(tied, Plan(tensor=4), 4)
    assert 'head.weight' not in program.tensor
    adds = [op.name for op in program.op_classes if 'd:embedding.weight' in op.accumulates]
    assert adds == ['head.W', 'embedding.W']


def test_a_plan_gives_the_same_program_whatever_was_lowered_before():
    plans = [Plan(data=2, recompute=how, zero=zero) for how in ('none', 'full') for zero in (0, 3)]
    first = [lower(GPT, plan, 2).hash for plan in plans]
    assert [lower(GPT, plan, 2).hash for plan in plans] == first
    assert len(set(first)) == len(plans)
