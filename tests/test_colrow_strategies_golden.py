"""Blocks of column-cut and row-cut products, with strategies: every message is the compiler's, the loss's sum too."""

from collections import Counter

import pytest
import test_interleave_golden as interleaved
import test_overlap_golden as overlapped
import test_recompute_golden as recomputed
from colrow_cases import Ours, Recorded

FORMS = {
    **dict.fromkeys(interleaved.RECORDED, (interleaved, Recorded, Ours)),
    **dict.fromkeys(recomputed.RECORDED, (recomputed, Recorded, Ours)),
    **dict.fromkeys(overlapped.RECORDED, (overlapped, overlapped.Speedup, overlapped.Program)),
}


def both(name):
    """What the compiler sends and what ours does."""
    group, golden, ours = FORMS[name]
    recorded = golden(group.RECORDED[name])
    return recorded.together(losses=True), ours(recorded.with_strategies()).together()


@pytest.mark.parametrize('name', FORMS)
def test_messages_of_strategies_are_those_of_the_compiler(name):
    theirs, ours = both(name)
    assert theirs == ours


def test_the_loss_is_summed_over_all_ranks():
    theirs, _ = both('speedup_matmul_grad_comm_overlap')
    assert theirs['F', False, 'all_reduce', (((1,), (1,), tuple(range(8))),)] == 1


def test_another_strategy_is_noticed():
    recorded = Recorded(recomputed.RECORDED['recompute_colrow_0'])
    recorded.net = {**recorded.net, 'dp': 4, 'tp': 2}
    assert Ours(recorded.with_strategies()).together() != Counter(recorded.together(losses=True))
