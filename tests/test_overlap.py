"""Overlap passes as in parallel_speed_up.json: what each puts under what, and what it gains."""

from dataclasses import replace

import numpy as np
import pytest
from tile_cases import PASSES, by_work

from simpar import Plan, Transformer, Workload, simulate
from simpar.errors import Infeasible, ScheduleError
from simpar.lower import lower
from simpar.lower.lower import order_of
from simpar.lower.roles import passes_beside, with_passes
from simpar.memory import memory
from simpar.model import Dense, Network, Relu
from simpar.model.library.experts import Experts

MATMUL, GRADIENTS, WEIGHTS, RECOMPUTE = PASSES
BY_DEFAULT = (MATMUL, GRADIENTS, WEIGHTS)
GPT = Workload(model=Transformer(layers=2, hidden=32, heads=4, vocab=64, sequence=8), batch=4)
MLP = Workload(
    model=Network(
        layers=tuple(
            layer
            for _ in range(3)
            for layer in (
                Dense(inputs=8, outputs=16, bias=False),
                Relu(recompute=True),
                Dense(inputs=16, outputs=8, bias=False),
                Relu(),
            )
        )
    ),
    batch=16,
    loss='mse',
)


def names(program):
    (role,) = program.roles
    return [program.op(role, slot).name for slot in range(len(role))]


def step(program, rate=4.0):
    return simulate(program, by_work(program, rate)).step


def test_by_default_all_are_on_but_early_recomputation():
    plan = Plan(data=2, tensor=2, zero=3, recompute='full')
    assert lower(GPT, plan, 4).hash == lower(GPT, replace(plan, overlap=BY_DEFAULT), 4).hash
    assert lower(GPT, plan, 4).hash != lower(GPT, replace(plan, overlap=PASSES), 4).hash


def test_what_a_file_says_of_sums_and_gathers_is_kept_on_a_framework_without_passes():
    """MindSpore has no pass on; a file that asks for overlapped sums, and for nothing else, has these."""
    said = {'reduce_gradients': 'overlapped'}
    plan = Plan(data=2, tensor=2, reduce_gradients='overlapped', overlap=passes_beside((), said))
    assert plan.overlap == (GRADIENTS,)
    assert with_passes(plan).reduce_gradients == 'overlapped'
    assert with_passes(replace(plan, overlap=passes_beside((), {}))).reduce_gradients == 'end'
    assert passes_beside((WEIGHTS,), {'prefetch': 2}) == (WEIGHTS,)
    assert passes_beside((), {'prefetch': 0, 'reduce_gradients': 'end'}) == ()


@pytest.mark.parametrize('left_out', PASSES)
def test_every_pass_changes_the_order_and_never_the_ops(left_out):
    plan = Plan(data=2, tensor=2, zero=3, copies=2, recompute='full', overlap=PASSES)
    with_it = lower(GPT, plan, 4)
    without = lower(GPT, replace(plan, overlap=tuple(name for name in PASSES if name != left_out)), 4)
    assert with_it.hash != without.hash
    assert sorted(names(with_it)) == sorted(names(without))


def test_two_passes_are_the_keys_that_say_so_too():
    plan = Plan(data=4, zero=3)
    keys = replace(plan, reduce_gradients='end', prefetch=0)
    assert lower(GPT, replace(plan, overlap=(MATMUL,)), 4).hash == lower(GPT, keys, 4).hash
    ahead = replace(plan, prefetch=2, reduce_gradients='end')
    found = replace(plan, prefetch=2, overlap=(MATMUL, WEIGHTS))
    assert lower(GPT, found, 4).hash == lower(GPT, ahead, 4).hash


@pytest.mark.parametrize(
    'plan', [Plan(overlap=(GRADIENTS,), reduce_gradients='end'), Plan(overlap=(WEIGHTS,), prefetch=0)], ids=str
)
def test_a_pass_that_another_key_denies_is_refused(plan):
    with pytest.raises(Infeasible, match=r'is among plan\.overlap'):
        lower(GPT, plan, 4)


# gradients of weights under the sum of dx


@pytest.mark.parametrize('rate', [1.0, 4.0, 16.0])
def test_what_it_gains_is_the_shorter_of_gradients_and_sum(rate):
    """For each of the two blocks whose input needs a gradient; forwards are as they were."""
    product, message = 2 * 16 * 4 * 8 * 2.0**-20, 4 * 16 * 8 * rate * 2.0**-20
    found = [step(lower(MLP, Plan(tensor=4, overlap=on), 4), rate) for on in ((GRADIENTS,), (GRADIENTS, MATMUL))]
    assert found[0] - found[1] == 2 * min(2 * product, message)


# sums of gradients under the backward


# recomputation under the sum before it


def test_it_hides_recomputation_under_the_sum_and_holds_what_it_makes_that_much_longer():
    plan = Plan(tensor=4, recompute='full', overlap=BY_DEFAULT)
    programs = [lower(GPT, replace(plan, overlap=on), 4) for on in (BY_DEFAULT, PASSES)]
    traces = [simulate(program, by_work(program, rate=32.0)) for program in programs]
    assert traces[1].step < traces[0].step
    activations = [memory(trace).ranks[0].by_kind() for trace in traces]
    peaks = [line.bytes[:, line.names.index('activation')].max() for line in activations]
    assert peaks[1] >= peaks[0]


def test_nothing_is_issued_before_it_can_be():
    """The same bytes and operations, whatever is listed, and no step is slower for filling."""
    plan = Plan(tensor=2, data=2, recompute='full')
    found = {names: step(lower(GPT, replace(plan, overlap=names), 4), rate=16.0) for names in ((), (MATMUL,), PASSES)}
    assert found[PASSES] <= found[MATMUL,] <= found[()]
    assert np.isfinite(list(found.values())).all()


MIXTURE = Workload(
    model=Transformer(
        layers=2, hidden=32, heads=4, vocab=64, sequence=8, bias=(), experts=Experts(count=4, top_k=2, ffn=32)
    ),
    batch=16,
)
BESIDE = Plan(data=2, expert=2, micro_batches=4, pairs='overlap')
PARTS = {
    'dispatch.slice.all_to_all.F': 'F dispatch', 'experts.fc2.slice.all_to_all.F': 'F combine',
    'rows.whole.all_to_all.I': 'B combine', 'experts.fc1.whole.all_to_all.I': 'B dispatch',
    'attention.F': 'F attention', 'experts.gelu.F': 'F experts', 'experts.gelu.I': 'B experts',
    'attention.I': 'B attention',
}  # fmt: skip


def parts(program, kind):
    """The parts of layers in issue order, of messages or of computation, from the first pair on."""
    (role,) = program.roles
    ops = [program.op(role, slot) for slot in range(len(role))]
    told = [next((part for end, part in PARTS.items() if op.name.endswith(end)), '') for op in ops if op.kind == kind]
    # Of the forward alone before, two parts of each kind for each of two layers.
    return [part for part in told if part][4:]


def test_a_forward_meets_a_backward_layer_by_layer_as_in_megatron():
    """Streams as told in model_chunk_schedule_plan.py of NVIDIA/Megatron-LM d98e8a64, TransformerLayerSchedulePlan."""
    program = lower(MIXTURE, BESIDE, 2)
    assert parts(program, 'collective')[:8] == ['B combine', 'F dispatch', 'B dispatch', 'F combine'] * 2
    assert parts(program, 'compute')[:8] == ['F attention', 'B experts', 'F experts', 'B attention'] * 2
    early = lower(MIXTURE, replace(BESIDE, pairs='memory'), 2)
    assert parts(early, 'compute')[:8] == ['F attention', 'B experts', 'B attention', 'F experts'] * 2


def test_pairs_hide_messages_of_experts_and_hide_less_where_memory_is_given_back_early():
    def takes(**keys):
        return step(lower(MIXTURE, replace(BESIDE, **keys), 2), 1.0)

    assert takes() < takes(pairs='none')
    assert takes(weight_gradients='delayed') <= takes() < takes(pairs='memory')


def test_pairs_need_a_longer_warm_up_and_an_order_that_has_them():
    rows = [' '.join(map(str, row)) for row in order_of(Plan(pipeline=2, micro_batches=4, pairs='overlap')).actions]
    assert rows == [
        '0F0 0F1 0F2 (0F3;0B0)OVERLAP_F_B 0B1 0B2 0B3',
        '1F0 (1F1;1B0)OVERLAP_F_B (1F2;1B1)OVERLAP_F_B (1F3;1B2)OVERLAP_F_B 1B3',
    ]
    with pytest.raises(ScheduleError, match='gpipe: has no forward beside a backward'):
        order_of(Plan(pipeline=2, micro_batches=4, order='gpipe', pairs='overlap'))
    with pytest.raises(Infeasible, match='zb-1p has no forward beside a backward'):
        lower(MIXTURE, Plan(pipeline=2, order='zb-1p', pairs='overlap'), 2)


def test_delayed_gradients_of_weights_come_behind_the_send_of_their_stage():
    plan = Plan(pipeline=2, micro_batches=2, weight_gradients='delayed')
    program = lower(MIXTURE, plan, 2)
    role = program.roles[1]
    told = [program.op(role, slot) for slot in range(len(role))]
    first = next(place for place, op in enumerate(told) if op.kind == 'send' and op.phase == 'I')
    assert {op.phase for op in told[first + 1 : first + 4]} == {'W'}
    assert 'layer1.qkv.W' in {op.name for op in told[first + 1 : first + 5]}
