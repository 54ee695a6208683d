"""Models that we did not write, with experts and shared sequences: plans of the long proof, and two of them on gloo."""

import re

import pytest
from extras import Later
from huggingface_cases import MIXTURES, TINY
from huggingface_oracle import AXES, PLANS, SAMPLE, SIX, groups, plan_for, ranks, uncovered
from huggingface_oracle import oracles as made
from prove_huggingface import AUX_LOSS, MARGIN, NARROW, NARROW_FLOOR, PAGE, WIDE

from executor.ranks.pool import Pool
from simpar.lower import lower

Later('transformers', 'test')
IN_PROCESS = {
    'qwen3': 'gather, tensor, sequence, pipeline, copies, recompute',
    'mixtral': 'heads, expert, pipeline, copies, zero 2',
    'deepseek_v3': 'ring, zero 1',
}
"""Models that the suite trains, and their plans; shared sequences of the others are in ``test_context_parallel``."""


@pytest.fixture(scope='module')
def oracles(tmp_path_factory):
    return made({**TINY, **MIXTURES}, tmp_path_factory, seed=0)


@pytest.fixture(scope='module')
def pool():
    with Pool(ranks(SAMPLE), timeout=60) as pool:
        yield pool


@pytest.mark.parametrize('kind', IN_PROCESS)
def test_a_shared_sequence_and_experts_compute_what_transformers_computes(kind, oracles):
    plan = plan_for(PLANS[IN_PROCESS[kind]], oracles(kind).workload)
    assert oracles(kind).compared(plan, ranks(plan)) <= WIDE


@pytest.mark.parametrize(('kind', 'aux_loss'), [('mixtral', AUX_LOSS), ('deepseek_v3', 0.0)])
def test_ranks_over_gloo_compute_it_in_single_precision(kind, aux_loss, oracles, pool):
    oracle = oracles(kind)
    workload = oracle.with_aux_loss(aux_loss) if aux_loss else oracle.workload
    program = lower(workload, SAMPLE, ranks(SAMPLE))
    found = pool.run(program, steps=1, seed=oracle.seed, dtype='fp32', keep=True)
    together = groups(SAMPLE) if aux_loss else 1
    assert oracle.deviation(found.losses[0], found.gradients, aux_loss, together, NARROW_FLOOR) <= NARROW
    if not aux_loss:
        assert found.losses[0] == pytest.approx(oracle.unpatched_loss(), rel=NARROW)
        # What must agree could also differ.
        assert oracle.deviation(found.losses[0] * 1.001, found.gradients, floor=NARROW_FLOOR) > NARROW


@pytest.mark.parametrize('kind', ['mixtral', 'deepseek_v3'])
def test_no_token_stands_between_two_experts(kind, oracles):
    assert oracles(kind).margin() >= MARGIN


def test_the_plans_cover_every_pair_of_axes():
    assert uncovered([*PLANS.values(), SAMPLE], *(axis for axis in AXES if axis != 'expert data')) == []


def test_the_page_has_every_model_under_every_plan():
    sections = PAGE.read_text(encoding='utf-8').split('\n## ')[1:]
    assert [section.split('\n')[0] for section in sections] == list(SIX)
    for section in sections:
        rows = [[cell.strip() for cell in line.split('|')[1:-1]] for line in section.split('\n') if '| 8 |' in line]
        assert {re.sub(', aux$', '', row[0]) for row in rows} == set(PLANS)
        assert all(float(row[2]) <= WIDE and float(row[3]) <= NARROW for row in rows)
        assert all(float(row[4]) <= NARROW for row in rows if row[4])
        assert len(rows) == len(PLANS) * (2 if section.startswith('mixtral') else 1)
