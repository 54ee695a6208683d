"""What a user sees of strategies: the listing of `simpar check`, and the files that read like MindSpore's IR dumps."""

import json
import re
from collections import Counter
from math import prod
from pathlib import Path

import pytest
from combined_cases import combined_case
from strategy_cases import random_case

from simpar import cli
from simpar import listing as ir
from simpar.case import load_case
from simpar.commands.check import render, to_dict
from simpar.listing import Listing, strategies_to_dict, strategy_text
from simpar.lower import lower
from simpar.model import Dense, Relu, layer_names

ROOT = Path(__file__).parent.parent
PROPAGATION, RECURSIVE = ROOT / 'examples' / 'sharding_propagation.yaml', ROOT / 'examples' / 'double_recursive.yaml'
COPIES = ROOT / 'examples' / 'multi_copy.yaml'
LINE = re.compile(
    r'%(\d+) = (\w+)\((.*?)\) \{instance name: (\S+)\} ?(\{.*?\})? ?: \((.*?)\) -> \((.*?)\)  # scope: (.*)'
)
RANDOM = range(60)


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


def test_the_screen_tells_the_same_as_json(capsys):
    assert cli.main(['check', str(PROPAGATION), '--json']) == 0
    facts = json.loads(capsys.readouterr().out)
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


@pytest.mark.parametrize('seed', RANDOM)
def test_random_strategies_are_read_off_the_program_as_they_were_given(seed):
    workload, plan, world = random_case(seed)
    program = lower(workload, plan, world)
    listing = Listing(program)
    rows = {listing.name(op): op for op in listing.operators}
    for name, layer in zip(layer_names(workload.model), workload.model.layers, strict=True):
        if isinstance(layer, Dense | Relu) and layer.strategy:
            assert tuple(map(tuple, listing.strategy(rows[name]))) == layer.strategy
    for op in rows.values():
        tensors = [program.tensor[name] for name in op.reads]
        for tensor, cuts in zip(tensors, map(listing.shard_counts, tensors), strict=True):
            copies = program.copies if tensor.batch_dim is not None else 1
            assert prod(program.local_shape(tensor)) * prod(cuts) * copies == prod(tensor.shape)


@pytest.mark.parametrize('seed', range(150))
def test_every_collective_of_a_combined_plan_belongs_to_an_operator(seed):
    """Pipelines, copies, optimizer parallelism and recomputation; the sum of squares of clipping belongs to none."""
    workload, plan, world = combined_case(seed)
    program = lower(workload, plan, world)
    listing = Listing(program)
    told = {op.name for ops in listing.owned.values() for _, op in ops}
    others = [op for op in program.op_classes if op.kind == 'collective' and op.name not in told]
    assert set(listing.owned) <= {listing.name(op) for op in listing.operators}
    assert all((op.operator, op.phase) == ('all_reduce', 'U') for op in others)
    assert len(others) <= (workload.clip_norm > 0 or workload.loss_scale != 1)


@pytest.mark.parametrize('seed', RANDOM)
def test_every_collective_belongs_to_an_operator_and_sums_to_those_that_contract(seed):
    workload, plan, world = random_case(seed)
    program = lower(workload, plan, world)
    listing = Listing(program)
    names = {listing.name(op) for op in listing.operators}
    told = [(name, *one) for name in names for one in listing.owned.get(name, ())]
    assert set(listing.owned) <= names
    assert {op.name for _, _, op in told} == {op.name for op in program.op_classes if op.kind == 'collective'}
    contracted = {
        name
        for name, layer in zip(layer_names(workload.model), workload.model.layers, strict=True)
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
