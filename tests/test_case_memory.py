"""What is kept free on a device for the framework decides whether a plan fits, and is told."""

from pathlib import Path

import pytest

import simpar
from simpar.case import memory_notes
from simpar.errors import ScheduleError

FILE = Path(__file__).parent.parent / 'examples' / 'transformer_h100.yaml'
"""Its peak is 33.98 GB of 84.9."""


def told(reserve):
    case = simpar.load_case(FILE, [f'cluster.reserve={reserve}'] if reserve else [])
    prediction = case.predict()
    return prediction.fits, memory_notes(case, prediction)


def test_a_reserve_is_taken_from_every_device_and_told():
    assert told('') == (True, ())
    assert told('4 GB') == (True, ('4 GB of each device are reserved (cluster.reserve), 80.94 GB are left',))
    assert told('51 GB')[0] is None
    assert told('64 GB')[0] is False


def test_a_workload_without_an_optimizer_says_what_is_assumed():
    text = FILE.read_text(encoding='utf-8')
    without = ''.join(line for line in text.splitlines(keepends=True) if not line.startswith('  optimizer:'))
    for schedule, said in ((without, True), (text, False)):
        case = simpar.load_case(schedule, ['cluster.stack=none'])
        assert any('sgd is assumed' in note for note in memory_notes(case, case.predict())) is said


def test_a_reserve_that_leaves_nothing_is_refused_at_its_line():
    with pytest.raises(ScheduleError, match=r'reserve: 90 GB of 84\.94 GB leave nothing'):
        told('90 GB')


def test_context_and_fragmentation_are_beside_tensors_and_decide_whether_they_fit():
    """As a monitor of the device shows them; a reserve is in their place, and a device alone has none."""
    room = simpar.load_case(FILE, ['cluster.stack=megatron-te']).predict().room
    assert (room.size, room.context, room.fragmentation) == (79.11 * 2**30, 2.04 * 2**30, 0.04)
    assert room.taken(room.tensors) == pytest.approx(room.size)
    for keys in (['cluster.reserve=4 GB'], ['cluster.stack=none']):
        room = simpar.load_case(FILE, keys).predict().room
        assert room.tensors == room.size
