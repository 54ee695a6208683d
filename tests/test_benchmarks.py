"""Laps of the benchmarks are fair."""

from benchmarks.laps import Spread, in_turns


def test_contenders_run_in_turns_and_each_begins_a_round(monkeypatch):
    monkeypatch.setattr('gc.collect', int)  # of all that other tests hold it takes seconds
    ran = []
    laps = in_turns({name: lambda name=name: lambda: ran.append(name) for name in 'abc'}, rounds=3)
    assert ''.join(ran) == 'abcbcacab'
    assert {name: len(seconds) for name, seconds in laps.seconds.items()} == {'a': 3, 'b': 3, 'c': 3}


def test_a_spread_has_the_quartiles():
    assert str(Spread.of([5.0, 1.0, 2.0, 3.0, 4.0])) == '3 (2 to 4)'
