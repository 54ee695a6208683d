"""Bubbles are those of the closed forms, and of the zero-bubble paper's table, by a clock of ticks that is not ours."""

from collections.abc import Callable, Hashable
from pathlib import Path

import numpy as np
import pytest
from every import some
from pipeline_ticks import cold, longest, steady, ticks
from plain_costs import plain_costs

from simpar import Plan, Transformer, Workload, simulate
from simpar.errors import ScheduleError
from simpar.files import read_csv
from simpar.lower import lower
from simpar.memory.lifetimes import fold
from simpar.pipeline import ORDERS, StageTimes, named_order, peak_live, step_time
from simpar.pipeline.clock import Recurrence, run
from simpar.program import OpClass
from simpar.trace import Times, Trace

# How many micro-batches are in flight, to be compared with the closed forms of pipelines.


def in_flight(trace: Trace, rank: int, chunk: Callable[[OpClass], Hashable] = lambda op: 0) -> int:
    """Count the micro-batches in flight at most, on one rank, in the last step.

    A micro-batch is in flight from the start of its first compute op to the end of its last.

    Arguments: ``chunk``, to which of a rank's model chunks an op class belongs; each micro-batch counts once a chunk.
    With the closed forms of pipelines: 1F1B has stages − stage in flight.
    """
    rank_times, program = trace.times_of(rank), trace.program
    role = trace.role(rank_times)
    used = {index: program.op_classes[index] for index in np.unique(role.op_class).tolist()}
    computes = {index: chunk(op) for index, op in used.items() if op.kind == 'compute' and program.sliced(op)}
    spans: dict[tuple[Hashable, int], tuple[float, float]] = {}
    columns = (role.op_class, role.micro_batch, rank_times.start_KS[-1], rank_times.end_KS[-1])
    for index, micro_batch, start, end in zip(*(column.tolist() for column in columns), strict=True):
        if index in computes:
            key = (computes[index], micro_batch)
            since, until = spans.get(key, (start, end))
            spans[key] = (min(since, start), max(until, end))
    return _most_at_once(np.array(list(spans.values())).reshape(-1, 2), trace.step)


def _most_at_once(spans: Times, step: float) -> int:
    """How many of the spans of shape [n, 2], repeated every ``step`` seconds, overlap at most."""
    (first, since), (last, until) = fold(spans[:, 0], step), fold(spans[:, 1], step)
    # The count changes only where a span begins or ends.
    edges = np.unique(np.concatenate(([0.0], since, until)))
    begun, ended = (np.bincount(np.searchsorted(edges, times), minlength=len(edges)) for times in (since, until))
    return int((last - first).sum() + np.cumsum(begun - ended).max())


GOLDEN = Path(__file__).parent / 'golden'


RANKS = [1, 2, 3, 4, 6]
TIMES = [{'F': 1, 'I': 1, 'W': 1}, {'F': 2, 'I': 3, 'W': 1}, {'F': 3, 'I': 2, 'W': 2}, {'F': 2, 'I': 2, 'W': 0}]


@pytest.mark.parametrize('name', ['gpipe', '1f1b', 'mindspore-2.10/1f1b', 'mindspore-2.10/gpipe'])
@pytest.mark.parametrize('p', some(RANKS, 2))
def test_cold_bubble_of_gpipe_and_1f1b(name, p):
    """(p − 1)(T_F + T_B): a step takes (m + p − 1)(T_F + T_B)."""
    for m in (p, p + 1, 3 * p):
        for t in TIMES:
            assert cold(named_order(name, p, m), **t) == (m + p - 1) * sum(t.values())


@pytest.mark.parametrize('name', ['interleaved-1f1b', 'looped-bfs', 'mindspore-2.10/1f1b'])
@pytest.mark.parametrize('p', some(RANKS, 2))
@pytest.mark.parametrize('v', [2, 3])
def test_cold_bubble_of_interleaved_orders(name, p, v):
    """(p − 1)(T_F + T_B) of one stage, a v-th of the rank's: a step takes (m v + p − 1)(T_F + T_B) of a stage."""
    for m in (p, 2 * p, 3 * p):
        for t in TIMES:
            assert cold(named_order(name, p, m, v), **t) == (m * v + p - 1) * sum(t.values())


@pytest.mark.parametrize('p', RANKS)
def test_bubble_of_zb_h1(p):
    """(p − 1)(T_F + T_I − T_W), in the first step and in every further one (Qi et al. 2023, table 2)."""
    for m in (p, p + 1, 3 * p):
        for t in TIMES:
            expected = m * sum(t.values()) + (p - 1) * (t['F'] + t['I'] - t['W'])
            order = named_order('zb-h1', p, m)
            assert cold(order, **t) == expected
            assert steady(order, **t) == expected


@pytest.mark.parametrize('p', RANKS)
def test_bubble_of_zb_h2(p):
    """(p − 1)(T_F + T_I − 2 T_W): of the rank that takes longest, and in the steady state."""
    for m in (2 * p - 1, 2 * p, 3 * p + 1):
        for t in TIMES:
            expected = m * sum(t.values()) + (p - 1) * (t['F'] + t['I'] - 2 * t['W'])
            order = named_order('zb-h2', p, m)
            assert longest(order, **t) == expected
            assert steady(order, **t) == expected
    # The parallelogram: rank r begins at r T_F, so the first step is longer than the others by (p − 1) T_F.
    assert cold(named_order('zb-h2', p, 3 * p), F=2, I=2, W=2) == 6 * 3 * p + 2 * (p - 1)


@pytest.mark.parametrize('name', ['zb-h2', 'zb-v'])
@pytest.mark.parametrize('p', RANKS)
def test_no_bubble_for_equal_times_in_the_steady_state(name, p):
    for m in (2 * p, 3 * p, 3 * p + 1):
        order = named_order(name, p, m)
        assert steady(order, F=2, I=2, W=2) == 6 * m * order.stages // p


@pytest.mark.parametrize('p', [2, 3, 4, 5, 6, 9])
def test_bubbles_of_orders_with_controllable_memory(p):
    """Of equal times at most 2 / 3 and 1 / 2 of 1F1B's p (T_F + T_B); a stage is half of a rank (Qi et al. 2024)."""
    for m in (p, 2 * p + 1, 4 * p):
        assert longest(named_order('v-min', p, m), F=1, I=1, W=1) - 6 * m <= 2 / 3 * p * 6
        assert longest(named_order('v-half', p, m), F=1, I=1, W=1) - 6 * m <= 1 / 2 * p * 6


@pytest.mark.parametrize('p', [2, 3, 4, 6, 7])
def test_the_bubble_of_v_half_does_not_grow_with_micro_batches(p):
    """Where T_W + 2 T_I ≥ 2 T_F and T_W + 2 T_F ≥ 2 T_I (Qi et al. 2024); V-Min has no room for unequal times."""
    for t in ({'F': 4, 'I': 4, 'W': 1}, {'F': 3, 'I': 4, 'W': 3}, {'F': 4, 'I': 3, 'W': 3}):
        short, long = (longest(named_order('v-half', p, m), **t) - 2 * m * sum(t.values()) for m in (2 * p + 1, 5 * p))
        assert short == long
    grown = [longest(named_order('v-min', 4, m), F=3, I=4, W=3) - 20 * m for m in (8, 16)]
    assert grown[0] < grown[1]


@pytest.mark.parametrize('name', ['v-min', 'v-half'])
def test_orders_with_controllable_memory_are_as_good_as_their_authors_have_them(name):
    """The memory of their own scheduler to the unit, and no larger a bubble."""
    for row in rows('controllable_memory'):
        if row['order'] == name:
            p, m = int(row['ranks']), int(row['micro_batches'])
            order = named_order(name, p, m)
            assert max(peak_live(order)) == int(row['activations']), (p, m)
            assert longest(order, F=1, I=1, W=1) - 6 * m <= int(row['bubble']), (p, m)


def test_forwards_and_input_gradients_stand_as_their_authors_have_them():
    """W aside, whose places in gaps are a rule of our own; V-Min on 6 ranks warms up in another order."""
    met = set()
    for row in rows('controllable_memory_rows'):
        p, m, rank = (int(row[key]) for key in ('ranks', 'micro_batches', 'rank'))
        ours = named_order(row['order'], p, m).actions[rank]
        same = [str(a) for a in ours if a.kind != 'W'] == [a for a in row['actions'].split() if 'W' not in a]
        assert same or (row['order'], p) == ('v-min', 6), (row['order'], p, rank)
        met.add((row['order'], p))
    assert len(met) == 14


@pytest.mark.parametrize('p', [1, 2, 3, 4, 6])
def test_bubble_of_dualpipe_v(p):
    """(PP / 2 − 1)(F&B + B − 3 W) of PP = 2 p stages, with T_F = T_I (DeepSeek-V3 report, table 2); F&B is F + B."""
    for m in (2 * p, 2 * p + 1, 4 * p):
        for f, w in ((1, 1), (2, 0), (2, 1)):
            expected = 2 * m * (2 * f + w) + (p - 1) * (f + 2 * (f + w) - 3 * w)
            ran = run(
                Recurrence.of(named_order('dualpipe-v', p, m)),
                StageTimes.uniform(2 * p, float(f), float(f), float(w)),
                3,
            )
            assert ran[0].longest == max(ran[0].end) == max(ran[2].end) - max(ran[1].end) == expected


@pytest.mark.parametrize('name', ['1f1b', 'looped-bfs', 'interleaved-zero-bubble', 'zb-h2', 'zb-v'])
def test_the_clock_agrees_with_the_ticks(name):
    for p, m in ((1, 2), (2, 4), (3, 6), (4, 8)):
        order = named_order(name, p, m)
        for t in TIMES:
            times = StageTimes.uniform(order.stages, *map(float, t.values()))
            begin, end = ticks(order, t, steps=3)
            for number, step in enumerate(run(Recurrence.of(order), times, 3)):
                assert step.begin == tuple(begin[rank, number] for rank in range(p))
                assert step.end == tuple(end[rank, number] for rank in range(p))
            assert step_time(order, times) == steady(order, **t)


def test_an_overlap_gives_both_results_at_its_end():
    times = StageTimes.uniform(4, 2.0, 3.0, 1.0)
    order = named_order('dualpipe-v', 2, 4)
    assert run(Recurrence.of(order), times)[0].end >= tuple(
        ticks(order, {'F': 2, 'I': 3, 'W': 1})[1][rank, 0] for rank in (0, 1)
    )
    todo = Recurrence.of(order)
    seventh = [task for task in todo.in_turn if task.rank == 0][7]
    assert todo.lasts(times.forward, times.input, times.weight)[seventh.work] == 2.0 + 3.0 + 1.0
    assert order.actions[0][7].kind == 'OVERLAP_F_B'


def rows(name='zero_bubble_paper'):
    return read_csv(GOLDEN / f'{name}.csv')


@pytest.mark.parametrize('row', rows(), ids=lambda row: f'{row["model"]}-{row["micro_batches"]}')
@pytest.mark.parametrize('name', ['1f1b', 'zb-h1', 'zb-h2'])
def test_bubble_rates_of_the_paper_to_its_last_digit(row, name):
    ranks, micro_batches = int(row['ranks']), int(row['micro_batches'])
    times = StageTimes.uniform(ranks, *(float(row[column]) for column in ('T_F', 'T_I', 'T_W', 'T_comm')))
    busy = micro_batches * (times.forward[0] + times.input[0] + times.weight[0])
    cost = run(Recurrence.of(named_order(name, ranks, micro_batches)), times)[0].longest
    assert round((cost - busy) / cost, 4) == pytest.approx(float(row[name]), abs=1e-9)


def test_travel_counts_between_ranks_only():
    """Four F, four I, four crossings, and two W in the way: that of stage 2, done before 1I0, and the last."""
    times = StageTimes.uniform(4, 1.0, 1.0, 1.0, 10.0)
    down_and_up = named_order('zb-v', 2, 1)
    assert ' '.join(map(str, down_and_up.actions[1])) == '1F0 2F0 2I0 2W0 1I0 1W0'
    first = run(Recurrence.of(down_and_up), times)[0]
    assert first.begin == (0.0, 11.0)
    assert max(first.end) == 4 + 4 + 4 * 10 + 2


def test_times_of_another_number_of_stages_are_refused():
    with pytest.raises(ScheduleError, match='times of 3 stages, but the order has 4'):
        step_time(named_order('1f1b', 4, 4), StageTimes.uniform(3, 1.0, 1.0, 1.0))


@pytest.mark.parametrize(
    ('forward', 'communication', 'what'),
    [
        ((1.0, 1.0), (), 'times of 2, 2, 2, 0 stages and ways'),
        ((1.0,), (0.0,), 'times of 1, 2, 2, 1 stages and ways'),
        ((1.0, -1.0), (0.0,), 'negative or not finite'),
        ((1.0, float('nan')), (0.0,), 'negative or not finite'),
        ((1.0, 1.0), (float('inf'),), 'negative or not finite'),
    ],
)
def test_times_that_cannot_be_are_refused(forward, communication, what):
    with pytest.raises(ScheduleError, match=what):
        StageTimes(forward=forward, input=(1.0, 1.0), weight=(1.0, 1.0), communication=communication)


# The simulator on whole programs: bubbles and live activations are the closed forms exactly, and what orders say


EQUAL = {'F': 1, 'I': 1, 'W': 1}
UNEQUAL = {'F': 2, 'I': 3, 'W': 1}


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
@pytest.mark.parametrize('name', some(ORDERS, 2))
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
