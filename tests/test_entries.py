"""Entries of thousands of groups are equal where every group's message is."""

import numpy as np
import pytest

from simpar.cost.costs import Block, Entries


def drawn(chance, alphas=(1.0, 2.0), links=3):
    """Entries of four groups in one or two blocks; small numbers, so that many are equal."""
    order = chance.permutation(4)
    found = []
    for rows in np.split(order, [int(chance.integers(1, 4))]):
        width = int(chance.integers(1, 3))
        over = chance.integers(0, links, (len(rows), width))
        parts = tuple(chance.choice([0.5, 1.0], width).tolist())
        found.append(Block(rows, float(chance.choice(alphas)), 1.0, over, parts, (1,) * width))
    return Entries(tuple(found))


def test_entries_are_equal_where_all_their_messages_are():
    chance = np.random.default_rng(7)
    # One link and one latency: blocks differ, and often say the same.
    some = [drawn(chance, alphas=(1.0,), links=1) for _ in range(40)] + [drawn(chance) for _ in range(40)]
    told = [(one == other, tuple(one) == tuple(other)) for one in some for other in some]
    assert all(arrays == messages for arrays, messages in told)
    assert len(some) < sum(equal for equal, _ in told) < len(told)


@pytest.mark.parametrize('other', [(), 'entries', None])
def test_entries_are_no_other_thing(other):
    assert drawn(np.random.default_rng(0)) != other


def test_entries_are_a_tuple_of_their_messages():
    entries = drawn(np.random.default_rng(0))
    assert entries == tuple(entries)
