"""Searches of a plan: what MindSpore's compiler chose, the least of all strategies, and what a saved file holds."""

import json
from dataclasses import replace
from itertools import pairwise, product
from math import prod
from pathlib import Path

import pytest
import yaml
from every import some
from mindspore_networks import fixed, rows, tuples

from simpar import Plan, Workload, cluster, load_case, load_profile, load_schedule, price, simulate
from simpar.errors import Infeasible
from simpar.lower import lower
from simpar.model import Dense, Flatten, Network, Relu, layer_names
from simpar.model.library.blocks import block_network
from simpar.resolve import find_strategies
from simpar.resolve.resolve import settled_workload
from simpar.resolve.strategies import Proposal, least_first, sent_bytes

GOLDEN = Path(__file__).parent / 'golden' / 'mindspore'
EXAMPLES = Path(__file__).parent.parent / 'examples'
PROPAGATION, RECURSIVE = EXAMPLES / 'sharding_propagation.yaml', EXAMPLES / 'double_recursive.yaml'
LOSS = EXAMPLES / 'loss_operators.yaml'
H100 = load_profile('h100-sxm-8')
FOUR, EIGHT = (cluster(H100, devices=count) for count in (4, 8))
SEARCHES = ('double-recursive', 'exact')
VERSIONS = {'v2.0.0': '2.0', 'v2.10.0': '2.10'}


def chain(*widths, batch=16, loss='mse', bias=False, strategies=()):
    """Dense layers with activations between, the first of them with strategies."""
    given = dict(enumerate(strategies))
    layers = []
    for place, (inputs, outputs) in enumerate(pairwise(widths)):
        layers.append(Dense(inputs=inputs, outputs=outputs, bias=bias, strategy=given.get(place, ())))
        layers.append(Relu())
    return Workload(model=Network(layers=tuple(layers[:-1])), batch=batch, loss=loss)


def cuts(workload):
    """Strategies and out_strategies by layer."""
    layers = workload.model.layers
    return [(layer.strategy, getattr(layer, 'out_strategy', ())) for layer in layers]


# --- as the compiler recorded ----------------------------------------------------------------------------------------


def recorded():
    """Recorded searches of networks of dense layers."""
    found = {}
    for group in ('seeds', 'rec_chain', 'prop'):
        for path in sorted(GOLDEN.glob(f'*/{group}/*.json')):
            record = json.loads(path.read_text(encoding='utf-8'))
            case = record['case']
            known = case['net'] in ('Seed003', 'MatMulChain', 'Mnist') and case['ctx'].get('search_mode')
            if known and case.get('wrap', {}).get('pipeline') is None:
                found[f'{path.relative_to(GOLDEN).parts[0]}/{case["name"]}'] = record
    return found


CASES = recorded()


def workload_of(case):
    """The workload of a recorded case."""
    args, dataset = case['net_args'], case['ctx'].get('dataset_strategy', 'full_batch')
    batch = rows(case, dataset)
    if case['net'] == 'Mnist':
        layers = (Flatten(), Dense(inputs=784, outputs=512), Relu(), Dense(inputs=512, outputs=512), Relu())
        layers = (*layers, Dense(inputs=512, outputs=args.get('out', 10)))
        loss = {'ce': 'cross-entropy', 'mae': 'mae'}[case['loss']]
        return Workload(model=Network(layers=layers, input=(1, 28, 28)), batch=batch, loss=loss)
    dims = args.get('dims') or [args['in_dim'], args['hidden_dim'], args['out_dim']]
    given = fixed(case)
    layers = []
    for place, (inputs, outputs) in enumerate(pairwise(dims)):
        choice = given.get(f'matmul{place}')
        strategy = choice.strategy if choice else ()
        layers.append(Dense(inputs=inputs, outputs=outputs, bias=False, strategy=strategy))
        if args.get('relu', True) and place < len(dims) - 2:
            layers.append(Relu())
    return Workload(model=Network(layers=tuple(layers)), batch=batch, loss='mse')


def compiled(record):
    """Strategies of products (weights as [in, out]), activations and flattens, as the compiler wrote them."""
    found = []
    for entry in record['strategies']:
        if entry['op'] in ('MatMul', 'ReLU', 'Flatten'):
            strategy = tuples(entry['in_strategy'])
            if record['case']['net'] == 'Mnist' and entry['op'] == 'MatMul':
                strategy = (strategy[0], strategy[1][::-1])
            out = tuples(entry.get('out_strategy') or [])
            found.append((strategy, out[0] if out and isinstance(out[0], tuple) else out))
    return found


def loss_of(record):
    """The strategy of the first operator of a mean squared error; cross-entropy is several in the compiler's graph."""
    return next(tuples(entry['in_strategy']) for entry in record['strategies'] if entry['op'] == 'Sub')


@pytest.mark.parametrize('name', some(CASES))
def test_layers_are_cut_as_the_compiler_cut_them(name):
    case = CASES[name]['case']
    search = {'sharding_propagation': 'sharding-propagation', 'recursive_programming': 'double-recursive'}
    plan = Plan(
        search=search[case['ctx']['search_mode']],
        compat=VERSIONS[name.split('/')[0]],
        hsdp='level1' if case['ctx'].get('enable_parallel_optimizer') else 'off',
        dataset='data-parallel' if case['ctx'].get('dataset_strategy') == 'data_parallel' else 'full-batch',
    )
    devices = case['device_num']
    hardware = cluster(H100, nodes=max(1, devices // 8), devices=min(8, devices))
    found = find_strategies(workload_of(case), plan, hardware)
    assert cuts(found.workload) == compiled(CASES[name])
    if found.workload.loss == 'mse':
        assert found.workload.loss_strategy == loss_of(CASES[name])
    assert found.plan == replace(plan, search='none')


def test_the_hybrid_tutorial_is_cut_as_the_compiler_cut_it():
    """The compiler's dump of a rank has the operators of its stage, once for each micro-batch; our images come flat."""
    flat, *found = cuts(load_case(RECURSIVE).workload)
    assert flat == (((4, 1),), ())
    for rank, own in (('', [(((4, 1, 1, 1),), ()), *found[:2]]), ('_r4', found[2:])):
        record = json.loads((GOLDEN / f'v2.10.0/seeds/seed004_rec_pp2_opt_d8{rank}.json').read_text(encoding='utf-8'))
        assert list(dict.fromkeys(compiled(record))) == own


def images(*shape, strategy=()):
    """A product of flattened samples, which is cut."""
    width = prod(shape)
    layers = (Flatten(), Dense(inputs=width, outputs=16, bias=False, strategy=strategy))
    return Workload(model=Network(layers=layers, input=shape if len(shape) > 1 else ()), batch=32, loss='mse')


@pytest.mark.parametrize('search', ['sharding-propagation', *SEARCHES])
@pytest.mark.parametrize(('shape', 'strategy'), [((784,), ((2, 4),)), ((1, 28, 28), ((4, 1, 1, 1),))])
def test_a_flatten_that_is_cut_by_hand_stays_so(shape, strategy, search):
    workload = images(*shape)
    first, *others = workload.model.layers
    model = replace(workload.model, layers=(replace(first, strategy=strategy), *others))
    found = find_strategies(replace(workload, model=model), Plan(search=search), EIGHT)
    assert found.workload.model.layers[0].strategy == strategy
    assert found.origins['flatten0'] == 'given'
    assert found.workload.model.layers[1].strategy
    lower(found.workload, Plan(), 8)


def test_the_quick_start_tutorial_is_cut_as_its_ir_says():
    case = load_case(PROPAGATION)
    assert cuts(case.workload) == [(((2, 4), (4, 1)), ()), (((2, 4),), ()), (((2, 4), (4, 1)), ())]
    assert case.workload.loss_strategy == ((2, 4), (2, 4))
    assert case.strategies.origins['matmul'] == 'given'
    assert case.strategies.origins['matmul2'] == 'propagated from matmul as MindSpore 2.0 does'
    newer = load_case(PROPAGATION, ["plan.compat='2.10'"])
    assert cuts(newer.workload)[1:] == [(((2, 1),), ()), (((2, 1), (1, 4)), ())]


# --- what is given ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('search', ['sharding-propagation', 'double-recursive', 'exact'])
def test_what_is_given_stays(search):
    given = ((1, 2), (2, 2))
    workload = chain(16, 32, 8, 8, strategies=[given])
    plan = Plan(search=search, redistribution='cheapest')
    found = find_strategies(workload, plan, FOUR)
    assert found.workload.model.layers[0] == workload.model.layers[0]
    assert found.origins['dense0'] == 'given'
    assert all(layer.strategy for layer in found.workload.model.layers)
    assert set(found.origins) == {*layer_names(workload.model), 'loss'}
    assert find_strategies(found.workload, plan, FOUR).workload == found.workload


def test_a_loss_that_is_cut_is_somewhere_to_begin():
    workload = replace(chain(16, 16, 16), loss_strategy=((2, 2), (2, 2)))
    found = find_strategies(workload, Plan(search='sharding-propagation', compat='2.0'), FOUR)
    assert found.workload.loss_strategy == workload.loss_strategy
    assert found.origins['loss'] == 'given'
    assert found.origins['dense1'] == 'propagated from loss as MindSpore 2.0 does'
    with pytest.raises(Infeasible, match='loss: strategy'):
        find_strategies(replace(workload, loss_strategy=((3, 1), (3, 1))), Plan(search='exact'), FOUR)


# --- exact -----------------------------------------------------------------------------------------------------------


def measured(workload, plan, hardware):
    """Bytes that the busiest rank sends, and the predicted step."""
    program = lower(workload, replace(plan, search='none'), hardware.world)
    sent = max(sent_bytes(program, role) for role in program.roles)
    return sent, simulate(program, price(program, hardware)).step


def every_strategy(workload, devices):
    """The network with every strategy that two products can have on all devices, activations as what comes to them."""
    powers = [1 << power for power in range(devices.bit_length())]
    options = [((a, b), (b, c)) for a, b, c in product(powers, repeat=3) if a * b * c == devices]
    for first, second in product(options, repeat=2):
        (rows_, _), (_, columns) = first
        cut = [first, ((rows_, columns),), second]
        layers = tuple(
            replace(layer, strategy=strategy) for layer, strategy in zip(workload.model.layers, cut, strict=True)
        )
        yield replace(workload, model=replace(workload.model, layers=layers))


@pytest.mark.parametrize(
    ('widths', 'slices'),
    some(product([(64, 16, 64), (16, 64, 16), (8, 8, 64), (64, 64, 8)], [Plan(), Plan(micro_batches=2, copies=2)])),
)
def test_exact_moves_no_more_than_any_strategy_without_scattered_sums(widths, slices):
    workload, plan = chain(*widths, batch=32), replace(slices, search='exact', all_to_all=True)
    found = find_strategies(workload, plan, FOUR)
    others = [measured(other, plan, FOUR)[0] for other in every_strategy(workload, 4)]
    assert len(others) == 36
    assert measured(found.workload, plan, FOUR)[0] <= min(others)


@pytest.mark.parametrize('all_to_all', [False, True])
@pytest.mark.parametrize(
    'model', [chain(32, 16, 16).model, block_network(8, 32, 4, 64), block_network(4, 16, 2, 64, layers=2)]
)
def test_the_bound_is_what_moves_where_the_sum_sees_all(model, all_to_all):
    """Without biases a program sends what the sum over operators says."""
    workload = Workload(model=model, batch=64, loss='mse')
    found = find_strategies(workload, Plan(search='exact', all_to_all=all_to_all), EIGHT)
    assert found.proposals[0].sent == pytest.approx(found.bound)


def test_what_fits_into_memory_comes_first():
    def proposal(name, sent, step, too_much):
        return Proposal(name=name, workload=chain(8, 8), plan=Plan(), sent=sent, step=step, too_much=too_much)

    three = [proposal('big', 1.0, 1.0, 5.0), proposal('slow', 2.0, 9.0, 0.0), proposal('chatty', 3.0, 2.0, 0.0)]
    assert [one.name for one in sorted(three, key=least_first('bytes'))] == ['slow', 'chatty', 'big']
    assert [one.name for one in sorted(three, key=least_first('time'))] == ['chatty', 'slow', 'big']


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('example', [PROPAGATION, RECURSIVE, LOSS], ids=lambda path: path.stem)
def test_what_is_resolved_needs_no_search_and_is_the_same_program(example, put, printed):
    saved = put('resolved.yaml', printed('resolve', str(example)))
    assert yaml.safe_load(saved.read_text(encoding='utf-8'))['plan']['search'] == 'none'
    again, first = load_case(saved), load_case(example)
    assert again.program.hash == first.program.hash
    assert again.workload == again.schedule.workload == settled_workload(first.workload)
    assert set(again.strategies.origins.values()) == {'given'}
    assert printed('resolve', saved) == saved.read_text(encoding='utf-8')


def test_a_search_is_a_key_like_others(json_of):
    assert json_of('run', PROPAGATION, '--set', 'against={plan.search: double-recursive}')['gain'] is not None


def test_a_transformer_is_searched():
    schedule = load_schedule(EXAMPLES / 'transformer_h100.yaml', ['plan.search=exact'])
    assert schedule.plan.search == 'exact'


@pytest.mark.parametrize('search', ['double-recursive', 'exact'])
def test_the_odd_factor_of_the_ranks_must_divide_the_samples(search):
    found = find_strategies(chain(12, 12, 12, batch=12), Plan(search=search), cluster(H100, devices=6))
    assert all(rows % 3 == 0 for (rows, _), *_ in (layer.strategy for layer in found.workload.model.dense))
    if search == 'double-recursive':
        with pytest.raises(Infeasible, match='6 devices are no power of two, and their odd factor 3 does not divide'):
            find_strategies(chain(12, 12, 12, batch=8), Plan(search=search), cluster(H100, devices=6))


def test_a_given_strategy_that_cannot_be_is_told_as_the_user_wrote_it():
    workload = chain(32, 16, 16, strategies=[((2, 4), (2, 1))])
    with pytest.raises(Infeasible, match=r'dense0: strategy \(\(2, 4\), \(2, 1\)\).*write e\.g\.'):
        find_strategies(workload, Plan(search='exact'), EIGHT)
