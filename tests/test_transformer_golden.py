"""Training steps of transformer blocks as MindSpore's compiler recorded them, with the strategies that it chose.

Of every step the collectives (phase, kind, ranks, shapes on a rank) and the slices of parameters are compared, as in
``test_strategy_training_golden``.
"""

import random
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import permutations, product
from math import prod

import numpy as np
import pytest
from every import some
from golden_shapes import FOLDER, SHIPPED
from golden_transformers import CASES, GROUP, RecordedBlocks

from simpar.layout import TensorLayout, matrix_axes, size_of
from simpar.lower import lower
from simpar.lower.graph.place import seen_as
from simpar.model import Dense

SMALL = {'seq': 16, 'ffn': 64}
MOST_RANKS = 16


@cache
def recorded_of(name):
    return RecordedBlocks(CASES[name])


def test_every_recorded_step_is_compared():
    files = [path for path in FOLDER.rglob(f'{GROUP}/*.json') if 'rec_tf' in path.name]
    assert len(CASES) == len(files) > 0
    assert FOLDER != SHIPPED or Counter(case['mindspore'] for case in CASES.values()) == {'2.0.0': 16, '2.10.0': 16}


@pytest.mark.parametrize('name', CASES)
def test_collectives_of_a_training_step_and_slices_of_parameters(name):
    recorded = recorded_of(name)
    assert recorded.ours() == recorded.theirs()
    assert recorded.unlike() == []
    if CASES[name]['parameters_after']:
        assert recorded.parameters() == recorded.recorded_parameters()


MATRIX, SHAPES = (
    (2, 2, 2),
    [(192,), (8, 24), (24, 8), (16, 12), (2, 8, 12), (1, 4, 4, 12), (12, 4, 4), (6, 32), (3, 64)],
)


@pytest.mark.parametrize('seed', some(range(40)))
def test_slices_seen_in_another_shape_are_the_layout_of_the_same_elements_if_there_is_one(seed):
    draw = random.Random(seed)
    shape, other = draw.sample(SHAPES, 2)
    layout = random_layout(draw, shape)
    seen = seen_as(layout, shape, other)
    held = list(pieces(layout, shape))
    alike = [
        one for one in layouts_of(layout.sharding_axes, other) if all(map(np.array_equal, held, pieces(one, other)))
    ]
    assert alike[:1] == ([] if seen is None else [seen])


def random_layout(draw, shape):
    """Axes of a device matrix on dims that they divide, in random order."""
    dims, left = [[] for _ in shape], list(shape)
    for axis in draw.sample(matrix_axes(MATRIX), draw.randint(1, len(MATRIX))):
        dim = draw.randrange(len(shape))
        if left[dim] % axis.size == 0:
            dims[dim].append(axis)
            left[dim] //= axis.size
    return TensorLayout(prod(MATRIX), tuple(map(tuple, dims)))


def pieces(layout, shape):
    """The elements that each rank has."""
    whole = np.arange(prod(shape)).reshape(shape)
    return (np.sort(whole[layout.slices(shape, rank)].ravel()) for rank in range(layout.world))


def layouts_of(cutting, shape):
    """All that cut a shape by the same axes, as prime ones."""
    axes = [
        atom for axis in cutting for atom in matrix_axes(MATRIX) if axis.stride <= atom.stride < axis.size * axis.stride
    ]
    for order in permutations(axes):
        for places in product(range(len(shape)), repeat=len(axes)):
            dims = tuple(
                tuple(axis for axis, place in zip(order, places, strict=True) if place == dim)
                for dim in range(len(shape))
            )
            if not any(length % size_of(dim) for length, dim in zip(shape, dims, strict=True)):
                yield TensorLayout(prod(MATRIX), dims)


@pytest.mark.parametrize('name', some([name for name in CASES if CASES[name]['case']['device_num'] <= MOST_RANKS]))
def test_a_small_block_with_the_recorded_strategies_computes_what_autograd_computes(name):
    """Fewer tokens and features, the same cuts: every way of a reshape and of a shared value, forward and back."""
    from executor.numerics import check

    args = CASES[name]['case']['net_args']
    recorded = RecordedBlocks(CASES[name], batch=min(16, args['batch']), hidden=2 * args['heads'], **SMALL)
    check(recorded.program, recorded.workload(), recorded.plan(), steps=2, seed=1)


def test_another_strategy_is_noticed():
    recorded = RecordedBlocks(CASES[next(iter(CASES))])
    workload = recorded.workload()
    layers = [
        replace(layer, strategy=((1, 1), (1, recorded.world))) if isinstance(layer, Dense) else layer
        for layer in workload.model.layers
    ]
    other = replace(workload, model=replace(workload.model, layers=tuple(layers)))
    recorded.program = lower(other, recorded.plan(), recorded.world)
    assert recorded.ours() != recorded.theirs()
