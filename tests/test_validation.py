"""Prediction against measurement, emulated compute over a paced network: the gate of a shared machine.

The command ``python -m equipment.validation`` asks for 5 % over twenty rounds; here it is two rounds and 15 %.
"""

import pytest

torch = pytest.importorskip('torch', reason='needs the extra torch')

from equipment.validation import Samples, kinds_of, run_cases, sizes_around
from equipment.validation_cases import cases, losing_cases

from simpar.hardware.net import parse_net

pytestmark = pytest.mark.torch


@pytest.fixture(scope='module')
def validation():
    return run_cases(cases(2), parse_net('paced:1gbit,200us'), 2, rounds=2, steps_a_run=3)


def test_steps_are_predicted(validation):
    assert len(validation.rows) >= 8
    assert {row.case.name: row.error for row in validation.rows if abs(row.error) > 0.15} == {}


def test_what_is_predicted_clearly_faster_is_measured_faster(validation):
    assert validation.disordered(apart=0.1) == []


def test_gains_are_predicted(validation):
    assert {row.case.name: row.gain_error for row in validation.rows if abs(row.gain_error) > 0.15} == {}


def test_splitting_that_loses_is_predicted_to_lose():
    """At long latency a second copy is a second latency for every sum."""
    validation = run_cases(losing_cases(2), parse_net('paced:500mbit,10ms'), 2, rounds=2, steps_a_run=3)
    _, split = validation.rows
    assert split.gain_predicted < -0.05
    assert split.gain_measured < -0.05
    assert abs(split.error) <= 0.15


def test_messages_are_long_and_calibration_uses_other_sizes():
    for used in kinds_of(case.program for case in cases(2)).values():
        assert min(used) >= 2**20
        sizes = sizes_around(used)
        assert not used & set(sizes)
        assert min(sizes) < min(used)
        assert max(sizes) > max(used)


def test_a_line_is_found_again():
    samples = Samples({size: [2e-3 + size / 5e7] * 5 for size in (10**5, 10**6, 4 * 10**6)})
    line = samples.fit()
    assert line.alpha == pytest.approx(2e-3)
    assert line.rate == pytest.approx(5e7)
    assert line.residual < 1e-9
