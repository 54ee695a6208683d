"""Topology: the levels that a group crosses and the channels that it uses."""

import dataclasses
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpar.profiles import cluster, load_profile


def topology(name, nodes=1, **arguments):
    return cluster(load_profile(name), nodes, **arguments).topology


def test_a_group_in_one_node_crosses_its_switch():
    shape = topology('h100-sxm-8', 2).shape([0, 3, 5])
    assert (shape.members, shape.domains, shape.ranks, shape.nodes) == ((3, 1), (1, 1), 3, 1)
    assert shape.outermost == 0


def test_one_rank_of_each_node_crosses_the_network_alone():
    shape = topology('h100-sxm-8', 4).shape([1, 9, 17, 25])
    assert (shape.members, shape.domains, shape.nodes) == ((1, 4), (4, 1), 4)
    assert shape.outermost == 1


def test_eight_ascend_910a_are_two_groups_of_four():
    shape = topology('ascend910a-8', 2).shape(range(16))
    assert shape.members == (4, 2, 2)
    assert shape.domains == (4, 2, 1)


def test_ports_pairs_and_cards():
    gpus, ascend = topology('h100-sxm-8'), topology('ascend910a-8')
    assert gpus.channels([2, 0], 0) == ('nvlink/2', 'nvlink/0')
    assert ascend.channels([0, 1, 3], 0) == ('hccs/0-1', 'hccs/0-3', 'hccs/1-3')
    assert ascend.channels(range(8), 0) == tuple(
        f'hccs/{a}-{b}' for base in (0, 4) for a in range(base, base + 4) for b in range(a + 1, base + 4)
    ), 'no HCCS between the two groups'
    assert ascend.channels([0, 4], 0) == ()


def test_a_card_for_each_node():
    profile = load_profile('h100-sxm-8')
    shared = dataclasses.replace(profile.links[1], per='node')
    made = cluster(dataclasses.replace(profile, links=(profile.links[0], shared)), nodes=3).topology
    assert made.channels([1, 9, 10], 1) == ('infiniband/node0', 'infiniband/node1')


def test_a_smaller_node_has_smaller_groups():
    made = topology('ascend910a-8', 4, devices=2)
    assert made.sizes == (2, 2, 0)
    assert made.shape(range(8)).members == (2, 1, 4)


@pytest.mark.parametrize('name', ['ascend910a-8', 'ascend910b-8', 'h100-sxm-8', 'cpu-gloo'])
@given(ranks=st.sets(st.integers(0, 31), min_size=1, max_size=32))
def test_the_levels_hold_the_whole_group(name, ranks):
    """Members multiply to at least the ranks, and to exactly them where every domain holds as many."""
    made = topology(name, 32 if name == 'cpu-gloo' else 4)
    shape = made.shape(sorted(ranks))
    assert prod(shape.members) >= len(ranks)
    assert shape.domains[-1] == 1, 'the outermost level joins all'
    assert all(outer <= inner for inner, outer in zip((len(ranks), *shape.domains), shape.domains, strict=False))
    whole = made.shape(range(32))
    assert prod(whole.members) == 32
