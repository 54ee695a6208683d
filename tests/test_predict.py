"""Predictions: gain and why, by hand on the worked program and exactly on random plans; what the user reads."""

import itertools
import json
import math
import re
from dataclasses import replace

import numpy as np
from every import draws
from hypothesis import given
from hypothesis import strategies as st
from worked import worked_costs, worked_program

import simpar.predict as module
from simpar import Effects, Plan, Transformer, Workload, cluster, load_profile
from simpar.lower import lower
from simpar.model import Dense, Network, Relu
from simpar.predict import predict
from simpar.report import render, to_dict

PROGRAM = worked_program()
ONE_STREAM = PROGRAM.replace(
    roles=(replace(PROGRAM.roles[0], streams=('compute',), stream=np.zeros(19, dtype=np.uint16)),)
)
"""The worked program with communication waiting its turn on the compute stream."""
EIGHT = cluster(load_profile('ascend910a-8'))


def pricing(program, _, effects):
    """The worked costs: nothing gets slower by being small, and one collective at a time never shares its wire."""
    beside = 0.5 if effects.slow_down else 1.0
    costs = worked_costs(program, host=0.125 if effects.launch else 0.0, beside_communication=beside)
    return replace(costs, grades={'measured': 3.0, 'estimate': 1.0})


def worked(**changes):
    return predict(PROGRAM, ONE_STREAM, EIGHT, pricing=pricing, **changes)


def test_gain_and_why_by_hand():
    """On the page: 56 s a step, 44 s without slow-down, all of it computing. On one stream: 44 s and six times 4 s."""
    prediction = worked(names=('two streams', 'one stream'))
    assert (prediction.step, prediction.cold_step, prediction.baseline.step) == (56, 56.125, 68)
    assert prediction.gain == 68 / 56 - 1
    assert [(row.effect, row.seconds, row.step, row.baseline) for row in prediction.explanation] == [
        ('ideal overlap', 24, 44, 68),
        ('small operators', 0, 44, 68),
        ('launch', 0, 44, 68),
        ('slow-down under overlap', -12, 56, 68),
        ('shared links', 0, 56, 68),
    ]


def test_an_effect_that_changes_no_cost_is_not_simulated_again(monkeypatch):
    calls = []
    for name in ('simulate', 'step_ends'):
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args, real=real, **more: calls.append(args) or real(*args, **more))
    worked()
    assert len(calls) == 2 * 3  # ideal, launch, slow-down; twice


def test_without_a_baseline_there_is_no_gain():
    prediction = predict(PROGRAM, None, EIGHT, pricing=pricing)
    assert (prediction.gain, prediction.baseline, prediction.explanation) == (None, None, ())
    assert prediction.step == 56


def test_effects_are_switched_on_one_after_the_other():
    states = [effects for _, effects in module.EFFECTS]
    on = [
        {name for name in Effects.__slots__ if getattr(state, name)} for state in states
    ]  # fmt: skip
    assert [len(names) for names in on] == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert all(one < other for one, other in itertools.pairwise(on))
    assert states[-1] == Effects()


workloads = st.sampled_from(
    [
        Workload(model=Network(layers=(Dense(inputs=64, outputs=64), Relu(), Dense(inputs=64, outputs=8))), batch=16),
        Workload(model=Transformer(layers=1, hidden=64, heads=4, vocab=64, sequence=16), batch=16, precision='fp16'),
    ]
)
plans = st.builds(
    Plan, data=st.sampled_from([1, 2]), tensor=st.sampled_from([1, 2, 4]), copies=st.sampled_from([1, 2]),
    streams=st.sampled_from(['group', 'messages', 'single']),
)  # fmt: skip


@draws(15)
@given(workloads, plans, plans)
def test_seconds_add_up_to_the_bit(workload, plan, other):
    programs = [lower(workload, one, one.data * one.tensor) for one in (plan, other)]
    prediction = predict(programs[0], programs[1], EIGHT)
    assert sum(row.seconds for row in prediction.explanation) == prediction.baseline.step - prediction.step
    last = prediction.explanation[-1]
    assert (last.baseline, last.step) == (prediction.baseline.step, prediction.step)


def test_a_trace_that_is_not_steady_says_so():
    prediction = predict(PROGRAM, None, EIGHT, pricing=pricing, steps=2)
    assert [note for note in prediction.notes if 'not steady' in note] == [
        'not steady yet: step 2 differs from step 1 by -0.2 %; simulate more'
    ]
    assert worked().notes == ()


def test_the_screen_answers_on_one_screen():
    text = render(worked(names=('two streams', 'one stream')), colour=False)
    lines = text.splitlines()
    assert lines[0] == 'two streams: 56 s a step, 21.4 % faster than one stream (68 s), if the framework cost nothing'
    assert lines[1] == '(measured steps are 10 to 36 % longer)'
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    assert '\x1b' not in text
    figures = {line[:24].strip(): line[24:].split() for line in lines}
    assert figures['ideal overlap'] == ['+24', 's', '44', 's', '68', 's']
    assert figures['slow-down under overlap'] == ['-12', 's', '56', 's', '68', 's']
    assert figures['together'] == ['+12', 's']
    assert figures['overlap'] == ['100', '%', '0.0', '%']
    assert 'Grades of the numbers (share of the isolated seconds): 75.0 % measured, 25.0 % estimate.' in lines
    assert any(line.startswith('Critical path: 100 % compute') for line in lines)


def test_colour_only_where_it_can_be_seen(monkeypatch):
    prediction = predict(PROGRAM, None, EIGHT, pricing=pricing)
    assert '\x1b' in render(prediction, colour=True)
    plain = re.sub(r'\x1b\[[0-9;]*m', '', render(prediction, colour=True))
    assert [line.rstrip() for line in plain.splitlines()] == render(prediction, colour=False).splitlines()
    monkeypatch.setattr('sys.stdout.isatty', lambda: True, raising=False)
    monkeypatch.setenv('NO_COLOR', '1')
    assert '\x1b' not in render(prediction)
    monkeypatch.delenv('NO_COLOR')
    assert '\x1b' in render(prediction)


def test_json_holds_the_answer():
    answer = to_dict(worked(names=('two streams', 'one stream')))
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    assert (answer['step'], answer['baseline']['step'], answer['gain']) == (56, 68, 68 / 56 - 1)
    assert sum(row['seconds'] for row in answer['explanation']) == 12
    assert answer['steady']['ranks'][0]['streams'][1] == {
        'stream': 'tp', 'busy': 24, 'waiting': 0, 'idle': 32, 'ops': 6,
    }  # fmt: skip
    assert answer['baseline']['steady']['exposed_by'] == {'tp on compute': 24}
    assert answer['grades'] == {'measured': 0.75, 'estimate': 0.25}


def test_json_of_a_program_that_does_not_communicate_has_no_nan():
    program = lower(Workload(model=Network(layers=(Dense(inputs=8, outputs=8),)), batch=4), Plan(), 1)
    prediction = predict(program, None, EIGHT)
    assert math.isnan(prediction.metrics.steady.overlap)
    assert to_dict(prediction)['steady']['overlap'] is None
    json.dumps(to_dict(prediction), allow_nan=False)
    assert 'no communication' in render(prediction, colour=False)


def test_a_table_that_is_asked_far_beyond_its_range_says_so():
    """Two million tokens at once, where products of 32768 rows were measured."""
    cluster_ = cluster(load_profile('h100-sxm-8'), devices=1)

    def notes(batch):
        work = Workload(
            model=Transformer(layers=1, hidden=512, heads=4, vocab=512, sequence=4096), batch=batch, precision='bf16'
        )
        return [note for note in predict(lower(work, Plan(), 1), None, cluster_).notes if 'measured table' in note]

    assert not notes(8)
    assert 'more than 4 times as large as any' in notes(512)[0]
