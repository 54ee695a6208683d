"""A sweep: its rows are the file with other values, predicted as `simpar run` predicts them; what cannot be says so."""

import dataclasses
import json
import math
import re
from itertools import product
from pathlib import Path

import pytest
import yaml
from every import draws, some
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from sweep_cases import NETWORK, rows_of_csv, run, write
from tables import load_table, load_tree

from simpar import cli, cluster, load_profile, load_sweep, profile_names
from simpar.case import check_memory, load_case
from simpar.cost.collective import ClusterCollectives
from simpar.errors import ProfileError, ScheduleError, SimparError
from simpar.hardware import Tables
from simpar.program import OpClass
from simpar.report import to_dict
from simpar.schedule import load_rows, load_schedule, written
from simpar.sweep.answer import predicted
from simpar.sweep.plot import bars
from simpar.sweep.table import as_markdown, best_summary, render, short_keys, side_by_side
from simpar.sweep.table import to_dict as sweep_json

CLOSE = load_table(__file__, 'CLOSE')


def gains(answer):
    return [result.gain for result in answer.results]


# Rows


def test_a_mapping_gives_every_combination_the_last_key_fastest(tmp_path):
    sweep = load_sweep(write(tmp_path, sweep='{plan.copies: [1, 2], plan.tensor: [1, 2, 4]}'))
    assert [tuple(row.settings.values()) for row in sweep.rows] == list(product([1, 2], [1, 2, 4]))
    assert [row.schedule.plan.tensor for row in sweep.rows] == [1, 2, 4] * 2
    assert sweep.keys == ('plan.copies', 'plan.tensor')


def test_a_list_gives_its_rows_and_what_a_row_leaves_out_is_as_in_the_file(tmp_path):
    path = write(tmp_path, sweep='[{plan.copies: 2, plan.reduce: late}, {plan.tensor: 4}]')
    rows = load_sweep(path).rows
    plans = [row.schedule.plan for row in rows]
    assert [(plan.tensor, plan.copies, plan.reduce) for plan in plans] == [(2, 2, 'late'), (4, 1, 'early')]
    assert '- as a setting: as in the file.' in render(load_sweep(path).predict())


def test_sweeps_of_the_command_line_take_the_place_of_the_files(tmp_path):
    path = write(tmp_path, sweep='{plan.copies: [1, 2]}')
    for words, expected in {
        ('plan.tensor=1,2',): [{'plan.tensor': 1}, {'plan.tensor': 2}],
        ('plan.tensor=[1, 2]',): [{'plan.tensor': 1}, {'plan.tensor': 2}],
        ('plan.stages=[1,2],[2,1]',): [{'plan.stages': [1, 2]}, {'plan.stages': [2, 1]}],
        ('plan.stages=[[1,2],balanced]',): [{'plan.stages': [1, 2]}, {'plan.stages': 'balanced'}],
        ('plan.tensor=4', 'plan.copies=2'): [{'plan.tensor': 4, 'plan.copies': 2}],
    }.items():
        assert [dict(row.settings) for row in load_sweep(path, sweeps=words).rows] == expected


def test_a_whole_section_is_set_before_a_key_inside_of_it(tmp_path):
    words = ['cluster.nodes=1,2', 'cluster=h100-sxm-8,a100-sxm-8']
    clusters = [row.schedule.cluster for row in load_sweep(write(tmp_path), sweeps=words).rows]
    names = ['h100-sxm-8', 'a100-sxm-8']
    assert [(cluster.nodes, cluster.profile) for cluster in clusters] == list(product([1, 2], names))


def test_a_file_that_does_not_fit_as_it_stands_can_be_swept_into_one_that_does(tmp_path):
    path = write(tmp_path, text=NETWORK.replace('batch: 64', 'batch: 63'), sweep='{workload.batch: [63, 64]}')
    with pytest.raises(ScheduleError):
        load_case(path)
    assert [result.outcome.feasible for result in load_sweep(path).predict().results] == [False, True]


# What a row says is what `simpar run` says

choices = st.fixed_dictionaries(
    {},
    optional={
        'plan.copies': st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=2, unique=True),
        'plan.tensor': st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=2, unique=True),
        'plan.reduce': st.just(['late', 'early']),
        'workload.batch': st.lists(st.sampled_from([16, 24, 2**20]), min_size=1, max_size=2, unique=True),
        'workload.network.2.dense.out': st.just([512, 510]),
        'cluster.links.nvlink': st.lists(st.sampled_from([0.25, 1, 3]), min_size=1, max_size=2, unique=True),
        'cluster.slow': st.just([{}, {1: 0.5}, {9: 0.5}]),
    },
).filter(lambda keys: 0 < math.prod(len(values) for values in keys.values()) <= 8 and keys)


@draws(25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sweep=choices, against=st.sampled_from([{}, {'plan.copies': 1}, {'plan.copies': 2, 'plan.reduce': 'late'}]))
def test_a_row_is_what_run_says_with_the_same_settings(sweep, against, tmp_path):
    fixed = [f'against={json.dumps(against)}']
    path = write(tmp_path, sweep=json.dumps(sweep))
    try:
        rows = sweep_json(load_sweep(path, fixed).predict())['rows']
    except ScheduleError:
        assert against  # no row has this baseline
        return
    for row, values in zip(rows, product(*sweep.values()), strict=True):
        words = [f'{key}={json.dumps(value)}' for key, value in zip(sweep, values, strict=True)]
        try:
            case = load_case(path, [*words, 'against={}'])
            prediction = case.predict()
            check_memory(case, prediction)
        except SimparError:
            assert not row['feasible']
            continue
        told = to_dict(prediction)
        assert row['feasible']
        assert row['step'] == told['step']
        assert row['grades'] == told['grades']
        assert row['memory'] == {name: told['memory'][name] for name in ('peak', 'device')}
        assert [row[name] for name in ('compute', 'exposed', 'idle')] == [
            told['steady'][name] for name in ('compute', 'exposed', 'idle')
        ]
        if against:
            try:
                gain = load_case(path, [*words, *fixed]).predict().gain
            except SimparError:
                assert row['gain'] is None
            else:
                assert row['gain'] == (gain or 0.0)


def test_gain_is_over_the_first_row_that_can_be(tmp_path):
    answer = load_sweep(write(tmp_path, sweep='{plan.copies: [3, 1, 2]}')).predict()
    wrong, first, second = answer.results
    assert (wrong.gain, first.gain, first.is_baseline) == (None, 0.0, True)
    assert second.gain == first.step / second.step - 1
    assert answer.best == min((1, 2), key=lambda row: answer.results[row].step)


def test_gain_is_over_every_rows_own_baseline_where_one_is_given(tmp_path):
    path = write(tmp_path, sweep='{plan.tensor: [1, 2], plan.copies: [1, 2]}')
    answer = load_sweep(path, ['against={plan.copies: 1}']).predict()
    one, two, three, four = answer.results
    assert gains(answer) == [0.0, one.step / two.step - 1, 0.0, three.step / four.step - 1]
    assert (one.is_baseline, three.is_baseline) == (True, True)
    assert 'Gain: over the same row with copies 1.' in render(answer)


def test_where_batches_differ_samples_a_second_are_compared(tmp_path):
    answer = load_sweep(write(tmp_path, sweep='{workload.batch: [64, 4096]}')).predict()
    small, large = answer.results
    assert large.step > small.step
    assert large.gain == pytest.approx((4096 / large.step) / (64 / small.step) - 1)
    assert answer.best == 1
    assert 'samples/s' in render(answer)


def test_a_baseline_that_cannot_be_leaves_a_row_its_figures(tmp_path):
    path = write(tmp_path, sweep='{plan.copies: [1], plan.tensor: [1, 2]}')
    answer = load_sweep(path, ['against={plan.copies: 32}']).predict()
    wrong, right = answer.results
    assert wrong.step > 0
    assert (wrong.gain, right.why_no_gain) == (None, '')
    assert wrong.why_no_gain == 'against: workload.batch: 64 samples do not divide by data 4 × copies 32 = 128'
    assert right.gain > 0
    assert wrong.why_no_gain in ' '.join(render(answer).split())


# Rows that cannot be


def test_a_row_that_may_not_fit_says_so_with_the_step_that_it_would_take(put):
    """As `simpar run` does: 86.5 GB are counted of 79.6, and runs held up to 14.5 % less than what was counted."""
    path = put('close.yaml', CLOSE)
    outcome = predicted(load_schedule(path))
    assert re.fullmatch(r'may not fit: 86\.\d+ GB of 79\.\d+ GB; if it does, \d+\.\d+ ms a step', outcome.reason)
    assert not outcome.feasible
    assert load_case(path).predict().fits is None


def test_rows_that_cannot_be_say_why_and_the_others_go_on(tmp_path):
    pipeline = '{plan.pipeline: 2, plan.tensor: 1, plan.micro_batches: 2, plan.rows: ['
    rows = [
        '{plan.copies: 3}',
        '{plan.tensor: 3}',
        '{workload.batch: 1048576, workload.network.0.dense.out: 1048576, workload.network.2.dense.in: 1048576}',
        f'{pipeline}0F0 0B0 0F1 0B1, 1F1 1F0 1B0 1B1]}}',
        '{plan.copies: 2}',
    ]
    answer = load_sweep(write(tmp_path, sweep=f'[{", ".join(rows)}]')).predict()
    reasons = [result.outcome.reason for result in answer.results]
    assert reasons[0] == 'workload.batch: 64 samples do not divide by copies 3'
    assert reasons[1] == 'plan.tensor: data 1 × tensor 3 = 3 ranks, but the cluster has 4'
    assert re.fullmatch(r'does not fit: \d\.\d+ TB of 8\d(\.\d+)? GB', reasons[2])
    assert '0B0 waits for ever for the input gradient of stage 1' in reasons[3]
    assert reasons[4] == ''
    memory = sweep_json(answer)['rows'][2]
    assert (memory['step'], memory['gain'], memory['feasible']) == (None, None, False)
    assert memory['memory']['peak'] > memory['memory']['device'] == load_profile('h100-sxm-8').device.memory.size.value
    assert 'would fit' in memory['detail']
    said = ' '.join(render(answer).split())
    assert all(reason in said for reason in reasons)


def test_only_a_sweep_of_which_nothing_can_be_fails(tmp_path, capsys):
    path, table = write(tmp_path), tmp_path / 'deep' / 'table.csv'
    assert run(path, '--sweep', 'plan.copies=3,1') == 0
    capsys.readouterr()
    assert run(path, '--sweep', 'plan.copies=3,5', '--csv', table, '--plot', tmp_path / 'p.svg', '--json') == 3
    out, errors = capsys.readouterr()
    assert json.loads(out)['best'] is None
    assert errors.startswith('no row of 2 is feasible')
    assert [row['feasible'] for row in rows_of_csv(table)] == ['no', 'no']


def test_the_same_bytes_whatever_the_number_of_processes(tmp_path, capsys):
    path = write(tmp_path, sweep='{plan.copies: [1, 2, 3], cluster.links.nvlink: [1, 0.5]}')
    said = []
    for jobs in (1, 2):
        assert run(path, '--json', '--jobs', jobs) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]


def test_equal_rows_and_baselines_are_predicted_once(tmp_path):
    seen = []
    sweep = load_sweep(write(tmp_path, sweep='{plan.copies: [1, 2, 1, 2]}'), ['against={plan.copies: 1}'])
    sweep.predict(progress=lambda done, of: seen.append((done, of)))
    assert seen == [(1, 2), (2, 2)]


# Broken sweeps: every fault is told at its line with a remedy, all at once and with exit code 2


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


FUZZ = draws(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


def test_a_picture_that_cannot_be_drawn_is_refused_before_the_work(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr('simpar.sweep.run.predicted', lambda *_: pytest.fail('predicted'))
    assert run(write(tmp_path), '--sweep', 'plan.copies=1,2', '--plot', 'x.gif') == 2
    assert '.png' in capsys.readouterr().err


# What a sweep says and writes: table, JSON, CSV and picture


DOCUMENTATION = Path(__file__).parent.parent / 'docs' / 'sweep.md'


def test_csv_holds_what_json_holds(tmp_path, capsys):
    path = write(tmp_path, sweep='{plan.copies: [1, 2, 3], plan.stages: [[], balanced]}')
    assert run(path, '--json', '--csv', tmp_path / 'table.csv') == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer['written'] == [str(tmp_path / 'table.csv')]
    table = rows_of_csv(tmp_path / 'table.csv')
    for row, cells in zip(answer['rows'], table, strict=True):
        assert cells['plan.stages'] == ('balanced' if row['settings']['plan.stages'] else '[]')
        assert cells['reason'] == row['reason']
        for name in ('step', 'compute', 'exposed', 'idle', 'bubble', 'gain'):
            assert cells[name] == ('' if row[name] is None else repr(row[name]))


def test_the_documentation_names_every_part_of_the_json(tmp_path, capsys):
    assert run(write(tmp_path, sweep='{plan.copies: [1, 3]}'), '--json') == 0
    answer = json.loads(capsys.readouterr().out)
    text = DOCUMENTATION.read_text(encoding='utf-8')
    for name in (*answer, *answer['rows'][0], *answer['rows'][0]['memory']):
        assert f'`{name}`' in text, name


def test_short_names_stay_apart():
    assert short_keys(['plan.copies_loss', 'cluster.nodes']) == {
        'plan.copies_loss': 'copies loss',
        'cluster.nodes': 'nodes',
    }
    assert short_keys(['plan.x', 'cluster.x', 'plan']) == {'plan.x': 'plan.x', 'cluster.x': 'cluster.x', 'plan': 'plan'}


def test_progress_is_told_on_a_terminal_only(tmp_path, capsys, monkeypatch):
    path = write(tmp_path, sweep='{plan.copies: [1, 2]}')
    assert run(path) == 0
    assert capsys.readouterr().err == ''
    monkeypatch.setattr('sys.stderr.isatty', lambda: True)
    monkeypatch.setenv('TERM', 'xterm')
    assert run(path) == 0
    assert capsys.readouterr().err == '\r1 of 2 predicted\r\x1b[K'


def test_run_takes_the_file_as_it_stands_and_says_so(tmp_path, json_of, printed):
    path = write(tmp_path)
    alone = json_of('run', path)
    path = write(tmp_path, sweep='{plan.copies: [2, 4]}')
    swept = json_of('run', path)
    more = set(swept.pop('notes')) - set(alone.pop('notes'))
    assert more == {'the sweep of the file is left out, this is the file as it stands; `simpar sweep` makes the table'}
    assert swept == alone
    assert printed('run', path).count('Note: the sweep of the file is left out') == 1


# The picture


def test_bars_are_as_long_as_the_steps_and_their_parts(tmp_path):
    answer = load_sweep(write(tmp_path, sweep='{plan.copies: [1, 3, 2]}')).predict()
    axes = bars(answer).axes[0]
    scale = 1e6 if answer.results[0].step < 1e-3 else 1e3
    for place, result in enumerate(answer.results):
        parts = [bar.get_width() for bar in axes.patches if bar.get_y() < place < bar.get_y() + bar.get_height()]
        assert sum(parts) == pytest.approx((result.step or 0.0) * scale)
        if result.step:
            figures = result.outcome.figures
            assert parts == pytest.approx([part * scale for part in (figures.compute, figures.exposed, figures.idle)])
    words = [text.get_text() for text in axes.texts]
    assert ['fastest' in text for text in words] == [row == answer.best for row in range(3)]
    assert words[1].strip() == answer.results[1].outcome.reason


def test_of_very_many_rows_the_fastest_are_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr('simpar.sweep.plot.MOST_ROWS', 10)
    answer = load_sweep(write(tmp_path), sweeps=[f'cluster.links.nvlink={[1 + n / 200 for n in range(12)]}']).predict()
    figure = bars(answer)
    assert len(figure.axes[0].texts) == 10
    assert '2 slower rows not drawn' in figure.texts[0].get_text()
    assert best_summary(answer, exact=False)[:40] == figure.texts[0].get_text()[:40]


# Sweeps as tables in Markdown, row by row and with one key's values side by side


def cells(text):
    return [[cell.strip() for cell in line.strip('|\n').split(' | ')] for line in text.splitlines()]


def test_it_holds_what_the_screen_holds(tmp_path, capsys):
    path = write(tmp_path, sweep='{plan.copies: [1, 2, 3], plan.tensor: [2, 4]}')
    assert run(path, '--markdown') == 0
    table = cells(capsys.readouterr().out)
    assert run(path) == 0
    shown = capsys.readouterr().out.splitlines()[2:9]
    assert len(table) == 2 + 6
    for row, line in zip(table[2:], shown[1:], strict=True):
        plain = [cell.strip('*') for cell in row if cell]
        assert line.lstrip('* ').split() == ' '.join(plain).split()
        assert line.startswith('*') == row[0].startswith('**')


def test_side_by_side_has_every_row_of_the_sweep_once(tmp_path):
    path = write(tmp_path, sweep='{plan.copies: [1, 2, 3], plan.tensor: [2, 4]}')
    answer = load_sweep(path).predict()
    heads, _, *rows = cells(side_by_side(answer, 'plan.tensor'))
    assert heads == ['copies', 'tensor 2', 'tensor 4']
    assert [row[0] for row in rows] == ['1', '2', '3']
    steps = iter(answer.results)
    for row in rows:
        results = [next(steps), next(steps)]
        for cell, result in zip(row[1:], results, strict=True):
            assert (result.step is None) == ('divide' in cell)
        bold = [cell.startswith('**') for cell in row[1:]]
        known = [result.step for result in results]
        assert bold == [step is not None and step == min(known) for step in known]


def test_of_mappings_only_what_differs_is_told(tmp_path):
    one = '{layers: 1, hidden: 64, heads: 4, vocab: 128, sequence: 16}'
    text = f'simpar: 1\ncluster: {{profile: h100-sxm-8, devices: 2}}\nworkload: {{transformer: {one}, batch: 4}}\n'
    path = write(tmp_path, text=text, sweep=f'{{workload.transformer: [{one}, {one.replace("64", "128")}]}}')
    rows = cells(as_markdown(load_sweep(path).predict()))
    assert [row[0].strip('*') for row in rows[2:]] == ['hidden 64', 'hidden 128']


def test_signs_of_markdown_do_not_break_the_table(tmp_path):
    path = write(tmp_path, sweep='{plan.order: ["a|b.csv", gpipe]}')
    text = as_markdown(load_sweep(path).predict())
    assert {line.replace('\\|', '').count('|') for line in text.splitlines()} == {text.splitlines()[0].count('|')}


@pytest.mark.parametrize(('words', 'what'), load_tree(__file__, 'test_what_does_not_go_together_is_refused'))
def test_what_does_not_go_together_is_refused(words, what, tmp_path, capsys):
    path = write(tmp_path, sweep='{plan.copies: [1, 2]}')

    assert cli.main(['sweep', str(path), *words]) == 2
    captured = capsys.readouterr()
    # Who asked for JSON gets the error as JSON, and nothing else.
    assert captured.out == '' if '--json' not in words else json.loads(captured.out)['error']['exit_code'] == 2
    assert what in captured.err


# Links that are faster or slower than the profile's: what it does to collectives, and what is said of it


MIB = 2.0**20
OPERATORS = ('all_reduce', 'all_gather', 'reduce_scatter')
PROFILES = {name: load_profile(name) for name in profile_names()}
BARE = {name: dataclasses.replace(profile, tables=Tables()) for name, profile in PROFILES.items()}
PLAIN = {
    name: dataclasses.replace(bare, library=dataclasses.replace(bare.library, tuning='none'))
    for name, bare in BARE.items()
}
"""By one algorithm: where NCCL chooses, a faster link may have another protocol, with a latency of its own."""
SCHEDULE = load_table(__file__, 'SCHEDULE')


def message(size, operator='all_reduce'):
    return OpClass(operator, 'collective', operator, 'F', bytes=float(size), dtype='bf16', partition='p')


def cost(profile, ranks, op, **links):
    return ClusterCollectives(cluster(profile, nodes=2, links=links)).cost(op, ranks)


def names(profile):
    return [link.name for link in profile.links]


@pytest.mark.parametrize('name', ['h100-sxm-8', 'a100-sxm-8', 'ascend910b-8'])
@pytest.mark.parametrize('factor', some([0.25, 0.5, 4.0], 2))
@pytest.mark.parametrize('measured', [True, False])
def test_inside_a_node_the_transfer_goes_with_the_bandwidth_and_alpha_stays(name, factor, measured):
    """One level of links: seconds of a transfer are bytes / bandwidth, by formula and on measured curves.

    Between the curves of four and eight, α + transfer is interpolated, so that the transfer of six is only nearly so.
    """
    profile = (PROFILES if measured else PLAIN)[name]
    inner = profile.links[0].name
    for ranks, operator in ((2, 'all_reduce'), (4, 'all_gather'), (8, 'reduce_scatter'), (6, 'all_reduce')):
        before = cost(profile, range(ranks), message(64 * MIB, operator))
        after = cost(profile, range(ranks), message(64 * MIB, operator), **{inner: factor})
        assert after.transfer == pytest.approx(before.transfer / factor, rel=5e-3 if ranks == 6 else 1e-6)
        assert after.alpha == pytest.approx(before.alpha)
        assert after.grade == 'estimate'


@pytest.mark.parametrize('name', some(PROFILES))
def test_a_factor_of_1_is_the_profile_to_the_bit(name):
    profile = PROFILES[name]
    same = dict.fromkeys(names(profile), 1.0)
    for operator in OPERATORS:
        for ranks in (range(2), range(profile.devices), range(2 * profile.devices)):
            assert cost(profile, ranks, message(MIB, operator), **same) == cost(profile, ranks, message(MIB, operator))


def test_a_link_that_does_not_set_the_pace_does_not_matter():
    """Over two nodes the ring waits for InfiniBand, a ninth of NVLink; a faster NVLink leaves the transfer as it is."""
    profile = BARE['h100-sxm-8']
    ranks = (0, 8)
    before, after = cost(profile, ranks, message(64 * MIB)), cost(profile, ranks, message(64 * MIB), nvlink=8.0)
    assert after.transfer == before.transfer
    slow = cost(profile, ranks, message(64 * MIB), infiniband=0.5)
    assert slow.transfer == pytest.approx(2 * before.transfer)


def test_ascends_phases_add_up():
    """All-reduce of eight 910A: what crosses HCCS and what crosses PCIe follow one another, so they stretch apart."""
    profile = BARE['ascend910a-8']
    op = dataclasses.replace(message(64 * MIB), dtype='fp32')
    hccs, pcie = 2 * 16 * MIB / (30e9 * 0.333), 16 * MIB / (16e9 * 0.85)
    assert cost(profile, range(8), op).transfer == pytest.approx(hccs + pcie)
    assert cost(profile, range(8), op, pcie=0.5).transfer == pytest.approx(hccs + 2 * pcie)
    assert cost(profile, range(8), op, hccs=4.0).transfer == pytest.approx(hccs / 4 + pcie)


@given(
    measured=st.booleans(),
    name=st.sampled_from(sorted(PROFILES)),
    size=st.floats(1e3, 1e9),
    operator=st.sampled_from(OPERATORS),
    ranks=st.integers(2, 16),
    factors=st.lists(st.floats(0.01, 100), min_size=2, max_size=2).map(sorted),
    level=st.integers(0, 1),
)
def test_a_faster_link_makes_no_collective_slower(measured, name, size, operator, ranks, factors, level):
    profile = (PROFILES if measured else BARE)[name]
    names = [link.name for link in profile.links]
    link, op = names[min(level, len(names) - 1)], message(size, operator)
    slow, fast = (cost(profile, range(ranks), op, **{link: factor}) for factor in factors)
    assert fast.alpha + fast.transfer <= (slow.alpha + slow.transfer) * (1 + 1e-9)
    assert fast.best <= fast.alpha + fast.transfer + 1e-15


def test_a_changed_link_says_so(put, json_of, printed):
    path = put('schedule.yaml', SCHEDULE)
    note = 'links are not as in the profile: infiniband × 0.5; what rests on their bandwidth is an estimate'
    out = printed('run', path, '--full')
    assert f'Note: {note}' in out
    assert 'estimate' in out[out.index('Grades of the numbers') : out.index('Note')]
    settings = ([], ['--set', 'cluster.links={infiniband: 1}'], ['--set', 'cluster.links={}'])
    changed, same, none = (json_of('run', path, *words) for words in settings)
    assert note in changed['notes']
    assert same == none
    assert [one for one in same['notes'] if not one.startswith('no optimizer')] == []
    assert changed['grades']['estimate'] > same['grades'].get('estimate', 0.0)
    assert changed['step'] > same['step']


def test_an_unknown_link_is_named_with_those_that_there_are(put, refused):
    path = put('schedule.yaml', SCHEDULE.replace('infiniband', 'infinband'))
    assert refused('run', path) == (
        f'{path}:2: cluster.links.infinband: there is no such link; did you mean infiniband? '
        'links of h100-sxm-8: nvlink, infiniband\n'
    )
    with pytest.raises(ProfileError, match='no bandwidth'):
        cluster(PROFILES['h100-sxm-8'], links={'nvlink': 0.0})
