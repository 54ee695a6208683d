"""Max-min fair speeds: what they are by hand, what characterises them, and that no order matters."""

from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpar.engine.fold import fair_speeds
from simpar.engine.reference import Links


@dataclass(frozen=True, eq=False)
class Flow:
    links: tuple[tuple[int, float], ...]
    top: float = 1.0


flows_lists = st.lists(
    st.builds(
        Flow,
        links=st.dictionaries(st.integers(0, 4), st.integers(1, 1024).map(lambda n: n / 1024), max_size=3).map(
            lambda demands: tuple(demands.items())
        ),
        top=st.sampled_from([1.0, 0.9, 0.5, 0.7]),
    ),
    max_size=8,
)


def test_the_worked_program_s_wire():
    a, b = Flow(((0, 1.0),)), Flow(((0, 0.5),))
    assert fair_speeds([a, b]) == {a: 2 / 3, b: 2 / 3}


def test_what_a_slow_flow_leaves_goes_to_the_other():
    slow, fast = Flow(((0, 0.5),), top=0.5), Flow(((0, 1.0),))
    assert fair_speeds([slow, fast]) == {slow: 0.5, fast: 0.75}


def test_a_flow_has_its_narrowest_link_and_frees_the_others():
    narrow = [Flow(((0, 1.0),)) for _ in range(3)]
    both, wide = Flow(((0, 1.0), (1, 1.0))), Flow(((1, 1.0),))
    assert fair_speeds([*narrow, both, wide]) == {**dict.fromkeys(narrow, 0.25), both: 0.25, wide: 0.75}


def test_nothing_to_share():
    assert fair_speeds([]) == {}
    alone = Flow((), top=0.7)
    assert fair_speeds([alone]) == {alone: 0.7}


@given(flows_lists)
def test_every_flow_is_at_its_top_or_has_a_full_link_on_which_none_is_faster(flows):
    speeds = fair_speeds(flows)
    on = {link: [f for f in flows if link in dict(f.links)] for link in range(5)}
    load = {link: sum(speeds[f] * dict(f.links)[link] for f in users) for link, users in on.items()}
    assert max(load.values()) <= 1 + 1e-12
    for flow in flows:
        bottlenecks = [
            link
            for link, _ in flow.links
            if load[link] > 1 - 1e-12 and speeds[flow] >= max(speeds[other] for other in on[link]) - 1e-12
        ]
        assert 0 < speeds[flow] <= flow.top
        assert speeds[flow] == flow.top or bottlenecks


@given(flows_lists, st.randoms(use_true_random=False))
def test_neither_order_nor_other_components_matter_to_the_bit(flows, random: Random):
    expected = fair_speeds(flows)
    shuffled = random.sample(flows, len(flows))
    assert fair_speeds(shuffled) == expected
    links = Links(5)
    for flow in flows:
        links.add(flow)
    for flow in flows:
        component = links.component([flow])
        assert fair_speeds(component) == {member: expected[member] for member in component}


@given(flows_lists.filter(bool))
def test_a_flow_that_leaves_names_its_neighbours(flows):
    links = Links(5)
    for flow in flows:
        links.add(flow)
    first, *others = flows
    near = {other for other in others if dict(other.links).keys() & dict(first.links).keys()}
    assert set(links.remove(first)) == near
    assert first not in links.component(others)


@pytest.mark.parametrize('count', [2, 3, 7])
def test_one_flow_with_a_multiple_demand_is_as_fast_as_each_of_many(count):
    many = [Flow(((0, 0.75),)) for _ in range(count)]
    folded = Flow(((0, 0.75 * count),))
    assert set(fair_speeds(many).values()) == set(fair_speeds([folded]).values())
