"""Broken sweeps: every fault is told at its line with a remedy, all at once and with exit code 2."""

from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sweep_cases import NETWORK, run, write

from simpar.errors import ScheduleError
from simpar.schedule import load_rows, load_schedule, written

BAD = {
    'nothing': ('', [], ['nothing to sweep over; add e.g. sweep: {plan.copies: [1, 2, 4]}']),
    'unknown key': ('{plan.copeis: [1, 2]}', [], [':11: sweep: plan.copeis: unknown key; did you mean copies?']),
    'value': ('{plan.copies: [1, two]}', [], [':11: sweep: plan.copies: not an integer (got "two")']),
    'no list': ('{plan.copies: 4}', [], [':11: sweep.plan.copies: 4, not a list of values; write dotted keys']),
    'empty list': ('{plan.copies: []}', [], [':11: sweep.plan.copies: an empty list; write']),
    'nested': ('{plan: {copies: [1, 2]}}', [], [':11: sweep.plan: a mapping, not a list of values; write dotted keys']),
    'a number': ('7', [], [':11: sweep: 7, not a mapping; write dotted keys']),
    'rows of no mapping': ('[1]', [], [':11: sweep.0: 1, not a mapping; write one row']),
    'an empty row': ('[{}]', [], [':11: sweep.0: 0 keys; write']),
    'a fixed key': ('{against: [{}]}', [], [':11: sweep.against: is the same in every row; sweep over']),
    'a hole': ('{plan..copies: [1]}', [], ['not a dotted key; write']),
    'too many': (
        f'{{plan.copies: {[*range(1, 70)]}, plan.tensor: {[*range(1, 70)]}}}',
        [],
        ['4761 combinations; keep'],
    ),
    'a text in the way': ('{workload.batch.size: [1]}', [], ['sweep: workload.batch: not a mapping; set']),
    'a link': (
        '{cluster.links.nvlnk: [2]}',
        [],
        [':11: cluster.links.nvlnk: there is no such link; did you mean nvlink?'],
    ),
    'a profile': ('{cluster.profile: [h100-sxm-9]}', [], [":11: cluster: unknown profile 'h100-sxm-9'; did you mean"]),
    'two faults': ('{plan.copeis: [1], plan.tensor: [x]}', [], ['plan.copeis: unknown key', 'plan.tensor: not an int']),
    'flag without values': ('', ['plan.copies'], ['--sweep plan.copies: not a key and its values; write e.g. --sweep']),
    'flag that is no YAML': ('', ['plan.copies={1'], ['--sweep plan.copies={1: not YAML']),
    'flag with an unknown key': ('', ['plan.copeis=1'], ['--sweep plan.copeis=1: sweep: plan.copeis: unknown key']),
}


@pytest.mark.parametrize('case', BAD, ids=str)
def test_bad_input_is_one_screen_with_its_line_and_exit_code_2(case, tmp_path, capsys):
    sweep, words, told = BAD[case]
    path = write(tmp_path, sweep=sweep)
    assert run(path, *(word for text in words for word in ('--sweep', text))) == 2
    out, errors = capsys.readouterr()
    assert out == ''
    assert len(errors.splitlines()) == len(told)
    assert all(text in errors for text in told)


FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
keys = st.sampled_from(
    ['plan.copies', 'plan.stages.0', 'workload.network.0', 'cluster', 'cluster.links.nvlink', 'plan']
)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-4, 4)
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(['h100-sxm-8']),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys | st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def rows_or_one_screen(path, overrides=(), sweeps=()):
    try:
        rows = load_rows(path, overrides, sweeps)
    except ScheduleError as error:
        refused = error
    else:
        assert rows
        assert all(row.settings and row.schedule.sweep is None for row in rows)
        return
    lines = str(refused).split('\n')
    assert 0 < len(lines) == len(refused.problems) <= 21
    assert all(line.isprintable() for line in lines)


@FUZZ
@given(sweep=values | st.dictionaries(keys, st.lists(values, max_size=3), max_size=3))
def test_any_sweep_is_rows_or_an_error(sweep, tmp_path):
    path = tmp_path / 'schedule.yaml'
    tree = {**yaml.safe_load(NETWORK), 'sweep': sweep}
    path.write_text(yaml.safe_dump(tree, allow_unicode=True), encoding='utf-8', errors='surrogatepass')
    rows_or_one_screen(path)


@FUZZ
@given(
    words=st.lists(
        st.text(max_size=20) | st.builds('{}={}'.format, keys, st.text('[]{},:1a" ', max_size=12)), max_size=3
    )
)
def test_any_flags_are_rows_or_an_error(words, tmp_path):
    rows_or_one_screen(write(tmp_path, sweep='{plan.copies: [1]}'), sweeps=words)


@FUZZ
@given(sweep=st.dictionaries(keys, st.lists(st.integers(1, 9) | st.booleans(), min_size=1, max_size=3), min_size=1))
def test_a_schedule_with_a_sweep_is_read_as_it_was_written(sweep, tmp_path):
    path = write(tmp_path, sweep=json.dumps(sweep))
    schedule = load_schedule(path)
    path.write_text(yaml.safe_dump(written(schedule)), encoding='utf-8')
    assert load_schedule(path) == schedule
    assert schedule.sweep == sweep


def test_what_is_wrong_with_the_file_is_told_as_it_is(tmp_path, capsys):
    path = write(tmp_path, text=NETWORK.replace('batch', 'btach'), sweep='{plan.copeis: [1]}')
    assert run(path) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(': ')[2].partition(';')[0] for line in lines] == [
        'workload.batch: missing', 'workload.btach: unknown key', 'sweep: plan.copeis: unknown key',
    ]  # fmt: skip


def test_an_against_that_is_never_a_schedule_is_wrong(tmp_path, capsys):
    path = write(tmp_path, sweep='{plan.copies: [1, 2]}')
    assert run(path, '--set', 'against={plan.copeis: 1}') == 2
    assert 'against: plan.copeis: unknown key' in capsys.readouterr().err


def test_a_picture_that_cannot_be_drawn_is_refused_before_the_work(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr('simpar.sweep.outcome.predicted', lambda schedule: pytest.fail('predicted'))
    assert run(write(tmp_path), '--sweep', 'plan.copies=1,2', '--plot', 'x.gif') == 2
    assert '.png' in capsys.readouterr().err
