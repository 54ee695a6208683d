"""Models that we did not write: losses and gradients of transformers' tiny models, under plans that cover the axes."""

from itertools import product

import pytest
import torch
from every import some
from extras import Later
from huggingface_cases import PLANS, SEQUENCE, STRETCHED, TINY, Unnarrowed, transformers_model
from huggingface_oracle import TOLERANCE, oracles, uncovered

Later('transformers', 'test')
ORACLES = ('gpt2', 'llama', 'mistral', 'qwen3', 'deepseek_v3')
ALSO = ('qwen2', 'gemma2', 'phi', 'phi3', 'deepseek_v2')
PLAIN = {f'{name}, plain': {**config, 'rope_scaling': None} for name, config in STRETCHED.items()}


@pytest.fixture(scope='module')
def oracle(tmp_path_factory):
    return oracles({**TINY, **STRETCHED, **PLAIN}, tmp_path_factory)


@pytest.mark.parametrize(('kind', 'plan'), some(product(ORACLES, PLANS)))
def test_losses_and_gradients_are_those_of_transformers(kind, plan, oracle):
    assert oracle(kind).compared(*PLANS[plan]) <= TOLERANCE


@pytest.mark.parametrize('kind', ALSO)
def test_other_families_compute_what_transformers_computes(kind, oracle):
    assert oracle(kind).compared(*PLANS['data-tensor-sequence-zero']) <= TOLERANCE


@pytest.mark.parametrize('name', STRETCHED)
def test_rotary_that_looks_at_the_length_is_that_of_transformers(name, oracle):
    plans = ('data-tensor-sequence-zero',) if 'long' in name.split() else ()
    for plan in ('tensor-pipeline-copies', *plans):
        assert oracle(name).compared(*PLANS[plan]) <= TOLERANCE
    # Not what is computed without it, but where a base that grows is given no more tokens than it is for.
    same = abs(oracle(f'{name}, plain').computed()[0] - oracle(name).computed()[0]) < 1e-9
    assert same == (name == 'dynamic short')


def test_the_plans_cover_every_pair_of_axes():
    plans = [plan for plan, _ in PLANS.values()]
    assert uncovered(plans, 'data', 'tensor', 'sequence', 'pipeline', 'copies', 'zero', 'recompute') == []


@pytest.mark.parametrize('kind', some(TINY))
def test_the_patch_of_transformers_changes_nothing_in_fp32(kind):
    model = transformers_model(TINY[kind], torch.float32)
    tokens = torch.arange(SEQUENCE).remainder(24).unsqueeze(0)
    plain = model(tokens).logits
    with Unnarrowed(torch.float32):
        patched = model(tokens).logits
    assert torch.equal(plain, patched)
    assert plain.dtype == torch.float32


@pytest.mark.parametrize('kind', ORACLES)
def test_without_the_patch_losses_agree_to_single_precision(kind, oracle):
    assert oracle(kind).unpatched_loss() == pytest.approx(oracle(kind).computed()[0], rel=1e-5)
