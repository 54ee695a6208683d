"""Plans that cut states, gradients and weights compute what torch autograd computes on the whole model, to 1e-10."""

from dataclasses import replace
from functools import cache

import pytest
from every import EVERY
from pipeline_cases import edited, left_over
from sabotage import change_ops, drop_sum
from shard_cases import shard_case

from simpar.errors import NumericsWrong, ProgramError
from simpar.lower import lower
from simpar.model import Dense, Network, Relu
from simpar.plans import Plan
from simpar.workload import Adam, AdamW, Transformer, Workload

torch = pytest.importorskip('torch', reason='needs the extra torch')

from executor.inprocess import InProcess
from executor.numerics import check
from executor.validate import validate

pytestmark = pytest.mark.torch

CASES = 240
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
GPT = Workload(
    model=Transformer(layers=3, hidden=8, heads=2, vocab=12, sequence=4, tied=True, dropout=0.2, init_std=0.3),
    batch=16,
    precision='fp64',
    optimizer=AdamW(learning_rate=0.01),
    clip_norm=0.5,
)

case = cache(shard_case)


@pytest.mark.parametrize('seed', range(0, CASES, EVERY))
def test_a_random_plan_computes_what_autograd_computes(seed):
    workload, plan, world, order = case(seed)
    program = lower(workload, plan, world, order)
    validate(program)
    steps = 2 if seed % 2 else 1
    report = check(program, workload, plan, steps=steps, seed=seed)
    parameters = sum(tensor.kind == 'parameter' for tensor in program.tensors)
    assert len(report.deviations) == steps * (1 + 2 * parameters)
    assert left_over(program) <= {'loss'}


def test_the_plans_cover_every_choice():
    plans = [plan for _, plan, _, _ in map(case, range(CASES))]
    assert len({repr(case(seed)) for seed in range(CASES)}) >= CASES - 5
    for field, wanted in {
        'zero': {1, 2, 3},
        'hsdp': {'level1', 'level2', 'level3'},
        'gather': {'after-update', 'on-use', 'on-use-twice'},
        'shard_group': {0, 2, 3},
        'accumulate': {'', 'full', 'sharded'},
        'prefetch': {0, 1, 2, 5, 100},
        'reduce_gradients': {'overlapped', 'end'},
        'fusion': {'layer', 'none', 'all', 'auto', 'ids', 300.0, (1, 4)},
        'streams': {'group', 'single'},
        'receive': {'early', 'late'},
        'exchange': {'separate', 'fused'},
    }.items():
        assert {getattr(plan, field) for plan in plans} >= wanted, field
    for cut in ('zero', 'hsdp', 'shard'):
        mine = [plan for plan in plans if getattr(plan, cut) not in (0, 'off', ())]
        chosen = {(plan.pipeline > 1, plan.tensor > 1, plan.copies > 1, plan.micro_batches > 1) for plan in mine}
        assert len(chosen) >= 10, cut
    cut = [sum('.whole' in tensor.name for tensor in lower(*case(seed)).tensors) for seed in range(0, CASES, 8)]
    assert sum(count > 2 for count in cut) >= len(cut) / 2


@pytest.mark.parametrize('seed', range(0, CASES, 24))
def test_every_order_that_needs_and_streams_allow_gives_the_same_bits(seed):
    program = lower(*case(seed))
    wanted = InProcess(program, seed).run(3)
    found = InProcess(program, seed, shuffle=seed).run(3)
    assert found.losses == wanted.losses
    for name, parameter in wanted.parameters.items():
        assert torch.equal(found.parameters[name], parameter), name


@pytest.mark.parametrize('recompute', ['full', 'selective'])
@pytest.mark.parametrize('plan', [Plan(zero=3, prefetch=1), Plan(hsdp='level1'), Plan(zero=2, shard_group=2)], ids=str)
def test_with_recomputation_clipping_dropout_and_a_pipeline(plan, recompute):
    plan = replace(plan, data=2, pipeline=2, tensor=2, sequence_parallel=True, micro_batches=2, recompute=recompute)
    check(lower(GPT, plan, 8), GPT, plan, steps=2)


def test_weights_that_are_recomputed_with_are_gathered_for_the_backward():
    plan = Plan(data=2, zero=3, recompute='full', micro_batches=2)
    program = lower(GPT, plan, 2)
    again = next(op for op in program.op_classes if op.name == 'layer0.weights.data.all_gather.I')
    assert 'layer0.fc1.bias' in again.reads
    check(program, GPT, plan)


# What is wrong is found wrong.


def without(named, micro_batch):
    return lambda slots: [slot for slot in slots if (slot[0], slot[2]) != (named, micro_batch)]


@pytest.mark.parametrize(
    ('plan', 'named', 'micro_batch'),
    [
        (Plan(zero=2), 'dense1.gradients.data.reduce_scatter.W', 1),
        (Plan(zero=1), 'dense0.weights.data.all_gather.U', 0),
    ],
    ids=['a bucket of one micro-batch', 'a gather behind the update'],
)
def test_a_message_that_is_left_out_is_found(plan, named, micro_batch):
    plan = replace(plan, data=2, micro_batches=2)
    program = lower(MLP, plan, 2)
    check(program, MLP, plan)
    with pytest.raises((NumericsWrong, ProgramError)):
        check(edited(program, without(named, micro_batch)), MLP, plan)


def test_a_sum_over_shard_groups_that_is_dropped_is_found():
    plan = Plan(data=4, zero=3, shard_group=2)
    program = lower(MLP, plan, 4)
    with pytest.raises(NumericsWrong):
        check(drop_sum(program, 'dense1.gradients.replica.all_reduce.W'), MLP, plan)


def test_a_piece_cut_elsewhere_is_found():
    plan = Plan(data=4, shard=('state',), shard_group=2)
    program = lower(MLP, plan, 4)
    with pytest.raises(NumericsWrong):
        check(change_ops(program, 'dense1.piece.U', attributes={'partition': 'replica'}), MLP, plan)


def test_an_update_between_two_micro_batches_is_found():
    """The second micro-batch's backward gathers weights that its forward has not seen."""

    def early(slots):
        update = next(slot for slot in slots if slot[0] == 'dense1.update.U')
        rest = [slot for slot in slots if slot is not update]
        at = next(at for at, slot in enumerate(rest) if slot[0] == 'dense1.weights.data.all_gather.I' and slot[2] == 1)
        return [*rest[:at], update, *rest[at:]]

    plan = Plan(data=2, zero=3, micro_batches=2)
    program = lower(MLP, plan, 2)
    with pytest.raises(NumericsWrong):
        check(edited(program, early), MLP, plan)
