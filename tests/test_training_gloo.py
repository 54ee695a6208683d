"""On gloo: plans that cover every axis train as torch does unsharded, to 1e-10 in fp64, in one pool of ranks."""

from dataclasses import replace
from functools import cache

import pytest
from pipeline_cases import edited
from plain_cases import MLP as FP64_MLP
from training_cases import Case, Coverage, training_case

torch = pytest.importorskip('torch', reason='needs the extra torch')

from executor.numerics import TOLERANCE, compare
from executor.ranks.pool import Pool
from executor.reference import Reference
from executor.state import Result
from simpar.errors import NumericsWrong
from simpar.lower import lower
from simpar.plans import Plan
from simpar.workload import Adam, AdamW, Momentum

pytestmark = pytest.mark.torch

WORLD, STEPS, MOST_OPS = 4, 3, 80
EPSILON = 1e-5
"""Of Adam: at less, gradients that are zero but for rounding move weights."""
SEEDS = (
    0, 361, 501, 673, 42, 621, 676, 662, 478, 561, 28, 353, 300, 596, 575, 401, 425, 152, 618, 188,
    615, 167, 3, 624, 341, 530, 193, 350, 372, 460, 588, 337, 356, 440, 123, 209, 314, 72, 178, 358,
)  # fmt: skip
"""Of hundreds those that together have the most pairs of choices."""


@cache
def case(seed):
    found, _ = training_case(seed, WORLD, MOST_OPS)
    optimizer = found.workload.optimizer
    if isinstance(optimizer, Adam | AdamW):
        optimizer = replace(optimizer, epsilon=EPSILON)
    return found._replace(workload=replace(found.workload, optimizer=optimizer))


@pytest.fixture(scope='module')
def pool():
    with Pool(WORLD, timeout=60) as ranks:
        yield ranks


def hold(pool, program, case, seed=0):
    """Raise ``NumericsWrong`` where ranks differ in what they should share, or anything is not the reference's."""
    run = pool.run(program, steps=STEPS, seed=seed, dtype='fp64', keep=True)
    found = Result(run.losses, run.parameters, run.gradients)
    wanted = Reference(case.workload, case.plan, seed).run(STEPS)
    worst = max(compare(found, wanted), key=lambda deviation: deviation.error)
    if not worst.error <= TOLERANCE:
        raise NumericsWrong(str(worst))


@pytest.mark.parametrize('seed', SEEDS)
def test_a_plan_on_gloo_trains_as_torch_does(pool, seed):
    hold(pool, lower(*case(seed)), case(seed), seed)


def test_the_plans_cover_every_choice():
    cases = [case(seed) for seed in SEEDS]
    assert {one.world for one in cases} == {WORLD}
    coverage = Coverage(cases)
    print(coverage)
    assert len({lower(*one).hash for one in cases}) == len(SEEDS) >= 32
    values = {axis: set(counts) for axis, counts in coverage.values.items()}
    some = [found for found in (training_case(seed, WORLD, MOST_OPS)[0] for seed in range(100)) if found.world == WORLD]
    assert all(values[axis] >= set(counts) for axis, counts in Coverage(some).values.items())
    assert len(coverage.missing()) <= len(coverage.pairs) / 12


# What is wrong is found wrong.

MLP = replace(FP64_MLP, precision='fp32', optimizer=Momentum(learning_rate=0.1))
PLAN = Plan(data=4, zero=3, shard_group=2, micro_batches=2, fusion=600.0)


def without(name):
    """A message that no rank sends."""

    def dropped(program):
        return edited(program, lambda slots: [slot for slot in slots if slot[0] != name])

    return dropped


WRONG = {
    'a bucket dropped': without('bucket1.gradients.replica.all_reduce.W'),
    'the norm of each rank alone': without('gradients.all_reduce.U'),
}


@pytest.mark.parametrize('name', WRONG)
def test_what_is_wrong_is_found_wrong(pool, name):
    wrong, clip_norm = WRONG[name], 0.05 if 'norm' in name else 0.0
    one = Case(replace(MLP, clip_norm=clip_norm), PLAN, WORLD, None)
    program = lower(*one)
    hold(pool, program, one)
    with pytest.raises(NumericsWrong):
        hold(pool, wrong(program), one)
