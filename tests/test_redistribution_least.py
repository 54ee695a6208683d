"""No sequence of steps receives less than the cheapest: held against all sequences on single bits of the ranks."""

from collections import deque
from fractions import Fraction
from itertools import combinations
from math import lcm, prod

import numpy as np
import pytest
from every import draws
from hypothesis import given
from hypothesis import strategies as st
from layout_cases import layouts
from redistribution_machine import cut, execute

from simpar.layout import Axis, TensorLayout, mapped, redistribute
from simpar.strategy_search.objective import redistribution_bytes

# The least that a redistribution can receive, by going through all sequences of steps on single bits of the ranks.

SUM = 'sum'
"""The place of a bit with a pending sum."""


def bits_of(axis):
    """Strides of the bits of an axis, the outermost first."""
    return [axis.stride << power for power in reversed(range(axis.size.bit_length() - 1))]


def places(layout):
    """Stride of a bit → (dim, depth), or ``SUM``."""
    found = {stride: SUM for axis in layout.partial for stride in bits_of(axis)}
    for dim, axes in enumerate(layout.dims):
        found |= {stride: (dim, depth) for depth, stride in enumerate(b for axis in axes for b in bits_of(axis))}
    return found


def some(bits):
    """All choices of at least one."""
    return [which for count in range(1, len(bits) + 1) for which in combinations(bits, count)]


def cuts(place):
    """Whether a bit there makes a slice smaller."""
    return place not in (None, SUM)


def reached(state, which, ends):
    """The state with these bits moved to these ends."""
    return tuple(ends[bit] if bit in which else place for bit, place in enumerate(state))


def steps_from(state, goal, all_to_all):
    """What each possible next step receives, as a share of a slice, its collectives, and the state behind it."""
    nowhere = (None,) * len(state)
    lands = [bit for bit, end in enumerate(goal) if cuts(end) and end not in state]
    for which in some([bit for bit in lands if state[bit] is None]):
        yield Fraction(0), 0, reached(state, which, goal)
    for which in some([bit for bit, place in enumerate(state) if cuts(place) and place != goal[bit]]):
        yield Fraction(2 ** len(which) - 1), 1, reached(state, which, nowhere)
        if all_to_all and set(which) <= set(lands):
            yield 1 - Fraction(1, 2 ** len(which)), 1, reached(state, which, goal)
    for which in some([bit for bit, place in enumerate(state) if place == SUM and goal[bit] != SUM]):
        yield 2 - Fraction(2, 2 ** len(which)), 1, reached(state, which, nowhere)
        if set(which) <= set(lands):
            yield 1 - Fraction(1, 2 ** len(which)), 1, reached(state, which, goal)


def least(source, target, all_to_all):
    """The least received, as a share of the whole tensor, and of those sequences the fewest collectives."""
    begin, end = places(source), places(target)
    bits = sorted({*begin, *end})
    start, goal = tuple(map(begin.get, bits)), tuple(map(end.get, bits))
    best, queue = {start: (Fraction(0), 0)}, deque([start])
    while queue:
        state = queue.popleft()
        share = Fraction(1, 2 ** sum(map(cuts, state)))
        for received, collectives, after in steps_from(state, goal, all_to_all):
            total = (best[state][0] + received * share, best[state][1] + collectives)
            if after not in best or total < best[after]:
                best[after] = total
                queue.append(after)
    return best[goal]


@st.composite
def binary(draw, pending=True):
    """A shape and two layouts on a power of two of ranks, at most 64."""
    world, dims = draw(st.sampled_from((4, 8, 16, 32, 64))), draw(st.integers(1, 4))
    source, target = draw(layouts(world, dims, pending and draw(st.booleans()))), draw(layouts(world, dims))
    shape = tuple(
        lcm(*ends) * draw(st.sampled_from((1, 2, 3)))
        for ends in zip(source.shard_counts, target.shard_counts, strict=True)
    )
    return shape, source, target


def collectives(found):
    return sum(step.communicates for step in found.steps)


def exchanged(power):
    """Two axes of 2 ** power ranks and the same that have changed places."""
    size = 2**power
    return (size, size), mapped(size**2, (size, size), [[0], [1]]), mapped(size**2, (size, size), [[1], [0]])


def counted(pair, found):
    return found.elements / prod(pair[0]), collectives(found)


def spread(layout):
    """The same layout with room between the bits of a rank, so that no two of them are one axis."""
    axes = [[Axis(2, stride**2) for axis in dim for stride in bits_of(axis)] for dim in (*layout.dims, layout.partial)]
    return TensorLayout(layout.world**2, tuple(map(tuple, axes[:-1])), tuple(axes[-1]))


@draws(60)
@given(binary())
def test_it_receives_the_least_in_the_fewest_collectives(pair):
    assert counted(pair, redistribute(*pair)) == least(*pair[1:], all_to_all=True)


@draws(60)
@given(binary())
def test_without_all_to_all_it_receives_the_least_that_whole_axes_can(pair):
    shape, *ends = pair
    assert redistribute(*pair, all_to_all=False).elements >= prod(shape) * least(*ends, all_to_all=False)[0]
    apart = redistribute(shape, *map(spread, ends), all_to_all=False)
    assert counted(pair, apart) == least(*ends, all_to_all=False)


@draws(60)
@given(binary(pending=False))
def test_strategy_search_counts_the_least(pair):
    shape, source, target = pair
    bits = [_bits(layout) for layout in (source, target)]
    found = prod(shape) * least(source, target, all_to_all=True)[0]
    assert redistribution_bytes(*bits, shape, itemsize=1) == pytest.approx(float(found), rel=1e-12)


def _bits(layout):
    """A layout in bits of a rank, 0 the most significant."""
    found = [[] for _ in layout.dims]
    for stride, (dim, _) in sorted(places(layout).items(), key=lambda item: item[1]):
        found[dim].append((layout.world // stride).bit_length() - 2)
    return tuple(map(tuple, found))


@pytest.mark.parametrize('power', [1, 2, 3])
def test_axes_that_change_places_do_so_by_halves(power):
    """A half is gathered and, of twice the slice, exchanged for half of it: two slices for each; whole, 2 (g − 1)."""
    shape, source, target = exchanged(power)
    shape = (2 * shape[0], shape[1])
    found = redistribute(shape, source, target)
    assert found.elements == 2 * power * 2
    assert collectives(found) == 2 * power
    tensor = np.arange(prod(shape)).reshape(shape)
    for rank, mine in enumerate(execute(found, cut(tensor, source))):
        np.testing.assert_array_equal(mine, tensor[target.slices(shape, rank)])


def test_without_all_to_all_an_axis_moves_whole():
    rows, columns = mapped(8, (8,), [[0], []]), mapped(8, (8,), [[], [0]])
    found = redistribute((64, 64), rows, columns, all_to_all=False)
    assert [step.kind for step in found.steps] == ['all_gather', 'slice']
    assert found.elements == 7 * 8 * 64


def test_what_moves_together_stays_one_axis():
    """An axis of eight is gathered whole, and only two of four, which wait for each other, move in parts."""
    source = mapped(128, (8, 4, 4), [[0], [1], [2]])
    target = mapped(128, (8, 4, 4), [[], [2], [1]])
    found = redistribute((8, 4, 4), source, target)
    axes = [axis for step in found.steps for axis in step.axes]
    assert [axis.size for axis in axes if axis.stride >= 16] == [8]
    assert {axis.size for axis in axes if axis.stride < 16} == {2}


def test_one_all_gather_takes_several_axes():
    whole = TensorLayout(16, ((), ()))
    found = redistribute((64, 64), mapped(16, (4, 2, 2), [[0, 2], [1]]), whole)
    assert [step.kind for step in found.steps] == ['all_gather']
    assert found.elements == 15 * 16 * 16


@pytest.mark.parametrize(('power', 'slices'), [(5, 2 * 5), (6, 2 * 63)])
def test_more_than_ten_parts_move_whole(power, slices):
    assert redistribute(*exchanged(power)).elements == slices
