"""What is wrong in an order is found, named with its place and drawn; what is right is let through."""

import random
from dataclasses import replace

import pytest
from every import draws
from hypothesis import given
from hypothesis import strategies as st

from simpar import pipeline
from simpar.errors import ScheduleError


def order(*rows, placement=None, micro_batches=2, pieces=1):
    actions = tuple(tuple(pipeline.parse_action(word) for word in row.split()) for row in rows)
    return pipeline.Order(actions, placement or pipeline.loop(len(rows)), micro_batches, pieces)


RIGHT = ('0F0 0F1 0B0 0B1', '1F0 1B0 1F1 1B1')
SENT = ('0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1', '1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 1SEND_B1')


def told(wrong):
    return [f'{fault.rank}.{fault.position} {fault.what}' for fault in pipeline.faults(wrong)]


def test_right_orders_pass():
    assert pipeline.faults(order(*RIGHT)) == ()
    assert pipeline.faults(order(*SENT)) == ()
    assert pipeline.check_order(order(*RIGHT)) == order(*RIGHT)


@pytest.mark.parametrize(
    ('rows', 'expected'),
    [
        (('0F0 0F1 0B0', RIGHT[1]), ['0.3 stage 0 lacks B of micro-batch 1']),
        (('0F0 0F1 0I0 0B1', RIGHT[1]), ['0.4 stage 0 lacks W of micro-batch 0']),
        (('0F0 0F1 0W0 0B1', RIGHT[1]), ['0.4 stage 0 lacks I of micro-batch 0']),
        (('0F0 0B0 0B1', RIGHT[1]), ['0.3 stage 0 lacks F of micro-batch 1']),
        ((f'{RIGHT[0]} 0F1', RIGHT[1]), ['0.4 0F1 for the second time, first on rank 0, step 1']),
        ((f'{RIGHT[0]} 0W1', RIGHT[1]), ['0.4 0W1, but 0B1 does it already']),
        ((f'{RIGHT[0]} 0F2', RIGHT[1]), ['0.4 0F2: there is no micro-batch 2 (of 2)']),
        ((f'{RIGHT[0]} 2F1', RIGHT[1]), ['0.4 2F1: there is no stage 2 (of 2)']),
        (('0F0 0F1 0B0 1F1 0B1', '1F0 1B0 1B1'), ['0.3 1F1 is on rank 0, but stage 1 is on 1']),
        (('0F0 0B1 0F1 0B0', RIGHT[1]), ['0.1 0B1 before 0F1, which it needs']),
        (('0F0 0F1 0W0 0I0 0B1', RIGHT[1]), ['0.2 0W0 before 0I0, which it needs']),
        (
            ('0F0 0B0 0F1 0B1', '1F0 1F1 1B0 1B1'),
            [
                '0.1 0B0 waits for ever for the input gradient of stage 1, micro-batch 0',
                '1.1 1F1 waits for ever for the output of stage 0, micro-batch 1',
            ],
        ),
        (('0F0 0F1 0B0 0B1', ''), ['1.0 rank 1 does nothing', '1.0 stage 1 lacks B of micro-batch 0, 1']),
    ],
)
def test_faults_of_computations(rows, expected):
    assert told(order(*rows))[: len(expected)] == expected


@pytest.mark.parametrize(
    ('row', 'old', 'new', 'expected'),
    [
        (0, ' 0SEND_F1', '', '0.7 0SEND_F1 is missing: 0F1 crosses ranks'),
        (1, '1RECV_F1 ', '', '1.7 1RECV_F1 is missing: 0F1 crosses ranks'),
        (1, '1SEND_B1', '1SEND_B1 1SEND_F0', '1.8 1SEND_F0 carries nothing: no result crosses ranks there'),
        (0, '0F0 0SEND_F0', '0SEND_F0 0F0', '0.0 0SEND_F0 waits for ever for the output of stage 0, micro-batch 0'),
        (1, '1RECV_F0 1F0', '1F0 1RECV_F0', '1.0 1F0 waits for ever for the output of stage 0, micro-batch 0'),
        (0, '0SEND_F1 0RECV_B0', '0RECV_B0 0SEND_F1', '0.3 0RECV_B0 waits for ever for the other side of the message'),
    ],
)
def test_faults_of_sends_and_receives(row, old, new, expected):
    rows = list(SENT)
    assert old in rows[row]
    rows[row] = rows[row].replace(old, new)
    assert expected in told(order(*rows))


def test_an_overlap_of_what_needs_each_other_is_found():
    assert told(order('(0F0;0B0)OVERLAP_F_B', micro_batches=1)) == ['0.0 0B0 overlaps 0F0, which it needs']
    crossed = order('0F0 (1F0;0B0)OVERLAP_F_B 1B0', placement=(0, 0), micro_batches=1)
    assert told(crossed) == ['0.1 (1F0;0B0)OVERLAP_F_B waits for ever for the input gradient of stage 1, micro-batch 0']


def test_pieces_of_a_sequence_need_each_other_in_turn():
    assert pipeline.faults(order('0F0 0F1 0B1 0B0', pieces=2)) == ()
    assert told(order('0F0 0F1 0B0 0B1', pieces=2)) == [
        '0.2 0B0 waits for ever for the input gradient of stage 0, micro-batch 1'
    ]


def test_a_stage_on_a_rank_that_is_not_there():
    assert told(order(*RIGHT, placement=(0, 2))) == ['0.0 stage 1 is on rank 2 of 2']


def test_all_faults_are_told_at_once_with_a_drawing():
    wrong = order('0F0 0F1 0B0 0F1', '1F0 1B0 1F1 1B1')
    with pytest.raises(ScheduleError) as raised:
        pipeline.check_order(wrong, 'my order')
    assert str(raised.value).splitlines() == [
        'my order, rank 0, step 3: 0F1 for the second time, first on rank 0, step 1',
        'my order, rank 0, step 4: stage 0 lacks B of micro-batch 1',
        'my order: the actions around',
        '        Rank 0 Rank 1',
        'Step 0: 0F0    1F0',
        'Step 1: 0F1    1B0',
        'Step 2: 0B0    1F1',
        'Step 3: 0F1    1B1    <-- here, rank 0',
        'Step 4:               <-- here, rank 0',
    ]


def test_the_drawing_leaves_out_what_is_far_away():
    order = pipeline.named_order('1f1b', 2, 8)
    assert pipeline.draw(order, {(1, 2), (0, 9), (1, 9)}, around=1).splitlines() == [
        '         Rank 0 Rank 1',
        'Step 01: 0F1    1B0',
        'Step 02: 0B0    1F1    <-- here, rank 1',
        'Step 03: 0F2    1B1',
        '...',
        'Step 08: 0B3    1F4',
        'Step 09: 0F5    1B4    <-- here, rank 0, 1',
        'Step 10: 0B4    1F5',
    ]


@given(st.sampled_from(sorted(pipeline.ORDERS)), st.integers(0, 2**32), st.booleans())
@draws(40)
def test_a_removed_repeated_or_moved_action_is_found(name, seed, sent):
    right = pipeline.named_order(name, 3, 6)
    right = pipeline.with_communication(right) if sent else right
    chance = random.Random(seed)
    rows = [list(row) for row in right.actions]
    rank = chance.randrange(3)
    at = chance.randrange(len(rows[rank]))
    taken = rows[rank].pop(at)
    assert pipeline.faults(replace(right, actions=tuple(map(tuple, rows))))
    rows[(rank + 1) % 3].append(taken)
    assert pipeline.faults(replace(right, actions=tuple(map(tuple, rows))))
    rows[(rank + 1) % 3].pop()
    rows[rank][at:at] = [taken, taken]
    assert pipeline.faults(replace(right, actions=tuple(map(tuple, rows))))


def test_an_order_that_communicates_gets_no_more_sends():
    with pytest.raises(ScheduleError, match='has sends and receives already'):
        pipeline.with_communication(order(*SENT))


@pytest.mark.parametrize('receive', ['early', 'late'])
def test_an_order_that_cannot_end_gets_no_sends(receive):
    with pytest.raises(ScheduleError, match='ranks wait for each other'):
        pipeline.with_communication(order('0F0 0B0 0F1 0B1', '1F0 1F1 1B0 1B1'), receive)
