"""Optimizer parallelism predicted and measured: emulated compute over a paced network, the gate of a shared machine."""

import pytest

torch = pytest.importorskip('torch', reason='needs the extra torch')

from equipment.validation import run_cases
from equipment.validation_cases import VARIANTS, optimizer_cases

from simpar.hardware.net import parse_net

pytestmark = pytest.mark.torch


@pytest.fixture(scope='module')
def validation():
    return run_cases(optimizer_cases(2), parse_net('paced:500mbit,200us'), 2, rounds=1, steps_a_run=3)


def rows(validation):
    return {row.case.name: row for row in validation.rows}


def test_every_variant_is_there_with_and_without_copies(validation):
    assert len(validation.rows) == 2 * len(VARIANTS)


def test_steps_of_every_variant_are_predicted(validation):
    assert {row.case.name: row.error for row in validation.rows if abs(row.error) > 0.15} == {}


def test_what_is_predicted_clearly_faster_is_measured_faster(validation):
    assert validation.disordered(apart=0.1) == []


def test_gathers_without_prefetch_are_exposed_and_lose(validation):
    """They take longer than sums that all stand at the end; one gather ahead hides them again."""
    found = rows(validation)
    assert found['ZeRO 3'].gain_predicted < 0 < found['ZeRO 3, prefetch'].gain_predicted
    assert found['ZeRO 3'].gain_measured < 0 < found['ZeRO 3, prefetch'].gain_measured
