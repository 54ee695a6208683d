"""Records of several benches, as one."""

import pytest

from tests.pooled_records import pooled


def record(p10, factor, *, size=4096, notes=()):
    seconds = {'n': 20, 'median': 2 * p10, 'p10': p10, 'iqr': p10, 'cv': 0.1}
    row = {'bytes': size, 'operator': 'all_reduce', 'wall': seconds, 'quiet': 0.9}
    beside = {'what': 'matmul', 'beside': 'all_reduce', 'factor': {**seconds, 'median': factor}}
    return {'ranks': 2, 'tables': {'collective': [row]}, 'overlap': [beside], 'cpu': None, 'notes': [*notes]}


def test_of_several_benches_the_quiet_one_counts_and_the_middle_slow_down():
    found = pooled([record(3e-3, 2.0, notes=['busy']), record(1e-3, 2.2, notes=['busy']), record(2e-3, 3.0)])
    seconds = found['tables']['collective'][0]['wall']
    assert seconds['n'] == 60
    assert seconds['p10'] == pytest.approx(1.2e-3)
    assert seconds['cv'] == 0.1
    assert found['overlap'][0]['factor']['median'] == 2.2
    assert found['notes'] == ['busy']
    assert (found['ranks'], found['cpu']) == (2, None)


def test_one_bench_says_what_it_said():
    assert pooled([record(1e-3, 2.0)]) == record(1e-3, 2.0)


def test_what_one_bench_has_no_repeats_of_is_told_by_the_others():
    without = record(1e-3, 2.0)
    without['tables']['collective'][0]['wall'] = None
    assert pooled([without, record(1e-3, 2.0)])['tables'] == record(1e-3, 2.0)['tables']


def test_benches_of_different_sizes_are_not_one():
    with pytest.raises(ValueError, match='4096'):
        pooled([record(1e-3, 2.0), record(1e-3, 2.0, size=8192)])
