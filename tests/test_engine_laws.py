"""Laws that hold for every program: bounds, links, scaling, and the same bytes in every process."""

import numpy as np
from engine_cases import make_case
from engine_oracle import Oracle
from hypothesis import given, settings
from hypothesis import strategies as st

from simpar.cost.costs import Communication
from simpar.engine import simulate
from simpar.units import GRID

SHAPES = {
    'seed': st.integers(0, 2**32),
    'pipe': st.integers(1, 3),
    'data': st.integers(1, 3),
    'tensor': st.integers(1, 3),
    'ops': st.integers(1, 12),
}
LINKS = st.sampled_from(['none', 'alike', 'any'])


def no_slow_down(case):
    count = len(case.program.op_classes)
    return case.with_costs(beside_communication=np.ones(count), beside_compute=np.ones(count))


def ends(trace, key):
    rank, step, slot = key
    return trace.times_of(rank).end_KS[step, slot]


@settings(max_examples=40, deadline=None)
@given(**SHAPES, links=LINKS)
def test_nothing_ends_before_the_longest_path_at_isolated_durations(links, **shape):
    case = make_case(**shape, links=links)
    trace = simulate(case.program, case.costs, steps=2)
    for key, earliest in Oracle(case.program, case.costs, steps=2).longest_paths().items():
        assert ends(trace, key) >= earliest


@settings(max_examples=40, deadline=None)
@given(**SHAPES)
def test_without_slow_down_and_links_everything_ends_exactly_at_the_longest_path(**shape):
    case = no_slow_down(make_case(**shape, links='none'))
    trace = simulate(case.program, case.costs, steps=2)
    for key, expected in Oracle(case.program, case.costs, steps=2).longest_paths().items():
        assert ends(trace, key) == expected


@settings(max_examples=40, deadline=None)
@given(**SHAPES)
def test_without_links_nothing_ends_later_than_with_everything_slowed_always(**shape):
    case = make_case(**shape, links='none')
    trace = simulate(case.program, case.costs, steps=2)
    slower = {
        index: (case.costs.beside_communication if op.kind == 'compute' else case.costs.beside_compute)[index]
        for index, op in enumerate(case.program.op_classes)
    }
    for key, latest in Oracle(case.program, case.costs, steps=2).longest_paths(slower).items():
        assert ends(trace, key) <= latest + 1e-9


@settings(max_examples=40, deadline=None)
@given(**SHAPES, links=st.sampled_from(['alike', 'any']), unfold=st.sampled_from([True, None]))
def test_no_link_is_ever_overloaded(links, unfold, **shape):
    case = make_case(**shape, links=links)

    def check(time, transfers):
        load = np.zeros(len(case.costs.links))
        for op_class, groups, speed in transfers:
            assert 0 < speed <= 1
            for group in groups:
                for link, demand in case.costs.communication[op_class][group].links:
                    load[link] += speed * demand
        assert load.max() <= 1 + 1e-12, f'at {time}'

    simulate(case.program, case.costs, steps=2, unfold=unfold, observe=check)


@settings(max_examples=40, deadline=None)
@given(**SHAPES, links=LINKS)
def test_all_times_are_on_the_grid_and_in_order(links, **shape):
    case = make_case(**shape, links=links)
    for lane in simulate(case.program, case.costs, steps=2).representatives:
        times = np.stack([lane.arrive_KS, lane.start_KS, lane.end_KS])
        np.testing.assert_array_equal(times * GRID, np.rint(times * GRID))
        assert (np.diff(times, axis=0) >= 0).all()


def double(case):
    twice = {
        index: tuple(Communication(2 * c.alpha, 2 * c.transfer, c.links) for c in groups)
        for index, groups in case.costs.communication.items()
    }
    return case.with_costs(compute=2 * case.costs.compute, communication=twice)


@settings(max_examples=40, deadline=None)
@given(**SHAPES, links=LINKS)
def test_with_no_latency_and_no_host_cost_doubling_all_rates_halves_the_step(links, **shape):
    case = make_case(**shape, links=links)
    none = {
        index: tuple(Communication(0.0, c.transfer, c.links) for c in groups)
        for index, groups in case.costs.communication.items()
    }
    fast = case.with_costs(communication=none, host=0 * case.costs.host)
    slow = double(fast)
    halved, whole = (simulate(c.program, c.costs) for c in (fast, slow))
    np.testing.assert_allclose(halved.step_ends, whole.step_ends / 2, rtol=0, atol=1e-9)
