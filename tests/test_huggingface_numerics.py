"""Models that we did not write: losses and gradients of transformers' tiny models, under plans that cover the axes."""

from contextlib import nullcontext
from functools import cache
from itertools import combinations

import pytest

torch = pytest.importorskip('torch', reason='needs the extra torch')

from extras import Later
from huggingface_cases import PLANS, SEQUENCE, STRETCHED, TINY, Unnarrowed, schedule_of, their_names, transformers_model

from executor.draws import batch_of
from executor.inprocess import InProcess
from executor.reference import Reference
from simpar.lower import lower
from simpar.plans import Plan

pytestmark = pytest.mark.torch
Later('transformers', 'test')
TOLERANCE = 1e-10
ORACLES = ('gpt2', 'llama', 'mistral', 'qwen3', 'deepseek_v3')
ALSO = ('qwen2', 'gemma2', 'phi', 'phi3', 'deepseek_v2')


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp('configs')


@cache
def case(kind, folder):
    """The workload of a config, and what transformers computes: loss and gradients, by its own names."""
    workload = schedule_of(TINY[kind], folder).workload
    return workload, *computed(kind, workload, TINY[kind])


def computed(kind, workload, config):
    """Loss and gradients by transformers."""
    model = loaded(kind, workload, config)
    loss = their_loss(model, workload, Unnarrowed(torch.float64))
    loss.backward()
    return float(loss.detach()), {name: one.grad for name, one in model.named_parameters()}


def loaded(kind, workload, config, **how):
    """A model of transformers with the weights that programs begin with."""
    model = transformers_model(config, torch.float64, **how)
    own = {name: value.detach() for name, value in Reference(workload, Plan(), seed=7).parameters.items()}
    left = model.load_state_dict(their_names(kind, workload.model, own), strict=False)
    assert not left.unexpected_keys
    assert set(left.missing_keys) <= {'lm_head.weight'}, 'tied'
    return model


def their_loss(model, workload, patch):
    shape, drawn = (workload.batch, SEQUENCE), f'tokens:{workload.model.vocab}'
    tokens, labels = (batch_of(name, drawn, shape, torch.int64, 7, 0) for name in ('tokens', 'labels'))
    with patch:
        logits = model(tokens).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def compared(kind, folder, plan, ranks):
    """The largest deviation of a loss or gradient, in norm."""
    workload, *oracle = case(kind, folder)
    return deviation(kind, workload, oracle, plan, ranks)


def deviation(kind, workload, oracle, plan, ranks):
    """The same of what transformers computed."""
    loss, gradients = oracle
    found = InProcess(lower(workload, plan, ranks), 7).run(1)
    own = {name.removeprefix('d:'): value for name, value in found.gradients.items()}
    named = their_names(kind, workload.model, own, gains=0.0)
    assert named.keys() == gradients.keys()
    errors = [abs(found.losses[0] - loss) / abs(loss)]
    # A bias of keys moves no softmax: its gradient is zero but for rounding, which is no size to divide by.
    floor = 1e-6 * max(float(one.norm()) for one in gradients.values())
    errors += [float((named[name] - one).norm()) / max(float(one.norm()), floor) for name, one in gradients.items()]
    return max(errors)


@pytest.mark.parametrize('plan', PLANS)
@pytest.mark.parametrize('kind', ORACLES)
def test_losses_and_gradients_are_those_of_transformers(kind, plan, folder):
    assert compared(kind, folder, *PLANS[plan]) <= TOLERANCE


@pytest.mark.parametrize('kind', ALSO)
def test_other_families_compute_what_transformers_computes(kind, folder):
    assert compared(kind, folder, *PLANS['data-tensor-sequence-zero']) <= TOLERANCE


@pytest.mark.parametrize('name', STRETCHED)
def test_rotary_that_looks_at_the_length_is_that_of_transformers(name, folder):
    config = STRETCHED[name]
    workload = schedule_of(config, folder).workload
    oracle = computed(config['model_type'], workload, config)
    plans = ('data-tensor-sequence-zero',) if 'long' in name.split() else ()
    for plan in ('tensor-pipeline-copies', *plans):
        assert deviation(config['model_type'], workload, oracle, *PLANS[plan]) <= TOLERANCE
    # Not what is computed without it, but where a base that grows is given no more tokens than it is for.
    plain = schedule_of({**config, 'rope_scaling': None}, folder).workload
    same = abs(computed(config['model_type'], plain, {**config, 'rope_scaling': None})[0] - oracle[0]) < 1e-9
    assert same == (name == 'dynamic short')


def test_the_plans_cover_every_pair_of_axes():
    axes = {
        'data': lambda plan: plan.data > 1,
        'tensor': lambda plan: plan.tensor > 1,
        'sequence': lambda plan: plan.sequence_parallel,
        'pipeline': lambda plan: plan.pipeline > 1,
        'copies': lambda plan: plan.copies > 1,
        'zero': lambda plan: plan.zero > 0,
        'recompute': lambda plan: plan.recompute != 'none',
    }
    for one, other in combinations(axes, 2):
        met = {(axes[one](plan), axes[other](plan)) for plan, _ in PLANS.values()}
        # Without tensor ranks there is no sequence to shard, without data ranks nothing that zero shards.
        barred = {(False, True)} if (one, other) in (('tensor', 'sequence'), ('data', 'zero')) else set()
        assert met | barred == {(False, False), (False, True), (True, False), (True, True)}, (one, other)


@pytest.mark.parametrize('kind', TINY)
def test_the_patch_of_transformers_changes_nothing_in_fp32(kind):
    model = transformers_model(TINY[kind], torch.float32)
    tokens = torch.arange(SEQUENCE).remainder(24).unsqueeze(0)
    plain = model(tokens).logits
    with Unnarrowed(torch.float32):
        patched = model(tokens).logits
    assert torch.equal(plain, patched)
    assert plain.dtype == torch.float32


@pytest.mark.parametrize('kind', ORACLES)
def test_without_the_patch_losses_agree_to_single_precision(kind, folder):
    workload, loss, _ = case(kind, folder)
    model = loaded(kind, workload, TINY[kind], patched=False)
    assert float(their_loss(model, workload, nullcontext()).detach()) == pytest.approx(loss, rel=1e-5)
