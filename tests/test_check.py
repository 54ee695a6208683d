"""``simpar check``: the grid of actions, what each pipeline rank does, and what is simulated and executable."""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import cache
from math import prod
from pathlib import Path

import pytest
from combined_cases import combined_case
from good_schedules import GRAPH
from graph_cases import graph_case
from strategy_cases import random_case

from executor.ranks.watchdog import STREAMS
from simpar import cli
from simpar import listing as ir
from simpar.case import load_case
from simpar.commands.check import MOST_STREAMS, render, to_dict
from simpar.listing import Listing, flattens, rank_ir, strategies_to_dict, strategy_text
from simpar.lower import lower
from simpar.lower.passes.optimizer_parallel import fusion_ids
from simpar.model import Add, Dense, Flatten, Trained, layer_names, network_shapes, reads_of
from simpar.model.library.cross_entropy import CROSS_ENTROPY, LOSS_OPERATORS
from simpar.pipeline import parse_action
from simpar.pipeline.checks import check_order
from simpar.pipeline.order import Order
from simpar.resolve.resolve import settled_workload
from simpar.schedule import load_schedule

SCHEDULE = """
simpar: 1
cluster: {{profile: h100-sxm-8, devices: {devices}, stack: none}}
workload:
  transformer: {{layers: {layers}, hidden: 16, heads: 2, vocab: 16, sequence: 4}}
  batch: {batch}
plan: {{{plan}}}
"""


def case(folder: Path, plan: str, *, devices: int = 4, layers: int = 4, batch: int = 16):
    path = folder / 'schedule.yaml'
    path.write_text(SCHEDULE.format(plan=plan, devices=devices, layers=layers, batch=batch), encoding='utf-8')
    return path


def test_the_grid_is_the_order_with_its_sends_and_receives(tmp_path):
    facts = to_dict(load_case(case(tmp_path, 'pipeline: 2, tensor: 2, micro_batches: 4, order: 1f1b')))
    assert [len(row) for row in facts['actions']] == [16, 16]
    rows = tuple(tuple(map(parse_action, row)) for row in facts['actions'])
    check_order(Order(rows, (0, 1), 4))
    lines = render(facts).splitlines()
    at = lines.index('actions of the pipeline ranks:')
    assert lines[at + 1].split() == ['Rank', '0', 'Rank', '1']
    cells = [line.partition(':')[2].split() for line in lines[at + 2 : at + 18]]
    assert [row[0] for row in cells] == facts['actions'][0]
    assert [row[1] for row in cells] == facts['actions'][1]


def test_late_receives_stand_where_they_are_posted(tmp_path):
    early, late = (
        to_dict(load_case(case(tmp_path, f'pipeline: 4, micro_batches: 8, receive: {receive}')))['actions']
        for receive in ('early', 'late')
    )
    assert early != late
    assert list(map(sorted, early)) == list(map(sorted, late))
    for row in late:
        for number, action in enumerate(row):
            if 'RECV' in action:
                assert row[number + 1] == action.replace('RECV_', '') or 'SEND' in row[number + 1]


def test_what_each_pipeline_rank_holds_is_told(tmp_path):
    plan = 'pipeline: 2, chunks: 2, micro_batches: 4, order: interleaved-1f1b, tensor: 2'
    facts = to_dict(load_case(case(tmp_path, plan, layers=8)))
    first, last = facts['roles']
    assert first['stages'] == {0: ['embedding', 'position', 'layer0', 'layer1'], 2: ['layer4', 'layer5']}
    assert last['stages'][3] == ['layer6', 'layer7', 'norm', 'head', 'loss']
    assert first['ranks'] == [0, 1]
    assert facts['parameters']['rank'] == max(first['parameters'], last['parameters'])
    assert facts['parameters']['rank'] < facts['parameters']['model']
    text = render(facts)
    assert '    stage 0: embedding, position, layer0-1\n' in text
    assert '    stage 3: layer6-7, norm, head, loss\n' in text
    sends = [row for row in facts['messages'] if row['phase'] == 'F']
    assert [(row['operator'], row['partition'], row['count']) for row in sends] == [('send', 'pipeline', 8)]


def test_a_long_grid_is_cut_in_the_middle(tmp_path):
    text = render(to_dict(load_case(case(tmp_path, 'pipeline: 4, micro_batches: 64', batch=64))))
    lines = text.splitlines()
    at = lines.index('actions of the pipeline ranks:')
    assert any('more steps: see --json' in line for line in lines[at:])
    assert len(lines) < 80


@pytest.mark.parametrize('plan', ['tensor: 2', 'pipeline: 2, tensor: 2, micro_batches: 4, copies: 2'])
def test_what_is_simulated_and_executable_is_said_for_each_feature(tmp_path, plan):
    facts = to_dict(load_case(case(tmp_path, plan)))
    assert all(row['simulated'] == row['executable'] == 'yes' for row in facts['features'])
    asked = [row['feature'] for row in facts['features']]
    line = next(line for line in render(facts).splitlines() if line.startswith('simulated and executable: '))
    assert line == f'simulated and executable: {", ".join(asked)}'
    assert ('order 1f1b' in asked) == ('pipeline' in plan)
    assert (facts['actions'] is None) == ('pipeline' not in plan)


def test_chunks_of_a_sequence_are_a_feature(tmp_path):
    plan = 'pipeline: 2, tensor: 2, micro_batches: 4, order: mindspore-2.10/seqpipe, sequence_chunks: 2'
    facts = to_dict(load_case(case(tmp_path, plan)))
    assert {'feature': 'sequence_chunks 2', 'simulated': 'yes', 'executable': 'yes'} in facts['features']
    # Items of the order are chunks: twice as many as micro-batches.
    assert max(int(action[2:]) for action in facts['actions'][1] if action.startswith('1F')) == 7


def test_more_streams_than_the_executor_has_room_for_are_told(tmp_path):
    assert MOST_STREAMS == STREAMS
    plan = 'pipeline: 4, micro_batches: 4, copies: 64'
    facts = to_dict(load_case(case(tmp_path, plan, batch=256)))
    streams = max(len(role['streams']) for role in facts['roles'])
    assert streams > STREAMS
    assert facts['machines']['torch.distributed'] == f'no: {streams} streams on a rank, room for {STREAMS}'
    assert {row['executable'] for row in facts['features']} == {facts['machines']['torch.distributed']}


def test_json_is_one_object(tmp_path, json_of):
    facts = json_of('check', str(case(tmp_path, 'pipeline: 2, tensor: 2, micro_batches: 4')))
    assert facts['actions'][0][0] == '0F0'
    assert facts['roles'][0]['stages'] == {'0': ['embedding', 'position', 'layer0', 'layer1']}


# What a user sees of strategies: the listing of `simpar check`, and the files that read like MindSpore's IR dumps


ROOT = Path(__file__).parent.parent
PROPAGATION, RECURSIVE = ROOT / 'examples' / 'sharding_propagation.yaml', ROOT / 'examples' / 'double_recursive.yaml'
COPIES = ROOT / 'examples' / 'multi_copy.yaml'
LINE = re.compile(
    r'%(\d+) = (\w+)\((.*?)\) \{instance name: (\S+)\} ?(\{.*?\})? ?: \((.*?)\) -> \((.*?)\)  # scope: (.*)'
)
RANDOM, GRAPHS = range(60), range(80)
DRAWN = [*((random_case, seed) for seed in RANDOM), *((graph_case, seed) for seed in GRAPHS)]
"""Networks of products alone, and graphs of all operators."""


@cache
def listed(case, seed):
    """A random workload, its program, and the listing of that."""
    workload, plan, world = case(seed)
    program = lower(workload, plan, world)
    return workload, program, Listing(program, flattens(workload))


def named(network):
    return zip(layer_names(network), network.layers, strict=True)


def lines(text):
    """The ops of an IR file: number, operator, arguments, instance, facts, shapes read and written, scope."""
    found = [LINE.fullmatch(line) for line in text.splitlines() if not line.startswith(('#', '%para'))]
    assert all(found)
    return [match.groups(default='') for match in found]


# --- the listing -----------------------------------------------------------------------------------------------------


def test_the_tutorial_is_listed_operator_by_operator():
    rows = strategies_to_dict(load_case(PROPAGATION))['operators']
    assert [(row['name'], row['operator'], strategy_text(row['strategy'])) for row in rows] == [
        ('matmul', 'MatMul', '((2, 4), (4, 1))'),
        ('relu', 'ReLU', '((2, 4))'),
        ('matmul2', 'MatMul', '((2, 4), (4, 1))'),
        ('loss', 'MSELoss', '((2, 4), (2, 4))'),
    ]
    matmul = rows[0]
    assert matmul['reads'] == {'x@1': [8, 8], 'matmul.weight': [8, 16]}
    keys = ('phase', 'operator', 'groups', 'bytes', 'purpose')
    whole, half = [[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert [tuple(map(one.get, keys)) for one in matmul['collectives']] == [
        ('F', 'all_gather', whole, 8 * 32 * 4, 'redistribution'),
        ('F', 'all_reduce', whole, 8 * 16 * 4, 'sum'),
        ('I', 'all_reduce', whole, 8 * 16 * 4, 'sum'),
        ('W', 'all_reduce', half, 8 * 16 * 4, 'gradient'),
    ]


def test_the_screen_tells_the_same_as_json(json_of):
    facts = json_of('check', str(PROPAGATION))
    text = render(facts)
    assert '  matmul: MatMul ((2, 4), (4, 1)), given\n' in text
    assert '    slices x@1 (8, 8) matmul.weight (8, 16) → matmul.partial (8, 16)\n' in text
    assert '    F all_reduce of 512 B over 0-1-2-3 and 1 more: sum\n' in text
    assert '  relu: ReLU ((2, 4)), propagated from matmul as MindSpore 2.0 does\n' in text
    assert '  loss: MSELoss ((2, 4), (2, 4)), propagated from matmul as MindSpore 2.0 does\n' in text


def test_what_an_exact_search_weighed_is_told():
    case = load_case(PROPAGATION, ['plan.search=exact', 'plan.objective=time'])
    text = render(to_dict(case))
    best = case.strategies.proposals[0]
    assert f'searched: {best.name}, least time' in text
    assert 'strategies that were compared, best first' in text
    assert re.search(rf'  {re.escape(best.name)} .* us\n', text)
    assert 'least sum over operators: ' in text


def test_a_network_without_strategies_has_no_listing():
    facts = to_dict(load_case(COPIES))
    assert facts['strategies'] is None
    assert 'strategies' not in render(facts)


@pytest.mark.parametrize(('case', 'seed'), DRAWN)
def test_random_strategies_are_read_off_the_program_as_they_were_given(case, seed):
    """But for a flatten of what is flat, which is no operator."""
    workload, program, listing = listed(case, seed)
    for name, layer in named(workload.model):
        strategy = getattr(layer, 'strategy', ())
        if strategy and not (isinstance(layer, Flatten) and len(strategy[0]) == 2):
            assert tuple(map(tuple, listing.strategy(listing.operator[name]))) == strategy, name
    for op in listing.operators if case is random_case else ():
        tensors = [program.tensor[name] for name in op.reads]
        for tensor, cuts in zip(tensors, map(listing.shard_counts, tensors), strict=True):
            copies = program.copies if tensor.batch_dim is not None else 1
            assert prod(program.local_shape(tensor)) * prod(cuts) * copies == prod(tensor.shape)


@pytest.mark.parametrize(('case', 'seed'), [*DRAWN, *((combined_case, seed) for seed in range(150))])
def test_every_collective_belongs_to_an_operator(case, seed):
    """Also with pipelines, copies, optimizer parallelism and recomputation; but the sum of squares of clipping."""
    workload, program, listing = listed(case, seed)
    assert set(listing.owned) <= set(listing.operator)
    told = {op.name for ops in listing.owned.values() for _, op in ops}
    others = [op for op in program.op_classes if op.kind == 'collective' and op.name not in told]
    assert all((op.operator, op.phase) == ('all_reduce', 'U') for op in others)
    assert len(others) <= (workload.clip_norm > 0 or workload.loss_scale != 1)


@pytest.mark.parametrize('seed', RANDOM)
def test_sums_belong_to_operators_that_contract_and_gradients_to_weights(seed):
    workload, program, listing = listed(random_case, seed)
    told = [(name, *one) for name in listing.operator for one in listing.owned.get(name, ())]
    contracted = {
        name
        for name, layer in named(workload.model)
        if isinstance(layer, Dense) and layer.strategy and layer.strategy[0][1] > 1
    }
    sums = Counter((name, op.phase) for name, purpose, op in told if purpose == 'sum')
    assert {name for name, phase in sums if phase == 'F'} == contracted
    gradients = {name for name, purpose, _ in told if purpose == 'gradient'}
    assert gradients == {
        tensor.like.rpartition('.')[0]
        for op in program.op_classes
        if op.kind == 'collective' and op.phase == 'W'
        for tensor in map(program.tensor.__getitem__, op.reads)
    }


def test_a_pipeline_with_recomputation_is_listed_too():
    case = load_case(RECURSIVE)
    facts = strategies_to_dict(case)
    names = [row['name'] for row in facts['operators']]
    assert names == ['layer1', 'relu1', 'layer2', 'layer2.bias', 'relu2', 'layer3', 'loss']
    listed = {one['op'] for row in facts['operators'] for one in row['collectives']}
    assert listed == {op.name for op in case.program.op_classes if op.kind == 'collective'}
    # The compiler's dump of this network has the same gather before layer1 and the same sum behind layer2.
    inserted = {
        row['name']: [(one['phase'], one['operator']) for one in row['collectives']] for row in facts['operators']
    }
    assert ('F', 'all_gather') in inserted['layer1']
    assert inserted['layer2'][:2] == [('F', 'all_reduce'), ('I', 'all_reduce')]


# --- the files -------------------------------------------------------------------------------------------------------


def test_the_ir_reads_as_the_tutorial_prints_it():
    """%12 to %17 of the tutorial's 18_execute_0185.ir, rank 0."""
    ops = [one for one in lines(ir.rank_ir(load_case(PROPAGATION), 0)) if one[-1].split()[0].endswith('.F')]
    start = next(place for place, op in enumerate(ops) if op[1] == 'MatMul')
    matmul, reduce, strided, relu, matmul2 = ops[start : start + 5]
    assert matmul[1:5:2] == ('MatMul', 'matmul')
    assert matmul[4] == '{in_strategy: ((2, 4), (4, 1))}'
    assert reduce[1] == 'AllReduce'
    assert reduce[2] == f'%{matmul[0]}'
    for told in ('op: sum', 'rank_list: (0, 1, 2, 3)', 'group_ranks: 0-1-2-3'):
        assert told in reduce[4]
    assert strided[1:3] == ('StridedSlice', f'%{reduce[0]}, (0, 0), (8, 4), (1, 1)')
    assert relu[1:5] == ('ReLU', f'%{strided[0]}', 'relu', '{in_strategy: ((2, 4))}')
    assert matmul2[1:5:2] == ('MatMul', 'matmul2')
    assert matmul2[2].startswith(f'%{relu[0]}, ')
    assert matmul2[4] == '{in_strategy: ((2, 4), (4, 1))}'


def shape(text):
    """``<fp32, (8, 16)>`` as a tuple."""
    return tuple(map(int, re.search(r'\((.*)\)', text).group(1).split(',')))


@pytest.mark.parametrize('rank', [0, 3, 5, 7])
def test_collectives_have_the_ranks_and_shapes_of_the_compilers_dump(rank):
    """All of the final graphs that MindSpore 2.0.0's compiler gives for this network, but the loss's sum over ranks.

    The gathers have a dim of one more there.
    """
    row = (0, 1, 2, 3) if rank < 4 else (4, 5, 6, 7)
    column = (rank % 4, rank % 4 + 4)
    theirs = {
        ('AllGather', row, (2, 32)): 1,
        ('AllGather', row, (2, 16)): 1,
        ('AllReduce', row, (8, 16)): 4,
        ('AllReduce', column, (8, 16)): 1,
        ('AllReduce', column, (4, 16)): 1,
    }
    ours: Counter[tuple[str, tuple[int, ...], tuple[int, ...]]] = Counter()
    for _, operator, _, _, facts, read, _, _ in lines(ir.rank_ir(load_case(PROPAGATION), rank)):
        if 'rank_list' in facts:
            ranks = re.search(r'rank_list: \((.*?)\)', facts).group(1)
            ours[operator, tuple(map(int, ranks.split(','))), shape(read)] += 1
    assert ours == theirs


@pytest.mark.parametrize('example', [PROPAGATION, RECURSIVE, COPIES], ids=lambda path: path.stem)
def test_values_are_written_before_they_are_read_and_windows_are_those_of_the_rank(example):
    case = load_case(example)
    for rank in (0, case.program.world - 1):
        text = ir.rank_ir(case, rank)
        kept = set(re.findall(r'^(%para\d+_\S+) :', text, re.MULTILINE))
        role = case.program.role(rank)
        ops = lines(text)
        assert len(ops) == len(role)
        for number, _, arguments, *_ in ops:
            for read in re.findall(r'%(\d+)', arguments.replace('%para', '')):
                assert int(read) < int(number)
            assert set(re.findall(r'%para\d+_[^\s,]+', arguments)) <= kept


def test_slices_begin_where_the_rank_stands():
    """Rank 5 is second of two along the rows and second of four along the columns."""
    ops = lines(ir.rank_ir(load_case(PROPAGATION), 5))
    windows = [op[2].split(', ', 1)[1] for op in ops if op[1] == 'StridedSlice']
    assert windows == ['(0, 8), (8, 16), (1, 1)', *['(0, 4), (8, 8), (1, 1)'] * 3]


def test_files_are_written_for_every_rank_and_those_of_another_program_go(tmp_path, capsys):
    folder = tmp_path / 'new' / 'ir'
    assert cli.main(['check', str(PROPAGATION), '--ir', str(folder)]) == 0
    names = [f'rank_{rank}.ir' for rank in range(8)]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert f'wrote {folder / "rank_7.ir"}' in capsys.readouterr().out
    (folder / 'notes.txt').write_text('mine', encoding='utf-8')
    small = ['workload.network.0.dense.strategy=[[2, 2], [2, 1]]', 'cluster.devices=4', '--json']
    words = [word for setting in small[:2] for word in ('--set', setting)]
    assert cli.main(['check', str(PROPAGATION), *words, '--json', '--ir', str(folder)]) == 0
    assert sorted(path.name for path in folder.iterdir()) == ['notes.txt', *names[:4]]
    assert json.loads(capsys.readouterr().out)['written'] == [str(folder / name) for name in names[:4]]


def test_files_are_written_all_or_none(tmp_path, monkeypatch):
    folder = tmp_path / 'ir'
    case = load_case(PROPAGATION)
    ir.write_ir(folder, case)
    before = {path.name: path.read_text(encoding='utf-8') for path in folder.iterdir()}
    whole = ir.rank_ir

    def broken(case, rank):
        if rank == 3:
            raise RuntimeError('out of paper')
        return whole(case, rank).upper()

    monkeypatch.setattr(ir, 'rank_ir', broken)
    with pytest.raises(RuntimeError, match='out of paper'):
        ir.write_ir(folder, case)
    assert {path.name: path.read_text(encoding='utf-8') for path in folder.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ['ir']


def test_a_folder_that_is_a_file_is_refused(tmp_path, capsys):
    taken = tmp_path / 'ir'
    taken.write_text('mine', encoding='utf-8')
    assert cli.main(['check', str(PROPAGATION), '--ir', str(taken)]) == 2
    assert taken.read_text(encoding='utf-8') == 'mine'
    assert str(taken) in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ['ir']


# What a user sees of networks that are graphs of operators: the listing of `simpar check`, and the IR files


@pytest.fixture
def graph(tmp_path):
    path = tmp_path / 'graph.yaml'
    path.write_text(GRAPH)
    return path


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


@pytest.mark.parametrize('seed', GRAPHS)
def test_every_collective_stands_at_operators_and_redistributions_at_the_readers_in_the_file(seed):
    workload, _, listing = listed(graph_case, seed)
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


@pytest.mark.parametrize('seed', GRAPHS)
def test_what_is_gathered_for_an_operator_is_scattered_for_it_on_the_way_back(seed):
    """A gather is the transpose of a reduce-scatter, an all-to-all of another; data has no gradient.

    What comes back through two additions of one value, of which one reads the other, stands at both.
    """
    workload, _, listing = listed(graph_case, seed)
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
