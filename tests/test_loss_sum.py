"""The loss summed over ranks for display: which ranks have the sum, where it stands, and that it is the loss."""

import pytest
from combined_cases import combined_case

from simpar.lower import lower
from simpar.model import Dense, Network, Relu
from simpar.plans import Plan
from simpar.workload import Transformer, Workload

GPT = Workload(model=Transformer(layers=2, hidden=32, heads=4, vocab=64, sequence=8), batch=16)
CUT = Network(layers=(Dense(inputs=16, outputs=16, strategy=((2, 4), (4, 1))), Relu()))


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
