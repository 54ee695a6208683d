"""A step that recomputes is the same step: as autograd's on the unsharded model, and to the bit as without."""

from dataclasses import replace

import pytest
import torch
from every import EVERY, some
from pipeline_cases import edited
from sabotage import change_ops
from training_cases import training_case
from trains import trains

from executor.inprocess import InProcess
from executor.numerics import check
from executor.validate import validate
from simpar import Network, Plan
from simpar.errors import NumericsWrong, ProgramError
from simpar.lower import lower
from simpar.workload import Adam, Transformer, Workload


def again(program):
    """The op classes that run again what the forward ran."""
    return [op for op in program.op_classes if 'recompute' in op.attributes]


def holds(workload, plan, world, order, seed):
    """What it trains is to the bit what the program that keeps everything trains."""
    program = lower(workload, plan, world, order)
    unmarked = workload
    if isinstance(workload.model, Network):
        layers = tuple(replace(layer, recompute=False) for layer in workload.model.layers)
        unmarked = replace(workload, model=replace(workload.model, layers=layers))
    kept = lower(unmarked, replace(plan, recompute='none', recompute_stages=()), world, order)
    assert not again(kept)
    found, wanted = (InProcess(one, seed).run(2 if seed % 3 == 0 else 1) for one in (program, kept))
    assert found.losses == wanted.losses
    for name, parameter in wanted.parameters.items():
        assert torch.equal(found.parameters[name], parameter), name


def test_a_random_plan_that_recomputes_is_the_same_step():
    met = 0
    for seed in range(0, 240, EVERY):
        (workload, plan, world, order), program = training_case(seed)
        if again(program):
            met += 1
            holds(workload, plan, world, order, seed)
    assert met >= 120 // EVERY


GPT = Workload(
    model=Transformer(
        layers=2, hidden=8, heads=2, vocab=12, sequence=4, init_std=0.3, attention='unfused', dropout=0.3
    ),
    batch=8,
    precision='fp64',
    optimizer=Adam(learning_rate=0.01),
)
PLAN = Plan(tensor=2, copies=2, recompute='full')
CLONE = 'layer1.{}.F.recompute'


@pytest.mark.parametrize('recompute', ['full', 'selective'])
@pytest.mark.parametrize(
    'plan',
    some(
        [
            Plan(data=2, tensor=2, sequence_parallel=True, copies=2, zero=3),
            Plan(data=2, pipeline=2, micro_batches=2, order='zb-h1', zero=3, prefetch=1),
            Plan(data=2, micro_batches=2, hsdp='level1', shard_threshold=0),
            Plan(data=2, tensor=2, pipeline=2, micro_batches=2, recompute_inputs='sharded', zero=2),
        ],
        2,
    ),
)
def test_weights_that_are_cut_are_there_when_it_runs_again(plan, recompute):
    plan = replace(plan, recompute=recompute)
    world = plan.data * plan.tensor * plan.pipeline
    trains(GPT, plan, world, steps=1)
    holds(GPT, plan, world, None, 0)


@pytest.mark.parametrize('name', ['attention.dropout', 'residual1', 'residual2'])
@pytest.mark.parametrize('changed', [{'site': 'elsewhere'}, {'dropout': 0.2}])
def test_a_mask_that_comes_back_otherwise_is_found(name, changed):
    program = change_ops(lower(GPT, PLAN, 2), CLONE.format(name), attributes=changed)
    with pytest.raises(NumericsWrong):
        check(program, GPT, PLAN, steps=1)


@pytest.mark.parametrize('name', ['norm1', 'qkv', 'attention.softmax', 'gelu'])
def test_what_is_not_run_again_is_missed(name):
    """A copy without one of its clones reads what was freed: refused before it runs, and in process."""
    program = edited(
        lower(GPT, PLAN, 2), lambda slots: [slot for slot in slots if (slot[0], slot[3]) != (CLONE.format(name), 1)]
    )
    with pytest.raises(ProgramError, match='which nothing has written'):
        validate(program)
    with pytest.raises(ProgramError, match='freed or never written'):
        InProcess(program).run()
