"""Progress of a single prediction: nothing of what is quick, then how much is left."""

from pathlib import Path

import simpar
from simpar.commands.progress import Progress

EXAMPLES = Path(__file__).parent.parent / 'examples'


def test_a_prediction_tells_each_of_its_simulations():
    case = simpar.load_case(EXAMPLES / 'multi_copy.yaml')
    told = []
    case.predict(progress=lambda done, of: told.append((done, of)))
    assert told == [(number, 14) for number in range(1, 15)]


def test_what_is_quick_says_nothing_and_what_takes_longer_how_much_is_left(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr('simpar.commands.progress.monotonic', lambda: now[0])
    with Progress('simulations done', after=2.0) as progress:
        for number in range(1, 15):
            now[0] = number * 1.5
            progress(number, 14)
    said = capsys.readouterr().err.splitlines()
    assert said == ['7 of 14 simulations done, 10 s left']
