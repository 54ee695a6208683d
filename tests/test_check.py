"""``simpar check``: the grid of actions, what each pipeline rank does, and what is simulated and executable."""

import json
import re
from collections import Counter
from functools import cache
from math import prod
from pathlib import Path

import pytest
from combined_cases import combined_case
from every import some
from good_schedules import GRAPH
from graph_cases import graph_case
from strategy_cases import random_case
from tables import load_table

from executor.ranks.watchdog import STREAMS
from simpar import cli
from simpar import listing as ir
from simpar.case import load_case
from simpar.commands.check import MOST_STREAMS, render, to_dict
from simpar.listing import Listing, flattens, rank_ir, strategies_to_dict, strategy_text
from simpar.lower import lower
from simpar.model import Flatten, Trained, layer_names, network_shapes, reads_of
from simpar.model.library.cross_entropy import CROSS_ENTROPY, LOSS_OPERATORS
from simpar.pipeline import parse_action
from simpar.pipeline.checks import check_order
from simpar.pipeline.order import Order

SCHEDULE = load_table(__file__, 'SCHEDULE')


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


@pytest.mark.parametrize('plan', ['tensor: 2', 'pipeline: 2, tensor: 2, micro_batches: 4, copies: 2'])
def test_what_is_simulated_and_executable_is_said_for_each_feature(tmp_path, plan):
    facts = to_dict(load_case(case(tmp_path, plan)))
    assert all(row['simulated'] == row['executable'] == 'yes' for row in facts['features'])
    asked = [row['feature'] for row in facts['features']]
    line = next(line for line in render(facts).splitlines() if line.startswith('simulated and executable: '))
    assert line == f'simulated and executable: {", ".join(asked)}'
    assert ('order 1f1b' in asked) == ('pipeline' in plan)
    assert (facts['actions'] is None) == ('pipeline' not in plan)


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
RANDOM, GRAPHS = range(15), range(20)
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


@pytest.mark.parametrize(('case', 'seed'), some(DRAWN))
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


@pytest.mark.parametrize(('case', 'seed'), some([*DRAWN, *((combined_case, seed) for seed in range(30))], 4))
def test_every_collective_belongs_to_an_operator(case, seed):
    """Also with pipelines, copies, optimizer parallelism and recomputation; but the sum of squares of clipping."""
    workload, program, listing = listed(case, seed)
    assert set(listing.owned) <= set(listing.operator)
    told = {op.name for ops in listing.owned.values() for _, op in ops}
    others = [op for op in program.op_classes if op.kind == 'collective' and op.name not in told]
    assert all((op.operator, op.phase) == ('all_reduce', 'U') for op in others)
    assert len(others) <= (workload.clip_norm > 0 or workload.loss_scale != 1)


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


def test_a_folder_that_is_a_file_is_refused(tmp_path, put, capsys):
    taken = put('ir', 'mine')
    assert cli.main(['check', str(PROPAGATION), '--ir', str(taken)]) == 2
    assert taken.read_text(encoding='utf-8') == 'mine'
    assert str(taken) in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ['ir']


# What a user sees of networks that are graphs of operators: the listing of `simpar check`, and the IR files


@pytest.fixture
def graph(put):
    return put('graph.yaml', GRAPH)


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


@pytest.mark.parametrize('seed', some(GRAPHS))
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


# --- marks of layers -------------------------------------------------------------------------------------------------


# --- round trip ------------------------------------------------------------------------------------------------------


def test_the_screen_of_check_is_of_the_same_facts_as_json(graph):
    from simpar.commands.check import to_dict

    facts = to_dict(load_case(graph))
    text = render(facts)
    for row in facts['strategies']['operators']:
        cut = f' {strategy_text(row["strategy"])}' if row['strategy'] else ''
        assert f'  {row["name"]}: {row["operator"]}{cut}, {row["origin"]}\n' in text


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
