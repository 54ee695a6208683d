"""Unfused attention, dropout and master weights: any plan draws the same masks and computes what autograd does."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from sabotage import change_ops
from trains import trains

from executor.draws import dropout_mask
from executor.inprocess import InProcess
from executor.numerics import check
from simpar.errors import NumericsWrong
from simpar.lower import lower
from simpar.plans import Plan
from simpar.workload import Adam, Transformer, Workload

GPT = Workload(
    model=Transformer(
        layers=2, hidden=8, heads=4, kv_heads=2, vocab=12, sequence=4, attention='unfused', dropout=0.2,
        init_std=0.3,
    ),
    batch=16,
    precision='fp64',
    optimizer=Adam(learning_rate=0.01, master_weights=True),
)  # fmt: skip
PLAN = Plan(data=2, tensor=2, sequence_parallel=True, copies=2, pipeline=2, micro_batches=2)


@cache
def masked(attention):
    """A model with one kind of attention, and its program, which trains as the whole model does."""
    workload = replace(GPT, model=replace(GPT.model, attention=attention))
    return workload, trains(workload, PLAN, 8)


@pytest.mark.parametrize(
    ('attention', 'named'),
    [('flash', 'layer1.attention.F'), ('unfused', 'layer1.attention.dropout.F'), ('flash', 'layer0.residual2.F')],
)
def test_masks_of_another_place_are_found(attention, named):
    """A site renamed draws another mask: the comparison must see it."""
    workload, program = masked(attention)
    with pytest.raises(NumericsWrong):
        check(change_ops(program, named, attributes={'site': 'elsewhere'}), workload, PLAN, steps=1)


@pytest.mark.parametrize('probability', [0.1, 0.5])
def test_masks_drop_their_share_independently(probability):
    """Within five deviations over 2¹⁸ elements; neighbours, samples and sites fall together by chance alone."""
    keys = torch.tensor([7, 8])
    mask = dropout_mask(keys, 'layer0', (256, 512), probability).double()
    other = dropout_mask(keys, 'layer1', (256, 512), probability).double()
    deviation = (probability * (1 - probability) / mask.numel()) ** 0.5
    assert abs(mask.mean() - (1 - probability)) < 5 * deviation
    pairs = [(mask[:, :, 1:], mask[:, :, :-1]), (mask[:, 1:], mask[:, :-1]), (mask[0], mask[1]), (mask, other)]
    for one, two in pairs:
        together = ((one - one.mean()) * (two - two.mean())).mean() / (probability * (1 - probability))
        assert abs(together) < 5 / one.numel() ** 0.5


def test_pieces_of_a_mask_make_the_whole():
    keys = torch.arange(6)
    whole = dropout_mask(keys, 'x', (4, 6), 0.3)
    for dim, size in ((0, 4), (1, 6)):
        pieces = [dropout_mask(keys, 'x', (4, 6), 0.3, (dim, first, 2)) for first in range(0, size, 2)]
        assert torch.equal(torch.cat(pieces, dim + 1), whole)
    assert torch.equal(torch.cat([dropout_mask(part, 'x', (4, 6), 0.3) for part in keys.chunk(3)]), whole)


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
