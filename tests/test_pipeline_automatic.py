"""The automatic zero bubble is nearly always the optimum where all can be tried, and never worse than its bases."""

import random
from itertools import product
from pathlib import Path

import pytest
from every import EVERY, draws
from hypothesis import given
from hypothesis import strategies as st
from pipeline_ticks import longest, steady

from simpar.errors import ScheduleError
from simpar.files import read_csv
from simpar.pipeline import StageTimes, automatic_order, check_order, named_order, peak_live, step_time
from simpar.pipeline.automatic import RULES, Setting, shortlist
from simpar.pipeline.clock import Recurrence, run
from simpar.pipeline.order import Action, loop, make_order
from simpar.pipeline.zero_bubble import of_letters

PAPER = Path(__file__).parent / 'golden' / 'zero_bubble_paper.csv'
ROWS = [row for row in read_csv(PAPER) if int(row['ranks']) * int(row['micro_batches']) <= 800]


@pytest.mark.parametrize('row', ROWS, ids=lambda row: f'{row["model"]}-{row["micro_batches"]}')
@pytest.mark.parametrize(('name', 'share'), [('zb-1p', 1), ('zb-2p', 2)])
def test_bubble_is_at_most_that_of_the_paper(row, name, share):
    ranks, micro_batches = int(row['ranks']), int(row['micro_batches'])
    kept = 32 / (34 + 5 * int(row['heads']) * int(row['sequence']) / int(row['hidden']))
    times = StageTimes.uniform(ranks, *(float(row[column]) for column in ('T_F', 'T_I', 'T_W', 'T_comm')))
    order = check_order(automatic_order(micro_batches, times, share * ranks, kept))
    assert max(peak_live(order, kept)) <= share * ranks
    busy = micro_batches * (times.forward[0] + times.input[0] + times.weight[0])
    cost = run(Recurrence.of(order), times)[0].longest
    assert round((cost - busy) / cost, 4) <= float(row[name])


@pytest.mark.parametrize('p', [1, 2, 3, 4, 6, 8])
def test_closed_forms_for_equal_times(p):
    """ZB-1p: (p − 1) T as ZB-H1; ZB-2p, and 2p − 1 activations: none, in the steady state and on the longest rank."""
    for m in (2 * p, 3 * p + 1):
        for limit, bubble in ((p, p - 1), (2 * p - 1, 0), (2 * p, 0)):
            order = automatic_order(m, StageTimes.uniform(p, 1.0, 1.0, 1.0), limit)
            assert steady(order, F=1, I=1, W=1) == 3 * m + bubble
            assert longest(order, F=1, I=1, W=1) == 3 * m + bubble
            assert max(peak_live(order)) <= limit


SECONDS = st.integers(0, 24).map(lambda eighths: eighths / 8)


@st.composite
def questions(draw, ranks, micro_batches):
    p, m = draw(ranks), draw(micro_batches)
    times = StageTimes(
        forward=tuple(draw(SECONDS) for _ in range(p)),
        input=tuple(draw(SECONDS) for _ in range(p)),
        weight=tuple(draw(SECONDS) for _ in range(p)),
        communication=tuple(draw(SECONDS) for _ in range(p - 1)),
    )
    return m, times, draw(st.integers(1, 3 * p)), draw(st.sampled_from([0.25, 0.5, 1.0]))


@given(questions(st.integers(1, 5), st.integers(1, 10)))
@draws(40)
def test_never_worse_than_1f1b_and_zb_h1_where_these_keep_the_limit(question):
    m, times, limit, kept = question
    order = check_order(automatic_order(m, times, limit, kept))
    assert max(peak_live(order, kept)) <= limit
    for name in ('1f1b', 'zb-h1', 'zb-h2'):
        base = named_order(name, times.stages, m)
        if max(peak_live(base, kept)) <= limit:
            assert step_time(order, times) <= step_time(base, times)
    assert automatic_order(m, times, limit, kept) == order


@given(
    questions(st.integers(1, 6), st.integers(1, 12)), st.lists(st.sampled_from(RULES), min_size=1), st.integers(1, 5)
)
@draws(40)
def test_orders_of_the_shortlist_are_right_and_keep_the_limit(question, rules, most):
    m, times, limit, kept = question
    setting = Setting(times, m, (limit,) * times.stages, kept)
    for rows in shortlist(setting, rules, most):
        order = check_order(of_letters(rows, m))
        assert max(peak_live(order, kept)) <= limit


def rows_of(micro_batches):
    """All orders of F, I and W of one rank, micro-batches in turn."""
    done = {(0, 0, 0): ['']}
    for f, i, w in product(range(micro_batches + 1), repeat=3):
        if f >= i >= w and (f, i, w) != (0, 0, 0):
            before = {'F': (f - 1, i, w), 'I': (f, i - 1, w), 'W': (f, i, w - 1)}
            done[f, i, w] = [text + kind for kind, key in before.items() for text in done.get(key, ())]
    return done[(micro_batches,) * 3]


def order_of(rows, micro_batches):
    turned = ([Action(rank, k, row[:at].count(k)) for at, k in enumerate(row)] for rank, row in enumerate(rows))
    return make_order(turned, loop(len(rows)), micro_batches)


def best(micro_batches, times, limit, kept):
    """The shortest step of all orders that keep the limit, by trying all."""
    allowed = [row for row in rows_of(micro_batches) if max(peak_live(order_of([row], micro_batches), kept)) <= limit]
    return min(step(order_of(rows, micro_batches), times) for rows in product(allowed, repeat=times.stages))


def step(order, times):
    try:
        return step_time(order, times)
    except ScheduleError:
        return float('inf')


def small_question(chance, ranks):
    times = [tuple(chance.randint(4, 24) / 8 for _ in range(ranks)) for _ in range(3)]
    travel = tuple(chance.randint(0, 8) / 8 for _ in range(ranks - 1))
    times = StageTimes(forward=times[0], input=times[1], weight=times[2], communication=travel)
    return times, chance.randint(1, 3 * ranks), chance.choice([0.25, 0.5, 1.0])


@pytest.mark.parametrize(('ranks', 'micro_batches', 'number'), [(2, 3, 12), (3, 2, 30), (4, 2, 8)])
def test_the_optimum_of_small_pipelines_is_nearly_always_found(ranks, micro_batches, number):
    """All orders are tried; the heuristic may miss one of these questions, by less than 4 %."""
    chance = random.Random(ranks)
    missed = []
    for _ in range(number if EVERY == 1 else number // 2):
        times, limit, kept = small_question(chance, ranks)
        found = step_time(automatic_order(micro_batches, times, limit, kept), times)
        shortest = best(micro_batches, times, limit, kept)
        assert shortest <= found <= 1.04 * shortest
        missed += [found] if found > shortest else []
    assert len(missed) <= 1


def test_one_activation_is_enough():
    order = automatic_order(3, StageTimes.uniform(2, 1.0, 1.0, 1.0), 1)
    assert [' '.join(map(str, row)) for row in order.actions] == [
        '0F0 0I0 0W0 0F1 0I1 0W1 0F2 0I2 0W2',
        '1F0 1I0 1W0 1F1 1I1 1W1 1F2 1I2 1W2',
    ]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4))
@draws(25)
def test_limits_may_differ_by_rank(limits):
    times = StageTimes.uniform(len(limits), 2.0, 3.0, 1.0, 0.5)
    order = check_order(automatic_order(5, times, limits))
    assert all(peak <= limit for peak, limit in zip(peak_live(order), limits, strict=True))
