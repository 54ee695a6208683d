"""Searches of operator graphs: degrees are Megatron's layout, and exact search is no worse than any that is known."""

from dataclasses import replace
from pathlib import Path

import pytest

from simpar.case import load_case
from simpar.cost.price import price
from simpar.engine import simulate
from simpar.errors import Infeasible
from simpar.lower import lower
from simpar.model import (
    Add,
    Conv2d,
    Dense,
    Embedding,
    Flatten,
    Gelu,
    LayerNorm,
    MatMul,
    Mul,
    Multiply,
    Network,
    Reduce,
    Relu,
    Reshape,
    RmsNorm,
    Silu,
    Softmax,
    Transpose,
    layer_names,
)
from simpar.model.library.blocks import block_network, llama_network
from simpar.plans import Plan
from simpar.profiles import cluster, load_profile
from simpar.resolve import find_strategies
from simpar.resolve.choices import degree_strategies, in_graphs, with_choice
from simpar.resolve.strategies import sent_bytes, spread_from
from simpar.strategy_search import Choice, exact, propagate
from simpar.workload import Workload
from tests.strategy_networks import network_graph
from tests.strategy_traffic import Block, megatron

EIGHT = cluster(load_profile('h100-sxm-8'), devices=8)

BLOCK = Workload(model=block_network(8, 32, 4, 64, bias=True), batch=64, loss='mse')


def with_strategies(workload, given):
    """Some layers with strategies."""
    named = zip(layer_names(workload.model), workload.model.layers, strict=True)
    layers = tuple(replace(layer, strategy=given[name]) if name in given else layer for name, layer in named)
    return replace(workload, model=replace(workload.model, layers=layers))


def measured(workload, plan):
    """Bytes that the busiest rank sends, and the predicted step."""
    program = lower(workload, replace(plan, search='none'), 8)
    return max(sent_bytes(program, role) for role in program.roles), simulate(program, price(program, EIGHT)).step


@pytest.mark.parametrize('degrees', [(8, 1), (4, 2), (2, 4), (1, 4)])
def test_degrees_are_megatrons_layout(degrees):
    """Against the layout as it was written down, operator by operator, for transformer blocks."""
    block = Block(batch=8, sequence=8, hidden=32, heads=4, ffn=128, devices=8)
    network = block_network(8, 32, 4, 128)
    names = dict(zip(block.graph().names[1:], layer_names(network), strict=False))
    written = {names[name]: choice for name, choice in megatron(block.graph(), *degrees).items()}
    layers = dict(zip(layer_names(network), network.layers, strict=True))
    ours = degree_strategies(network.graph(64), *degrees)
    for name, choice in written.items():
        strategy = choice.strategy[:1] if isinstance(layers[name], Mul) else choice.strategy
        assert ours[name] == strategy, name
    assert set(ours) == set(written)


def test_degrees_of_an_embedding_cut_its_vocabulary_and_a_norm_reads_whole_features():
    layers = (
        Embedding(vocab=64, width=16, name='table'),
        Reshape(shape=(-1, 16), name='rows'),
        Dense(inputs=16, outputs=32, name='up'),
        LayerNorm(name='norm'),
        RmsNorm(name='rms'),
        Dense(inputs=32, outputs=8, name='head'),
    )
    found = degree_strategies(Network(layers=layers, input=(4,)).graph(8), 2, 4)
    assert found == {
        'table': ((4, 1), (2, 1)),
        'up': ((2, 1), (1, 4)),
        'norm': ((2, 1), (1,), (1,)),
        'rms': ((2, 1), (1,)),
        'head': ((2, 1), (1, 4)),
    }


def given_layers():
    """A layer of every kind that takes a strategy, which it has."""
    four = (2, 2, 1, 1)
    return {
        'dense': Dense(inputs=8, outputs=8, strategy=((2, 4), (4, 1)), out_strategy=(8, 1)),
        'relu': Relu(strategy=((2, 4),)),
        'flatten': Flatten(strategy=((8, 1, 1, 1),)),
        'gelu': Gelu(strategy=((2, 4),)),
        'silu': Silu(strategy=((2, 4),)),
        'mul': Mul(factor=2.0, strategy=((2, 4),)),
        'add': Add(of=('x', 'relu'), strategy=((2, 4), (2, 4))),
        'multiply': Multiply(of=('x', 'relu'), strategy=((2, 4), (2, 4))),
        'layer_norm': LayerNorm(strategy=((4, 1), (1,), (1,))),
        'rms_norm': RmsNorm(strategy=((4, 1), (1,))),
        'softmax': Softmax(strategy=(four,)),
        'reduce': Reduce(dims=(2, 3), strategy=(four,)),
        'matmul': MatMul(of=('x', 'relu'), strategy=(four, four)),
        'transpose': Transpose(permutation=(0, 2, 1, 3), strategy=(four,)),
        'conv2d': Conv2d(inputs=2, outputs=2, kernel=3, strategy=((8, 1, 1, 1), (1, 1, 1, 1))),
        'embedding': Embedding(vocab=8, width=8, strategy=((4, 1), (2,))),
    }


def test_a_strategy_goes_to_the_graph_and_back():
    layers = given_layers()
    choices = in_graphs(layers, {name: layer.strategy for name, layer in layers.items()})
    assert choices['dense'].strategy == ((2, 4), (1, 4))
    assert choices['mul'].strategy == ((2, 4), ())
    bare = {name: replace(layer, strategy=()) for name, layer in layers.items()}
    assert {name: with_choice(layer, choices[name]) for name, layer in bare.items()} == layers


@pytest.mark.parametrize('compat', ['2.0', '2.10'])
@pytest.mark.parametrize('search', ['sharding-propagation', 'double-recursive', 'exact'])
def test_given_operators_of_a_graph_stay(search, compat):
    heads = (4, 2, 1, 1)
    given = {'layer0_scores': (heads, heads), 'layer0_scale': ((8, 1, 1, 1),), 'layer0_norm2': ((8, 1), (1,), (1,))}
    workload = with_strategies(BLOCK, given)
    found = find_strategies(workload, Plan(search=search, compat=compat), EIGHT)
    have = dict(zip(layer_names(BLOCK.model), (layer.strategy for layer in found.workload.model.layers), strict=True))
    assert {name: have[name] for name in given} == given
    assert {name for name, origin in found.origins.items() if origin == 'given'} == set(given)
    assert all(have[name] for name in found.origins if name != 'loss')
    lower(found.workload, Plan(), 8)


def test_propagation_on_a_graph_reaches_around_a_given_operator():
    """From the first all that hangs together with it: past the second one over the residual branch."""
    graph = network_graph(block_network(8, 32, 4, 64), 64, 'mse')
    near = spread_from(graph, ('layer0_norm1', 'layer0_up'))
    assert near.pop('layer0_up') == 'layer0_up'
    assert set(near.values()) == {'layer0_norm1'}
    assert set(near) == {*graph.names} - {'dataset', 'layer0_up'}


def test_a_graph_is_propagated_as_its_operators_are():
    workload = with_strategies(BLOCK, {'layer0_up': ((2, 1), (1, 4))})
    found = find_strategies(workload, Plan(search='sharding-propagation', dataset='full-batch'), EIGHT)
    graph = network_graph(workload.model, BLOCK.batch, 'mse')
    choices = propagate(graph, {'layer0_up': Choice(((2, 1), (4, 1)))}, 8, Plan().compat)
    for name, layer in zip(layer_names(workload.model), found.workload.model.layers, strict=True):
        assert with_choice(layer, choices[name]) == layer
    assert found.origins['layer0_q'].startswith('propagated from layer0_up')


def test_a_given_strategy_of_a_graph_that_cannot_be_is_told_as_the_user_wrote_it():
    workload = with_strategies(BLOCK, {'layer0_values': ((1, 8, 1, 1),) * 2})
    with pytest.raises(Infeasible, match=r'layer0_values: strategy .*of length 4 cannot be split into 8'):
        find_strategies(workload, Plan(search='exact'), EIGHT)


@pytest.mark.parametrize('plan', [Plan(), Plan(micro_batches=2, copies=2), Plan(redistribution='mindspore-2.10')])
@pytest.mark.parametrize('place', [0, 1])
def test_exact_is_no_worse_than_the_compilers_choice_and_degrees(plan, place):
    sequences = 8 // (plan.micro_batches * plan.copies)
    others = [
        find_strategies(BLOCK, replace(plan, search='double-recursive', compat=compat), EIGHT).workload
        for compat in ('2.0', '2.10')
    ]
    for data, tensor in ((8, 1), (4, 2), (2, 4)):
        if sequences % data == 0:
            others.append(with_strategies(BLOCK, degree_strategies(BLOCK.model.graph(BLOCK.batch), data, tensor)))
    found = find_strategies(BLOCK, replace(plan, search='exact', objective=('bytes', 'time')[place]), EIGHT)
    best = measured(found.workload, plan)[place]
    assert len(others) >= 3
    assert all(best <= measured(other, plan)[place] for other in others)


@pytest.mark.parametrize('search', ['sharding-propagation', 'double-recursive', 'exact'])
def test_an_embedding_is_searched_but_for_the_compilers_recursive_search(search):
    layers = (
        Embedding(vocab=64, width=16, name='table'),
        Reshape(shape=(-1, 128)),
        Dense(
            inputs=128, outputs=64, name='head', strategy=((2, 1), (1, 4)) if search == 'sharding-propagation' else ()
        ),
    )
    workload = Workload(model=Network(layers=layers, input=(8,)), batch=16)
    found = find_strategies(workload, Plan(search=search), EIGHT)
    assert ('table' in found.origins) == (search != 'double-recursive')
    assert bool(found.workload.model.layers[0].strategy) == (search != 'double-recursive')
    lower(found.workload, Plan(), 8)


def test_the_example_is_the_block_and_does_what_its_first_lines_say():
    example = Path(__file__).parent.parent / 'examples' / 'transformer_strategies.yaml'
    # Of the devices alone: a framework's launches weigh more than these products.
    fastest, leanest = (
        load_case(example, ['cluster.stack=none', f'plan.objective={objective}']) for objective in ('time', 'bytes')
    )
    ours = network_graph(fastest.schedule.workload.model, 2048, 'mse')
    block = network_graph(block_network(128, 512, 8, 2048), 2048, 'mse')
    assert exact(ours, 8).cost == exact(block, 8).cost
    assert sorted(operator.primitive for operator in ours.operators) == sorted(
        operator.primitive for operator in block.operators
    )
    assert all(cuts[0] == 8 for layer in fastest.workload.model.layers for cuts in layer.strategy[:1])
    first, second = fastest.strategies.proposals[0], leanest.strategies.proposals[0]
    assert first.step < second.step
    assert 0.45 < second.sent / first.sent < 0.55


def test_the_example_of_llama_is_the_block_and_beats_the_compilers_search():
    case = load_case(Path(__file__).parent.parent / 'examples' / 'llama_strategies.yaml')
    ours = network_graph(case.schedule.workload.model, 8192, 'mse')
    block = network_graph(llama_network(2048, 4096, 32, 11008), 8192, 'mse')
    assert [ours.shapes[operator.name] for operator in ours.operators if operator.primitive == 'MatMul'] == [
        block.shapes[operator.name] for operator in block.operators if operator.primitive == 'MatMul'
    ]
    assert exact(ours, 8).cost == exact(block, 8).cost
    assert case.strategies.proposals[0].step == min(one.step for one in case.strategies.proposals)
    assert case.predict().gain > 0


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(Infeasible, match='3 heads do not divide a hidden size of 32'):
        block_network(8, 32, 3, 64)


@pytest.mark.parametrize('all_to_all', [False, True])
@pytest.mark.parametrize('dataset', ['full-batch', 'data-parallel'])
def test_a_program_with_an_embedding_sends_what_the_sum_over_operators_says(dataset, all_to_all):
    """But for tokens that ranks hand each other, which have eight bytes: all but a rank's own."""
    layers = (
        Embedding(vocab=512, width=64, name='table'),
        Reshape(shape=(-1, 64)),
        Dense(inputs=64, outputs=128, bias=False),
        Gelu(),
        Dense(inputs=128, outputs=512, bias=False),
    )
    workload = Workload(model=Network(layers=layers, input=(16,)), batch=16, loss='cross-entropy')
    found = find_strategies(workload, Plan(search='exact', dataset=dataset, all_to_all=all_to_all), EIGHT)
    tokens = 0 if dataset == 'full-batch' else 7 / 8 * 16 * 16 * 4
    assert found.bound <= found.proposals[0].sent <= found.bound + tokens
