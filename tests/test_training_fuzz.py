"""Hundreds of random training plans over every axis at once train as torch does unsharded, to 1e-10 in fp64."""

from dataclasses import replace
from functools import cache

import pytest
from every import EVERY
from pipeline_cases import edited, left_over
from sabotage import drop_sum
from training_cases import Coverage, training_case

from simpar.errors import NumericsWrong, ProgramError
from simpar.lower import lower
from simpar.model import Dense, Network, Relu
from simpar.plans import Plan
from simpar.workload import Adam, Workload

torch = pytest.importorskip('torch', reason='needs the extra torch')

from executor.inprocess import InProcess
from executor.numerics import check
from executor.validate import validate

pytestmark = pytest.mark.torch

SEEDS = (*range(420), 1012, 1149, 1291)
"""The last for pairs that the others do not have."""
TOGETHER = 12
STAYS = {'loss', 'gradients.squares', 'gradients.overflow'}
"""A number or two that a step leaves."""

case = cache(training_case)


def holds(seed):
    """A valid program that frees what it holds and computes what autograd and torch.optim compute."""
    (workload, plan, _, _), program = case(seed)
    validate(program)
    report = check(program, workload, plan, steps=2, seed=seed)
    parameters = sum(tensor.kind == 'parameter' for tensor in program.tensors)
    assert len(report.deviations) == 2 * (1 + 2 * parameters)
    assert left_over(program) <= STAYS


@pytest.mark.parametrize('first', range(0, len(SEEDS), TOGETHER))
def test_random_plans_train_as_torch_does(first):
    for seed in SEEDS[first : first + TOGETHER : EVERY]:
        holds(seed)


@pytest.mark.parametrize('seed', SEEDS[::42])
def test_every_order_that_needs_and_streams_allow_gives_the_same_bits(seed):
    _, program = case(seed)
    wanted = InProcess(program, seed).run(2)
    found = InProcess(program, seed, shuffle=seed).run(2)
    assert found.losses == wanted.losses
    for name, parameter in wanted.parameters.items():
        assert torch.equal(found.parameters[name], parameter), name


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


def test_the_plans_cover_every_pair_of_choices():
    coverage = Coverage(case(seed)[0] for seed in SEEDS)
    print(coverage)
    assert len({case(seed)[1].hash for seed in SEEDS}) == len(SEEDS) >= 400
    cannot = {frozenset((one, other)) for one, others in WITHOUT.items() for other in others}
    missing = {frozenset(pair) for pair in coverage.missing()}
    assert missing >= cannot
    assert len(missing - cannot) <= len(coverage.pairs) / 100, missing - cannot
    assert min(min(counts.values()) for counts in coverage.values.values()) >= 20


# What is wrong is found wrong.

MLP = Workload(
    model=Network(
        layers=(Dense(inputs=6, outputs=8), Relu(), Dense(inputs=8, outputs=8), Relu(), Dense(inputs=8, outputs=4)),
        init_std=0.5,
    ),
    batch=16,
    precision='fp64',
    loss='mse',
    optimizer=Adam(learning_rate=0.01),
)


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
    program = lower(MLP, plan, 4)
    check(program, MLP, plan)
    (role,) = program.roles
    sums = {program.op(role, slot).name: int(role.micro_batch[slot]) for slot in range(len(role))}
    sums = {name: micro_batch for name, micro_batch in sums.items() if '.gradients.' in name}
    assert sums
    for name, micro_batch in sums.items():
        found_wrong(edited(program, without(name, micro_batch)), MLP, plan)


@pytest.mark.parametrize('layer', ['dense0', 'dense1'])
def test_a_stale_gather_for_the_second_micro_batch_is_found(layer):
    """Its weights are those that an update between the micro-batches has changed since."""

    def early(slots):
        update = next(slot for slot in slots if slot[0] == f'{layer}.update.U')
        rest = [slot for slot in slots if slot is not update]
        at = next(at for at, slot in enumerate(rest) if slot[0].startswith(f'{layer}.weights') and slot[2] == 1)
        return [*rest[:at], update, *rest[at:]]

    plan = Plan(data=2, zero=3, micro_batches=2)
    found_wrong(edited(lower(MLP, plan, 2), early), MLP, plan)


def test_a_gather_that_is_kept_over_an_update_is_found():
    """Prefetched for the next step before the update instead of behind it: refused, for it reads what is old."""

    def kept(slots):
        gather = next(slot for slot in slots if slot[0] == 'dense0.weights.data.all_gather.F')
        rest = [slot for slot in slots if not slot[0].startswith('dense0.weights.reshard')]
        at = next(at for at, slot in enumerate(rest) if slot[0] == 'dense0.update.U')
        return [*(slot for slot in rest[:at] if slot is not gather), gather, *rest[at:]]

    plan = Plan(data=2, hsdp='level1', shard_threshold=0.0)
    program = edited(lower(MLP, plan, 2), kept)
    with pytest.raises(ProgramError, match=r'dense0\.F reads dense0\.weight\.gathered'):
        validate(program)


@pytest.mark.parametrize(
    'plan',
    [
        Plan(data=4),
        Plan(data=2, tensor=2, copies=2),
        Plan(data=4, zero=3, shard_group=2),
        Plan(data=2, pipeline=2, micro_batches=2, zero=1),
    ],
    ids=str,
)
def test_a_norm_that_is_not_summed_is_found(plan):
    workload = replace(MLP, clip_norm=0.05)
    program = lower(workload, plan, 4)
    check(program, workload, plan)
    found_wrong(drop_sum(program, 'gradients.all_reduce.U'), workload, plan)
