"""``simpar check``: the grid of actions, what each pipeline rank does, and what is simulated and executable."""

import json
from pathlib import Path

import pytest

from executor.ranks.watchdog import STREAMS
from simpar import cli
from simpar.case import load_case
from simpar.commands.check import MOST_STREAMS, render, to_dict
from simpar.pipeline import parse_action
from simpar.pipeline.checks import check_order
from simpar.pipeline.order import Order

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


def test_json_is_one_object(tmp_path, capsys):
    assert cli.main(['check', str(case(tmp_path, 'pipeline: 2, tensor: 2, micro_batches: 4')), '--json']) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts['actions'][0][0] == '0F0'
    assert facts['roles'][0]['stages'] == {'0': ['embedding', 'position', 'layer0', 'layer1']}
