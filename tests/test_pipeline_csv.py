"""Orders as files: torch's CSV in and out, every fault with file, line and column."""

import pytest
from every import draws
from hypothesis import given
from hypothesis import strategies as st
from tables import load_table

from simpar.errors import ScheduleError
from simpar.pipeline import ORDERS, named_order, read_csv, with_communication, write_csv


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
def test_what_is_written_is_read_back(name, receive, tmp_path):
    order = named_order(name, 3, 6)
    order = with_communication(order, receive) if receive else order
    write_csv(order, tmp_path / 'order.csv')
    assert read_csv(tmp_path / 'order.csv') == order


def test_the_file_is_what_a_person_writes(tmp_path):
    write_csv(named_order('dualpipe-v', 1, 2), tmp_path / 'order.csv')
    text = (tmp_path / 'order.csv').read_text()
    assert text == '0F0,1F0,0F1,1B0,(1F1;0B0)OVERLAP_F_B,1B1,0I1,0W1\n'


@pytest.mark.parametrize(
    'text',
    load_table(__file__, 'test_idle_cells_spaces_quotes_and_line_ends_of_others'),
)
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


@pytest.mark.parametrize(
    ('ask', 'expected'),
    load_table(__file__, 'test_orders_that_cannot_be_had'),
)
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
