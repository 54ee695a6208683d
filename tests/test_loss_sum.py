"""The loss summed over ranks for display: which ranks have the sum, where it stands, and that it is the loss."""

from pathlib import Path

import pytest
from combined_cases import combined_case

from simpar.case import load_case
from simpar.listing import rank_ir, strategies_to_dict, strategy_lines
from simpar.lower import lower
from simpar.model import Dense, Network, Relu
from simpar.plans import Plan
from simpar.workload import Transformer, Workload

GPT = Workload(model=Transformer(layers=2, hidden=32, heads=4, vocab=64, sequence=8), batch=16)
CUT = Network(layers=(Dense(inputs=16, outputs=16, strategy=((2, 4), (4, 1))), Relu()))
PROPAGATION = Path(__file__).parent.parent / 'examples' / 'sharding_propagation.yaml'


def summed(program, rank=0):
    """Actions of a rank that make the loss or sum it, in order; of a sum also its bytes and ranks."""
    role, found = program.role(rank), []
    for slot in range(len(role)):
        op = program.op(role, slot)
        if 'loss' in op.writes:
            found.append(program.action(role, slot))
        elif 'loss' in op.reads:
            ranks = program.partitions[op.partition].members(rank)
            found.append((program.action(role, slot), op.bytes, ranks))
    return found


# Cut by degrees


def test_two_data_ranks_sum_four_bytes_behind_the_loss():
    assert summed(lower(GPT, Plan(data=2, sum_loss=True), 2)) == ['loss.F', ('loss.total.all_reduce.F', 4, (0, 1))]


@pytest.mark.parametrize('plan', [Plan(sum_loss=True), Plan(tensor=4, sum_loss=True), Plan(data=2)], ids=str)
def test_nothing_is_summed_where_all_ranks_have_all_of_it_or_nobody_asks(plan):
    assert summed(lower(GPT, plan, plan.data * plan.tensor or plan.tensor)) == ['loss.F']


def test_of_data_and_tensor_ranks_those_with_other_samples_sum():
    program = lower(GPT, Plan(data=2, tensor=4, sum_loss=True), 8)
    assert summed(program, 1) == ['loss.F', ('loss.total.all_reduce.F', 4, (1, 5))]


def test_every_copy_and_micro_batch_has_a_sum_of_its_own():
    found = summed(lower(GPT, Plan(data=2, copies=2, micro_batches=2, sum_loss=True), 2))
    assert [name if isinstance(name, str) else name[0] for name in found] == [
        f'loss.{what}F.mb{micro_batch}.c{copy}'
        for micro_batch in (0, 1)
        for copy in (0, 1)
        for what in ('', 'total.all_reduce.')
    ]


@pytest.mark.parametrize(('order', 'last'), [('1f1b', 1), ('zb-v', 0)])
def test_in_a_pipeline_the_last_stage_has_it(order, last):
    workload = Workload(model=Transformer(layers=4, hidden=32, heads=4, vocab=64, sequence=8), batch=16)
    program = lower(workload, Plan(pipeline=2, data=2, micro_batches=4, order=order, sum_loss=True), 4)
    counts = [len(summed(program, 2 * place)) for place in (0, 1)]
    assert counts[last] == 2 * 4
    assert counts[1 - last] == 0
    assert {one[2] for one in summed(program, 2 * last) if isinstance(one, tuple)} == {(2 * last, 2 * last + 1)}


# Cut by strategies


@pytest.mark.parametrize(
    ('strategy', 'ranks'),
    [
        (((2, 4), (2, 4)), (0, 1, 2, 3, 4, 5, 6, 7)),
        (((2, 1), (2, 1)), (1, 5)),
        (((1, 2), (1, 2)), (1, 5)),
        (((2, 2), (2, 2)), (1, 3, 5, 7)),
    ],
)
def test_along_all_axes_that_cut_a_loss_it_is_summed(strategy, ranks):
    """What a strategy does not need repeats, innermost."""
    program = lower(Workload(model=CUT, batch=16, loss='mse', loss_strategy=strategy), Plan(sum_loss=True), 8)
    assert summed(program, 1) == ['loss.F', ('loss.total.all_reduce.F', 4, ranks)]


def test_a_loss_that_all_ranks_have_is_not_summed():
    whole = ((1, 1), (1, 1))
    program = lower(Workload(model=CUT, batch=16, loss='mse', loss_strategy=whole), Plan(sum_loss=True), 8)
    assert summed(program) == ['loss.F']


def test_a_user_sees_it_at_the_loss():
    case = load_case(PROPAGATION, ['plan.sum_loss=true'])
    facts = strategies_to_dict(case)
    (loss,) = (row for row in facts['operators'] if row['name'] == 'loss')
    assert [one['op'] for one in loss['collectives'] if one['purpose'] == 'loss'] == ['loss.total.all_reduce.F']
    assert '    F all_reduce of 4 B over 0-1-2-3-4-5-6-7: loss' in strategy_lines(facts)
    assert '{instance name: loss.total.all_reduce} {op: sum, group: world' in rank_ir(case, 3)


# Nobody waits for it, and it is the loss


@pytest.mark.torch
@pytest.mark.parametrize('seed', range(0, 120, 4))
def test_the_sums_of_a_step_are_its_loss(seed, monkeypatch):
    """On every rank of the last stage the sums of all copies and micro-batches add up to what machines report."""
    from executor import inprocess

    totals, communicate = [], inprocess.communicate

    def watched(ops, messages):
        given = communicate(ops, messages)
        if ops[0].writes == ('loss.total',):
            totals.extend(float(total) for (total,) in given)
        return given

    workload, plan, world = combined_case(seed)
    program = lower(workload, plan, world)
    monkeypatch.setattr(inprocess, 'communicate', watched)
    (loss,) = inprocess.InProcess(program, seed).run().losses
    cut = any(op.writes == ('loss.total',) for op in program.op_classes)
    assert len(totals) == cut * plan.micro_batches * plan.copies * world // plan.pipeline
    assert not cut or sum(totals) == pytest.approx(loss * (world // plan.pipeline), rel=1e-12)
