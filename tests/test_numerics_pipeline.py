"""Random pipelines compute what torch autograd computes on the unsharded model, to 1e-10 in norm in fp64."""

from dataclasses import replace
from itertools import product

import pytest
from every import EVERY, some
from pipeline_cases import any_case, edited, left_over
from tables import load_table

from executor.numerics import check
from simpar.errors import Infeasible, NumericsWrong, ScheduleError
from simpar.lower import lower
from simpar.model import Dense, Flatten, Network
from simpar.pipeline import named_order, parse_action, read_csv, with_communication, write_csv
from simpar.pipeline.order import Order
from simpar.plans import Plan
from simpar.workload import Adam, Transformer, Workload

ANY = 60
"""Orders that nobody would write."""
GPT = Workload(
    model=Transformer(layers=4, hidden=8, heads=2, vocab=12, sequence=4, tied=True, init_std=0.3),
    batch=16,
    precision='fp64',
    optimizer=Adam(learning_rate=0.01),
)
PLAN = Plan(pipeline=2, data=2, micro_batches=4, copies=2)


def compare(program, workload, plan, seed):
    """Train a step or two in process, and hold everything against autograd's."""
    steps = 2 if seed % 3 == 0 else 1
    report = check(program, workload, plan, steps=steps, seed=seed)
    parameters = sum(tensor.kind == 'parameter' for tensor in program.tensors)
    assert len(report.deviations) == steps * (1 + 2 * parameters)
    assert left_over(program) == {'loss'}


@pytest.mark.parametrize('seed', range(0, ANY, min(EVERY, 12)))
def test_an_order_that_nobody_would_write_computes_the_same(seed, tmp_path):
    """Half of them by way of a CSV file, half of these with its own sends and receives."""
    workload, plan, world, order = any_case(seed, ranks=8)
    if seed % 4 == 0:
        write_csv(order, tmp_path / 'order.csv')
        order = read_csv(tmp_path / 'order.csv')
    elif seed % 4 == 1 and plan.pipeline > 1:
        write_csv(with_communication(order, 'late'), tmp_path / 'order.csv')
        order = read_csv(tmp_path / 'order.csv')
        assert order.communicates
    compare(lower(workload, plan, world, order), workload, plan, seed)


@pytest.mark.parametrize(
    ('name', 'p', 'chunks'), [('1f1b', 4, 1), ('gpipe', 4, 1), ('zb-h1', 4, 1), ('interleaved-1f1b', 2, 2)]
)
def test_a_first_stage_with_nothing_to_train_gets_no_gradient(name, p, chunks):
    layers = (Flatten(), *(Dense(inputs=4, outputs=4) for _ in range(3)))
    workload = Workload(model=Network(layers=layers), batch=8, precision='fp64')
    plan = Plan(pipeline=p, order=name, chunks=chunks, micro_batches=4, stages=(1, 1, 1, 1))
    program = lower(workload, plan, p)
    first = [program.op_classes[number] for number in program.roles[0].op_class]
    assert not any(op.kind == 'recv' and op.stage == 0 for op in first)
    compare(program, workload, plan, 1)


HAND_WRITTEN = load_table(__file__, 'HAND_WRITTEN')


def written(rows):
    return Order(tuple(tuple(map(parse_action, row.split())) for row in rows), (0, 1), 3)


@pytest.mark.parametrize(('zero', 'case'), some(product(range(4), (('1f1b', 1, 2), ('interleaved-1f1b', 2, 1)))))
def test_a_tied_weight_travels_in_a_message_of_each_of_its_two_stages(zero, case):
    """The first stage's message has other weights beside it, the last stage's has not: they were one op by name."""
    order, chunks, tensor = case
    plan = replace(PLAN, order=order, chunks=chunks, tensor=tensor, zero=zero, copies=1, fusion='stage')
    compare(lower(GPT, plan, 4 * tensor), GPT, plan, seed=1)


def test_an_overlap_interleaves_its_micro_batches():
    """Where a collective cuts them, ops of both take turns: a forward's, a backward's, a forward's ..."""
    plan = Plan(pipeline=2, tensor=2, micro_batches=3)
    program = lower(replace(GPT, batch=3), plan, 4, written(HAND_WRITTEN['a forward beside a backward']))
    role = program.roles[0]
    slots = [
        (program.op(role, slot).phase, int(role.micro_batch[slot]))
        for slot in range(len(role))
        if program.op(role, slot).kind == 'compute'
    ]
    first, last = slots.index(('F', 2)), len(slots) - slots[::-1].index(('F', 2))
    turns = [
        forward for forward, before in zip(slots[first:last], slots[first - 1 :], strict=False) if forward != before
    ]
    assert sum(turn == ('F', 2) for turn in turns) >= 4
    assert {turn for turn in turns if turn != ('F', 2)} == {('I', 0), ('W', 0)}


@pytest.mark.parametrize(
    ('plan', 'order', 'what'),
    [
        (Plan(pipeline=2, micro_batches=4), named_order('1f1b', 4, 4), '4 pipeline ranks, but the plan 2'),
        (Plan(pipeline=2, micro_batches=4), named_order('1f1b', 2, 2), '2 micro-batches, but the plan 4'),
        (Plan(pipeline=2, micro_batches=2), named_order('mindspore-2.10/seqpipe', 2, 2, 1, 2), '2 sequence chunks'),
    ],
)
def test_an_order_of_other_counts_than_the_plan_is_refused(plan, order, what):
    with pytest.raises(Infeasible, match=what):
        lower(GPT, plan, 2, order)
    if order.sequence_chunks == 1:
        rows = tuple(' '.join(map(str, row)) for row in order.actions)
        with pytest.raises(Infeasible, match=what):
            lower(GPT, replace(plan, rows=rows), 2)


def test_an_order_that_lacks_something_is_refused():
    order = named_order('1f1b', 2, 4)
    with pytest.raises(ScheduleError, match='lacks F of micro-batch 0'):
        lower(GPT, replace(PLAN, data=1), 2, replace(order, actions=(order.actions[0][1:], order.actions[1])))


# What is wrong is found wrong.


def without(named, micro_batch=0, copy=0):
    return lambda slots: [slot for slot in slots if (slot[0], *slot[2:]) != (named, micro_batch, copy)]


def swapped(named):
    """The receives of micro-batches 0 and 1 of the first copy in each other's order."""

    def change(slots):
        first, second = (next(slot for slot in slots if (slot[0], *slot[2:]) == (named, mb, 0)) for mb in (0, 1))
        return [new for slot in slots if slot != second for new in ((second, first) if slot == first else (slot,))]

    return change


def sooner(named, before, micro_batch):
    """A sum of gradients before the last that adds to them."""

    def change(slots):
        (moved,) = [slot for slot in slots if slot[0] == named]
        rest = [slot for slot in slots if slot is not moved]
        at = next(index for index, slot in enumerate(rest) if (slot[0], *slot[2:]) == (before, micro_batch, 1))
        return [*rest[:at], moved, *rest[at:]]

    return change


WRONG = {
    'a W of one micro-batch and copy left out': (0, without('layer0.fc1.W', 3, 1)),
    'the sum of the tied gradient left out at one end': (0, without('d:embedding.weight.add1.W')),
    'activations received in another order': (1, swapped('layer1.residual2.recv.F')),
    'gradients received in another order': (0, swapped('d:layer1.residual2.received.recv.I')),
    'gradients summed before the last micro-batch': (
        0,
        sooner('layer0.gradients.data.all_reduce.W', 'layer0.qkv.W', 3),
    ),
    'the tied gradient sent before the data ranks have summed it': (
        1,
        sooner('d:embedding.weight.send0.W', 'head.W', 3),
    ),
}


@pytest.mark.parametrize(('role', 'change'), WRONG.values(), ids=WRONG)
def test_a_wrong_pipeline_is_found(role, change):
    program = edited(lower(GPT, PLAN, 4), change, role)
    with pytest.raises(NumericsWrong):
        check(program, GPT, PLAN, steps=1)
