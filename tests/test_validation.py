"""Prediction against measurement, emulated compute over a paced network: the gate of a shared machine.

The command ``python -m equipment.validation`` asks for 5 % over twenty rounds; here it is one round or two and 15 %.
"""

from functools import cache

import pytest

torch = pytest.importorskip('torch', reason='needs the extra torch')

from equipment.validation import Samples, emulated_cluster, kinds_of, run_cases, sizes_around
from equipment.validation_cases import (
    VARIANTS,
    WITHOUT,
    balance_cases,
    cases,
    losing_cases,
    optimizer_cases,
    pipeline_cases,
    tile_cases,
)

from simpar.hardware.net import parse_net

pytestmark = pytest.mark.torch

NET = parse_net('paced:500mbit,200us')
ROWS = 256


def pipelines():
    """Every order alone; copies and late receives on one of them. `make netns` measures them all together."""
    alone = pipeline_cases(2, copies=(1,), receives=('early',), rows=ROWS)
    others = [case for case in pipeline_cases(2, orders=('1f1b',), rows=ROWS) if case.name != '1f1b']
    return [*alone, *others, *balance_cases(2, emulated_cluster(NET, 2), rows=ROWS)]


FAMILIES = {
    'copies': (lambda: cases(2), parse_net('paced:1gbit,200us'), 2),
    # At long latency a second copy is a second latency for every sum.
    'losing': (lambda: losing_cases(2), parse_net('paced:500mbit,10ms'), 2),
    'optimizer': (lambda: optimizer_cases(2), NET, 1),
    'pipelines': (pipelines, NET, 1),
    'tiles': (lambda: tile_cases(2, tiles=(1, 2), rows=ROWS), NET, 1),
}


@cache
def validation(family):
    made, net, rounds = FAMILIES[family]
    return run_cases(made(), net, 2, rounds=rounds, steps_a_run=3)


def rows(family):
    return {row.case.name: row for row in validation(family).rows}


@pytest.mark.parametrize('family', FAMILIES)
def test_steps_are_predicted_and_what_is_clearly_faster_is_measured_faster(family):
    assert {name: row.error for name, row in rows(family).items() if abs(row.error) > 0.15} == {}
    assert validation(family).disordered(apart=0.1) == []


def test_gains_are_predicted():
    assert len(rows('copies')) >= 8
    assert {name: row.gain_error for name, row in rows('copies').items() if abs(row.gain_error) > 0.15} == {}


def test_splitting_that_loses_is_predicted_to_lose():
    _, split = validation('losing').rows
    assert split.gain_predicted < -0.05
    assert split.gain_measured < -0.05


def test_gathers_without_prefetch_are_exposed_and_lose():
    """They take longer than sums that all stand at the end; one gather ahead hides them again."""
    found = rows('optimizer')
    assert len(found) == 2 * len(VARIANTS)
    assert found['ZeRO 3'].gain_predicted < 0 < found['ZeRO 3, prefetch'].gain_predicted
    assert found['ZeRO 3'].gain_measured < 0 < found['ZeRO 3, prefetch'].gain_measured


def test_with_exposed_latency_gpipe_and_1f1b_swap_places():
    """1F1B waits a round trip for every micro-batch; without latency both have the same bubble."""
    gpipe, alternating = rows('pipelines')['gpipe'], rows('pipelines')['1f1b']
    assert gpipe.predicted < alternating.predicted
    assert gpipe.measured.p10 < alternating.measured.p10


def test_balanced_stages_beat_equal_counts_predicted_and_measured():
    found = rows('pipelines')['balanced stages']
    assert found.gain_predicted > 0.05
    assert found.gain_measured > 0.05


def test_tiles_gain_and_copies_gain_more_where_a_product_is_shorter_than_its_sum():
    tiles, copies = rows('tiles')['tiles 2, copies 1'], rows('tiles')['tiles 1, copies 2']
    assert 0.05 < tiles.gain_predicted < copies.gain_predicted
    assert 0.02 < tiles.gain_measured < copies.gain_measured


def test_sums_that_wait_for_gradients_of_weights_lose():
    assert rows('tiles')[WITHOUT].gain_predicted < -0.05
    assert rows('tiles')[WITHOUT].gain_measured < -0.02


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
