"""Pairs of features: the covering array holds each, and of its small plans none computes what it should not."""

from itertools import combinations, product

import pytest

torch = pytest.importorskip('torch', reason='needs the extra torch')

from pair_plans import tree_of
from pairs import BEFORE, FACTORS, IMPOSSIBLE, MEANINGLESS, PAGE, Outcome, covered, plans, small, trained

pytestmark = pytest.mark.torch
TRAINED = 24
"""Plans that the suite trains; ``make prove-pairs`` trains all."""


def test_small_plans_are_trained_or_refused():
    found = trained(set(small(TRAINED)))
    failed = {number: one.message for number, one in found.items() if one.told == 'failed'}
    assert failed == {}
    assert [number for number, one in found.items() if one.told == 'not built'] == []
    assert max(one.error for one in found.values()) <= 1e-10


def test_every_pair_is_in_a_plan():
    rows = plans()
    assert len(rows) >= 400
    assert len({str(tree_of(row, number)) for number, row in enumerate(rows)}) == len(rows)
    held = {pair for row in rows for pair in combinations(row.items(), 2)}
    for one, other in combinations(FACTORS, 2):
        for pair in product(product([one], FACTORS[one]), product([other], FACTORS[other])):
            assert (pair in held) != (set(pair) in [set(never) for never in IMPOSSIBLE]), pair
    assert covered(rows, 2)[0] == 1
    assert covered(rows, 3)[0] > 0.99


def test_what_asks_for_nothing_takes_no_other_pairs_place():
    rows = plans()
    for pair in MEANINGLESS:
        assert sum(set(pair) <= set(row.items()) for row in rows) == 1


def test_plans_are_the_same_in_every_run():
    again = plans.__wrapped__(60)
    assert again == plans()[:60]
    for number, row in enumerate(again):
        assert tree_of(row, number) == tree_of(row, number)


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


def test_the_page_tells_before_and_now():
    text = PAGE.read_text(encoding='utf-8')
    assert BEFORE.exists()
    assert f'{len(plans())} small plans' in text
    for name, levels in FACTORS.items():
        assert f'| {name} |' in text, levels
