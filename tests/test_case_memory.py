"""What is kept free on a device for the framework decides whether a plan fits, and is told."""

from pathlib import Path

import pytest

import simpar
from simpar.case import memory_notes
from simpar.errors import ScheduleError

FILE = Path(__file__).parent.parent / 'examples' / 'transformer_h100.yaml'
"""Its peak is 33.98 GB of 80."""


def told(reserve):
    case = simpar.load_case(FILE, [f'cluster.reserve={reserve}'] if reserve else [])
    prediction = case.predict()
    return prediction.fits, memory_notes(case, prediction)


def test_a_reserve_is_taken_from_every_device_and_told():
    assert told('') == (True, ())
    assert told('4 GB') == (True, ('4 GB of each device are reserved (cluster.reserve), 76 GB are left',))
    assert told('47 GB')[0] is None
    assert told('60 GB')[0] is False


def test_a_peak_near_the_device_without_a_reserve_says_what_is_not_counted():
    case = simpar.load_case(FILE, ['workload.batch=72', 'cluster.stack=none'])
    [note] = memory_notes(case, case.predict())
    assert note.startswith('the peak is 90 % of the device')
    assert 'cluster.reserve: 4 GB keeps room' in note


def test_a_workload_without_an_optimizer_says_what_is_assumed():
    text = FILE.read_text(encoding='utf-8')
    without = ''.join(line for line in text.splitlines(keepends=True) if not line.startswith('  optimizer:'))
    for schedule, said in ((without, True), (text, False)):
        case = simpar.load_case(schedule, ['cluster.stack=none'])
        assert any('sgd is assumed' in note for note in memory_notes(case, case.predict())) is said


def test_a_reserve_that_leaves_nothing_is_refused_at_its_line():
    with pytest.raises(ScheduleError, match='reserve: 90 GB of 80 GB leave nothing; write less'):
        told('90 GB')
