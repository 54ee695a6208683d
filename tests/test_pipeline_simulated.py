"""The simulator on whole programs: bubbles and live activations are the closed forms exactly, and what orders say."""

import pytest
from micro_batches import in_flight
from pipeline_ticks import ticks
from plain_costs import plain_costs

from simpar.engine import simulate
from simpar.errors import ScheduleError
from simpar.lower import lower
from simpar.metrics import metrics
from simpar.pipeline import ORDERS, named_order, peak_live
from simpar.plans import Plan
from simpar.workload import Transformer, Workload

EQUAL = {'F': 1, 'I': 1, 'W': 1}
UNEQUAL = {'F': 2, 'I': 3, 'W': 1}
TIMES = [EQUAL, UNEQUAL, {'F': 3, 'I': 2, 'W': 2}]


def costs(program, seconds, way=0.0):
    """Unit costs: one op of each stage's F, I and W takes all the time of the action, all else none.

    The feed-forward's second product: its I and W come first in a backward, so that the gradient leaves at its end.
    """
    share = {f'fc2.{phase}{split}': seconds[phase] for phase in seconds for split in ('', '.split')}
    return plain_costs(
        program, lambda op: share.get(op.name.partition('.')[2], 0) / program.copies, lambda op: way / program.copies
    )


def simulated(plan, seconds, way=0.0, steps=3):
    """The trace of a model with one layer a stage."""
    stages = named_order(plan.order, plan.pipeline, plan.micro_batches, plan.chunks).stages
    workload = Workload(
        model=Transformer(layers=stages, hidden=4, heads=1, vocab=4, sequence=1), batch=plan.micro_batches * plan.copies
    )
    program = lower(workload, plan, plan.pipeline)
    return simulate(program, costs(program, seconds, way), steps=steps)


def pipeline(name, p, m, v=0, **given):
    return Plan(data=1, pipeline=p, micro_batches=m, order=name, chunks=v, **given)


@pytest.mark.parametrize('receive', ['early', 'late'])
@pytest.mark.parametrize('name', ORDERS)
def test_every_rank_ends_when_its_order_says(name, receive):
    """Against a clock of ticks that knows orders alone, over three steps without a barrier."""
    met = 0
    for p, m in ((2, 3), (2, 4), (3, 6), (4, 5), (4, 8)):
        try:
            order = named_order(name, p, m)
        except ScheduleError:
            continue
        met += 1
        trace = simulated(pipeline(name, p, m, receive=receive), UNEQUAL)
        _, end = ticks(order, UNEQUAL, steps=3)
        for rank in range(p):
            assert trace.times_of(rank).end_KS.max(axis=1).tolist() == [end[rank, step] for step in range(3)]
    assert met >= 2


@pytest.mark.parametrize('name', ['interleaved-1f1b', 'looped-bfs'])
@pytest.mark.parametrize('v', [2, 3])
def test_cold_bubble_of_interleaved_orders_is_a_vth(name, v):
    """(p − 1)(T_F + T_B) / v of the work of a rank's v stages together."""
    for p, m in ((2, 2), (2, 4), (3, 6), (4, 4)):
        for t in TIMES:
            trace = simulated(pipeline(name, p, m, v), t)
            of_a_rank = v * sum(t.values())
            assert trace.cold_step == m * of_a_rank + (p - 1) * of_a_rank / v
            assert {rank.bubble for rank in metrics(trace).cold.ranks} == {(p - 1) * of_a_rank / v}


def test_copies_shorten_gpipes_bubble_as_more_micro_batches_would():
    """A copy is sent on as soon as it is done: (m N + p − 1)(T_F + T_B) / N."""
    for p, m, copies in ((2, 2, 2), (4, 4, 2), (3, 5, 4)):
        trace = simulated(pipeline('gpipe', p, m, copies=copies), UNEQUAL)
        assert trace.cold_step == (m * copies + p - 1) * sum(UNEQUAL.values()) / copies


@pytest.mark.parametrize('name', ORDERS)
def test_peak_live_activations(name):
    """From the first op of a micro-batch on a stage to its last, a W included: what the order says it keeps."""
    for p, m in ((2, 4), (3, 6), (4, 8)):
        trace = simulated(pipeline(name, p, m), EQUAL, steps=1)
        peaks = peak_live(named_order(name, p, m))
        assert tuple(in_flight(trace, rank, lambda op: op.stage) for rank in range(p)) == peaks, (p, m)


def test_receives_that_are_posted_early_hide_the_way_and_late_ones_show_it():
    """GPipe, two ranks: where the receive is there, messages travel under computation but for the first of each
    direction; where it waits for the computation before, each F of rank 1 and each B of rank 0 waits for its own."""
    m, way, f, b = 4, 1, 1, 2
    early, late = (simulated(pipeline('gpipe', 2, m, receive=receive), EQUAL, way) for receive in ('early', 'late'))
    assert early.cold_step == (m + 1) * (f + b) + 2 * way
    assert late.cold_step == f + m * (way + f) + b + m * (way + b)
