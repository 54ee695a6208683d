"""Operators cut by any valid strategy compute what they compute uncut, forward and backward."""

import random
from itertools import product
from math import prod

import numpy as np
import pytest
import torch
from every import some
from redistribution_machine import cut, execute

from simpar.errors import Infeasible
from simpar.layout import operators, redistribute

functional = torch.nn.functional

WORLDS = (4, 6, 8, 16)
EACH = 12


def rms(x, gain):
    return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * gain


RULES = {
    'matmul': (operators.matmul('op', (12, 8), (8, 16)), torch.matmul),
    'matmul_a': (operators.matmul('op', (8, 12), (8, 16), transpose_a=True), lambda x, w: x.T @ w),
    'matmul_b': (operators.matmul('op', (12, 8), (16, 8), transpose_b=True), lambda x, w: x @ w.T),
    'matmul_ab': (operators.matmul('op', (8, 12), (16, 8), transpose_a=True, transpose_b=True), lambda x, w: x.T @ w.T),
    'batch_matmul': (operators.matmul('op', (4, 2, 8, 4), (4, 2, 4, 6)), torch.matmul),
    'batch_matmul_b': (
        operators.matmul('op', (6, 8, 4), (6, 12, 4), transpose_b=True),
        lambda x, w: x @ w.transpose(-1, -2),
    ),
    'relu': (operators.elementwise('op', (8, 12)), torch.relu),
    'gelu': (operators.elementwise('op', (4, 6, 8)), functional.gelu),
    'add_bias': (operators.elementwise('op', (8, 12), (12,)), torch.add),
    'multiply_broadcast': (operators.elementwise('op', (4, 1, 8), (6, 8)), torch.mul),
    'sum': (operators.reduction('op', (8, 12, 4), [1]), lambda x: x.sum(1)),
    'sum_all': (operators.reduction('op', (8, 12), [0, 1]), lambda x: x.sum()),
    'sum_keep': (operators.reduction('op', (8, 12), [-1], keep=True), lambda x: x.sum(-1, keepdim=True)),
    'softmax': (operators.normalised('op', (8, 12)), lambda x: x.softmax(-1)),
    'softmax_first': (operators.normalised('op', (8, 12), [0]), lambda x: x.softmax(0)),
    'layer_norm': (
        operators.normalised('op', (8, 6, 4), parameters=2),
        lambda x, g, b: functional.layer_norm(x, x.shape[-1:], g, b),
    ),
    'rms_norm': (operators.normalised('op', (8, 12), parameters=1), rms),
    'transpose': (operators.transpose('op', (4, 6, 8), (2, 0, 1)), lambda x: x.permute(2, 0, 1)),
    'conv2d': (
        operators.conv2d('op', (8, 2, 5, 5), (3, 2, 3, 3), (8, 3, 5, 5)),
        lambda x, w: functional.conv2d(x, w, padding=1),
    ),
}
"""Operators whose local work is the same function of the slices."""


def strategies(operator, seed):
    """Some valid strategies, all of them different, over some world."""
    draw = random.Random(seed)
    world = draw.choice(WORLDS)
    names = [name for name in operator.order if name not in operator.fixed]
    divisors = [[c for c in range(1, world + 1) if world % c == 0 == operator.lengths[n] % c] for n in names]
    every = [
        operator.strategy(dict(zip(names, cuts, strict=True))) for cuts in product(*divisors) if world % prod(cuts) == 0
    ]
    return world, draw.sample(every, min(len(every), EACH))


def holds(operator, sharded, whole, local, inputs):
    """Forward and backward of the slices against the unsharded function; integers have no gradient."""
    floats = [place for place, x in enumerate(inputs) if x.is_floating_point()]
    for place in floats:
        inputs[place].requires_grad_()
    y = whole(*inputs)
    dy = torch.randn_like(y)
    wanted = torch.autograd.grad(y, [inputs[place] for place in floats], dy)
    mine = [
        [
            torch.tensor(slices[rank])
            for slices in (cut(x.detach().numpy(), of) for x, of in zip(inputs, sharded.inputs, strict=True))
        ]
        for rank in range(sharded.local.world)
    ]
    for slices in mine:
        for place in floats:
            slices[place].requires_grad_()
    parts = [local(rank, *slices) for rank, slices in enumerate(mine)]
    forward = redistribute(operator.output_shape, sharded.local, sharded.output)
    found = execute(forward, [part.detach().numpy().reshape(sharded.local.slice_shape(y.shape)) for part in parts])
    for rank, piece in enumerate(found):
        np.testing.assert_allclose(piece, y.detach().numpy()[sharded.output.slices(y.shape, rank)], atol=1e-12)
    gradient_layout = sharded.output.with_partial(sharded.output.replicated_axes)
    back = execute(forward.backward(), cut(dy.numpy(), gradient_layout))
    gradients = [
        torch.autograd.grad(part, [slices[place] for place in floats], torch.tensor(piece).reshape(part.shape))
        for part, slices, piece in zip(parts, mine, back, strict=True)
    ]
    for index, place in enumerate(floats):
        layout = sharded.inputs[place]
        mirror = redistribute(operator.shapes[place], layout.with_partial(layout.unsharded_axes), layout)
        summed = execute(mirror, [gradient[index].numpy() for gradient in gradients])
        for rank, piece in enumerate(summed):
            expected = wanted[index].numpy()[layout.slices(operator.shapes[place], rank)]
            np.testing.assert_allclose(piece, expected, atol=1e-12)


def random_inputs(operator):
    return [torch.randn(*shape, dtype=torch.float64) for shape in operator.shapes]


@pytest.mark.parametrize('rule', RULES)
@pytest.mark.parametrize('seed', some(range(2), 2))
def test_slices_compute_the_whole(rule, seed):
    operator, function = RULES[rule]
    world, chosen = strategies(operator, seed)
    torch.manual_seed(seed)
    for strategy in chosen:
        holds(
            operator,
            operator.sharded(strategy, world),
            function,
            lambda rank, *x: function(*x),
            random_inputs(operator),
        )


@pytest.mark.parametrize('seed', range(3))
def test_a_matmul_scatters_its_sum_where_out_strategy_says_so(seed):
    operator = operators.matmul('op', (16, 8), (8, 16))
    world, chosen = strategies(operator, seed)
    scattered = 0
    for strategy in chosen:
        (a, b), (_, c) = strategy
        for out in ((a * b, c), (a, b * c)):
            if b > 1 and 16 % out[0] == 0 == 16 % out[1]:
                sharded = operator.sharded(strategy, world, out)
                summed = redistribute(operator.output_shape, sharded.local, sharded.output)
                assert [step.kind for step in summed.steps] == ['reduce_scatter']
                assert sharded.output.shard_counts == out
                holds(operator, sharded, torch.matmul, lambda rank, *x: torch.matmul(*x), random_inputs(operator))
                scattered += 1
    assert scattered


@pytest.mark.parametrize('seed', range(3))
def test_an_embedding_by_row_and_by_column(seed):
    operator = operators.embedding('op', (12, 8), (4, 6))
    world, chosen = strategies(operator, seed)
    assert any(strategy[0][0] > 1 for strategy in chosen)
    for strategy in chosen:
        sharded = operator.sharded(strategy, world)

        def local(rank, weight, indices, sharded=sharded):
            inside = indices - sharded.inputs[0].index(rank)[0] * weight.shape[0]
            mask = (inside >= 0) & (inside < weight.shape[0])
            return functional.embedding(inside.where(mask, 0), weight) * mask.unsqueeze(-1)

        inputs = [torch.randn(12, 8, dtype=torch.float64), torch.randint(12, (4, 6))]
        holds(operator, sharded, lambda weight, indices: functional.embedding(indices, weight), local, inputs)


@pytest.mark.parametrize('seed', range(3))
def test_losses_are_sums_over_slices_divided_by_the_whole_count(seed):
    logits = torch.randn(12, 10, dtype=torch.float64)
    entropy = operators.cross_entropy('op', (12, 10))
    squares, differences = (operators.mean_loss('op', (12, 8)) for _ in range(2))
    cases = [
        (entropy, functional.cross_entropy, 12, [logits, torch.randint(10, (12,))]),
        (squares, functional.mse_loss, 96, random_inputs(squares)),
        (differences, functional.l1_loss, 96, random_inputs(differences)),
    ]
    for operator, function, count, inputs in cases:
        world, chosen = strategies(operator, seed)
        for strategy in chosen:
            holds(
                operator,
                operator.sharded(strategy, world),
                function,
                lambda rank, *x, function=function, count=count: function(*x, reduction='sum') / count,
                [x.detach().clone() for x in inputs],
            )


@pytest.mark.parametrize(
    ('x', 'shape'),
    [((8, 6, 4), (8, 24)), ((48, 4), (8, 6, 4)), ((8, 6, 4), (48, 4)), ((8, 1, 4), (8, 4)), ((8,), (2, 4))],
)
@pytest.mark.parametrize('seed', some(range(2), 2))
def test_a_reshape_of_slices_is_the_slice_of_the_reshape(x, shape, seed):
    operator = operators.reshape('op', x, shape)
    world, chosen = strategies(operator, seed)
    for strategy in chosen:
        sharded = operator.sharded(strategy, world)
        mine = sharded.output.slice_shape(shape)
        holds(
            operator,
            sharded,
            lambda t: t.reshape(shape),
            lambda rank, t, mine=mine: t.reshape(mine),
            random_inputs(operator),
        )


def test_a_flatten_keeps_the_batch():
    assert operators.flatten('op', (8, 1, 28, 28)).sharded(((4, 1, 1, 1),), 8).output.shard_counts == (4, 1)


@pytest.mark.parametrize(
    ('operator', 'strategy', 'message'),
    [
        (RULES['matmul'][0], ((2, 4), (2, 1)), 'op: .* dim 0 of input 1 is split into 2, but dim 1 of input 0 must be'),
        (RULES['matmul'][0], ((8, 1), (1, 1)), 'op: .* dim 0 of input 0 of length 12 cannot be split into 8'),
        (RULES['matmul'][0], ((4, 4), (4, 1)), 'op: .* takes 16 ranks, which do not divide 8'),
        (RULES['matmul'][0], ((4, 1),), 'op: .* entries for .2. dims, but the inputs have 2, 2'),
        (RULES['matmul'][0], ((0, 1), (1, 1)), 'op: .* dim 0 of input 0 is split into 0'),
        (RULES['softmax'][0], ((1, 2),), 'op: .* dim 1 of input 0 is split into 2, but is normalised over'),
        (RULES['layer_norm'][0], ((1, 1, 2), (2,), (2,)), 'op: .* dim 2 of input 0 .* must stay unsharded'),
        (RULES['multiply_broadcast'][0], ((2, 2, 1), (2, 1)), 'op: .* dim 1 of input 0 .* must stay unsharded'),
        (RULES['conv2d'][0], ((2, 1, 1, 1), (3, 1, 1, 1)), 'op: .* dim 0 of input 1 .* is sharded by batch'),
        (operators.reshape('op', (48, 4), (8, 6, 4)), ((16, 1),), 'op: .* dim 0 of input 0 .* only 8 slices are whole'),
        (operators.reshape('op', (8, 6, 4), (48, 4)), ((2, 2, 1),), 'op: .* dim 1 of input 0 .* lies inside of a dim'),
    ],
)  # fmt: skip
def test_a_strategy_that_cannot_be_names_the_dim_and_offers_some_that_can(operator, strategy, message):
    with pytest.raises(Infeasible, match=message) as error:
        operator.sharded(strategy, 8)
    for offered in str(error.value).partition('write e.g. ')[2].split(' or '):
        operator.sharded(eval(offered), 8)
