"""Random plans of every family train as torch does unsharded, to 1e-10 in fp64; hundreds are over all axes at once."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from combined_cases import combined_case
from equipment.orders import InProcess
from every import EVERY
from graph_cases import graph_case
from mixture_cases import mixture_case
from newer_cases import transformer_case
from odd_cases import SEEDS as ODD_SEEDS
from odd_cases import odd_case
from pipeline_cases import edited, left_over, named_case
from plain_cases import MLP
from tile_cases import tiled_case
from training_cases import RANKS, Coverage, training_case
from trains import trains

from executor.numerics import check
from executor.validate import validate
from simpar import Plan, Transformer
from simpar.errors import NumericsWrong, ProgramError
from simpar.lower import lower
from simpar.pipeline import ORDERS

SEEDS = (*range(420), 1012, 1149, 1291)
"""The last for pairs that the others do not have."""
TOGETHER = 12
STAYS = {'loss', 'gradients.squares', 'gradients.overflow'}
"""A number or two that a step leaves."""

case = cache(training_case)


def trained(drawn):
    """The drawn plan with its program, where the case has none."""
    return lambda seed: (*(found := drawn(seed))[:2], lower(*found))


def every_order(seed):
    """Ten plans of each named order, one after the other."""
    return named_case(100 * (seed // 10) + seed % 10, list(ORDERS)[seed // 10], RANKS)


FAMILIES = {
    'all axes': (lambda seed: (*case(seed)[0][:2], case(seed)[1]), SEEDS, EVERY),
    'orders': (trained(every_order), range(10 * len(ORDERS)), min(EVERY, 10)),
    'graphs of operators': (trained(graph_case), range(120), EVERY),
    'strategies': (trained(combined_case), range(120), EVERY),
    'tiles': (lambda seed: tuple(tiled_case(seed)[at] for at in (0, 1, 3)), range(72), min(EVERY, 12)),
    'odd sizes': (lambda seed: (*(found := odd_case(seed))[0][:2], found[1]), ODD_SEEDS, min(EVERY, 6)),
    'mixtures': (trained(mixture_case), range(8), min(EVERY, 2)),
    'newer': (trained(transformer_case), range(8), min(EVERY, 2)),
}
"""What draws workload, plan and program; its seeds; of how many the suite trains one."""
DRAWS = [
    (name, seeds[first : first + TOGETHER * every : every])
    for name, (_, seeds, every) in FAMILIES.items()
    for first in range(0, len(seeds), TOGETHER * every)
]


@pytest.mark.parametrize(('name', 'seeds'), DRAWS, ids=[f'{name}-{seeds[0]}' for name, seeds in DRAWS])
def test_random_plans_train_as_torch_does(name, seeds):
    """Valid programs that free what they hold and compute what autograd and torch.optim compute."""
    for seed in seeds:
        workload, plan, program = FAMILIES[name][0](seed)
        validate(program)
        report = check(program, workload, plan, steps=2, seed=seed)
        parameters = [name for one in program.tensors if one.kind == 'parameter' for name in one.members or (one.name,)]
        # A forward alone has no gradients, and the bias of a router is no product of one.
        trained = [name for name in parameters if workload.phase == 'train' and '.correction' not in name]
        assert len(report.deviations) == 2 * (1 + len(parameters) + len(trained)), seed
        assert left_over(program) <= STAYS, seed


@pytest.mark.parametrize('name', FAMILIES)
def test_every_order_that_needs_and_streams_allow_gives_the_same_bits(name):
    draw, seeds, _ = FAMILIES[name]
    for seed in seeds[:: max(len(seeds) // (8 if EVERY == 1 else 1), 2)]:
        program = draw(seed)[2]
        wanted, found = (InProcess(program, seed, shuffle=shuffle).run(2) for shuffle in (None, seed))
        assert found.losses == wanted.losses
        for name, parameter in wanted.parameters.items():
            assert torch.equal(found.parameters[name], parameter), (seed, name)


# What the plans cover

WITHOUT = {
    ('model', 'network'): {
        ('dropout', 'yes'), ('recompute', 'full'), ('recompute', 'selective'), ('sequence parallel', 'yes')
    },
    ('tensor', '1'): {('sequence parallel', 'yes')},
    ('group', 'some'): {('data', '1'), ('data', '2'), ('data', '3'), ('tensor', '3')},
    ('tensor', '3'): {('data', '3'), ('data', '4')},
}  # fmt: skip
"""What cannot be together: a network has no such layers, fewer than four data ranks no groups; ranks are eight."""


@pytest.mark.skipif(EVERY > 1, reason='make prove NAME=every draws and lowers all 423')
def test_the_plans_cover_every_pair_of_choices():
    coverage = Coverage(case(seed)[0] for seed in SEEDS)
    print(coverage)
    assert len({case(seed)[1].hash for seed in SEEDS}) == len(SEEDS) >= 400
    cannot = {frozenset((one, other)) for one, others in WITHOUT.items() for other in others}
    missing = {frozenset(pair) for pair in coverage.missing()}
    assert missing >= cannot
    assert len(missing - cannot) <= len(coverage.pairs) / 100, missing - cannot
    assert min(min(counts.values()) for counts in coverage.values.values()) >= 20
    plans = [(case(seed)[0].workload, case(seed)[0].plan) for seed in SEEDS]
    gpts = [(work.model, plan) for work, plan in plans if isinstance(work.model, Transformer)]
    masks = {(gpt.attention, gpt.dropout > 0, plan.tensor > 1, plan.pipeline > 1) for gpt, plan in gpts}
    assert len(masks) == 16
    assert any(0 in plan.stages for work, plan in plans if work.clip_norm)


def test_the_plans_of_each_order_have_each_axis():
    for first in range(0, 10 * len(ORDERS), 10):
        mine = [every_order(seed)[1] for seed in range(first, first + 10)]
        assert all(any(getattr(plan, axis) > 1 for plan in mine) for axis in ('copies', 'tensor', 'data')), first
        assert {'early', 'late'} == {plan.receive for plan in mine} == {plan.reduce for plan in mine}, first
        assert any(plan.stages for plan in mine), first


# What is wrong is found wrong.


def found_wrong(program, workload, plan):
    with pytest.raises((NumericsWrong, ProgramError)):
        check(program, workload, plan)


def without(name, micro_batch):
    return lambda slots: [slot for slot in slots if (slot[0], slot[2]) != (name, micro_batch)]


@pytest.mark.parametrize(
    'plan',
    [
        Plan(zero=0, fusion='none'),
        Plan(zero=0, fusion=300.0),
        Plan(zero=1, fusion='layer', accumulate='sharded'),
        Plan(zero=2, fusion=(2,)),
        Plan(zero=3, fusion='all'),
        Plan(hsdp='level2', shard_threshold=0.0, shard_group=2),
    ],
    ids=lambda plan: f'zero {plan.zero}, {plan.fusion}',
)
def test_every_bucket_that_is_dropped_is_found(plan):
    """Each message of gradients, in the last micro-batch that has it: in another, the next would sum for both."""
    plan = replace(plan, data=4, micro_batches=2)
    program = trains(MLP, plan, 4)
    (role,) = program.roles
    sums = {program.op(role, slot).name: int(role.micro_batch[slot]) for slot in range(len(role))}
    sums = {name: micro_batch for name, micro_batch in sums.items() if '.gradients.' in name}
    assert sums
    for name, micro_batch in sums.items():
        found_wrong(edited(program, without(name, micro_batch)), MLP, plan)
