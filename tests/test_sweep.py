"""A sweep: its rows are the file with other values, predicted as `simpar run` predicts them; what cannot be says so."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sweep_cases import NETWORK, rows_of_csv, run, write

from simpar.case import case_of, check_memory, load_case
from simpar.errors import Deadlock, ScheduleError, SimparError
from simpar.report import to_dict
from simpar.schedule import load_schedule
from simpar.sweep import load_sweep, predicted
from simpar.sweep.outcome import infeasible
from simpar.sweep.table import render
from simpar.sweep.table import to_dict as sweep_json


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


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


def test_a_schedule_with_other_values_is_predicted_as_its_case(tmp_path):
    schedule = load_schedule(write(tmp_path))
    for copies in (1, 2):
        other = replace(schedule, plan=replace(schedule.plan, copies=copies))
        prediction, outcome = case_of(other).predict(), predicted(other)
        assert (outcome.figures.step, outcome.peak) == (prediction.step, prediction.memory.peak)


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
    assert re.fullmatch(r'does not fit: \d\.\d+ TB of 80 GB', reasons[2])
    assert '0B0 waits for ever for the input gradient of stage 1' in reasons[3]
    assert reasons[4] == ''
    memory = sweep_json(answer)['rows'][2]
    assert (memory['step'], memory['gain'], memory['feasible']) == (None, None, False)
    assert memory['memory']['peak'] > memory['memory']['device'] == 80e9
    assert 'would fit' in memory['detail']
    said = ' '.join(render(answer).split())
    assert all(reason in said for reason in reasons)


def test_rows_that_cannot_be_need_no_baseline(tmp_path, capsys):
    path = write(tmp_path, sweep='{plan.tensor: [3, 5]}')
    assert run(path, '--set', 'against={plan.copies: 2}') == 3
    assert 'none of 2 rows is feasible' in capsys.readouterr().out


def test_a_deadlock_is_told_by_its_first_line():
    outcome = infeasible(Deadlock('deadlock at 3 s: nothing can go on; stuck heads of streams:\n  rank 0  compute'))
    assert outcome.reason == 'deadlock at 3 s: nothing can go on; stuck heads of streams'
    assert outcome.detail.endswith('compute')
    assert not outcome.feasible


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
