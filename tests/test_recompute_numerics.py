"""A step that recomputes is the same step: as autograd's on the unsharded model, and to the bit as without."""

import random
from dataclasses import replace
from functools import cache

import pytest
from every import EVERY
from pipeline_cases import any_case, edited, left_over, named_case
from sabotage import change_ops, drop_sum
from test_memory_machine import in_this_order, watched

from simpar.errors import NumericsWrong, ProgramError
from simpar.lower import lower
from simpar.memory import memory
from simpar.model import Network, Relu
from simpar.pipeline import ORDERS
from simpar.plans import Plan
from simpar.workload import Adam, Transformer, Workload

torch = pytest.importorskip('torch', reason='needs the extra torch')

from executor.inprocess import InProcess
from executor.numerics import check
from executor.validate import validate

pytestmark = pytest.mark.torch

NAMED = [(name, number) for name in ORDERS for number in range(5)]
ANY = 35
PATTERNS = [
    ('layer*.gelu',),
    ('layer*.norm?', 'norm'),
    ('*.attention*', '*.qkv'),
    ('layer0.*',),
    ('*',),
    ('*residual*', '*proj'),
]


def with_recompute(seed, workload, plan, stages):
    """The case with dropout and an attention of some form, and a random choice of what is recomputed."""
    draw = random.Random(seed)
    model = workload.model
    if isinstance(model, Network):
        marked = tuple(replace(layer, recompute=draw.random() < 0.7) for layer in model.layers)
        chosen = draw.choice([(), (), ('dense*',), ('relu*',), ('*',)])
        chosen = () if chosen == ('relu*',) and not any(isinstance(layer, Relu) for layer in marked) else chosen
        model = replace(model, layers=marked)
    else:
        chosen = ('full', 'selective', draw.choice(PATTERNS))[seed % 3]
        model = replace(model, dropout=draw.choice([0.0, 0.3]), attention=draw.choice(['flash', 'unfused']))
    some = tuple(stage for stage in range(stages) if draw.random() < 0.6) if draw.random() < 0.3 else ()
    plan = replace(plan, recompute=chosen, recompute_stages=some, recompute_communication=draw.random() < 0.6)
    return replace(workload, model=model), plan


@cache
def named(name, number):
    """A pipeline with an order of this name."""
    seed = 1000 + 100 * list(ORDERS).index(name) + number
    workload, plan, world = named_case(seed, name, ranks=8)
    return *with_recompute(seed, workload, plan, plan.pipeline), world


@cache
def unheard_of(seed):
    """A pipeline with an order that nobody would write."""
    workload, plan, world, order = any_case(2000 + seed, ranks=8)
    return *with_recompute(seed, workload, plan, order.stages), world, order


def again(program):
    """The op classes that run again what the forward ran."""
    return [op for op in program.op_classes if 'recompute' in op.attributes]


def holds(workload, plan, world, order, seed):
    """A valid program, equal to the reference, and to the bit to the one that keeps everything."""
    program = lower(workload, plan, world, order)
    validate(program)
    check(program, workload, plan, steps=1, seed=seed)
    assert left_over(program) == {'loss'}
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


@pytest.mark.parametrize(('name', 'number'), NAMED[::EVERY])
def test_a_pipeline_that_recomputes_is_the_same_step(name, number):
    workload, plan, world = named(name, number)
    holds(workload, plan, world, None, number)


@pytest.mark.parametrize('seed', range(0, ANY, EVERY))
def test_an_order_that_nobody_would_write_is_the_same_step(seed):
    holds(*unheard_of(seed), seed)


def test_the_plans_cover_every_choice():
    cases = [named(*case) for case in NAMED] + [unheard_of(seed)[:3] for seed in range(ANY)]
    recomputing = [(workload.model, plan) for workload, plan, world in cases]
    of_models = [(model, plan) for model, plan in recomputing if isinstance(model, Transformer)]
    chosen = {
        (plan.recompute if isinstance(plan.recompute, str) else 'names', model.attention, model.dropout > 0)
        for model, plan in of_models
    }
    assert chosen == {
        (how, form, dropped) for how in ('full', 'selective', 'names') for form in ('flash', 'unfused')
        for dropped in (False, True)
    }  # fmt: skip
    full = [plan for _, plan in of_models if plan.recompute == 'full']
    assert {(plan.tensor > 1, plan.recompute_communication) for plan in full} == {
        (cut, again) for cut in (False, True) for again in (False, True)
    }
    assert {plan.sequence_parallel for plan in full if plan.tensor > 1 and plan.copies > 1} == {False, True}
    assert sum(bool(plan.recompute_stages) for plan in full) >= 3
    assert {plan.reduce for plan in full} == {'early', 'late'}
    assert sum(isinstance(model, Network) for model, _ in recomputing) >= 20


@pytest.mark.parametrize('seed', range(0, ANY, 5))
def test_whatever_needs_and_streams_allow_gives_the_same_bits(seed):
    program = lower(*unheard_of(seed))
    wanted = InProcess(program, seed).run(3)
    found = InProcess(program, seed, shuffle=seed).run(3)
    assert found.losses == wanted.losses
    for name, parameter in wanted.parameters.items():
        assert torch.equal(found.parameters[name], parameter), name


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


@pytest.mark.parametrize('shuffle', [None, 1])
@pytest.mark.parametrize(
    'plan',
    [
        Plan(data=1, recompute='full'),
        Plan(data=2, tensor=2, copies=2, recompute='full'),
        Plan(data=1, tensor=2, sequence_parallel=True, copies=2, recompute='selective', reduce='late'),
        Plan(data=1, tensor=2, sequence_parallel=True, recompute='full', recompute_communication=False),
    ],
)
def test_it_holds_what_lives_after_every_op(monkeypatch, plan, shuffle):
    """The bytes that are predicted, on every rank, in whatever order needs and streams allow."""
    program = lower(replace(GPT, precision='fp32'), plan, plan.data * plan.tensor)
    ranks = watched(monkeypatch, program, shuffle=shuffle)
    expected = memory(in_this_order(program, ranks))
    for rank, done in enumerate(ranks):
        line, last = expected.rank(rank).by_kind(), 2 * len(done)
        for place, (slot, held) in enumerate(done):
            after = line.at((2 * place + 2.5) % last)
            assert {kind: after[kind] for kind in held} == held, program.action(program.roles[0], slot)


@pytest.mark.parametrize('recompute', ['full', 'selective'])
@pytest.mark.parametrize(
    'plan',
    [
        Plan(data=2, tensor=2, sequence_parallel=True, copies=2, zero=3),
        Plan(data=2, pipeline=2, micro_batches=2, order='zb-h1', zero=3, prefetch=1),
        Plan(data=2, micro_batches=2, hsdp='level1', shard_threshold=0),
    ],
)
def test_weights_that_are_cut_are_there_when_it_runs_again(plan, recompute):
    plan = replace(plan, recompute=recompute)
    holds(GPT, plan, plan.data * plan.tensor * plan.pipeline, None, 0)


def test_the_right_program_passes():
    assert check(lower(GPT, PLAN, 2), GPT, PLAN, steps=1).worst.error <= 1e-10


@pytest.mark.parametrize('name', ['attention.dropout', 'residual1', 'residual2'])
@pytest.mark.parametrize('changed', [{'site': 'elsewhere'}, {'dropout': 0.2}])
def test_a_mask_that_comes_back_otherwise_is_found(name, changed):
    program = change_ops(lower(GPT, PLAN, 2), CLONE.format(name), attributes=changed)
    with pytest.raises(NumericsWrong):
        check(program, GPT, PLAN, steps=1)


@pytest.mark.parametrize('name', ['attention.dropout', 'residual1'])
def test_a_mask_of_another_key_is_found(name):
    """Drawn from keys that are an input like the right ones, but of another name, so with other numbers."""
    program = lower(GPT, PLAN, 2)
    keys = replace(program.tensor['dropout.keys'], name='other.keys')
    clone = next(op for op in program.op_classes if op.name == CLONE.format(name))
    reads = tuple(keys.name if read == 'dropout.keys' else read for read in clone.reads)
    program = change_ops(program.replace(tensors=(*program.tensors, keys)), clone.name, reads=reads)
    with pytest.raises(NumericsWrong):
        check(program, GPT, PLAN, steps=1)


@pytest.mark.parametrize('name', ['layer0', 'layer1'])
def test_a_sum_that_is_dropped_when_recomputed_is_found(name):
    program = drop_sum(lower(GPT, PLAN, 2), f'{name}.proj.all_reduce.F.recompute')
    with pytest.raises(NumericsWrong):
        check(program, GPT, PLAN, steps=1)


@pytest.mark.parametrize('name', ['norm1', 'qkv', 'attention.softmax', 'gelu'])
def test_what_is_not_run_again_is_missed(name):
    """A copy without one of its clones reads what was freed: refused before it runs, and in process."""
    program = edited(
        lower(GPT, PLAN, 2),
        lambda slots: [slot for slot in slots if (slot[0], slot[3]) != (CLONE.format(name), 1)],
    )
    with pytest.raises(ProgramError, match='which nothing has written'):
        validate(program)
    with pytest.raises(ProgramError, match='freed or never written'):
        InProcess(program).run()
