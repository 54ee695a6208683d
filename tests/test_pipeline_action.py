"""Actions are spelled as torch.distributed.pipelining spells them, and nothing else is one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpar.pipeline import Action, overlap, parse_action
from simpar.pipeline.order import KINDS, SHARDING

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


@pytest.mark.parametrize(
    'text',
    [
        '', '2F', '2F0 ', '02F0', '2f0', '-1F0', '٢F0', '0UNSHARD3', '0SEND_F', '2F1234567890', '(0F7;7B3)',
        '(0F7)OVERLAP_F_B', '(0F7;1F7)OVERLAP_F_B', '(0B7;7B3)OVERLAP_F_B', '(0F7;7W3)OVERLAP_F_B',
        '((0F7;7B3)OVERLAP_F_B;1B1)OVERLAP_F_B',
    ],
)  # fmt: skip
def test_anything_else_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match=r'; write e\.g\. .*OVERLAP_F_B'):
        parse_action(text)


@given(st.one_of(SINGLE, OVERLAP), st.text(min_size=1, max_size=3))
def test_junk_before_or_behind_is_refused(action, junk):
    for text in (f'{action}{junk}', f'{junk}{action}'):
        if not text.isascii() or not text.replace('_', '').isalnum():
            with pytest.raises(ValueError):
                parse_action(text)
