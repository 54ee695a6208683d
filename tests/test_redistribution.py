"""Redistribution: executed on slices it gives the tensor exactly, at no more bytes than the compiler's sequences."""

from fractions import Fraction
from math import prod

import numpy as np
import pytest
from every import draws
from hypothesis import assume, given
from hypothesis import strategies as st
from layout_cases import layouts, pairs
from redistribution_machine import cut, execute

from simpar.errors import Infeasible
from simpar.layout import Layout, mapped, redistribute, replicated
from simpar.lower.graph.move import Mover
from simpar.lower.issue import Mesh
from simpar.lower.tape import Tape, Value

METHODS = ('cheapest', 'mindspore-2.0', 'mindspore-2.10')
WAYS = [(method, all_to_all) for method in METHODS for all_to_all in (True, False)]
SMALL = 2**21


def strategy(world, *cuts):
    return mapped(world, cuts, [[dim] for dim in range(len(cuts))])


@draws(60)
@given(pairs())
def test_every_rank_ends_with_its_slice_exactly(pair):
    shape, source, target = pair
    assume(prod(shape) * source.world <= SMALL)
    tensor = np.arange(1, prod(shape) + 1).reshape(shape)
    for way in WAYS:
        found = execute(redistribute(shape, source, target, *way), cut(tensor, source))
        for rank, mine in enumerate(found):
            np.testing.assert_array_equal(mine, tensor[target.slices(shape, rank)])


@draws(60)
@given(pairs())
def test_ours_moves_no_more_than_the_compilers_sequences(pair):
    for all_to_all in (True, False):
        ours = redistribute(*pair, 'cheapest', all_to_all).elements
        assert ours <= redistribute(*pair, 'mindspore-2.0', all_to_all).elements
        assert ours <= redistribute(*pair, 'mindspore-2.10', all_to_all).elements
    assert redistribute(*pair).elements <= redistribute(*pair, all_to_all=False).elements


@draws(60)
@given(pairs(pending=False))
def test_no_rank_receives_less_than_it_lacks(pair):
    shape, source, target = pair
    assume(prod(shape) * source.world <= SMALL)
    places = np.arange(prod(shape)).reshape(shape)
    lacks = max(
        len(np.setdiff1d(places[target.slices(shape, rank)], places[source.slices(shape, rank)]))
        for rank in range(source.world)
    )
    for way in WAYS:
        assert redistribute(*pair, *way).elements >= lacks


@draws(60)
@given(pairs())
def test_the_backward_is_the_transpose(pair):
    shape, source, target = pair
    assume(prod(shape) * source.world <= SMALL // 8)
    draw = np.random.default_rng(0)
    for way in WAYS:
        forward = redistribute(shape, source, target, *way)
        x = [draw.integers(-9, 9, source.slice_shape(shape)) for _ in range(source.world)]
        dy = [draw.integers(-9, 9, target.slice_shape(shape)) for _ in range(source.world)]
        y, dx = execute(forward, x), execute(forward.backward(), dy)
        assert sum(int((a * b).sum()) for a, b in zip(y, dy, strict=True)) == sum(
            int((a * b).sum()) for a, b in zip(x, dx, strict=True)
        )


@draws(60)
@given(pairs(pending=False))
def test_the_backward_takes_a_gradient_of_shares_to_shares(pair):
    shape, source, target = pair
    assume(prod(shape) * source.world <= SMALL // 8)
    gradient = np.arange(1, prod(shape) + 1).reshape(shape)
    backward = redistribute(*pair).backward()
    assert backward.source == target.with_partial(target.replicated_axes)
    found = execute(backward, cut(gradient, backward.source))
    summed = redistribute(shape, backward.target, replicated(source.world, len(shape)))
    for whole in execute(summed, found):
        np.testing.assert_array_equal(whole, gradient)


@pytest.mark.parametrize(
    ('source', 'target', 'elements', 'kinds'),
    [
        ((8, 1), (1, 8), Fraction(7, 8) * 8 * 64, ['all_to_all']),
        ((8, 1), (2, 4), Fraction(3, 4) * 8 * 64, ['all_to_all']),
        ((2, 4), (2, 1), 3 * 32 * 16, ['all_gather']),
        ((2, 1), (2, 4), 0, ['slice']),
        ((1, 8), (2, 4), Fraction(3, 2) * 8 * 64, ['all_to_all'] * 3),
        ((8, 1), (1, 1), 7 * 8 * 64, ['all_gather']),
    ],
)
def test_well_known_changes_of_a_matrix_on_eight_ranks(source, target, elements, kinds):
    found = redistribute((64, 64), strategy(8, *source), strategy(8, *target))
    assert found.elements == elements
    assert [step.kind for step in found.steps] == kinds


def test_a_pending_sum_is_scattered_where_its_axis_is_to_cut_and_all_reduced_where_not():
    layout = Layout((2, 4), ('dp', 'mp'))
    pending = layout('dp', None, partial='mp')
    scattered = redistribute((64, 64), pending, layout(('dp', 'mp'), None))
    assert [step.kind for step in scattered.steps] == ['reduce_scatter']
    assert scattered.elements == Fraction(3, 4) * 32 * 64
    reduced = redistribute((64, 64), pending, layout('dp', None))
    assert [step.kind for step in reduced.steps] == ['all_reduce']
    assert reduced.elements == 2 * scattered.elements
    assert [step.kind for step in scattered.backward().steps] == ['all_gather']
    assert [step.kind for step in reduced.backward().steps] == ['all_reduce']


def test_layouts_without_common_parts_meet_where_all_is_gathered():
    by_columns, by_rows = mapped(6, (2, 3), [[0], [1]]), mapped(6, (3, 2), [[1], [0]])
    found = redistribute((6, 6), by_columns, by_rows)
    assert [step.kind for step in found.steps][-2:] == ['slice', 'slice']
    tensor = np.arange(36).reshape(6, 6)
    for rank, mine in enumerate(execute(found, cut(tensor, by_columns))):
        np.testing.assert_array_equal(mine, tensor[by_rows.slices((6, 6), rank)])


@draws(60)
@given(st.data())
def test_what_two_ways_of_a_value_begin_with_is_done_once_only_where_it_is_the_same(data):
    """Copies alone see a tensor in other parts: two of them are one where they see the same ones."""
    shape, source, target = data.draw(pairs(pending=False))
    other = data.draw(layouts(source.world, len(shape)))
    assume(all(length % cut == 0 for length, cut in zip(shape, other.shard_counts, strict=True)))
    tape = Tape(Mesh(data=source.world, tensor=1, copies=1), 'fp32')
    mover, value = Mover(tape, 'mindspore-2.10', all_to_all=True), tape.register(Value('value', shape, source))
    for wanted in (target, other):
        mover.move(value, wanted)
    mover.share()
    for op in tape.ops:
        read, written = (len(tape.tensors[name].shape) for (name,) in (op.reads, op.writes))
        assert read == written or op.operator == 'scale'


def test_what_cannot_be_is_refused():
    layout = Layout((2, 4), ('dp', 'mp'))
    with pytest.raises(Infeasible, match=r'dim 0 of \(9, 8\) cannot be split into 2'):
        redistribute((9, 8), layout('dp', None), layout(None, None))
    with pytest.raises(Infeasible, match='cannot become a pending sum'):
        redistribute((8, 8), layout('dp', None), layout('dp', None, partial='mp'))
    with pytest.raises(Infeasible, match='on 8 ranks cannot become one on 4'):
        redistribute((8, 8), layout('dp', None), mapped(4, (4,), [[0], []]))
