"""Searches of operator graphs: degrees are Megatron's layout, and exact search is no worse than any that is known."""

from dataclasses import replace
from pathlib import Path

import pytest

from simpar.case import load_case
from simpar.cost.price import price
from simpar.engine import simulate
from simpar.errors import Infeasible
from simpar.lower import lower
from simpar.model import Mul, layer_names
from simpar.model.library.blocks import block_network
from simpar.plans import Plan
from simpar.profiles import cluster, load_profile
from simpar.resolve import find_strategies
from simpar.resolve.choices import degree_strategies
from simpar.resolve.strategies import sent_bytes
from simpar.strategy_search import exact
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
