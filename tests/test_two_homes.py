"""DualPipe with both directions: what each rank does, keeps and sends, and that it trains as the unsharded model."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest
from every import some

from simpar.errors import Infeasible, ScheduleError
from simpar.lower import lower
from simpar.lower.lower import order_of
from simpar.model import Dense, Network
from simpar.model.library.experts import Experts
from simpar.pipeline import named_order, peak_live
from simpar.pipeline.clock import StageTimes, step_time
from simpar.plans import Plan
from simpar.program import BYTES
from simpar.schedule.checks import pipeline_fits
from simpar.workload import AdamW, Transformer, Workload

EXPERTS = Experts(count=4, top_k=2, ffn=16, aux_loss=0.2, aux_group='global')
MODEL = Transformer(layers=4, hidden=16, heads=4, vocab=24, sequence=8, init_std=0.2)


def workload(plan, **more):
    batch = 2 * plan.data * plan.micro_batches * plan.copies
    return Workload(model=replace(MODEL, **more), batch=batch, optimizer=AdamW(learning_rate=0.01, epsilon=1e-3))


def plan_of(pipeline, **more):
    return Plan(**{'data': 1, 'pipeline': pipeline, 'micro_batches': 2 * pipeline, 'order': 'dualpipe', **more})


def program(plan, **more):
    return lower(workload(plan, **more), plan, plan.data * plan.context * plan.tensor * plan.pipeline)


# What a rank does


def steps_of_deepseek(rank, ranks, chunks):
    """The eight steps of github.com/deepseek-ai/DualPipe, as (kind, near or far direction); a pair overlaps."""
    half, mine = ranks // 2, min(rank, ranks - 1 - rank)
    yield from [('F', 0)] * (2 * (half - mine - 1))
    yield from [('F', 0), ('F', 1)] * (mine + 1)
    yield from [('I', 1), 'W', ('F', 1)] * (half - mine - 1)
    for number in range(chunks // 2 - ranks + mine + 1):
        # On the middle ranks the first backward needs the forward beside it.
        yield from [('F', 0), ('B', 1)] if number == 0 and mine == half - 1 else [('F', 0, 'B', 1)]
        yield ('F', 1, 'B', 0)
    yield from [('B', 1), ('F', 1, 'B', 0)] * (half - mine - 1)
    for number in range(2 * (mine + 1)):
        yield ('I' if number >= mine + 1 else 'B', 1 - number % 2)
    yield from ['W', ('I', 0)] * (half - mine - 1)
    yield from ['W'] * (mine + 1)


@pytest.mark.parametrize(('ranks', 'chunks'), [(2, 4), (4, 8), (8, 16), (8, 20), (12, 30)])
def test_every_rank_does_the_steps_of_deepseeks_own(ranks, chunks):
    order = order_of(plan_of(ranks, micro_batches=chunks))
    for rank in range(ranks):
        near = min(rank, ranks - 1 - rank)
        found = []
        for action in order.actions[near]:
            parts = [(part.kind, int(part.stage != near)) for part in action.parts]
            found.append('W' if parts[0][0] == 'W' else tuple(one for part in parts for one in part))
        assert found == list(steps_of_deepseek(rank, ranks, chunks))


@pytest.mark.parametrize('ranks', [2, 4, 8])
@pytest.mark.parametrize(('f', 'w'), [(1, 1), (2, 1), (5, 3)])
def test_the_bubble_is_that_of_deepseeks_table(ranks, f, w):
    """(PP/2 - 1)(F&B + B - 3W) (DeepSeek-V3, table 2), for F = I; the clock counts F + B for an overlap F&B."""
    m = 4 * ranks
    times = StageTimes.uniform(ranks, float(f), float(f), float(w))
    busy = Fraction(m) * (f + f + w)  # two stages a rank, half of the micro-batches each
    backward = f + w
    assert step_time(order_of(plan_of(ranks, micro_batches=m)), times) - busy == (ranks / 2 - 1) * (
        f + backward + backward - 3 * w
    )


@pytest.mark.parametrize('ranks', [2, 4, 8, 12])
def test_a_rank_keeps_one_activation_more_than_there_are_ranks(ranks):
    """PP + 1 of DeepSeek-V3's table 2, in activations of one of PP stages."""
    assert max(peak_live(order_of(plan_of(ranks, micro_batches=4 * ranks)))) == ranks + 1


@pytest.mark.parametrize('ranks', [2, 4])
def test_a_rank_holds_twice_the_weights_of_one_stage(ranks):
    def held(order):
        made = program(plan_of(ranks, order=order), layers=8)
        of_layers = [one for one in made.tensors if one.kind == 'parameter' and one.name.startswith('layer')]
        return [
            sum(
                BYTES[one.dtype] * one.local_shape(made.partitions)[0]
                for one in of_layers
                if made.holds(rank, one.name)
            )
            for rank in range(made.world)
        ]

    assert held('dualpipe') == [2 * one for one in held('1f1b')]


def test_it_sends_what_dualpipe_v_sends_and_to_the_mirror():
    """Half as many pipeline ranks with twice the data ranks, the second half of the stages at the mirror."""
    both, folded = program(plan_of(4)), program(plan_of(2, data=2, order='dualpipe-v', micro_batches=4))
    mine, theirs = (Counter((op.name, op.bytes) for op in one.op_classes) for one in (both, folded))
    added = [op for op in both.op_classes if op.partition == 'mirror']
    assert {op.phase: op.bytes for op in added} == dict.fromkeys('FI', 2 * 8 * 16 * 4)
    assert sum(mine.values()) - sum(theirs.values()) == len(added) == 2
    assert both.partitions['mirror'].groups_GP.tolist() == [[0, 1], [2, 3]]


# Training

PLANS = {
    'two ranks': plan_of(2),
    'four ranks': plan_of(4, micro_batches=10),
    'data, tensor, sequence, copies': plan_of(2, data=2, tensor=2, sequence_parallel=True, copies=2),
    'zero, copies': plan_of(4, data=2, copies=2, zero=1),
    'tensor, recompute, weights sharded': plan_of(4, tensor=2, recompute='full', zero=3),
    'experts': plan_of(2, data=2, expert=2, copies=2),
    'ring': plan_of(2, context=2, context_kind='ring', zero=2),
}


@pytest.mark.parametrize('name', some(PLANS, 2))
def test_it_trains_as_the_unsharded_model(name):
    from executor.numerics import check
    from executor.validate import validate

    plan = PLANS[name]
    more = {'tied': plan.tensor == 1, 'experts': EXPERTS if plan.expert > 1 else None, 'bias': ()}
    made = program(plan, **more)
    validate(made)
    check(made, workload(plan, **more), plan, steps=2)


def test_what_does_not_fit_is_told_by_key():
    plan = plan_of(3, micro_batches=5, stages='balanced')
    found = [problem.key for problem in pipeline_fits(workload(plan, dropout=0.1), plan)]
    assert found == [
        ('plan', 'pipeline'), ('plan', 'micro_batches'), ('plan', 'micro_batches'), ('plan', 'stages'),
        ('workload', 'transformer', 'dropout'),
    ]  # fmt: skip
    network = Workload(model=Network(layers=(Dense(inputs=4, outputs=4), Dense(inputs=4, outputs=4))), batch=8)
    assert [problem.key for problem in pipeline_fits(network, plan_of(2))] == [('plan', 'order')]
    with pytest.raises(Infeasible, match='3 is odd'):
        lower(workload(plan), replace(plan, stages=()), 3)
    with pytest.raises(ScheduleError, match='keeps each stage on two ranks'):
        named_order('dualpipe', 4, 8)
