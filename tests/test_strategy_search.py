"""Exact search is the optimum, every time; what it counts is what strategies move; both searches are quick."""

import time
from itertools import product
from math import prod

import numpy as np
import pytest
from every import draws, some
from hypothesis import given
from hypothesis import strategies as st

from simpar import strategy_search as search
from simpar.errors import ScheduleError
from simpar.model import Dense, Flatten, Network, Relu
from simpar.model.library.blocks import block_network
from simpar.strategy_search.exact import Elimination, Factor
from simpar.strategy_search.objective import candidates
from simpar.workload import Workload
from tests.strategy_networks import network_graph, transformer_blocks
from tests.strategy_traffic import Block, best_degrees, laid_out, plain_bytes, recorded_blocks, table

# --- elimination -----------------------------------------------------------------------------------------------------


@st.composite
def problems(draw):
    """Sizes and random tables over one to three variables each; every variable is in one."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    scopes = [(variable,) for variable in range(len(sizes))]
    variables = st.lists(st.integers(0, len(sizes) - 1), min_size=1, max_size=3, unique=True)
    scopes += [tuple(scope) for scope in draw(st.lists(variables, max_size=6))]
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    tables = [random.integers(0, 9, [sizes[variable] for variable in scope]).astype(float) for scope in scopes]
    return sizes, [Factor(scope, table) for scope, table in zip(scopes, tables, strict=True)]


def sums(sizes, factors):
    """The sum of every assignment."""
    return {
        picks: sum(float(factor.table[tuple(picks[variable] for variable in factor.scope)]) for factor in factors)
        for picks in product(*map(range, sizes))
    }


@given(problems())
def test_elimination_finds_the_least_sum(problem):
    sizes, factors = problem
    every, solver = sums(sizes, factors), Elimination(sizes, factors)
    assert solver.least == min(every.values()) == every[tuple(next(solver.solutions(10_000))[1])]


@given(problems())
def test_solutions_come_in_the_order_of_their_sums_and_none_is_left_out(problem):
    sizes, factors = problem
    every = sums(sizes, factors)
    found = list(Elimination(sizes, factors).solutions(10_000))
    assert [cost for cost, _ in found] == sorted(every.values())
    assert {tuple(picks): cost for cost, picks in found} == every


# --- exact search against every combination --------------------------------------------------------------------------


@st.composite
def graphs(draw):
    """Few operators: products, activations and norms in a row, with a residual branch or two readers of one tensor."""
    rows, width = draw(st.sampled_from([(4, 4), (8, 2), (2, 8), (6, 4)]))
    build = search.GraphBuilder()
    (x,) = build.dataset(x=(rows, width))
    branch = x
    for place in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(['matmul', 'relu', 'norm', 'add']))
        if kind == 'matmul':
            x = build.matmul(f'op{place}', x, build.parameter(f'w{place}', width, width))
        elif kind == 'relu':
            x = build.elementwise('ReLU', f'op{place}', x)
        elif kind == 'norm':
            x = build.layer_norm(f'op{place}', x)
        else:
            x = build.elementwise('Add', f'op{place}', x, branch)
        branch = draw(st.sampled_from([branch, x]))
    build.reduce('ReduceMean', 'loss', x, (0, 1))
    return build.graph(draw(st.sampled_from(['full_batch', 'data_parallel'])))


def combinations(graph, devices, objective=None):
    """Cost of every combination, added up here; a tensor with several readers goes the cheapest way."""
    objective = objective or search.Bytes()
    options = [candidates(graph, operator, devices) for operator in graph.operators]
    for picks in product(*options):
        own = sum(
            objective.operator(graph, operator, pick, devices)
            for operator, pick in zip(graph.operators, picks, strict=True)
        )
        handed = sum(handing(graph, name, options, picks, objective) for name in graph.readers if name in graph.writer)
        yield own + handed


def handing(graph, name, options, picks, objective):
    """What it takes to hand a tensor to all its readers: at once, or over one of the layouts that somebody has."""
    writer, shape = graph.writer[name], graph.shapes[name]
    fed = graph.operators[writer].primitive == '_VirtualDataset'

    def written(pick):
        return pick.inputs[graph.operators[writer].writes.index(name)] if fed else pick.output

    def read(place, pick):
        return pick.inputs[graph.operators[place].reads.index(name)]

    def cost(source, target):
        return objective.redistribution(source, target, shape, backward=not fed)

    readers, source = graph.readers[name], written(picks[writer])
    wanted = [read(place, picks[place]) for place in readers]
    if len(readers) == 1:
        return cost(source, wanted[0])
    meeting = {written(pick) for pick in options[writer]}
    meeting |= {read(place, pick) for place in readers for pick in options[place]}
    return min(cost(source, middle) + sum(cost(middle, target) for target in wanted) for middle in meeting)


@draws(25)
@given(graphs(), st.sampled_from([2, 4]))
def test_exact_is_the_least_of_all_combinations(graph, devices):
    if prod(len(candidates(graph, operator, devices)) for operator in graph.operators) > 4000:
        return
    assert search.exact(graph, devices).cost == pytest.approx(min(combinations(graph, devices)), rel=1e-12)


@draws(25)
@given(graphs())
def test_ranked_begins_with_the_optimum_and_goes_up(graph):
    found = search.ranked(graph, 2, 5)
    costs = [one.cost for one in found]
    assert costs[0] == pytest.approx(search.exact(graph, 2).cost, rel=1e-12)
    assert costs == sorted(costs)
    assert all(a.choices != b.choices for place, a in enumerate(found) for b in found[:place])
    for one in found:
        assert search.evaluate(graph, one.choices, 2).cost == pytest.approx(one.cost, rel=1e-9)


@draws(25)
@given(graphs(), st.data())
def test_ranked_keeps_what_is_fixed_and_has_the_best_of_all_that_do(graph, data):
    every = search.ranked(graph, 2, 40)
    name, choice = data.draw(st.sampled_from(sorted(every[-1].choices.items())))
    found = search.ranked(graph, 2, 3, fixed={name: choice})
    assert all(one.choices[name] == choice for one in found)
    alike = [one.cost for one in every if one.choices[name] == choice]
    assert found[0].cost == pytest.approx(alike[0], rel=1e-12)


def test_fixed_operators_stay_as_they_are():
    graph = transformer_blocks(4, 16, 32, 4, 128)
    choice = search.Choice(((4, 1), (1, 1)))
    found = search.exact(graph, 4, fixed={'layer0.up': choice})
    assert found.choices['layer0.up'] == choice
    assert found.cost >= search.exact(graph, 4).cost


# --- the count of bytes ----------------------------------------------------------------------------------------------


def test_megatrons_layout_moves_what_its_formula_says_and_the_gradients_of_norms():
    """Norms: gain and bias, twice; the loss: one number."""
    for data, tensor in ((1, 4), (2, 2), (4, 1)):
        block = Block(batch=4, sequence=32, hidden=64, heads=4, ffn=256, devices=4)
        norms = 2 * 3 / 4 * 4 * 64 * 4
        loss = 4 * (data - 1) / data * 4
        assert laid_out(block.graph(), block, data, tensor) == plain_bytes(block, data, tensor) + norms + loss


@pytest.mark.parametrize(
    ('sizes', 'devices', 'degrees', 'moved'),
    [
        ((16, 128, 512, 8, 2048), 8, (4, 2), 13.6),
        ((2, 512, 2048, 16, 8192), 8, (1, 8), 58.7),
        ((2, 512, 2048, 16, 8192), 64, (2, 32), 38.8),
        ((1, 256, 4096, 32, 16384), 4, (1, 4), 25.2),
        ((16, 128, 512, 8, 2048), 32, (8, 4), 8.7),
    ],
)
def test_the_best_degrees_are_those_of_the_study(sizes, devices, degrees, moved):
    batch, sequence, hidden, heads, ffn = sizes
    block = Block(batch=batch, sequence=sequence, hidden=hidden, heads=heads, ffn=ffn, devices=devices)
    assert best_degrees(block) == degrees
    assert plain_bytes(block, *degrees) / 1e6 == pytest.approx(moved, abs=0.06)


def test_the_table_has_a_line_a_block():
    lines = table([Block(batch=16, sequence=128, hidden=512, heads=8, ffn=2048, devices=4)]).splitlines()
    assert len(lines) == 3
    # The recorded collectives of MindSpore's own choice move 18.9 MB.
    assert lines[2].startswith('| b16 s128 h512 | 4 | 18.89 | 18.89 | 14.68 (2 × 2) |')


# --- the compiler's searches -----------------------------------------------------------------------------------------


def test_propagation_needs_an_operator_to_begin_at():
    graph = transformer_blocks(2, 8, 16, 2, 64)
    with pytest.raises(ScheduleError, match='split at least one'):
        search.propagate(graph, {}, 4)
    with pytest.raises(ScheduleError, match='no operator of this name'):
        search.propagate(graph, {'dense': search.Choice(((1, 1), (1, 1)))}, 4)
    with pytest.raises(ScheduleError, match='leaves devices unused'):
        search.propagate(graph, {'layer0.up': search.Choice(((2, 1), (1, 1)))}, 4, '2.0')


@pytest.mark.parametrize('compat', ['2.0', '2.10'])
def test_searches_cut_every_operator_in_a_way_that_can_be(compat):
    graph = transformer_blocks(4, 16, 32, 4, 128, layers=2)
    spread = search.propagate(graph, {'layer0.up': search.Choice(((2, 1), (1, 2)))}, 4, compat)
    for choices in (spread, search.double_recursive(graph, 4, compat)):
        assert tuple(choices) == graph.names
        assert search.evaluate(graph, choices, 4).cost >= search.exact(graph, 4).cost * (1 - 1e-12)


def test_a_network_of_a_workload():
    layers = (Flatten(), Dense(inputs=784, outputs=512), Relu(), Dense(inputs=512, outputs=10, bias=False))
    graph = search.workload_graph(Workload(model=Network(layers=layers), batch=32, loss='mae'))
    kinds = [operator.primitive for operator in graph.operators]
    assert kinds == ['_VirtualDataset', 'Flatten', 'MatMul', 'BiasAdd', 'ReLU', 'MatMul', 'Sub', 'Abs', 'ReduceMean']
    assert graph.shapes['x'] == (32, 1, 28, 28)
    # The recorded search of the same network on 4 devices is pure data parallelism.
    recorded = search.workload_graph(Workload(model=Network(layers=layers), batch=256))
    assert search.double_recursive(recorded, 4)['dense1'] == search.Choice(((4, 1), (1, 1)))


@pytest.mark.parametrize('compat', ['2.0', '2.10'])
@pytest.mark.parametrize('layers', [1, 2])
@pytest.mark.parametrize('block', some(recorded_blocks()), ids=str)
def test_blocks_as_layers_are_cut_as_the_compiler_cut_them(block, layers, compat):
    """Its choices for the operators are recorded (tests/test_strategy_search_golden.py); here weights are [out, in]."""
    sizes = (block.sequence, block.hidden, block.heads, block.ffn, layers)
    ours = network_graph(block_network(*sizes), block.batch * block.sequence, 'mse')
    theirs = transformer_blocks(block.batch, *sizes)
    assert [operator.primitive for operator in ours.operators] == [operator.primitive for operator in theirs.operators]
    found, wanted = (search.double_recursive(graph, block.devices, compat) for graph in (ours, theirs))
    for operator, choice, other in zip(ours.operators, found.values(), wanted.values(), strict=True):
        strategy = choice.strategy
        if operator.primitive == 'MatMul':
            strategy = (strategy[0], strategy[1][::-1])
        assert search.Choice(strategy, choice.out_strategy) == other, operator.name


def test_exact_search_sees_layers_as_it_sees_the_blocks_operators():
    for devices in (2, 4, 8):
        ours = network_graph(block_network(16, 32, 4, 128), 64, 'mse')
        assert search.exact(ours, devices).cost == search.exact(transformer_blocks(4, 16, 32, 4, 128), devices).cost


def test_forty_layers_are_searched_in_time():
    graph = transformer_blocks(64, 512, 2048, 16, 8192, layers=40)
    begin = time.process_time()
    for compat in ('2.0', '2.10'):
        search.double_recursive(graph, 64, compat)
        search.propagate(graph, {'layer0.up': search.Choice(((2, 1), (1, 32)))}, 64, compat)
    compilers = time.process_time() - begin
    assert compilers < 4 * 2
    begin = time.process_time()
    forty = search.exact(graph, 8)
    assert time.process_time() - begin < 12
    few = [search.exact(transformer_blocks(64, 512, 2048, 16, 8192, layers=layers), 8).cost for layers in (3, 4)]
    # Behind the first layers, every layer costs the same.
    assert forty.cost == pytest.approx(few[0] + 37 * (few[1] - few[0]), rel=1e-9)
