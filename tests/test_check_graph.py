"""What a user sees of networks that are graphs of operators: the listing of `simpar check`, and the IR files."""

import re

import pytest
from good_schedules import GRAPH
from graph_cases import graph_case

from simpar import cli
from simpar.case import load_case
from simpar.commands.check import render
from simpar.listing import Listing, flattens, rank_ir, strategies_to_dict, strategy_text
from simpar.lower import lower
from simpar.lower.passes.optimizer_parallel import fusion_ids
from simpar.model import Add, Flatten, Trained, layer_names, network_shapes, reads_of
from simpar.model.library.cross_entropy import CROSS_ENTROPY, LOSS_OPERATORS
from simpar.resolve.settle import settled_workload
from simpar.schedule import load_schedule

RANDOM = range(80)


@pytest.fixture
def graph(tmp_path):
    path = tmp_path / 'graph.yaml'
    path.write_text(GRAPH)
    return path


def named(network):
    return zip(layer_names(network), network.layers, strict=True)


def readers_of(workload):
    """By layer, who reads it as the schedule says; the loss, or operators of it, read the last.

    A flatten of flat values hands them on.
    """
    network = workload.model
    found = {name: set() for name in ('x', *layer_names(network))}
    for name, reads in zip(layer_names(network), reads_of(network), strict=True):
        for read in reads:
            found[read].add(name)
    last = layer_names(network)[-1]
    if workload.loss_operators == 'one':
        found |= {name: {'loss'} for name in (last, 'target', 'labels')}
    else:
        names = {'logits': last, 'labels': 'labels'} | {name: f'loss.{name}' for name in LOSS_OPERATORS}
        found |= {name: set() for name in names.values()}
        for operator in CROSS_ENTROPY:
            for read in set(operator.reads) & names.keys():
                found[names[read]].add(operator.node)
    shapes = network_shapes(network, workload.batch)
    for (name, layer), (read, *_) in reversed(list(zip(named(network), reads_of(network), strict=True))):
        if isinstance(layer, Flatten) and len(shapes[read]) == 2:
            found[read] |= found[name]
    return found


def of_data(network):
    """Inputs, layers that no parameter goes into, and what has no gradient within the loss."""
    found = {'x', 'target', 'labels', *(f'loss.{name}' for name in ('max', 'target', 'ignored', 'weights', 'index'))}
    for (name, layer), reads in zip(named(network), reads_of(network), strict=True):
        if found.issuperset(reads) and not isinstance(layer, Trained):
            found.add(name)
    return found


def layer_of(tensor):
    """``d:norm.received@1.0`` → ``norm``, and ``loss.exp.partial`` → ``loss.exp``."""
    first, *rest = re.split(r'[.@]', tensor.removeprefix('d:'))
    return f'{first}.{rest[0]}' if first == 'loss' and rest else first


# --- the listing -----------------------------------------------------------------------------------------------------


def test_operators_have_mindspores_names_and_the_strategies_of_the_file(graph):
    """Where none is given: by hand, from the slices of what is read."""
    rows = strategies_to_dict(load_case(graph))['operators']
    assert [
        (row['name'], row['operator'], strategy_text(row['strategy'])) for row in rows if row['name'] != 'words'
    ] == [
        ('rows', 'Reshape', '()'),
        ('layer_norm0', 'LayerNorm', '((8, 1), (1), (1))'),
        ('q', 'MatMul', '((2, 1), (1, 4))'),
        ('reshape1', 'Reshape', '()'),
        ('heads', 'Transpose', '((2, 1, 4, 1))'),
        ('matmul0', 'BatchMatMul', '((2, 4, 1, 1), (2, 4, 1, 1))'),
        ('mul0', 'Mul', '((2, 4, 1, 1))'),
        ('softmax0', 'Softmax', '((2, 4, 1, 1))'),
        ('matmul1', 'BatchMatMul', '((2, 4, 1, 1), (2, 4, 1, 1))'),
        ('transpose1', 'Transpose', '((2, 4, 1, 1))'),
        ('reshape2', 'Reshape', '()'),
        ('proj', 'MatMul', '((2, 4), (4, 1))'),
        ('sum', 'Add', '((8, 1), (8, 1))'),
        ('gelu0', 'GeLU', '((2, 4))'),
        ('relu0', 'ReLU', '((8, 1))'),
        ('add1', 'Add', '((2, 4), (2, 4))'),
        ('loss', 'SoftmaxCrossEntropyWithLogits', '((8, 1), (8))'),
    ]


def test_an_embedding_has_its_weight_as_it_is_and_before_the_tokens(graph):
    """Micro-batches of 8 samples of 8 tokens; 32 rows of 16, cut in 4."""
    words = strategies_to_dict(load_case(graph))['operators'][0]
    assert (words['operator'], strategy_text(words['strategy'])) == ('Gather', '((4, 1), (2, 1))')
    assert list(words['reads'].values()) == [[8, 16], [4, 8]]
    assert next(iter(words['reads'])) == 'words.weight'
    sums = [(one['phase'], one['operator']) for one in words['collectives'] if one['purpose'] == 'sum']
    assert sums == [('F', 'all_reduce'), ('I', 'all_reduce')]


def test_weights_of_products_alone_are_turned(graph):
    rows = {row['name']: row for row in strategies_to_dict(load_case(graph))['operators']}
    assert rows['q']['reads']['q.weight'] == [16, 4]
    assert rows['proj']['reads']['proj.weight'] == [4, 16]
    assert rows['layer_norm0']['reads']['layer_norm0.gain'] == [16]
    assert rows['reshape1']['reads'] == {'q': [32, 4]}
    assert rows['reshape1']['writes'] == {'reshape1': [4, 8, 1, 4]}


def test_a_reshape_is_shown_with_slices_and_without_a_strategy(graph, capsys):
    assert cli.main(['check', str(graph)]) == 0
    text = capsys.readouterr().out
    assert '  reshape1: Reshape, as its input lies\n    slices q (32, 4) → reshape1 (4, 8, 1, 4)\n' in text
    assert '  mul0: Mul ((2, 4, 1, 1)), as its input lies\n' in text
    assert '  softmax0: Softmax ((2, 4, 1, 1)), given\n' in text


def test_a_gradient_that_comes_by_an_addition_is_brought_back_for_that_addition(graph):
    """``rows`` is gathered for the norm and the addition alike; the addition has no op of its own in the backward."""
    rows = {row['name']: row for row in strategies_to_dict(load_case(graph))['operators']}
    for name in ('layer_norm0', 'sum'):
        told = {
            (one['phase'], one['operator']) for one in rows[name]['collectives'] if one['purpose'] == 'redistribution'
        }
        assert {('F', 'all_gather'), ('I', 'reduce_scatter')} <= told, name


def test_layouts_are_listed_as_given_and_as_the_slices_that_they_make(tmp_path):
    path = tmp_path / 'layouts.yaml'
    path.write_text("""\
simpar: 1
cluster: h100-sxm-8
workload:
  network:
    - dense: {in: 8, out: 8, name: up, layout: [[dp, mp], [mp, none]], out_layout: [dp+mp, none]}
    - gelu: {layout: [[dp, mp]]}
    - dense: {in: 8, out: 8, name: down}
  batch: 16
  loss: mse
plan: {device_matrix: {dp: 2, mp: 4}}
""")
    rows = strategies_to_dict(load_case(path))['operators']
    listed = {row['name']: (strategy_text(row['strategy']), row['out_strategy'], row['origin']) for row in rows}
    assert listed['up'] == ('((2, 4), (4, 1))', [8, 1], 'given')
    assert listed['gelu0'] == ('((2, 4))', [], 'given')
    assert listed['down'] == ('((8, 1), (1, 1))', [], 'by batch, as none is given')


@pytest.mark.parametrize(('strategy', 'origin'), [('[[4, 1, 1, 1]]', 'given'), ('[]', 'as its input lies')])
def test_a_flatten_is_listed_as_other_operators(tmp_path, strategy, origin):
    path = tmp_path / 'images.yaml'
    path.write_text(f"""\
simpar: 1
cluster: h100-sxm-8
workload:
  network:
    input: [1, 28, 28]
    layers:
      - flatten: {{name: flat, of: x, strategy: {strategy}}}
      - dense: {{in: 784, out: 8, name: up, strategy: [[2, 1], [1, 4]]}}
  batch: 16
plan: {{redistribution: mindspore-2.10}}
""")
    case = load_case(path)
    flat, up, _ = strategies_to_dict(case)['operators']
    cuts = '((4, 1, 1, 1))' if origin == 'given' else '((8, 1, 1, 1))'
    assert (flat['name'], flat['operator'], strategy_text(flat['strategy'])) == ('flat', 'Flatten', cuts)
    assert flat['origin'] == origin
    assert up['collectives'][0]['purpose'] == 'redistribution'
    ops = (line for line in rank_ir(case, 0).splitlines() if 'instance name: flat}' in line)
    assert re.search(rf'= Flatten\(%\w+, \(-1, 784\)\) .* {{in_strategy: {re.escape(cuts)}}}', next(ops))


@pytest.mark.parametrize('seed', RANDOM)
def test_random_strategies_are_read_off_the_program_as_they_were_given(seed):
    """But for a flatten of what is flat, which is no operator."""
    workload, plan, world = graph_case(seed)
    listing = Listing(lower(workload, plan, world), flattens(workload))
    for name, layer in named(workload.model):
        strategy = getattr(layer, 'strategy', ())
        if strategy and not (isinstance(layer, Flatten) and len(strategy[0]) == 2):
            assert tuple(map(tuple, listing.strategy(listing.operator[name]))) == strategy, name


@pytest.mark.parametrize('seed', RANDOM)
def test_every_collective_stands_at_operators_and_redistributions_at_the_readers_in_the_file(seed):
    workload, plan, world = graph_case(seed)
    program = lower(workload, plan, world)
    listing = Listing(program)
    told = {op.name for ops in listing.owned.values() for _, op in ops}
    others = [op for op in program.op_classes if op.kind == 'collective' and op.name not in told]
    assert set(listing.owned) <= set(listing.operator)
    assert all((op.operator, op.phase) == ('all_reduce', 'U') for op in others)
    readers = readers_of(workload)
    with_parameters = {name for name, layer in named(workload.model) if isinstance(layer, Trained)}
    for name, ops in listing.owned.items():
        for purpose, op in ops:
            if purpose == 'redistribution':
                assert name in readers[layer_of(op.writes[0])], op.name
            elif purpose == 'sum':
                assert layer_of(op.writes[0]) == name, op.name
            elif purpose == 'loss':
                assert (name, op.reads) == ('loss', ('loss',))
            else:
                assert name in with_parameters, op.name


@pytest.mark.parametrize('seed', RANDOM)
def test_what_is_gathered_for_an_operator_is_scattered_for_it_on_the_way_back(seed):
    """A gather is the transpose of a reduce-scatter, an all-to-all of another; data has no gradient.

    What comes back through two additions of one value, of which one reads the other, stands at both.
    """
    workload, plan, world = graph_case(seed)
    program = lower(workload, plan, world)
    listing = Listing(program)
    data = of_data(workload.model)
    back = {'all_gather': 'reduce_scatter', 'all_to_all': 'all_to_all'}
    ways = {'F': set(), 'I': set()}
    told = [(name, op) for name, ops in listing.owned.items() for purpose, op in ops if purpose == 'redistribution']
    for name, op in told:
        operator = back.get(op.operator) if op.phase == 'F' else op.operator
        comes_back = layer_of(op.writes[0]) not in data and name != 'loss.max'
        if comes_back and operator in back.values():
            ways[op.phase].add((layer_of(op.writes[0]), name, operator))
    assert ways['F'] <= ways['I']
    assert all(adds_twice(workload.model, value, name) for value, name, _ in ways['I'] - ways['F'])


def adds_twice(network, value, name):
    """Whether an addition and another read a value, and one of them reads the other."""
    kinds, reads = dict(named(network)), dict(zip(layer_names(network), reads_of(network), strict=True))
    adders = {other for other, kind in kinds.items() if isinstance(kind, Add) and value in reads[other]}
    return name in adders and any(name in reads[other] or other in reads[name] for other in adders - {name})


# --- the files -------------------------------------------------------------------------------------------------------


def test_the_ir_has_what_primitives_take_besides_values(graph):
    text = rank_ir(load_case(graph), 5)
    for line in (
        r'%\d+ = Gather\(%para0_words.weight, %\w+\) \{.*\} \{in_strategy: \(\(4, 1\), \(2, 1\)\)\} : ',
        r'%\d+ = Gather\(.*\) \{.*: \(<fp32, \(8, 16\)>, <int64, \(4, 8\)>\) -> \(<fp32, \(4, 8, 16\)>\)',
        r'%\d+ = Reshape\(%\d+, \(-1, 8, 1, 4\)\) \{instance name: reshape1\} : ',
        r'%\d+ = Transpose\(%\d+, \(0, 2, 1, 3\)\) \{instance name: heads\} \{in_strategy: \(\(2, 1, 4, 1\)\)\} : ',
        r'%(\d+) = BatchMatMul\(%(\d+), %\2\) \{instance name: matmul0\} \{in_strategy: .*, transpose_b: true\} : ',
        r'%\d+ = Mul\(%\d+, 0.5\) \{instance name: mul0\} ',
        r'%\d+ = BatchMatMul\(%\d+, %\d+\) \{instance name: matmul1.right\} \{transpose_a: true\} : ',
        r'%\d+ = LayerNormGradWeight\(.*\) \{instance name: layer_norm0\} : ',
        r'%\d+ = GatherGradWeight\(.*\) \{instance name: words\} : .* -> \(<fp32, \(8, 16\)>\)',
        r'%\d+ = Add\(%\d+, %\d+\) \{instance name: sum\} \{in_strategy: \(\(8, 1\), \(8, 1\)\)\} : ',
        r'%\d+ = Add\(%\d+, %\d+\) \{instance name: d:\S+.sum1\} : ',
    ):
        assert re.search(f'^{line}', text, re.MULTILINE), line
    assert re.search(r'^%para\d+_words.weight : <fp32, \(8, 16\)>$', text, re.MULTILINE)
    assert re.search(r'^%para\d+_q.weight : <fp32, \(16, 4\)>$', text, re.MULTILINE)


def test_values_of_a_graph_are_written_before_they_are_read(graph):
    case = load_case(graph, ['plan.zero=3', 'plan.copies=2', 'workload.batch=32'])
    for rank in (0, 7):
        ops = [line for line in rank_ir(case, rank).splitlines() if re.match(r'%\d+ = ', line)]
        assert len(ops) == len(case.program.role(rank))
        for number, line in enumerate(ops):
            arguments = re.sub(r'%para\d+_\S+', '', line.partition(' = ')[2].partition(' {')[0])
            assert all(int(read) < number for read in re.findall(r'%(\d+)', arguments)), line


# --- marks of layers -------------------------------------------------------------------------------------------------


def test_layers_that_are_marked_are_run_again_and_listed_once(graph):
    case = load_case(graph, ['workload.network.7.mul.recompute=true'])
    again = {op.name for op in case.program.op_classes if op.name.endswith('.recompute')}
    assert again == {'layer_norm0.F.recompute'}  # the backward of mul needs nothing that it makes
    names = [row['name'] for row in strategies_to_dict(case)['operators']]
    assert len(names) == len(set(names)) == 18


def test_marks_of_fusion_count_for_every_layer_with_parameters(graph):
    settings = ['plan.fusion=ids', 'plan.data=8', 'workload.network.12.dense.comm_fusion=5']
    workload, plan = (getattr(load_schedule(graph, settings), part) for part in ('workload', 'plan'))
    parameters = ['words.weight', 'layer_norm0.gain', 'layer_norm0.bias', 'q.weight', 'q.bias', 'proj.weight']
    assert fusion_ids(workload, plan, parameters) == {'words': 1, 'layer_norm0': 1, 'q': 1, 'proj': 5}


# --- round trip ------------------------------------------------------------------------------------------------------


def test_a_resolved_graph_is_the_same_program(graph, capsys):
    assert cli.main(['resolve', str(graph)]) == 0
    resolved = graph.parent / 'resolved.yaml'
    resolved.write_text(capsys.readouterr().out)
    assert load_schedule(resolved).workload == settled_workload(load_schedule(graph).workload)
    assert load_case(resolved).program.hash == load_case(graph).program.hash


def test_the_screen_of_check_is_of_the_same_facts_as_json(graph):
    from simpar.commands.check import to_dict

    facts = to_dict(load_case(graph))
    text = render(facts)
    for row in facts['strategies']['operators']:
        cut = f' {strategy_text(row["strategy"])}' if row['strategy'] else ''
        assert f'  {row["name"]}: {row["operator"]}{cut}, {row["origin"]}\n' in text
