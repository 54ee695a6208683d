"""Random programs on every engine, folded, unfolded and in exact fractions; ``make prove-engines`` runs many more."""

from collections import Counter

import pytest
from engine_check import check
from engine_programs import make_sample

PROGRAMS, PART = 200, 200
LEAST = 2
"""Programs of a part in which each thing happens."""
HAPPENS = (
    'contention', 'flows over several links', 'slow-down of compute', 'slow-down of communication',
    'waiting that slows', 'stragglers', 'unequal stragglers', 'late hosts', 'ties', 'zero lengths', 'rendezvous',
    'collectives', 'deadlock', 'folded', 'several compute streams', 'carried needs',
    'hosts that wait', 'work queues', 'folded in blocks',
    'empty streams', 'ranks without ops', 'nothing slowed', 'one rank', 'exact', 'deadlock in fractions',
)  # fmt: skip


@pytest.mark.parametrize('first', range(0, PROGRAMS, PART))
def test_random_programs_are_the_same_on_every_engine(first):
    total = Counter()
    for seed in range(first, first + PART):
        # Fractions take as long as all engines.
        happened, _ = check(make_sample(seed), exact=seed % 2 == 0)
        total += happened
    assert total['programs'] == PART
    assert {name: total[name] for name in HAPPENS if total[name] < LEAST} == {}
