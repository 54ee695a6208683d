"""Rounds of measurements, on a pool that only pretends to run."""

from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip('torch', reason='needs the extra torch')

from executor.measure import Statistics, measure
from executor.ranks.request import Request
from simpar.trace import warm_steps

pytestmark = pytest.mark.torch


@dataclass(frozen=True, order=True)
class Named:
    """A program that is only named; ``followed``, whether its last step is shorter than the others."""

    name: str
    followed: bool = False


class Pretence:
    """Runs nothing; the steady step of a case is its seed in ms, and a bit more each time."""

    def __init__(self):
        self.order = []

    def perform(self, program, request):
        times = self.order.count(program)
        self.order.append(program)
        steps = np.array([9.0, 9.0, *[request.seed * 1e-3 * (1 + times)] * (request.steps - 2)])
        warm = partial(warm_steps, request.steps, alone=program.followed)
        return SimpleNamespace(trace=SimpleNamespace(step_times=steps, warm=warm))


def test_every_case_runs_once_a_round_in_orders_that_change():
    pool, cases = Pretence(), [(Named(name), Request(seed=index + 1)) for index, name in enumerate('abcde')]
    found = measure(cases, pool, rounds=4, warmup=2)
    rounds = [tuple(pool.order[first : first + 5]) for first in range(0, 30, 5)]
    assert all(sorted(one) == [Named(name) for name in 'abcde'] for one in rounds)
    assert len(set(rounds)) > 2
    assert [one.step.count for one in found] == [4] * 5


def test_only_steady_steps_of_rounds_after_the_warm_up_count():
    pool = Pretence()
    (found,) = measure([(Named('a'), Request(seed=10, steps=4))], pool, rounds=3, warmup=2)
    assert found.step.samples.tolist() == pytest.approx([0.03, 0.04, 0.05])
    assert found.execution.trace.step_times[-1] == pytest.approx(0.03)


def test_orders_do_not_depend_on_chance():
    one, two = Pretence(), Pretence()
    for pool in (one, two):
        measure([(Named(name), Request()) for name in 'abcd'], pool, rounds=3, seed=7)
    assert one.order == two.order


def test_a_run_without_a_steady_step_is_refused():
    for program, least in ((Named('a'), 3), (Named('a', followed=True), 4)):
        with pytest.raises(ValueError, match=f'at least {least}'):
            measure([(program, Request(steps=least - 1))], Pretence())


def test_statistics_of_known_samples():
    found = Statistics(np.arange(101.0))
    assert (found.count, found.p10, found.median, found.iqr) == (101, 10.0, 50.0, 50.0)
    assert found.cv == pytest.approx(np.sqrt((101**2 - 1) / 12) / 50)
