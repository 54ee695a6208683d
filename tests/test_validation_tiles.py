"""Tiles and copies predicted and measured: emulated compute over a paced network, the gate of a shared machine."""

import pytest

torch = pytest.importorskip('torch', reason='needs the extra torch')

from equipment.validation import run_cases
from equipment.validation_cases import WITHOUT, tile_cases

from simpar.hardware.net import parse_net

pytestmark = pytest.mark.torch


@pytest.fixture(scope='module')
def validation():
    return run_cases(
        tile_cases(2, tiles=(1, 2), rows=256), parse_net('paced:500mbit,200us'), 2, rounds=1, steps_a_run=3
    )


def rows(validation):
    return {row.case.name: row for row in validation.rows}


def test_steps_are_predicted(validation):
    assert {row.case.name: row.error for row in validation.rows if abs(row.error) > 0.15} == {}


def test_what_is_predicted_clearly_faster_is_measured_faster(validation):
    assert validation.disordered(apart=0.1) == []


def test_tiles_gain_and_copies_gain_more_where_a_product_is_shorter_than_its_sum(validation):
    found = rows(validation)
    tiles, copies = found['tiles 2, copies 1'], found['tiles 1, copies 2']
    assert 0.05 < tiles.gain_predicted < copies.gain_predicted
    assert 0.02 < tiles.gain_measured < copies.gain_measured


def test_sums_that_wait_for_gradients_of_weights_lose(validation):
    assert rows(validation)[WITHOUT].gain_predicted < -0.05
    assert rows(validation)[WITHOUT].gain_measured < -0.02
