"""Pipelines predicted and measured: emulated compute over a paced network, the gate of a shared machine."""

import pytest

torch = pytest.importorskip('torch', reason='needs the extra torch')

from executor.evidence.cases import balance_cases, pipeline_cases
from executor.evidence.evidence import emulated_cluster, gather
from executor.net import parse_net

pytestmark = pytest.mark.torch

NET = parse_net('paced:500mbit,200us')
ROWS = 256


@pytest.fixture(scope='module')
def evidence():
    cases = pipeline_cases(2, receives=('early',), rows=ROWS)
    cases += pipeline_cases(2, orders=('1f1b',), copies=(1,), receives=('late',), rows=ROWS)
    return gather([*cases, *balance_cases(2, emulated_cluster(NET, 2), rows=ROWS)], NET, 2, rounds=1, steps_a_run=3)


def rows(evidence):
    return {row.case.name: row for row in evidence.rows}


def test_steps_of_every_order_are_predicted(evidence):
    assert {row.case.name: row.error for row in evidence.rows if abs(row.error) > 0.15} == {}


def test_what_is_predicted_clearly_faster_is_measured_faster(evidence):
    assert evidence.disordered(apart=0.1) == []


def test_with_exposed_latency_gpipe_and_1f1b_swap_places(evidence):
    """1F1B waits a round trip for every micro-batch; without latency both have the same bubble."""
    gpipe, alternating = rows(evidence)['gpipe'], rows(evidence)['1f1b']
    assert gpipe.predicted < alternating.predicted
    assert gpipe.measured.p10 < alternating.measured.p10


def test_balanced_stages_beat_equal_counts_predicted_and_measured(evidence):
    found = rows(evidence)['balanced stages']
    assert found.gain_predicted > 0.05
    assert found.gain_measured > 0.05
