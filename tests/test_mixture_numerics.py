"""Mixtures of experts that we did not write: losses and gradients of transformers' tiny models, with expert ranks."""

import pytest
from every import some
from extras import Later
from huggingface_cases import MIXTURES
from huggingface_oracle import TOLERANCE, oracles, uncovered

from simpar.plans import Plan

Later('transformers', 'test')
MARGIN = 1e-5
"""Between the scores of the last expert that a token goes to and of the first that it does not: far above rounding."""
AUX_LOSS = 0.4
PLANS = {
    'one': (Plan(), 1),
    'expert': (Plan(data=2, expert=2), 2),
    'expert data-copies-pipeline': (Plan(data=4, expert=2, copies=2, pipeline=2), 8),
    'tensor-sequence-zero': (Plan(data=4, tensor=2, sequence_parallel=True, expert=2, zero=1), 8),
    'tensor-pipeline-copies': (
        Plan(data=2, tensor=2, expert=2, pipeline=2, micro_batches=2, copies=2, recompute='full'), 8),
    'copies-zero': (Plan(data=4, expert=4, copies=2, zero=3, recompute='full'), 4),
    'late': (Plan(data=4, tensor=2, expert=2, reduce='late', zero=2, recompute='selective'), 8),
    'all': (Plan(data=2, tensor=2, sequence_parallel=True, expert=2, pipeline=2, micro_batches=2, copies=2, zero=2,
                 recompute='full'), 8),
    'whole experts on tensor ranks': (
        Plan(data=2, tensor=2, sequence_parallel=True, expert=4, expert_ranks='tensor', zero=1), 4),
    'experts of fewer than all tensor ranks': (
        Plan(data=1, tensor=4, sequence_parallel=True, expert=2, expert_ranks='tensor', recompute='full'), 4),
    'experts on context ranks': (
        Plan(data=2, context=2, expert=4, expert_ranks='context', shared_experts='overlapped', zero=2), 4),
    'tokens for features': (
        Plan(data=2, tensor=2, sequence_parallel=True, expert=2, expert_tokens='features', zero=1), 4),
    'tokens for features in a pipeline': (
        Plan(data=2, tensor=2, context=2, sequence_parallel=True, expert=2, expert_ranks='context', pipeline=2,
             micro_batches=2, expert_tokens='features', shared_experts='overlapped', recompute='full'), 16),
    'tokens for features without expert ranks': (
        Plan(tensor=4, sequence_parallel=True, expert_tokens='features', copies=2), 4),
    'without expert ranks': (Plan(data=2, tensor=2, sequence_parallel=True, pipeline=2, micro_batches=2, zero=1), 8),
    'pairs': (Plan(data=2, expert=2, micro_batches=4, pairs='overlap', zero=2), 2),
    'pairs-pipeline-memory': (
        Plan(data=2, expert=2, pipeline=2, micro_batches=4, pairs='memory', weight_gradients='delayed', zero=1), 4),
    'sequence-copies': (Plan(tensor=2, sequence_parallel=True, copies=2, recompute='full'), 2),
}  # fmt: skip
"""Plan and ranks."""
KINDS = ('mixtral', 'qwen3_moe')
PAIRS = [(plan, kind) for place, plan in enumerate(PLANS) for kind in (KINDS, KINDS[::-1])[place % 2]]
"""The suite takes the first kind of each plan: one and the other in turns."""


@pytest.fixture(scope='module')
def oracle(tmp_path_factory):
    return oracles(MIXTURES, tmp_path_factory)


@pytest.mark.parametrize(('plan', 'kind'), some(PAIRS, 2))
def test_losses_and_gradients_are_those_of_transformers(kind, plan, oracle):
    assert oracle(kind).compared(*PLANS[plan]) <= TOLERANCE


@pytest.mark.parametrize('plan', some(PLANS))
def test_an_auxiliary_loss_balances_the_tokens_of_a_rank_and_copy(plan, oracle):
    assert oracle('mixtral').compared(*PLANS[plan], AUX_LOSS) <= TOLERANCE


@pytest.mark.parametrize('kind', ['qwen2_moe', 'deepseek_v2', 'deepseek_v3'])
@pytest.mark.parametrize('plan', ['tensor-sequence-zero', 'all', 'pairs-pipeline-memory'])
def test_other_families_compute_what_transformers_computes(kind, plan, oracle):
    assert oracle(kind).compared(*PLANS[plan]) <= TOLERANCE


@pytest.mark.parametrize('kind', MIXTURES)
def test_no_token_stands_between_two_experts(kind, oracle):
    """Or another order of sums would send it elsewhere, and nothing could be compared."""
    assert oracle(kind).margin() >= MARGIN


def test_the_plans_cover_every_pair_of_axes():
    names = ('expert', 'expert data', 'tensor', 'sequence', 'pipeline', 'copies', 'zero', 'recompute')
    assert uncovered([plan for plan, _ in PLANS.values()], *names) == []
