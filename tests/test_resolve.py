"""Resolving: balanced stages and automatic orders; a resolved plan leaves nothing open."""

import sys
from dataclasses import replace
from itertools import combinations, pairwise, product
from pathlib import Path

import pytest
from every import some
from hypothesis import given
from hypothesis import strategies as st

from simpar import Transformer, Workload, cli, cluster, load_case, load_profile, price, simulate
from simpar.errors import Infeasible
from simpar.hardware import Placement
from simpar.lower import lower
from simpar.memory import memory
from simpar.model import Dense, Mul, Network, Relu, layer_names
from simpar.model.library.blocks import block_network
from simpar.plans import NEAREST_FIRST, Plan
from simpar.resolve import find_strategies, resolve
from simpar.resolve.choices import degree_strategies
from simpar.resolve.resolve import METHODS, SIZES, balanced, layer_times
from simpar.resolve.strategies import sent_bytes
from simpar.strategy_search import exact
from tests.strategy_networks import network_graph
from tests.strategy_traffic import Block, megatron

HEAVY_HEAD = Workload(
    model=Transformer(layers=16, hidden=1024, heads=16, vocab=128000, sequence=1024), batch=32, precision='bf16'
)
H100 = cluster(load_profile('h100-sxm-8'))
FOUR = cluster(load_profile('h100-sxm-8'), devices=4)


def step(plan, workload=HEAVY_HEAD, hardware=H100):
    program = lower(workload, plan, hardware.world)
    return simulate(program, price(program, hardware)).step


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=9), st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=5)
)
def test_the_cut_is_the_best_of_all_cuts(seconds, speeds):
    stages = len(speeds)
    if stages > len(seconds):
        return

    def slowest(edges):
        cuts = pairwise((0, *edges, len(seconds)))
        return max(sum(seconds[begin:end]) / speed for (begin, end), speed in zip(cuts, speeds, strict=True))

    best = min(slowest(edges) for edges in combinations(range(1, len(seconds)), stages - 1))
    counts = balanced([float(value) for value in seconds], speeds)
    assert sum(counts) == len(seconds)
    assert min(counts) >= 1
    edges = [sum(counts[:stage]) for stage in range(1, stages)]
    assert slowest(edges) == best


def test_a_heavy_head_gets_fewer_layers_and_a_faster_step():
    plan = Plan(pipeline=4, data=2, micro_batches=8, stages='balanced')
    found = resolve(HEAVY_HEAD, plan, H100)
    assert found.stages[-1] < 4
    assert sum(found.stages) == 16
    assert step(found) < 0.9 * step(Plan(pipeline=4, data=2, micro_batches=8))


@pytest.mark.parametrize(('placement', 'slow'), [(NEAREST_FIRST, (2, 3)), ('context-pipeline-data-tensor', (1, 3))])
def test_layers_are_shared_out_by_the_speed_of_devices(placement, slow):
    """The devices of the second stage do half as much: it gets a third of 12 layers, wherever these devices are."""
    plan = Plan(pipeline=2, data=2, micro_batches=8, stages='balanced', placement=placement)
    workload = replace(HEAVY_HEAD, model=replace(HEAVY_HEAD.model, layers=12, vocab=64))
    unlike = replace(FOUR, placement=Placement.of(plan, 4), slow=dict.fromkeys(slow, 0.5))
    assert resolve(workload, plan, unlike).stages == (8, 4)


def test_times_of_layers_are_those_of_the_pipelines_work():
    """Seconds of all layers are what one rank alone computes in a micro-batch (sums and updates aside)."""
    plan = Plan(pipeline=4, micro_batches=4)
    times = layer_times(HEAVY_HEAD, plan, FOUR)
    alone = lower(HEAVY_HEAD, Plan(micro_batches=4), 1)
    costs = price(alone, FOUR)
    role = alone.roles[0]
    whole = sum(float(costs.compute[index]) for index in role.op_class.tolist() if alone.op_classes[index].phase != 'U')
    assert times.seconds_LP.sum() * 4 == pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize(('name', 'micro_batches'), some(product(('zb-1p', 'zb-2p'), (4, 6, 8)), 4))
def test_an_automatic_order_is_no_slower_than_1f1b(name, micro_batches):
    workload = Workload(model=Transformer(layers=8, hidden=1024, heads=8, vocab=1024, sequence=512), batch=24 * 4)
    plan = Plan(pipeline=4, micro_batches=micro_batches, order=name)
    found = resolve(workload, plan, FOUR)
    assert len(found.rows) == 4
    assert resolve(workload, found, FOUR) == found
    base = step(Plan(pipeline=4, micro_batches=micro_batches), workload, FOUR)
    assert step(found, workload, FOUR) <= 1.02 * base


def test_a_network_is_balanced_by_its_dense_layers():
    wide = [Dense(inputs=64, outputs=4096), Relu(), Dense(inputs=4096, outputs=4096), Relu()]
    narrow = [Dense(inputs=4096, outputs=64), Relu(), Dense(inputs=64, outputs=64), Dense(inputs=64, outputs=8)]
    workload = Workload(model=Network(layers=(*wide, *narrow)), batch=1024)
    found = resolve(
        workload, Plan(pipeline=2, micro_batches=2, stages='balanced'), cluster(load_profile('h100-sxm-8'), devices=2)
    )
    assert found.stages in ((1, 4), (2, 3))


def test_what_is_open_is_refused_by_lowering():
    with pytest.raises(Infeasible, match='balanced is still to be resolved'):
        lower(HEAVY_HEAD, Plan(pipeline=4, micro_batches=8, stages='balanced'), 4)


def test_a_plan_that_leaves_nothing_open_stays_as_it_is():
    plan = Plan(pipeline=4, data=2, micro_batches=8)
    assert resolve(HEAVY_HEAD, plan, H100) is plan


@pytest.mark.parametrize(
    ('stack', 'told'), [(', stack: none', ''), (', stack: megatron-core', 'at the sustained clock, 0.83')]
)
def test_it_says_at_which_clock_it_prices(stack, told, put, capsys):
    path = put(
        'schedule.yaml',
        f'simpar: 1\ncluster: {{profile: a100-sxm-8, nodes: 1, devices: 2{stack}}}\n'
        'workload: {transformer: {layers: 2, hidden: 64, heads: 2, vocab: 64, sequence: 64}, batch: 2}\n',
    )
    assert cli.main(['resolve', str(path)]) == 0
    found = capsys.readouterr().err
    assert told in found
    assert bool(told) == bool(found)


# Fusion that is chosen by predicted cost: never slower than the sizes that are tried, and saved as a plain value


ASCEND = cluster(load_profile('ascend910a-8'))
GPT = Workload(model=Transformer(layers=8, hidden=1024, heads=16, vocab=8192, sequence=512), batch=32, precision='bf16')
SMALL = Workload(
    model=Network(layers=tuple(Dense(inputs=64, outputs=64, name=f'd{i}') for i in range(6))), batch=64, loss='mse'
)


def fused_step(workload, plan, hardware):
    """A step that another follows."""
    program = lower(workload, plan, hardware.world)
    return float(simulate(program, price(program, hardware), steps=4).step_times[-2])


@pytest.mark.parametrize('choices', some([{}, {'zero': 1}, {'zero': 3, 'prefetch': 1}, {'hsdp': 'level1'}], 2), ids=str)
@pytest.mark.parametrize(('workload', 'hardware'), [(GPT, H100), (SMALL, ASCEND)], ids=['gpt', 'small'])
def test_no_size_that_is_tried_is_faster(workload, hardware, choices):
    found = resolve(workload, Plan(fusion='predicted', **choices), hardware)
    assert found.fusion in SIZES
    best = min(fused_step(workload, Plan(fusion=size, **choices), hardware) for size in SIZES)
    assert fused_step(workload, found, hardware) == best


def test_messages_of_next_to_nothing_are_fused_into_one():
    """Latency is all that there is to save, and nothing to overlap with."""
    found = resolve(SMALL, Plan(fusion='predicted', reduce_gradients='end'), ASCEND)
    program = lower(SMALL, found, 8)
    assert sum(op.kind == 'collective' for op in program.op_classes) == 1


def test_what_fits_is_preferred_to_what_is_faster(monkeypatch):
    """With one message for all, all weights are gathered at once."""
    wanted = Plan(fusion='predicted', zero=3, recompute='full')
    sizes = {}
    for size in SIZES:
        program = lower(GPT, Plan(fusion=size, zero=3, recompute='full'), 8)
        sizes[size] = memory(simulate(program, price(program, H100))).peak
    least = min(sizes.values())
    assert least < max(sizes.values())
    # The package has a function of the module's name.
    monkeypatch.setattr(sys.modules['simpar.resolve.resolve'], 'SIZES', ('all', *SIZES))
    from dataclasses import replace

    figure = H100.profile.device.memory.size
    device = replace(H100.profile.device, memory=replace(H100.profile.device.memory, size=replace(figure, value=least)))
    tight = replace(H100, profile=replace(H100.profile, device=device))
    found = resolve(GPT, wanted, tight)
    assert sizes[found.fusion] == least


def test_a_plan_that_is_not_resolved_is_not_lowered():
    with pytest.raises(Infeasible, match='predicted is still to be resolved'):
        lower(GPT, Plan(fusion='predicted'), 8)


# Redistribution that is chosen by predicted cost: never slower than what is tried, and saved as a plain value


OPEN = Plan(redistribution='predicted')


def crossed(width):
    """Products that each want the result of the one before cut along its other dim."""
    layers = tuple(
        Dense(inputs=width, outputs=width, bias=False, strategy=strategy)
        for strategy in (((8, 1), (1, 1)), ((1, 8), (8, 1)), ((1, 1), (1, 8)), ((8, 1), (1, 1)))
    )
    return Workload(model=Network(layers=layers), batch=width, loss='mse')


def moved_step(workload, plan):
    """A step that another follows."""
    program = lower(workload, plan, ASCEND.world)
    return float(simulate(program, price(program, ASCEND), steps=4).step_times[-2])


@pytest.mark.parametrize('width', [64, 1024, 4096])
def test_no_way_that_is_tried_is_faster(width):
    workload = crossed(width)
    found = resolve(workload, OPEN, ASCEND)
    assert found.redistribution in METHODS
    steps = {
        (method, all_to_all): moved_step(workload, Plan(redistribution=method, all_to_all=all_to_all))
        for method, all_to_all in product(METHODS, (False, True))
    }
    assert moved_step(workload, found) == min(steps.values()) < max(steps.values())


def test_an_all_to_all_of_large_tensors_is_taken():
    """It moves an eighth of what a gather moves."""
    assert resolve(crossed(4096), OPEN, ASCEND).all_to_all


def test_a_workload_without_strategies_has_nothing_to_redistribute():
    plain = Workload(model=Network(layers=(Dense(inputs=8, outputs=8),)), batch=8, loss='mse')
    assert resolve(plain, OPEN, ASCEND) == Plan(redistribution='cheapest')


def test_lowering_an_open_choice_is_refused():
    with pytest.raises(Infeasible, match='still to be resolved'):
        lower(crossed(64), OPEN, 8)


# Searches of operator graphs: degrees are Megatron's layout, and exact search is no worse than any that is known


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
@pytest.mark.parametrize('place', some([0, 1], 2))
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
