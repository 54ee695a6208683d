"""The slowest of many devices: what is expected of it, and that all wait for it."""

import numpy as np
import pytest

from simpar import load_case
from simpar.cost.price import slowest

SCHEDULE = """
simpar: 1
cluster: {profile: h100-sxm-8, nodes: 4%s}
workload: {transformer: {layers: 4, hidden: 1024, heads: 8, vocab: 4096, sequence: 512}, batch: 64, precision: bf16}
plan: {data: 32, copies: 2}
against: {plan.copies: 1}
"""


@pytest.mark.parametrize('count', [1, 2, 8, 1024])
def test_the_slowest_is_as_slow_as_drawn_ones_are(count):
    drawn = np.random.default_rng(1).standard_normal((20_000, count)).max(axis=1).mean()
    # Blom's quantile is 4 % too far out for two, and nearer for more.
    assert slowest(count, 0.1) - 1 == pytest.approx(0.1 * drawn, rel=0.08, abs=2e-3)


def answer(tmp_path, more):
    path = tmp_path / 'schedule.yaml'
    path.write_text(SCHEDULE % more)
    return load_case(path).predict()


def test_all_compute_as_slowly_as_the_slowest_of_them(tmp_path):
    even, uneven = answer(tmp_path, ''), answer(tmp_path, ', spread: 0.05')
    told = [set(one.costs.rank_speed.tolist()) for one in (even, uneven)]
    assert told == [{1.0}, {1 / slowest(32, 0.05)}]
    assert even.step < uneven.step < even.step * slowest(32, 0.05)
    assert 'unlike devices' not in {row.effect for row in even.explanation}
    assert 'unlike devices' in {row.effect for row in uneven.explanation}
    assert sum(row.seconds for row in uneven.explanation) == pytest.approx(uneven.baseline.step - uneven.step)


def test_a_slow_rank_is_slower_than_the_slowest_of_the_rest(tmp_path):
    both = answer(tmp_path, ', spread: 0.05, slow: {3: 0.5}')
    assert sorted(set(both.costs.rank_speed.tolist())) == pytest.approx(np.array([0.5, 1.0]) / slowest(32, 0.05))


def test_one_device_waits_for_no_other(put):
    path = put('schedule.yaml', SCHEDULE.replace('nodes: 4%s', 'devices: 1, spread: 0.05').replace('data: 32, ', ''))
    assert [(one.key, one.value) for one in load_case(path).without_effect()] == [('cluster.spread', 0.05)]
