"""Layers by kind: sums over cut dims, convolutions by batch, what both cost, and what searches make of them."""

from dataclasses import replace
from math import prod

import pytest
from every import some
from trains import ONCE, trains

from simpar import Plan, cluster, load_profile
from simpar.cost.compute import DeviceCompute
from simpar.errors import Infeasible
from simpar.lower import lower
from simpar.model import (
    Conv2d,
    Dense,
    Flatten,
    LayerNorm,
    Multiply,
    Network,
    Reduce,
    Relu,
    Reshape,
    RmsNorm,
    Silu,
    Transpose,
    layer_names,
    network_shapes,
    reads_of,
)
from simpar.resolve import find_strategies
from simpar.resolve.choices import with_choice
from simpar.strategy_search import Choice, double_recursive
from simpar.strategy_search.objective import rule
from simpar.workload import Adam, Workload
from tests.strategy_networks import network_graph

H100 = load_profile('h100-sxm-8')
EIGHT = cluster(H100, devices=8)


def reduction(cuts, **keys):
    """The reduction of a value [16, 4, 8], cut over 8 ranks."""
    layers = (Dense(inputs=32, outputs=32), Reshape(shape=(-1, 4, 8)), Reduce(name='y', strategy=(cuts,), **keys))
    return Workload(model=Network(layers=layers, input=(32,)), batch=16, loss='mse')


def sums(program):
    """Bytes of what is summed forward for the reduction, by ranks."""
    ops = [op for op in program.op_classes if op.kind == 'collective' and op.reads == ('y.partial',)]
    return [(op.operator, op.bytes, program.partitions[op.partition].size) for op in ops]


@pytest.mark.parametrize('plan', [Plan(), Plan(micro_batches=2), Plan(copies=2, dataset='full-batch')])
@pytest.mark.parametrize(
    ('cuts', 'keys'),
    some(
        [
            ((2, 4, 1), {'dims': (1,)}),
            ((1, 2, 4), {'dims': (1,), 'mean': False}),
            ((2, 2, 2), {'dims': (1, 2), 'keep': True}),
            ((2, 1, 4), {'dims': (2,), 'keep': True, 'mean': False}),
        ],
        2,
    ),
)
def test_a_reduction_of_slices_is_that_of_the_whole(cuts, keys, plan):
    workload = reduction(cuts, **keys)
    trains(workload, plan, 8, steps=ONCE)


# Convolutions


def classifier(data='mnist', **keys):
    """Two convolutions, a mean over each channel or a flatten, and a dense layer."""
    layers = (
        Conv2d(inputs=1, outputs=4, kernel=5, stride=2, padding=2, name='first', **keys),
        Relu(),
        Conv2d(inputs=4, outputs=8, kernel=3, stride=2, padding=1, name='second'),
        Relu(),
        Flatten(),
        Dense(inputs=8 * 7 * 7, outputs=10, name='head'),
    )
    model = Network(layers=layers, input=(1, 28, 28), init_std=0.1)
    return Workload(model=model, batch=64, data=data, optimizer=Adam(learning_rate=0.01))


@pytest.mark.parametrize(
    'plan', [Plan(), Plan(zero=3, micro_batches=2), Plan(copies=2, redistribution='mindspore-2.10')]
)
def test_a_classifier_of_images_trains_as_the_unsharded_model_and_learns(plan):
    from executor.inprocess import InProcess

    workload = classifier()
    program = trains(workload, plan, 4, steps=ONCE)
    losses = InProcess(program).run(12).losses
    assert losses[-1] < 0.6 * losses[0]


def test_a_convolution_is_the_product_of_its_windows_and_its_weight():
    """2 · m · n · k operations, and as many for each gradient; none for the gradient of data."""
    program = lower(classifier(), Plan(), 4)
    ops = {op.name: op for op in program.op_classes}
    assert ops['first.F'].dims == {'m': 16 * 14 * 14, 'n': 4, 'k': 25}
    assert ops['second.F'].dims == {'m': 16 * 7 * 7, 'n': 8, 'k': 4 * 9}
    assert ops['second.I'].dims == {'m': 16 * 7 * 7, 'n': 4 * 9, 'k': 8}
    assert ops['second.W'].dims == {'m': 8, 'n': 4 * 9, 'k': 16 * 7 * 7}
    assert {ops[f'second.{phase}'].flops for phase in 'FIW'} == {2.0 * 16 * 49 * 8 * 36}
    assert 'first.I' not in ops
    assert ops['second.F'].bytes == 4 * (16 * 4 * 14 * 14 + 8 * 4 * 9 + 8 + 16 * 8 * 7 * 7)


@pytest.mark.parametrize('precision', ['bf16', 'fp32'])
def test_a_convolution_is_priced_as_the_product_that_it_is(precision):
    """From the table of products, and by the formula where there is none for the data type."""
    model = Network(layers=(Conv2d(inputs=128, outputs=256, kernel=3, padding=1),), input=(128, 32, 32))
    program = lower(Workload(model=model, batch=64, loss='mse', precision=precision), Plan(), 8)
    op = next(op for op in program.op_classes if op.name == 'conv2d0.F')
    product = replace(op, operator='matmul')
    price = DeviceCompute(H100).seconds
    assert price(op).seconds == price(product).seconds > op.flops / 1e15
    assert 'kernel' not in price(op).why


def test_channels_and_sides_are_not_cut():
    for place in (1, 2, 3):
        cuts = tuple(2 if dim == place else 1 for dim in range(4))
        layers = (Conv2d(inputs=4, outputs=4, kernel=3, strategy=(cuts, (1,) * 4)),)
        workload = Workload(model=Network(layers=layers, input=(4, 8, 8)), batch=16, loss='mse')
        with pytest.raises(Infeasible, match=rf'conv2d0: .*dim {place} of input 0 .*by batch alone in a convolution'):
            lower(workload, Plan(), 8)


# What searches make of them


def every_kind():
    """A network of the kinds that no compiler's record has."""
    layers = (
        Conv2d(inputs=4, outputs=8, kernel=3, padding=1, name='conv'),
        Silu(name='silu'),
        Reduce(dims=(2,), name='mean'),
        Transpose(permutation=(0, 2, 1), name='turned'),
        RmsNorm(name='rms'),
        LayerNorm(of='turned', name='norm'),
        Multiply(of=('rms', 'norm'), name='product'),
        Reduce(dims=(1,), mean=False, keep=True, name='sum'),
        Flatten(name='flat'),
        Dense(inputs=8, outputs=16, name='head'),
    )
    return Workload(model=Network(layers=layers, input=(4, 8, 8)), batch=16)


def test_a_search_cuts_a_layer_only_as_its_rule_allows():
    """Every cut of the search's own rules, and of the rules that lowering goes by the other way round."""
    workload = every_kind()
    model, graph = workload.model, network_graph(workload.model, workload.batch, workload.loss)
    shapes = network_shapes(model, workload.batch)
    for name, layer, reads in zip(layer_names(model), model.layers, reads_of(model), strict=True):
        allowed = layer.axes(name, *(shapes[read] for read in reads))
        cuts = rule(graph, graph.operator(name)).splits(8)
        found = {with_choice(layer, Choice(one.strategy)).strategy for one in cuts}
        if isinstance(layer, Flatten):
            continue
        assert all(not allowed.wrong(strategy, 8) for strategy in found), name
        free = [dim for dim in allowed.order if dim not in allowed.fixed]
        every = {allowed.strategy(dict.fromkeys([dim], count)) for dim in free for count in (1, 2, 4, 8)}
        assert {strategy for strategy in every if not allowed.wrong(strategy, 8)} <= found, name


@pytest.mark.parametrize('search', ['double-recursive', 'exact', 'sharding-propagation'])
@pytest.mark.parametrize('compat', ['2.0', '2.10'])
def test_a_searched_network_trains_as_the_unsharded_one(search, compat):
    workload = every_kind()
    if search == 'sharding-propagation':
        *layers, head = workload.model.layers
        layers.append(replace(head, strategy=((4, 1), (1, 2))))
        workload = replace(workload, model=replace(workload.model, layers=tuple(layers)))
    found = find_strategies(workload, Plan(search=search, compat=compat), EIGHT)
    assert set(layer_names(workload.model)) - {'flat'} <= set(found.origins)
    trains(found.workload, found.plan, 8, steps=ONCE)


@pytest.mark.parametrize('compat', ['2.0', '2.10'])
def test_double_recursive_search_cuts_convolutions_by_batch_and_an_rms_norm_by_its_dim_0(compat):
    workload = every_kind()
    found = double_recursive(network_graph(workload.model, workload.batch, workload.loss), 8, compat)
    assert found['conv'].strategy == ((8, 1, 1, 1), (1, 1, 1, 1))
    assert found['conv.bias_add'].strategy == ((8, 1, 1, 1), (1,))
    assert found['rms'].strategy == ((8, 1, 1), (1,))
    assert prod(found['mean'].strategy[0]) == 8
