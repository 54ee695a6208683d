"""Many cases of stage times at once give what the clock gives for each, to the bit."""

import random

import numpy as np
import pytest
from pipeline_cases import any_order

from simpar import pipeline
from simpar.errors import ScheduleError
from simpar.pipeline.messages import KINDS, NONE, arrays_of, gives, needs
from simpar.pipeline.orders import named_order
from simpar.planner.clock import timed


def drawn(draw, stages, least=0.0):
    """Times of ties, zeros (also −0) and anything between."""

    def some(count):
        return tuple(
            draw.choice([0.0, -0.0, 0.5, 1.0, draw.random(), 1e9 * draw.random()]) + least for _ in range(count)
        )

    return pipeline.StageTimes(
        forward=some(stages), input=some(stages), weight=some(stages), communication=some(stages - 1)
    )


def check(order, cases):
    table = pipeline.StageTimesTable.of(cases)
    for steps in (1, 2, 3):
        expected = np.array([pipeline.step_time(order, case, steps) for case in cases])
        assert pipeline.step_times(order, table, steps).tobytes() == expected.tobytes(), steps


@pytest.mark.parametrize('block', range(4))
def test_orders_that_nobody_would_write(block):
    """Stages anywhere, micro-batches that overtake, backwards whole, in two parts and in overlaps."""
    for seed in range(25 * block, 25 * block + 25):
        draw = random.Random(seed)
        ranks = draw.randint(1, 5)
        order = any_order(draw, ranks, ranks + draw.randint(0, 3), draw.randint(1, 6))
        check(order, [drawn(draw, order.stages) for _ in range(draw.choice([1, 3, 8]))])


@pytest.mark.parametrize('name', pipeline.ORDERS)
def test_orders_by_name(name):
    draw = random.Random(name)
    for ranks, micro_batches in ((1, 2), (2, 4), (4, 8)):
        for sequence_chunks in (1, 2) if pipeline.ORDERS[name].sequences and ranks > 1 else (1,):
            order = pipeline.named_order(name, ranks, micro_batches, sequence_chunks=sequence_chunks)
            check(order, [drawn(draw, order.stages) for _ in range(3)])


def test_sends_and_receives_take_their_time_on_no_rank():
    order = pipeline.named_order('interleaved-1f1b', 3, 6)
    cases = [drawn(random.Random(0), order.stages) for _ in range(3)]
    table = pipeline.StageTimesTable.of(cases)
    sent = pipeline.step_times(pipeline.with_communication(order, 'late'), table)
    assert sent.tolist() == pipeline.step_times(order, table).tolist()


@pytest.mark.parametrize('cases', [1, 63, 64, 65, 129])
def test_any_number_of_cases(cases, monkeypatch):
    """Blocks are full or not; each case has its own place."""
    monkeypatch.setattr('simpar.pipeline.clock.BLOCK', 60)
    draw = random.Random(cases)
    check(pipeline.named_order('zb-h1', 2, 3), [drawn(draw, 2) for _ in range(cases)])


def test_an_action_on_another_rank_than_its_stage_is_waited_for():
    """Orders are not checked where they are made: stage 0 lies on rank 1, which lacks its forward."""
    rows = (
        (pipeline.Action(0, 'F', 0),),
        (pipeline.Action(1, 'F', 0), pipeline.Action(1, 'B', 0), pipeline.Action(0, 'B', 0)),
    )
    check(
        pipeline.Order(rows, (1, 1), 1),
        [pipeline.StageTimes.uniform(2, 1.0, 1.0, 1.0), drawn(random.Random(2), 2, least=0.1)],
    )


@pytest.mark.parametrize(('ranks', 'micro_batches'), [(1, 4), (2, 3), (4, 9), (5, 2), (16, 24)])
def test_1f1b_is_its_recurrence(ranks, micro_batches):
    """Forwards and backwards from their definition, without an order."""
    chance = np.random.default_rng(ranks)
    F, I, W = 1 + chance.random((3, 20, ranks))
    # Shorter than the work beside it, so that no message waits for the one before.
    travel = chance.random((20, ranks - 1))
    table = pipeline.StageTimesTable(forward=F, input=I, weight=W, communication=travel)
    found = pipeline.step_times(pipeline.named_order('1f1b', ranks, micro_batches), table, 1)
    expected = [first_step(F[case], I[case] + W[case], travel[case], micro_batches) for case in range(20)]
    assert found.tolist() == expected


def first_step(F, B, travel, micro_batches):
    """The first step of 1F1B with links that carry one message at a time.

    Forward m of rank r comes behind backward m − (p − r), backward m behind forward m + p − 1 − r, or the last one.
    """
    ranks = len(F)
    forward, backward, sent, returned = {}, {}, {}, {}

    def f(r, m):
        if (r, m) not in forward:
            free = b(r, m - ranks + r) if m >= ranks - r else f(r, m - 1) if m else 0.0
            forward[r, m] = max(free, send(r - 1, m) if r else 0.0) + F[r]
        return forward[r, m]

    def b(r, m):
        if (r, m) not in backward:
            ahead = m + ranks - 1 - r
            free = f(r, ahead) if ahead < micro_batches else max(b(r, m - 1) if m else 0.0, f(r, micro_batches - 1))
            backward[r, m] = max(free, turn(r + 1, m) if r + 1 < ranks else 0.0) + B[r]
        return backward[r, m]

    def send(r, m):
        if (r, m) not in sent:
            sent[r, m] = max(f(r, m), send(r, m - 1) if m else 0.0) + travel[r]
        return sent[r, m]

    def turn(r, m):
        if (r, m) not in returned:
            returned[r, m] = max(b(r, m), turn(r, m - 1) if m else 0.0) + travel[r - 1]
        return returned[r, m]

    return max(b(r, micro_batches - 1) for r in range(ranks))


def test_ranks_that_wait_for_each_other_are_told():
    rows = tuple(tuple(pipeline.Action(rank, kind, 0) for kind in kinds) for rank, kinds in enumerate(('BF', 'FB')))
    with pytest.raises(ScheduleError, match='ranks wait for each other'):
        pipeline.Recurrence.of(pipeline.Order(rows, (0, 1), 1))


# An order by arrays: each action needs and gives what its plain form does; a walk over them waits for the same


CASES = [
    ('1f1b', 4, 8, 1, 1),
    ('gpipe', 3, 5, 1, 1),
    ('interleaved-1f1b', 4, 8, 3, 1),
    ('zb-h1', 4, 8, 1, 1),
    ('zb-v', 4, 8, 2, 1),
    ('dualpipe-v', 4, 8, 2, 1),
    ('mindspore-2.10/seqpipe', 4, 8, 1, 2),
]


@pytest.mark.parametrize('case', CASES, ids=lambda case: case[0])
def test_each_action_needs_and_gives_by_number_what_it_does_by_name(case):
    order = named_order(*case)
    found = arrays_of(order)
    actions = [action for row in order.actions for action in row if action.sub_actions or action.kind in KINDS]
    assert found.rank.tolist() == [rank for rank, row in enumerate(order.actions) for _ in row]
    for place, action in enumerate(actions):
        for arrays, plain in ((found.needs(), needs(action, order)), (found.gives(), gives(action))):
            numbers = [one for one in arrays[place].tolist() if one != NONE]
            assert sorted(numbers) == sorted(_number(result, order) for result in plain), (action, plain)


def _number(result, order):
    kind, stage, micro_batch = result
    return ((kind == 'I') * order.stages + stage) * order.micro_batches + micro_batch


@pytest.mark.parametrize('case', CASES, ids=lambda case: case[0])
def test_a_walk_does_each_action_once_behind_what_it_waits_for(case):
    order = named_order(*case)
    found = timed(order, awaited=True)
    assert len(found.work) == len(arrays_of(order).rank)
    for task in range(len(found.work)):
        waits = found.before.item[found.before.start[task] : found.before.start[task + 1]]
        assert all(other < task and found.rank[other] != found.rank[task] for other in waits.tolist())
