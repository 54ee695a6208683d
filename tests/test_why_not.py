"""Which overlap pays: sets that are predictions like any other, the best of all, and a reason for each that loses."""

import json
from itertools import product
from pathlib import Path

import pytest

from simpar import Plan, case_of, load_case, load_schedule
from simpar.cli import main
from simpar.predict import EFFECTS, Contribution
from simpar.profiles import stack_names
from simpar.sweep.why_not import _WORDS, in_words, overlaps, why_not

EXAMPLES = Path(__file__).parents[1] / 'examples'
SMALL = """
simpar: 1
cluster: {profile: ascend910b-8, devices: 4, stack: mindspore-graph}
workload: {transformer: {layers: 2, hidden: 256, heads: 4, vocab: 512, sequence: 256}, batch: 8, precision: bf16}
plan: {data: 2, tensor: 2, copies: 2}
"""
PASSES = {'gradients': 'enable_grad_comm_opt', 'sums of dx': 'matmul_grad_comm_overlap'}


@pytest.fixture(scope='module')
def answer():
    return why_not(load_case(SMALL))


def test_the_best_set_is_the_fastest_of_all_that_a_user_could_write(answer):
    # By hand, over every combination of the values of the table.
    steps = {}
    for gradients, dx, tiles, copies in product((0, 1), (0, 1), (1, 2, 4, 8), (1, 2, 4)):
        passes = [name for name, on in zip(PASSES.values(), (gradients, dx), strict=True) if on]
        words = [f'plan.overlap={json.dumps(passes)}', f'plan.tiles={tiles}', f'plan.copies={copies}', 'against={}']
        steps[gradients, dx, tiles, copies] = case_of(load_schedule(SMALL, words)).predict(tell=False).step
    assert answer.best.step == min(steps.values())
    row = {row.name: row.step for row in answer.rows}
    assert row['none of them'] == steps[0, 0, 1, 1]
    assert row['gradients'] == steps[1, 0, 1, 1]
    assert row['copies'] == min(steps[0, 0, 1, 2], steps[0, 0, 1, 4])
    assert answer.written.step == load_case(SMALL).predict(tell=False).step


def test_the_best_set_has_an_overlap_the_way_that_serves_the_set():
    """Eight tiles are best alone, four beside copies: the best set is never behind the plan as written for that."""
    words = ['against={}', 'workload.transformer.layers=1', 'plan.copies=2', 'plan.tiles=4']
    found = why_not(load_case(EXAMPLES / 'tiles.yaml', words), ['tiles', 'copies'])
    alone = next(row for row in found.rows if row.overlaps == ('tiles',))
    assert alone.changes['plan.tiles'] != found.best.changes['plan.tiles']
    assert found.best.step <= found.written.step
    best = f'plan.tiles={found.best.changes["plan.tiles"]}', f'plan.copies={found.best.changes["plan.copies"]}'
    assert load_case(EXAMPLES / 'tiles.yaml', [*words, *best]).predict(tell=False).step == found.best.step
    plain = why_not(load_case(EXAMPLES / 'tiles.yaml', [*words, 'plan.tiles=1', 'plan.copies=1']), ['tiles', 'copies'])
    assert f'To have the best: --set {best[0]} --set {best[1]}' in str(plain)


def test_what_loses_says_by_what_and_what_is_idle_why(answer):
    loser = next(one for one in answer.verdicts if one.overlap == 'copies')
    assert not loser.in_best
    assert loser.gain < 0
    assert 'smaller' in loser.why
    assert any(line.startswith('prefetch, as ') for line in answer.left_out)
    assert 'copies' in str(answer)
    assert '<table>' in answer._repr_html_()


HOST = """
simpar: 1
cluster: {profile: h100-sxm-8, devices: 2, stack: megatron-te}
workload:
  transformer: {layers: 16, hidden: 2048, heads: 16, vocab: 512, sequence: 4096}
  batch: 16
  precision: bf16
  optimizer: {adamw: {master_weights: true}}
plan: {data: 2}
"""


def test_activations_stay_on_the_device_unless_the_plan_fits_only_without_them():
    """The link takes longer than a layer computes, so that they leave where nothing else makes room."""
    roomy = why_not(load_case(HOST))
    assert 'activations on the host' not in roomy.best.overlaps
    loser = next(one for one in roomy.verdicts if one.overlap == 'activations on the host')
    assert loser.gain < 0
    short = why_not(load_case(HOST, ['cluster.reserve=40 GB']))
    assert 'activations on the host' in short.best.overlaps
    # Not "3.4 times as slow as" what cannot be; and no flag of an overlap that changes nothing here.
    assert '; the plan as written: may not fit' in short.answer
    assert 'To have the best' in str(short)
    assert 'plan.prefetch' not in str(short)
    rows = {row.name: row for row in short.rows}
    assert 'fit' in rows['none of them'].reason
    assert short.best.peak < rows['none of them'].peak
    needed = next(one for one in short.verdicts if one.overlap == 'activations on the host')
    assert needed.in_best
    assert needed.why.startswith('without it: may not fit: ')


def test_every_row_names_stacks_and_keys_that_exist_and_every_effect_has_words():
    names, keys = stack_names(), {f'plan.{key}' for key in Plan.__dataclass_fields__}
    for one in overlaps():
        for pattern in one.stacks:
            assert any(name.startswith(pattern.rstrip('*')) for name in names), pattern
        assert {key for way in (one.off, *one.on) for key in way} <= keys
        assert all(way.keys() == one.off.keys() for way in one.on)
    assert {name for name, _ in EFFECTS} == set(_WORDS)


def test_no_set_that_fits_is_exit_3_and_a_page_has_the_tables(tmp_path, capsys):
    path = tmp_path / 'a.yaml'
    path.write_text(SMALL.replace('copies: 2', 'copies: 1, tensor: 1').replace('tensor: 2, ', ''), encoding='utf-8')
    page = tmp_path / 'a.html'
    assert main(['why-not', str(path), '--html', str(page), '--set', 'cluster.devices=2']) == 0
    assert 'Which overlap pays' in page.read_text(encoding='utf-8')
    capsys.readouterr()
    large = ['--set', 'workload.transformer.hidden=32768']
    assert main(['why-not', str(path), '--set', 'cluster.devices=2', *large, '--json']) == 3
    told = json.loads(capsys.readouterr().out)
    assert told['best'] is None
    assert all('fit' in row['reason'] for row in told['rows'])


@pytest.mark.parametrize('sign', [1, -1])
def test_the_largest_effects_are_the_ones_that_are_said(sign):
    seconds = {'ideal overlap': 9.0, 'launch': -1.0, 'small operators': -2.0, 'shared links': -3.0}
    effects = tuple(
        Contribution(effect=name, seconds=sign * one, baseline=0.0, step=0.0) for name, one in seconds.items()
    )
    told = in_words(effects, 3.0 * sign)
    assert '(9 s)' in told
    assert told.index('(3 s)') < told.index('(2 s)')
    assert '(1 s)' not in told


def test_one_overlap_may_be_tried_alone(tmp_path, refused):
    """As among all that the framework offers; another name, and what the framework does not offer, is said."""
    case = load_case(SMALL)
    one, every = why_not(case, ['copies']), why_not(case)
    assert [row.name for row in sorted(one.rows, key=lambda row: row.name)] == ['copies', 'none of them']
    assert {row.name: row for row in one.rows}['copies'].step == {row.name: row for row in every.rows}['copies'].step
    assert 'pairs, which MindSpore in graph mode does not offer' in str(why_not(case, ['pairs']))
    path = tmp_path / 'a.yaml'
    path.write_text(SMALL, encoding='utf-8')
    assert '--overlap: no overlap of this name (got tilings); write one of gradients, ' in refused(
        'why-not', str(path), '--overlap', 'tilings'
    )


def test_a_way_that_does_not_go_with_the_plan_is_no_way():
    """Two samples are no four copies; with one sample none are. Three are three copies, which the plan itself has."""
    two, one = (why_not(load_case(SMALL, [f'workload.batch={batch}', 'plan.copies=1']), ['copies']) for batch in (4, 2))
    assert {row.name: row.changes for row in two.rows}['copies'] == {'plan.copies': 2}
    refused = {row.name: row for row in one.rows}['copies']
    assert refused.step is None
    assert 'do not divide' in refused.reason
    assert one.best.overlaps == ()
    three = why_not(load_case(SMALL, ['workload.batch=6', 'plan.copies=3']), ['copies'])
    assert {row.name: row.changes for row in three.rows}['copies'] == {'plan.copies': 3}
