"""Pairs of features: the covering array holds each, and of its small plans none computes what it should not."""

import re
from itertools import combinations, product

import pytest
from covering import covered, rows_of
from every import EVERY, some
from pairs import ARRAYS, BEFORE, FOLDER, PAGES, Outcome, _level, numbers_of, plans, small, trained

TRAINED = 1
"""Plans of each array that the suite trains; ``make prove-pairs`` trains all."""


@pytest.mark.parametrize('name', ARRAYS)
def test_small_plans_are_trained_and_what_is_not_built_is_refused_by_name(name):
    features, rows = ARRAYS[name], numbers_of(name)
    # Those that ask for nothing come first; each costs nothing.
    every = rows[: len(features.single)]
    single = some(every, 2)
    plans = [number for number in small(name, TRAINED + len(every)) if number not in every]
    found = trained([*single, *plans[:TRAINED]])
    assert {number: one.message for number, one in found.items() if one.told == 'failed'} == {}
    patterns = dict(zip(every[len(features.alone) :], features.unbuilt.values(), strict=True))
    patterns = {number: pattern for number, pattern in patterns.items() if number in single}
    assert {number for number, one in found.items() if one.told == 'not built'} == patterns.keys()
    for number, pattern in patterns.items():
        assert all(re.search(pattern, reason) for reason in found[number].reasons), found[number].message
    assert sum(one.kind == 'trained' for one in found.values()) >= TRAINED
    assert max(one.error for one in found.values()) <= 1e-10


def test_every_pair_is_in_a_plan():
    assert sum(features.rows for features in ARRAYS.values()) >= 400
    for name, features in ARRAYS.items():
        rows = plans(name)
        assert len({str(number.tree) for number in numbers_of(name)}) == len(rows)
        held = {pair for row in rows for pair in combinations(row.items(), 2)}
        for one, other in combinations(features.factors, 2):
            for pair in product(product([one], features.factors[one]), product([other], features.factors[other])):
                assert (pair in held) != (set(pair) in [set(never) for never in features.never]), pair
        assert covered(rows, features, 2)[0] == 1
        assert EVERY > 1 or covered(rows, features, 3)[0] > 0.9


def test_few_plans_can_be_refused():
    """Those that ask for nothing and those that are not built; every other refusal would be one that a test tells."""
    refused = sum(len(features.single) for features in ARRAYS.values())
    assert refused <= 0.1 * sum(features.rows for features in ARRAYS.values())


def test_what_is_refused_takes_no_other_pairs_place():
    for name, features in ARRAYS.items():
        for pair in features.single:
            assert sum(set(pair) <= set(row.items()) for row in plans(name)) == 1


@pytest.mark.parametrize('name', ARRAYS)
def test_plans_are_the_same_in_every_run(name):
    assert rows_of(ARRAYS[name], 60) == plans(name)[:60]
    for number in numbers_of(name)[:60]:
        assert number.tree == number.tree


@pytest.mark.parametrize(
    ('message', 'excuses', 'told'),
    [
        ('schedule.yaml:1: workload.batch: 6 samples do not divide by data 4; write 8', (), 'mathematics'),
        ('schedule.yaml:1: plan.tensor: is a degree; write 1', (), 'not built'),
        (
            's.yaml:1: plan.tensor: is a degree; write 1\ns.yaml:1: workload.batch: 6 do not divide by 4',
            (),
            'not built',
        ),
        ('schedule.yaml:1: plan.search: starts at nothing', (r'^plan\.search: ',), 'mathematics'),
        ('schedule.yaml:1: plan.search: starts at nothing', (), 'not built'),
    ],
)
def test_a_refusal_is_mathematics_only_where_all_its_reasons_are(message, excuses, told):
    assert Outcome('refused', message=message.replace('s.yaml', 'schedule.yaml'), excuses=excuses).told == told


def test_the_page_tells_what_was_trained():
    assert BEFORE.exists()
    assert {name for arrays in PAGES.values() for name in arrays} == set(ARRAYS)
    for name, arrays in PAGES.items():
        text, shown = (FOLDER / f'{name}.md').read_text(encoding='utf-8'), [ARRAYS[array] for array in arrays]
        assert f'{sum(features.rows for features in shown)} small plans' in text
        for features in shown:
            for factor, levels in features.factors.items():
                assert f'| {factor} | {", ".join(map(_level, levels))} |' in text
