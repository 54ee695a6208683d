"""What is wrong in an order is found, named with its place and drawn; what is right is let through."""

import random
from dataclasses import replace

import pytest
from every import draws
from hypothesis import given
from hypothesis import strategies as st
from tables import load_table

from simpar import pipeline
from simpar.errors import ScheduleError
from simpar.pipeline import ORDERS, Action, named_order, overlap, parse_action, read_csv, with_communication, write_csv
from simpar.pipeline.order import KINDS, SHARDING


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


@pytest.mark.parametrize(('row', 'old', 'new', 'expected'), load_table(__file__, 'test_faults_of_sends_and_receives'))
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


# Actions are spelled as torch.distributed.pipelining spells them, and nothing else is one


NUMBERS = st.integers(0, 10**9 - 1)
SINGLE = st.builds(
    lambda stage, kind, micro_batch: Action(stage, kind, None if kind in SHARDING else micro_batch),
    NUMBERS,
    st.sampled_from(KINDS[:-1]),
    NUMBERS,
)
FORWARD = st.builds(Action, NUMBERS, st.just('F'), NUMBERS)
BACKWARD = st.builds(Action, NUMBERS, st.sampled_from('BI'), NUMBERS)
OVERLAP = st.builds(overlap, FORWARD, BACKWARD)


@pytest.mark.parametrize(
    ('text', 'action'),
    [
        ('2F0', Action(2, 'F', 0)),
        ('3W2', Action(3, 'W', 2)),
        ('10I11', Action(10, 'I', 11)),
        ('1SEND_F1', Action(1, 'SEND_F', 1)),
        ('0RECV_B7', Action(0, 'RECV_B', 7)),
        ('0UNSHARD', Action(0, 'UNSHARD')),
        ('2REDUCE_GRAD', Action(2, 'REDUCE_GRAD')),
        ('(0F7;7B3)OVERLAP_F_B', overlap(Action(0, 'F', 7), Action(7, 'B', 3))),
    ],
)
def test_spelling(text, action):
    assert parse_action(text) == action
    assert str(action) == text


@given(st.one_of(SINGLE, OVERLAP))
def test_what_is_written_is_read_back(action):
    assert parse_action(str(action)) == action


@pytest.mark.parametrize('text', load_table(__file__, 'test_anything_else_is_refused_with_an_example'))
def test_anything_else_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match=r'; write e\.g\. .*OVERLAP_F_B'):
        parse_action(text)


@given(st.one_of(SINGLE, OVERLAP), st.text(min_size=1, max_size=3))
def test_junk_before_or_behind_is_refused(action, junk):
    for text in (f'{action}{junk}', f'{junk}{action}'):
        if not text.isascii() or not text.replace('_', '').isalnum():
            with pytest.raises(ValueError):
                parse_action(text)


# Orders as files: torch's CSV in and out, every fault with file, line and column


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / 'order.csv'
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def problems(path):
    with pytest.raises(ScheduleError) as raised:
        read_csv(path)
    return [str(problem).replace(f'{path}', 'order.csv') for problem in raised.value.problems]


@pytest.mark.parametrize('name', ORDERS)
@pytest.mark.parametrize('receive', [None, 'early', 'late'])
def test_a_csv_that_is_written_is_read_back(name, receive, tmp_path):
    order = named_order(name, 3, 6)
    order = with_communication(order, receive) if receive else order
    write_csv(order, tmp_path / 'order.csv')
    assert read_csv(tmp_path / 'order.csv') == order


def test_the_file_is_what_a_person_writes(tmp_path):
    write_csv(named_order('dualpipe-v', 1, 2), tmp_path / 'order.csv')
    text = (tmp_path / 'order.csv').read_text()
    assert text == '0F0,1F0,0F1,1B0,(1F1;0B0)OVERLAP_F_B,1B1,0I1,0W1\n'


@pytest.mark.parametrize('text', load_table(__file__, 'test_idle_cells_spaces_quotes_and_line_ends_of_others'))
def test_idle_cells_spaces_quotes_and_line_ends_of_others(file, text):
    assert read_csv(file(text)) == named_order('1f1b', 2, 2)


def test_shards_may_stand_in_it(file):
    order = read_csv(file('0UNSHARD,0F0,0B0,0REDUCE_GRAD,0RESHARD\n'))
    assert [str(action) for action in order.actions[0]] == ['0UNSHARD', '0F0', '0B0', '0REDUCE_GRAD', '0RESHARD']


def test_stages_may_lie_as_they_like(file):
    order = read_csv(file('0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n'))
    assert order.placement == (0, 1, 1, 0)
    assert order.micro_batches == 1


def test_every_cell_that_is_no_action_is_told(file):
    assert problems(file('0F0,0X0,0B0\n1F0,1B0junk\n')) == [
        "order.csv:1:2: '0X0' is no action; write e.g. 2F0, 1SEND_F1, 0UNSHARD or (0F7;7B3)OVERLAP_F_B",
        "order.csv:2:2: '1B0junk' is no action; write e.g. 2F0, 1SEND_F1, 0UNSHARD or (0F7;7B3)OVERLAP_F_B",
    ]


def test_ranks_that_wait_for_each_other_are_told_with_their_cells(file):
    assert problems(file('0F0,0B0,0F1,0B1\n1F0,,1F1,1B0,1B1\n'))[:2] == [
        'order.csv:1:2: 0B0 waits for ever for the input gradient of stage 1, micro-batch 0',
        'order.csv:2:3: 1F1 waits for ever for the output of stage 0, micro-batch 1',
    ]


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        ('', 'order.csv: no actions; write a row for each rank, e.g. 0F0,0B0'),
        (',,\n', 'order.csv: no actions; write a row for each rank, e.g. 0F0,0B0'),
        (b'0F0,\xff\n', 'order.csv:1: not UTF-8'),
        ('0F0,2F0\n', 'order.csv:1:2: 2F0, but no action of stage 1'),
        ('0F0,0F999999999\n', 'order.csv:1:2: 0F999999999, but no action of micro-batch 1'),
        ('0F0,0B0\n\n1F0,1B0\n', 'order.csv:2: rank 1 does nothing'),
        ('0F0,0B0\0\n', "order.csv:1:2: '0B0\\x00' is no action"),
        ('0F0,"0B0\n', "order.csv:1:1: '0F0,\"0B0' is no action"),
    ],
)
def test_files_that_are_no_order(file, text, expected):
    assert problems(file(text))[0].startswith(expected)


def test_a_file_that_is_not_there(tmp_path):
    assert problems(tmp_path / 'none.csv') == ['order.csv: No such file or directory']


def test_of_many_faults_the_first_hundred_are_told(file):
    assert len(problems(file(','.join(['x'] * 500)))) == 100


@given(st.text(alphabet='0123FBIW,;()\n SENDRCV_"', max_size=60))
@draws(80)
def test_nonsense_is_read_or_refused_and_never_breaks(tmp_path_factory, text):
    path = tmp_path_factory.mktemp('nonsense') / 'order.csv'
    path.write_text(text)
    try:
        order = read_csv(path)
    except ScheduleError:
        return
    write_csv(order, path)
    assert read_csv(path) == order


@pytest.mark.parametrize(('ask', 'expected'), load_table(__file__, 'test_orders_that_cannot_be_had'))
def test_orders_that_cannot_be_had(ask, expected):
    with pytest.raises(ScheduleError) as raised:
        named_order(*ask)
    assert str(raised.value).startswith(expected)


def test_pieces_of_the_sequence_double_the_actions():
    order = named_order('mindspore-2.10/seqpipe', 2, 2, 1, 2)
    assert (order.sequence_chunks, order.micro_batches) == (2, 4)
    assert ' '.join(map(str, order.actions[1])) == '1F0 1F1 1B1 1F2 1B0 1F3 1B3 1B2'


def test_waits_for_sends_as_newer_torch_writes_them_are_passed_by(file):
    plain = read_csv(file('0F0,0F1,0B0,0B1\n'))
    assert read_csv(file('0F0,0WAIT_SEND_F0,0F1,0B0,0B1,1WAIT_SEND_B1\n')) == plain
