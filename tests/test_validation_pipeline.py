"""Pipelines predicted and measured: emulated compute over a paced network, the gate of a shared machine."""

import pytest

torch = pytest.importorskip('torch', reason='needs the extra torch')

from equipment.validation import emulated_cluster, run_cases
from equipment.validation_cases import balance_cases, pipeline_cases

from simpar.hardware.net import parse_net

pytestmark = pytest.mark.torch

NET = parse_net('paced:500mbit,200us')
ROWS = 256


@pytest.fixture(scope='module')
def validation():
    # Every order alone; copies and late receives on one of them. `make netns` measures them all together.
    cases = pipeline_cases(2, copies=(1,), receives=('early',), rows=ROWS)
    others = pipeline_cases(2, orders=('1f1b',), rows=ROWS)
    cases += [case for case in others if case.name != '1f1b']
    return run_cases([*cases, *balance_cases(2, emulated_cluster(NET, 2), rows=ROWS)], NET, 2, rounds=1, steps_a_run=3)


def rows(validation):
    return {row.case.name: row for row in validation.rows}


def test_steps_of_every_order_are_predicted(validation):
    assert {row.case.name: row.error for row in validation.rows if abs(row.error) > 0.15} == {}


def test_what_is_predicted_clearly_faster_is_measured_faster(validation):
    assert validation.disordered(apart=0.1) == []


def test_with_exposed_latency_gpipe_and_1f1b_swap_places(validation):
    """1F1B waits a round trip for every micro-batch; without latency both have the same bubble."""
    gpipe, alternating = rows(validation)['gpipe'], rows(validation)['1f1b']
    assert gpipe.predicted < alternating.predicted
    assert gpipe.measured.p10 < alternating.measured.p10


def test_balanced_stages_beat_equal_counts_predicted_and_measured(validation):
    found = rows(validation)['balanced stages']
    assert found.gain_predicted > 0.05
    assert found.gain_measured > 0.05
