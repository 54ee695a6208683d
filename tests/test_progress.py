"""Progress of a single prediction: nothing of what is quick, then how much is left."""

import time
from pathlib import Path

import simpar
from simpar.commands.common import Progress, Waiting, most_seconds, waiting
from simpar.predict import EFFECTS
from simpar.schedule import load_schedule

EXAMPLES = Path(__file__).parent.parent / 'examples'


def test_a_prediction_tells_each_of_its_simulations():
    case = simpar.load_case(EXAMPLES / 'multi_copy.yaml')
    told = []
    case.predict(progress=lambda done, of: told.append((done, of)))
    # The plan and its baseline, with one more effect at a time.
    every = 2 * len(EFFECTS)
    assert told == [(number, every) for number in range(1, every + 1)]


def test_what_is_quick_says_nothing_and_what_takes_longer_how_much_is_left(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr('simpar.commands.common.monotonic', lambda: now[0])
    with Progress('simulations done', after=2.0) as progress:
        for number in range(1, 15):
            now[0] = number * 1.5
            progress(number, 14)
    said = capsys.readouterr().err.splitlines()
    assert said == ['7 of 14 simulations done, 10 s left']


def test_what_has_no_parts_says_how_long_it_works_and_how_long_at_most(capsys):
    with waiting('lowering', after=0.01) as told:
        told.most = 70.0
        time.sleep(0.1)
    assert capsys.readouterr().err == 'lowering: 1 s so far, 1 min 10 s left at most\n'
    with waiting('lowering'):
        pass
    assert capsys.readouterr().err == ''
    assert Waiting('lowering', 70.0).text(80.0) == 'lowering: 1 min 20 s so far'


def test_a_search_has_no_bound_and_a_plan_has_one_above_its_seconds():
    schedule = load_schedule(EXAMPLES / 'multi_copy.yaml')
    assert most_seconds(schedule) > 0.1
    assert most_seconds(load_schedule(EXAMPLES / 'llama_strategies.yaml', ['plan.search=exact'])) == 0
