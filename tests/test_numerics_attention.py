"""Unfused attention, dropout and master weights: any plan draws the same masks and computes what autograd does."""

import random
from dataclasses import replace

import pytest
from drawn_orders import DRAWN
from every import EVERY
from pipeline_cases import any_case, named_case
from sabotage import change_ops

from simpar.errors import NumericsWrong
from simpar.lower import lower
from simpar.plans import Plan
from simpar.workload import Adam, Transformer, Workload

torch = pytest.importorskip('torch', reason='needs the extra torch')

from executor.draws import kept
from executor.inprocess import InProcess
from executor.numerics import check

pytestmark = pytest.mark.torch

CASES = 48
GPT = Workload(
    model=Transformer(
        layers=2, hidden=8, heads=4, kv_heads=2, vocab=12, sequence=4, attention='unfused', dropout=0.2,
        init_std=0.3,
    ),
    batch=16,
    precision='fp64',
    optimizer=Adam(learning_rate=0.01, master_weights=True),
)  # fmt: skip
PLAN = Plan(data=2, tensor=2, sequence_parallel=True, copies=2, pipeline=2, micro_batches=4)


def case(seed):
    """A random pipeline or plain plan of a transformer, with a choice of attention, dropout and master weights."""
    draw = random.Random(seed + 1006)
    tries = iter(range(10_000 * seed, 10_000 * (seed + 1)))
    while True:
        number = next(tries)
        name = draw.choice(list(DRAWN))
        workload, plan, world, order = (
            any_case(number, 8) if draw.random() < 0.3 else (*named_case(number, name, 8), None)
        )
        if isinstance(workload.model, Transformer):
            break
    model = replace(workload.model, attention=('flash', 'unfused')[seed % 2], dropout=(0.0, 0.1, 0.5)[seed % 3])
    adam = Adam(learning_rate=0.01, master_weights=draw.random() < 0.7)
    return replace(workload, model=model, optimizer=adam), plan, world, order


@pytest.mark.parametrize('seed', range(0, CASES, EVERY))
def test_a_random_plan_computes_what_autograd_computes(seed):
    workload, plan, world, order = case(seed)
    check(lower(workload, plan, world, order), workload, plan, steps=2, seed=seed)


def test_the_cases_cover_every_choice():
    cases = [case(seed)[:2] for seed in range(CASES)]
    for choice in (
        lambda plan: plan.tensor > 1,
        lambda plan: plan.sequence_parallel,
        lambda plan: plan.copies > 1,
        lambda plan: plan.data > 1,
        lambda plan: plan.pipeline > 1,
        lambda plan: plan.reduce,
    ):
        of_plan = {choice(plan) for _, plan in cases}
        chosen = {(w.model.attention, w.model.dropout > 0, choice(plan)) for w, plan in cases}
        assert len(of_plan) > 1
        assert chosen == {
            (form, dropped, one) for form in ('flash', 'unfused') for dropped in (False, True) for one in of_plan
        }


@pytest.mark.parametrize(
    ('attention', 'named'),
    [('flash', 'layer1.attention.F'), ('unfused', 'layer1.attention.dropout.F'), ('flash', 'layer0.residual2.F')],
)
def test_masks_of_another_place_are_found(attention, named):
    """A site renamed draws another mask: the comparison must see it."""
    workload = replace(GPT, model=replace(GPT.model, attention=attention))
    program = lower(workload, PLAN, 8)
    check(program, workload, PLAN)
    with pytest.raises(NumericsWrong):
        check(change_ops(program, named, attributes={'site': 'elsewhere'}), workload, PLAN)


@pytest.mark.parametrize('probability', [0.1, 0.5])
def test_masks_drop_their_share_independently(probability):
    """Within five deviations over 2¹⁸ elements; neighbours, samples and sites fall together by chance alone."""
    keys = torch.tensor([7, 8])
    mask = kept(keys, 'layer0', (256, 512), probability).double()
    other = kept(keys, 'layer1', (256, 512), probability).double()
    deviation = (probability * (1 - probability) / mask.numel()) ** 0.5
    assert abs(mask.mean() - (1 - probability)) < 5 * deviation
    pairs = [(mask[:, :, 1:], mask[:, :, :-1]), (mask[:, 1:], mask[:, :-1]), (mask[0], mask[1]), (mask, other)]
    for one, two in pairs:
        together = ((one - one.mean()) * (two - two.mean())).mean() / (probability * (1 - probability))
        assert abs(together) < 5 / one.numel() ** 0.5


def test_pieces_of_a_mask_make_the_whole():
    keys = torch.arange(6)
    whole = kept(keys, 'x', (4, 6), 0.3)
    for dim, size in ((0, 4), (1, 6)):
        pieces = [kept(keys, 'x', (4, 6), 0.3, (dim, first, 2)) for first in range(0, size, 2)]
        assert torch.equal(torch.cat(pieces, dim + 1), whole)
    assert torch.equal(torch.cat([kept(part, 'x', (4, 6), 0.3) for part in keys.chunk(3)]), whole)


def test_another_step_draws_other_masks():
    """With a learning rate of zero only the masks and samples of a step differ; without dropout, only the samples."""
    workload = replace(GPT, optimizer=Adam(learning_rate=0.0), batch=2)
    result = InProcess(lower(workload, Plan(data=1), 1), 0).run(2)
    assert result.losses[0] != result.losses[1]


def test_master_weights_keep_what_bf16_would_lose():
    """Steps of 10⁻⁴ round away in bf16 weights near one; masters in fp32 add them up; the weights are their cast."""

    def gains(master):
        workload = replace(
            GPT, precision='bf16', gradients='fp32', batch=2, optimizer=Adam(learning_rate=1e-4, master_weights=master)
        )
        machine = InProcess(lower(workload, Plan(data=1), 1), 0, dtype=None)
        return machine.run(60).parameters['norm.gain']

    assert torch.equal(gains(False), torch.ones(8, dtype=torch.bfloat16))
    assert not torch.equal(gains(True), torch.ones(8, dtype=torch.bfloat16))


def test_gradients_are_summed_in_their_own_precision():
    workload = replace(GPT, precision='bf16', gradients='fp32')
    machine = InProcess(lower(workload, Plan(data=1, micro_batches=4), 1), 0, dtype=None)
    result = machine.run()
    assert {gradient.dtype for gradient in result.gradients.values()} == {torch.float32}
    assert {parameter.dtype for parameter in result.parameters.values()} == {torch.bfloat16}
