"""Prediction against measurement, emulated compute over a paced network: the gate of a shared machine.

The command ``python -m equipment.validation`` asks for 5 % over twenty rounds; here it is one round and 15 %.
"""

from functools import cache
from itertools import chain

import pytest
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
from evidence_page import disordered, error, gains, low

from simpar.hardware.net import parse_net

NET = parse_net('paced:500mbit,200us')
ROWS = 256


def pipelines():
    """Every order alone; copies and late receives on one of them. The command measures them all together."""
    alone = pipeline_cases(2, copies=(1,), receives=('early',), rows=ROWS)
    others = [case for case in pipeline_cases(2, orders=('1f1b',), rows=ROWS) if case.name != '1f1b']
    return [*alone, *others, *balance_cases(2, emulated_cluster(NET, 2), rows=ROWS)]


FAMILIES = {
    'copies': (lambda: cases(2), parse_net('paced:1gbit,200us')),
    # At long latency a second copy is a second latency for every sum.
    'losing': (lambda: losing_cases(2), parse_net('paced:500mbit,10ms')),
    'optimizer': (lambda: optimizer_cases(2, copies=(1,)), NET),
    'pipelines': (pipelines, NET),
    'tiles': (lambda: tile_cases(2, tiles=(1, 2), rows=ROWS), NET),
}
GAINS = [
    # Which way, and how much of it at least: as predicted, and as measured.
    ('losing', 'copies 2 at long latency', -1, 0.05, 0.05),
    # Gathers take longer than sums that all stand at the end; one gather ahead hides them again.
    ('optimizer', 'ZeRO 3', -1, 0, 0),
    ('optimizer', 'ZeRO 3, prefetch', 1, 0, 0),
    ('pipelines', 'balanced stages', 1, 0.05, 0.05),
    ('tiles', 'tiles 2, copies 1', 1, 0.05, 0.02),
    # Sums that wait for gradients of weights.
    ('tiles', WITHOUT, -1, 0.05, 0.02),
]


@cache
def rows(family):
    made, net = FAMILIES[family]
    return {row['name']: row for row in run_cases(made(), net, 2, rounds=1, steps_a_run=3)}


def gain(family, name):
    """Predicted and measured."""
    return gains(rows(family)[name], rows(family).values())


@pytest.mark.parametrize('family', FAMILIES)
def test_steps_are_predicted_and_what_is_clearly_faster_is_measured_faster(family):
    assert {name: error(row) for name, row in rows(family).items() if abs(error(row)) > 0.15} == {}
    assert disordered([*rows(family).values()], apart=0.1) == []


def test_gains_are_predicted():
    found = {name: gain('copies', name) for name, row in rows('copies').items() if row['against']}
    assert len(rows('copies')) >= 8
    assert len(rows('optimizer')) == len(VARIANTS)
    assert {name: both for name, both in found.items() if abs(both[0] - both[1]) > 0.15} == {}


@pytest.mark.parametrize(('family', 'name', 'sign', 'predicted', 'measured'), GAINS)
def test_what_gains_or_loses_is_predicted_to(family, name, sign, predicted, measured):
    both = gain(family, name)
    assert sign * both[0] > predicted
    assert sign * both[1] > measured


def test_copies_gain_more_than_tiles_where_a_product_is_shorter_than_its_sum():
    assert gain('tiles', 'tiles 2, copies 1')[0] < gain('tiles', 'tiles 1, copies 2')[0]
    assert gain('tiles', 'tiles 2, copies 1')[1] < gain('tiles', 'tiles 1, copies 2')[1]


def test_with_exposed_latency_gpipe_and_1f1b_swap_places():
    """1F1B waits a round trip for every micro-batch; without latency both have the same bubble."""
    gpipe, alternating = rows('pipelines')['gpipe'], rows('pipelines')['1f1b']
    assert gpipe['predicted'] < alternating['predicted']
    assert low(chain(*gpipe['runs'])) < low(chain(*alternating['runs']))


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
