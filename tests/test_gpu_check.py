"""The minutes on a GPU, rehearsed on virtual accelerators: what is planned, what is kept, and what is tried again."""

import json
from collections import Counter

from executor.gpu_check import PARTS, PLANS, SIZES, PartOf, Row, _summary, costs_of, main, workload
from simpar.engine import simulate
from simpar.lower import lower

SHORT = ('machine', 'losses', 'no waiting')


def rehearse(folder, *parts):
    return main(['--device', 'virtual', '--size', 'tiny', '--folder', str(folder), '--only', *parts])


def test_what_is_planned_fits_the_minutes_of_one_device_and_of_two():
    assert sum(part.minutes for part in PARTS.values() if part.devices == 1) <= 8
    assert sum(part.minutes for part in PARTS.values()) <= 15


def test_parts_are_found_once_and_a_second_command_takes_what_is_kept(tmp_path, capsys, monkeypatch):
    assert rehearse(tmp_path, *SHORT) == 0
    first = capsys.readouterr().out
    assert first.startswith('3 parts, 0.7 minutes on virtual')
    assert 'losses: copies 4, bf16' in first
    page = (tmp_path / 'page.md').read_text()
    monkeypatch.setitem(PARTS, 'losses', PartOf(None, 0.5))
    assert rehearse(tmp_path, *SHORT) == 0
    second = capsys.readouterr().out
    assert 'losses: 0.5 minutes, kept' in second
    assert 'copies 4' not in second
    assert (tmp_path / 'page.md').read_text() == page


def test_a_part_that_fails_leaves_the_others_and_is_tried_again(tmp_path, capsys, monkeypatch):
    def broken(device, options):
        yield Row('machine', 'one', 'found')
        raise RuntimeError('the card was taken away')

    with monkeypatch.context() as patch:
        patch.setitem(PARTS, 'machine', PartOf(broken, 0.1))
        assert rehearse(tmp_path, 'machine', 'no waiting') == 4
    told = capsys.readouterr().out
    assert '- machine: failed: RuntimeError: the card was taken away' in told
    assert 'no waiting host' in told
    assert rehearse(tmp_path, 'machine', 'no waiting') == 0
    assert 'machine: device: virtual' in capsys.readouterr().out
    rows = json.loads((tmp_path / 'virtual_tiny_machine.json').read_text())
    assert [row['right'] for row in rows] == [None, None]


def test_twelve_schedules_are_predicted_and_none_of_the_plans_kinds_is_missing():
    plans = PLANS.values()
    assert len(plans) == 12
    for key, usual in (
        ('copies', 1),
        ('pipeline', 1),
        ('chunks', 0),
        ('zero', 0),
        ('recompute', 'none'),
        ('offload', ()),
    ):
        assert any(getattr(plan, key) != usual for plan in plans), key


def test_a_gain_that_was_predicted_to_be_a_loss_is_not_as_wanted():
    found = {('full', name): (1.0, 1.0) for name in PLANS}
    assert [row.right for row in _summary('ranks', found, True)] == [True, True]
    found['full', 'tensor 2, copies 2'] = 1.01, 0.95
    assert [row.right for row in _summary('ranks', found, True)] == [True, False]
    assert [row.right for row in _summary('ranks', found, False)] == [None, None]


def test_a_peer_in_a_pipeline_takes_no_time_where_one_rank_runs_alone():
    program = lower(workload(SIZES['tiny']), PLANS['pipeline 2, 4 micro-batches'], 2)
    ops = [program.op_classes[index] for index in program.role(0).op_class]
    trace = simulate(program, costs_of(program, {op.name: 1.0 for op in ops}, 0.0))
    kinds = Counter(op.kind for op in ops)
    assert kinds['compute'] <= trace.step_times[-1] <= kinds['compute'] + kinds['send']
