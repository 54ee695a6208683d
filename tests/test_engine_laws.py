"""Laws that hold for every program: bounds, links, scaling, and times on the grid."""

import numpy as np
from engine_oracle import Oracle
from engine_programs import make_sample
from every import draws
from hypothesis import assume, given, reject
from hypothesis import strategies as st

from simpar.cost.costs import Communication
from simpar.engine import simulate
from simpar.errors import Deadlock
from simpar.units import GRID

CASES = st.integers(0, 2**32).map(lambda seed: make_sample(seed).case)
FORTY = draws(40)


def simulated(case, **how):
    """The trace of two steps; a program that does not end is drawn again."""
    try:
        return simulate(case.program, case.costs, steps=2, **how)
    except Deadlock:
        reject()


def against_paths(case, slower=None):
    """Each end of an op, and the longest path to it."""
    trace = simulated(case)
    for (rank, step, slot), path in Oracle(case.program, case.costs, steps=2).longest_paths(slower).items():
        yield trace.times_of(rank).end_KS[step, slot], path


def communicating(case, change):
    """The case with each communication changed."""
    return case.with_costs(
        communication={index: tuple(map(change, entries)) for index, entries in case.costs.communication.items()}
    )


def without_links(case):
    """The case on links for nobody else, and with as many work queues as streams."""
    return communicating(case, lambda one: Communication(one.alpha, one.transfer, ())).with_costs(work_queues=0)


@FORTY
@given(CASES)
def test_nothing_ends_before_the_longest_path_at_isolated_durations(case):
    assert all(end >= earliest for end, earliest in against_paths(case))


@FORTY
@given(CASES)
def test_without_slow_down_and_links_everything_ends_exactly_at_the_longest_path(case):
    ones = np.ones(len(case.program.op_classes))
    alone = without_links(case).with_costs(beside_communication=ones, beside_compute=ones)
    assert all(end == expected for end, expected in against_paths(alone))


@FORTY
@given(CASES)
def test_without_links_nothing_ends_later_than_with_everything_slowed_always(case):
    costs = case.costs
    slower = {
        index: (costs.beside_communication if op.kind == 'compute' else costs.beside_compute)[index]
        for index, op in enumerate(case.program.op_classes)
    }
    assert all(end <= latest + 1e-9 for end, latest in against_paths(without_links(case), slower))


@FORTY
@given(CASES, st.sampled_from([True, None]))
def test_no_link_is_ever_overloaded(case, unfold):
    assume(case.costs.links)

    def check(time, transfers):
        load = np.zeros(len(case.costs.links))
        for op_class, groups, speed in transfers:
            assert 0 < speed <= 1
            for group in groups:
                for link, demand in case.costs.communication[op_class][group].links:
                    load[link] += speed * demand
        assert load.max() <= 1 + 1e-12, f'at {time}'

    simulated(case, unfold=unfold, observe=check)


@FORTY
@given(CASES)
def test_all_times_are_on_the_grid_and_in_order(case):
    for lane in simulated(case).representatives:
        times = np.stack([lane.arrive_KS, lane.start_KS, lane.end_KS])
        np.testing.assert_array_equal(times * GRID, np.rint(times * GRID))
        assert (np.diff(times, axis=0) >= 0).all()


@FORTY
@given(CASES)
def test_with_no_latency_and_no_host_cost_doubling_all_rates_halves_all_times(case):
    free = case.with_costs(host=0 * case.costs.host, host_step=0.0)
    fast, slow = (
        communicating(free, lambda one, times=times: Communication(0.0, times * one.transfer, one.links)).with_costs(
            compute=times * free.costs.compute
        )
        for times in (1, 2)
    )
    halved, whole = (simulated(one, unfold=True).representatives for one in (fast, slow))
    for one, other in zip(halved, whole, strict=True):
        np.testing.assert_allclose(one.end_KS, other.end_KS / 2, rtol=0, atol=1e-9)
