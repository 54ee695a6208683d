"""Layouts: device matrices with names, slices, groups; equal where every rank has the same."""

import numpy as np
import pytest
from every import draws
from hypothesis import given
from hypothesis import strategies as st
from layout_cases import WORLDS, layouts

from simpar.errors import Infeasible
from simpar.layout import Axis, Layout, TensorLayout, group_of, mapped, merged, rank_groups, size_of


def test_a_layout_by_names_cuts_dims_by_one_alias_or_several():
    layout = Layout((2, 2, 2), ('dp', 'sp', 'mp'))
    assert layout('dp', 'mp').shard_counts == (2, 2)
    both = layout(('dp', 'mp'), 'None', None)
    assert both.shard_counts == (4, 1, 1)
    assert [both.index(rank)[0] for rank in range(8)] == [0, 1, 0, 1, 2, 3, 2, 3]
    assert [layout(('mp', 'dp')).index(rank)[0] for rank in range(8)] == [0, 2, 0, 2, 1, 3, 1, 3]
    assert layout('dp', partial=('sp', 'mp')).partial == (Axis(4, 1),)


def test_what_is_left_of_the_ranks_repeats_on_the_right():
    layout = mapped(8, (2, 2), [[0], [1]])
    assert layout.replicated_axes == (Axis(2, 1),)
    assert [layout.index(rank) for rank in range(8)] == [(0, 0)] * 2 + [(0, 1)] * 2 + [(1, 0)] * 2 + [(1, 1)] * 2
    assert group_of(5, layout.replicated_axes) == (4, 5)


def test_layouts_are_equal_by_what_ranks_have_and_not_by_how_often_they_cut():
    assert mapped(8, (2, 4), [[0, 1], []]) == mapped(8, (8,), [[0], []])
    assert mapped(8, (2, 1, 4), [[0], [2]]) == mapped(8, (2, 4), [[0], [1]])
    inner, outer = mapped(8, (2, 2, 2), [[1], []]), mapped(8, (2, 2, 2), [[0], []])
    assert inner.shard_counts == outer.shard_counts
    assert inner != outer


@draws(60)
@given(st.data())
def test_slices_tile_the_tensor_once_for_each_repetition(data):
    world, dims = data.draw(st.sampled_from(WORLDS)), data.draw(st.integers(1, 3))
    layout = data.draw(layouts(world, dims))
    shape = tuple(2 * cut for cut in layout.shard_counts)
    covered = np.zeros(shape, dtype=int)
    for rank in range(world):
        covered[layout.slices(shape, rank)] += 1
    assert (covered == size_of(layout.replicated_axes)).all()


@draws(60)
@given(st.data())
def test_equal_layouts_are_those_that_give_every_rank_the_same(data):
    world = data.draw(st.sampled_from(WORLDS))
    one, other = data.draw(layouts(world, 2)), data.draw(layouts(world, 2))
    same = one.shard_counts == other.shard_counts and all(one.index(rank) == other.index(rank) for rank in range(world))
    assert same == (one == other)


@draws(60)
@given(st.data())
def test_groups_hold_every_rank_once_and_differ_along_their_axes_alone(data):
    world = data.draw(st.sampled_from(WORLDS))
    layout = data.draw(layouts(world, 1))
    groups = rank_groups(world, layout.sharding_axes)
    assert sorted(groups.ravel().tolist()) == list(range(world))
    for group in groups.tolist():
        assert tuple(group) == group_of(group[0], layout.sharding_axes) == group_of(group[-1], layout.sharding_axes)
        assert [layout.index(rank)[0] for rank in group] == list(range(len(group)))
        assert len({rank - sum(a.position(rank) * a.stride for a in layout.sharding_axes) for rank in group}) == 1


def test_axes_that_count_on_become_one():
    assert merged([Axis(2, 4), Axis(2, 2), Axis(1, 7), Axis(2, 1)]) == (Axis(8, 1),)
    assert merged([Axis(2, 1), Axis(2, 2)]) == (Axis(2, 1), Axis(2, 2))


@pytest.mark.parametrize(
    ('build', 'message'),
    [
        (lambda: Layout((2, 4), ('dp', 'mp'))('tp', None), "no axis is called 'tp'; there are dp, mp"),
        (lambda: Layout((2, 4), ('dp', 'mp'))('mp', 'mp'), 'has no place in 8 ranks beside the other axes'),
        (lambda: mapped(8, (3,), [[0]]), 'of 3 ranks does not divide 8'),
        (lambda: TensorLayout(8, ((Axis(4, 4),),)), 'has no place in 8 ranks'),
        (lambda: mapped(8, (8,), [[0]]).slice_shape((8, 8)), 'a layout of 1 dims'),
    ],
)
def test_what_cannot_be_is_refused(build, message):
    with pytest.raises(Infeasible, match=message):
        build()
