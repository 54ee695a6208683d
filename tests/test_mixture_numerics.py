"""Mixtures of experts that we did not write: losses and gradients of transformers' tiny models, with expert ranks."""

from functools import cache
from itertools import combinations

import pytest

torch = pytest.importorskip('torch', reason='needs the extra torch')

from extras import Later
from huggingface_cases import MIXTURES, SEQUENCE, Unnarrowed, schedule_of, their_names, transformers_model

from executor.draws import batch_of, single_thread
from executor.inprocess import InProcess
from executor.reference import Reference
from simpar.lower import lower
from simpar.plans import Plan

pytestmark = pytest.mark.torch
Later('transformers', 'test')
TOLERANCE = 1e-10
MARGIN = 1e-5
"""Between the scores of the last expert that a token goes to and of the first that it does not: far above rounding."""
SEED = 7
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


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp('configs')


@cache
def model_of(kind, folder):
    """A model of transformers with the weights that programs begin with, its workload, and what its routers say."""
    workload = schedule_of(MIXTURES[kind], folder).workload
    model = transformers_model(MIXTURES[kind], torch.float64)
    own = {name: value.detach() for name, value in Reference(workload, Plan(), seed=SEED).parameters.items()}
    left = model.load_state_dict(their_names(kind, workload.model, own), strict=False)
    assert not left.unexpected_keys
    assert not left.missing_keys
    logits = []
    for module in model.modules():
        if type(module).__name__.lower().endswith('topkrouter'):
            module.register_forward_hook(lambda module, inputs, outputs: logits.append(outputs[0]))
    return workload, model, logits


@cache
def theirs(kind, folder, aux_loss, groups):
    """Loss and gradients of transformers by its own names; its tokens balanced in so many groups."""
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    workload, model, logits = model_of(kind, folder)
    experts = workload.model.experts
    shape, drawn = (workload.batch, SEQUENCE), f'tokens:{workload.model.vocab}'
    tokens, labels = (batch_of(name, drawn, shape, torch.int64, SEED, 0) for name in ('tokens', 'labels'))
    model.zero_grad()
    total = 0.0
    for own, wanted in zip(tokens.chunk(groups), labels.chunk(groups), strict=True):
        logits.clear()
        # Many threads on matrices of 16 × 16 wait for one another.
        with Unnarrowed(torch.float64), single_thread():
            loss = torch.nn.functional.cross_entropy(model(own).logits.flatten(0, 1), wanted.flatten())
            for layer in logits if aux_loss else ():
                # Theirs counts each choice of a token as one, ours all of them together.
                loss = loss + aux_loss / experts.top_k * load_balancing_loss_func(
                    (layer,), experts.count, experts.top_k
                )
        with single_thread():
            (loss / groups).backward()
        total += float(loss.detach()) / groups
    return total, {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}


def compared(kind, folder, plan, ranks, aux_loss=0.0):
    """The largest deviation of a loss or gradient, in norm."""
    more = f', experts: {{aux_loss: {aux_loss}}}' if aux_loss else ''
    workload = schedule_of(MIXTURES[kind], folder, more).workload
    groups = plan.micro_batches * plan.copies * max(plan.data, 1) if aux_loss else 1
    loss, gradients = theirs(kind, folder, aux_loss, groups)
    found = InProcess(lower(workload, plan, ranks), SEED).run(1)
    own = {name.removeprefix('d:'): value for name, value in found.gradients.items()}
    named = their_names(kind, workload.model, own, gains=0.0)
    assert named.keys() == gradients.keys()
    errors = [abs(found.losses[0] - loss) / abs(loss)]
    # A bias of keys moves no softmax: its gradient is zero but for rounding, which is no size to divide by.
    floor = 1e-6 * max(float(one.norm()) for one in gradients.values())
    errors += [float((named[name] - one).norm()) / max(float(one.norm()), floor) for name, one in gradients.items()]
    return max(errors)


@pytest.mark.parametrize('plan', PLANS)
@pytest.mark.parametrize('kind', ['mixtral', 'qwen3_moe'])
def test_losses_and_gradients_are_those_of_transformers(kind, plan, folder):
    assert compared(kind, folder, *PLANS[plan]) <= TOLERANCE


@pytest.mark.parametrize('plan', PLANS)
def test_an_auxiliary_loss_balances_the_tokens_of_a_rank_and_copy(plan, folder):
    assert compared('mixtral', folder, *PLANS[plan], AUX_LOSS) <= TOLERANCE


@pytest.mark.parametrize('kind', ['qwen2_moe', 'deepseek_v2', 'deepseek_v3'])
@pytest.mark.parametrize('plan', ['tensor-sequence-zero', 'all', 'pairs-pipeline-memory'])
def test_other_families_compute_what_transformers_computes(kind, plan, folder):
    assert compared(kind, folder, *PLANS[plan]) <= TOLERANCE


@pytest.mark.parametrize('kind', MIXTURES)
def test_no_token_stands_between_two_experts(kind, folder):
    """Or another order of sums would send it elsewhere, and nothing could be compared."""
    theirs(kind, folder, 0.0, 1)
    workload, _, logits = model_of(kind, folder)
    experts = workload.model.experts
    for layer in map(torch.Tensor.detach, logits):
        scores = layer.softmax(-1) if experts.score == 'softmax' else layer.sigmoid()
        order = scores.sort(-1, descending=True).values
        if experts.groups == 1:
            assert float((order[:, experts.top_k - 1] - order[:, experts.top_k]).min()) >= MARGIN
        # With groups, any two scores that are compared: those of experts, and the sums that groups count by.
        best = scores.unflatten(-1, (experts.groups, -1)).sort(-1, descending=True).values
        sums = best[..., : experts.group_scores].sum(-1).sort(-1).values
        assert experts.groups == 1 or float(sums.diff(dim=-1).min()) >= MARGIN / 100
        assert experts.groups == 1 or float(order.diff(dim=-1).abs().min()) >= MARGIN / 100


def test_the_plans_cover_every_pair_of_axes():
    axes = {
        'expert': lambda plan: plan.expert > 1,
        'expert data': lambda plan: plan.data > plan.expert,
        'tensor': lambda plan: plan.tensor > 1,
        'sequence': lambda plan: plan.sequence_parallel,
        'pipeline': lambda plan: plan.pipeline > 1,
        'copies': lambda plan: plan.copies > 1,
        'zero': lambda plan: plan.zero > 0,
        'recompute': lambda plan: plan.recompute != 'none',
    }
    for one, other in combinations(axes, 2):
        met = {(axes[one](plan), axes[other](plan)) for plan, _ in PLANS.values()}
        # Without tensor ranks there is no sequence to shard.
        barred = {(False, True)} if (one, other) == ('tensor', 'sequence') else set()
        assert met | barred >= {(True, True), (True, False), (False, True)}, (one, other)
