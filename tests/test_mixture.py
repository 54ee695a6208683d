"""Mixtures of experts and expert parallelism: trained under plans, priced by the fullest rank, refused by name."""

from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path

import pytest
from every import some
from trains import ONCE, trains

from simpar import Plan, case_of, load_case, load_profile, load_schedule, price, simulate
from simpar.cost.compute import DeviceCompute
from simpar.errors import Infeasible, ScheduleError
from simpar.lower import lower
from simpar.model.library.experts import Experts
from simpar.model.ops import Load
from simpar.workload import AdamW, Transformer, Workload

EXAMPLE = Path(__file__).parent.parent / 'examples' / 'mixtral_8x7b_h100.yaml'
SIZES = {'layers': 2, 'hidden': 16, 'heads': 4, 'kv_heads': 2, 'vocab': 24, 'sequence': 8, 'init_std': 0.3}
MODEL = Transformer(**SIZES, norm='rms_norm', activation='swiglu', bias=(), position='rotary', ffn=24)
FOUR = Experts(count=4, top_k=2, ffn=12)
MIXTURES = {
    'balanced': replace(FOUR, aux_loss=0.1),
    'of all ranks': replace(FOUR, aux_loss=0.1, aux_group='global', score='sigmoid'),
    'by samples': replace(FOUR, aux_loss=0.1, aux_group='sample', normalise=False),
    'groups': Experts(count=8, top_k=2, ffn=12, score='sigmoid', groups=4, group_top_k=2, correction_bias=True,
                      scaling_factor=2.5, shared=8, first_dense=1, aux_loss=0.1),
    'gated': Experts(count=4, top_k=1, shared=8, shared_gate=True, normalise=False),
    'capacity': Experts(count=4, top_k=2, capacity=1.0, every=2),
    'slots': Experts(count=4, top_k=2, capacity=1.5, aux_loss=0.01),
}  # fmt: skip
PLANS = {
    'split': (Plan(data=4, expert=2, tensor=2, sequence_parallel=True, zero=2, micro_batches=2), 8),
    'copies': (Plan(data=2, expert=2, copies=2, micro_batches=2, pipeline=2, order='gpipe', zero=1), 4),
    'late': (Plan(data=4, expert=4, reduce='late', zero=3, recompute='full', tensor=2), 8),
}


CASES = [pair for number, pair in enumerate(product(MIXTURES, PLANS)) if number % 2 == 0]
"""Of each mixture every other plan."""


def workload(experts, **more):
    model = replace(MODEL, **more.pop('model', {}), experts=experts)
    return Workload(model=model, batch=16, **{'optimizer': AdamW(learning_rate=0.01), **more})


@pytest.mark.parametrize(('experts', 'plan'), some(CASES))
def test_a_mixture_trains_as_the_unsharded_model(experts, plan):
    chosen, ranks = PLANS[plan]
    case = workload(MIXTURES[experts])
    trains(case, chosen, ranks, steps=ONCE)


@pytest.mark.parametrize(
    ('more', 'plan'),
    [
        ({'phase': 'forward'}, Plan(data=4, expert=2, pipeline=2)),
        ({'fp8': 'e4m3', 'model': {'hidden': 64, 'ffn': 32, 'sequence': 16}}, Plan(data=4, expert=2, zero=3)),
        ({'model': {'activation': 'gelu', 'norm': 'layer_norm', 'position': 'learned'}}, Plan(data=4, expert=4)),
        ({'model': {'parallel': True}, 'clip_norm': 0.1}, Plan(data=4, expert=2, hsdp='level2', shard_group=2)),
        ({'model': {'post_norms': True, 'dropout': 0.1}, 'loss_scale': 8.0}, Plan(data=4, expert=2, zero=3, tiles=2)),
        ({'gradients': 'fp32'}, Plan(data=8, expert=2, zero=1, shard_group=2, copies=2, copies_loss='sum')),
        ({'model': {'window': 3, 'attention': 'unfused'}}, Plan(data=4, expert=2, recompute=('layer*.experts.*',))),
    ],
)
def test_a_mixture_goes_with_every_other_key(more, plan):
    case = workload(replace(FOUR, ffn=0, aux_loss=0.1), **more)
    trains(case, plan, plan.data * plan.pipeline, steps=ONCE)


def test_groups_choose_as_the_router_of_deepseek_v3_with_a_bias():
    """The bias of a program is zero: the kernel alone has another."""
    import torch

    transformers = pytest.importorskip('transformers', reason='needs the extra test')
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

    from executor.kernels import KERNELS, context

    config = transformers.AutoConfig.for_model(
        'deepseek_v3', hidden_size=12, n_routed_experts=16, n_group=4, topk_group=2, num_experts_per_tok=3
    )
    case = workload(Experts(count=16, top_k=3, score='sigmoid', groups=4, group_top_k=2, correction_bias=True,
                            scaling_factor=config.routed_scaling_factor))  # fmt: skip
    program = lower(case, Plan(), 1)
    op = next(op for op in program.op_classes if op.operator == 'route' and op.phase == 'F')
    generator = torch.Generator().manual_seed(3)
    for _ in range(20):
        router = DeepseekV3TopkRouter(config)
        router.weight.data.normal_(generator=generator)
        router.e_score_correction_bias.data.normal_(std=0.3, generator=generator)
        x = torch.randn(2, 9, 12, generator=generator)
        logits, weights, chosen = router(x)
        found, mask = KERNELS['route', 'F'](
            op, context(program, 0), logits.detach().unflatten(0, (2, 9)), router.e_score_correction_bias
        )
        dense = torch.zeros(18, 16).scatter(1, chosen, weights.detach())
        assert torch.equal(mask.flatten(0, 1), dense > 0)
        assert torch.allclose(found.flatten(0, 1), dense, atol=1e-6)


# what a program has


def operators(program):
    return {op.name: op for op in program.op_classes}


def test_tokens_travel_by_all_to_alls_on_a_stream_of_their_own():
    program = lower(workload(FOUR), Plan(data=4, expert=4), 4)
    exchanges = [op for op in program.op_classes if op.operator == 'all_to_all']
    # There and back, forward and backward, in each layer.
    assert len(exchanges) == 8
    assert {op.partition for op in exchanges} == {'expert'}
    assert {'expert', 'data'} <= set(program.roles[0].streams)
    # A sample has two choices of each of its 8 tokens, of 16 numbers of 4 bytes; a rank has 4 samples.
    assert {op.bytes for op in exchanges} == {4 * 8 * 2 * 16 * 4}


# prices


@pytest.mark.parametrize('experts', [2, 3, 8, 60])
def test_the_fullest_rank_and_all_others_have_all_tokens(experts):
    """By fractions: one expert has its share of the mean, the rest is dealt out equally."""
    for imbalance in (Fraction(1), Fraction(5, 4), Fraction(3, 2)):
        others = (experts - imbalance) / (experts - 1)
        assert imbalance + (experts - 1) * others == experts
        load = Load(dim=1, experts=experts, mean=0.125, imbalance=float(imbalance))
        for ranks in (count for count in range(1, experts + 1) if experts % count == 0):
            local = experts // ranks
            fullest = (imbalance + (local - 1) * others) / local
            assert load.fill(ranks) == pytest.approx(0.125 * float(fullest), rel=1e-15)
        assert load.fill(1) == pytest.approx(0.125)


def test_imbalance_is_priced_where_experts_are_shared():
    def of(plan, **changes):
        program = lower(workload(replace(FOUR, **changes)), plan, 4)
        return program, operators(program)['layer0.experts.fc1.F']

    even, fuller = (of(Plan(data=4, expert=4), imbalance=imbalance) for imbalance in (1.0, 1.5))
    assert fuller[1].dims['m'] == 1.5 * even[1].dims['m']
    # All ranks together do what all tokens need, however they are dealt out.
    assert fuller[1].flops == even[1].flops
    assert sum(map(int, fuller[0].sizes)) > sum(map(int, even[0].sizes))
    alone = [of(Plan(data=4), imbalance=imbalance)[0].hash for imbalance in (1.0, 1.5)]
    assert alone[0] == alone[1]


def test_capacity_holds_sends_and_prices_all_slots():
    program = lower(workload(replace(FOUR, capacity=2.0)), Plan(data=4, expert=4), 4)
    # As many slots as tokens: twice as many as are used.
    assert operators(program)['layer0.experts.fc1.F'].dims['m'] == 4 * 4 * 8
    assert {tensor.fill for tensor in program.tensors} == {1.0}


def test_a_grouped_product_costs_what_one_of_all_rows_costs_and_more_where_tiles_are_not_full():
    compute = DeviceCompute(load_profile('h100-sxm-8'))
    sizes = {'hidden': 1024, 'ffn': 2048, 'sequence': 2048, 'heads': 8}
    case = workload(Experts(count=8, top_k=2), model=sizes, precision='bf16')
    op = operators(lower(case, Plan(data=8), 8))['layer0.experts.fc1.F']
    rows = op.dims['m']
    one = replace(op, operator='matmul', dims={name: op.dims[name] for name in 'mnk'})
    assert compute.seconds(op).seconds == compute.seconds(one).seconds
    ragged = replace(op, dims={**op.dims, 'm': 8 * 130})
    filled = replace(one, dims={**one.dims, 'm': 8 * 256})
    assert compute.seconds(ragged).seconds == compute.seconds(filled).seconds
    assert rows == 2 * 2048 * 2


def test_copies_hide_the_all_to_all():
    exposed = []
    for copies in (1, 2):
        changes = [f'plan.copies={copies}', 'plan.pipeline=1', 'plan.micro_batches=2', 'workload.transformer.layers=4']
        steady = load_case(EXAMPLE, changes).predict().metrics.steady
        exposed.append(steady.mean(lambda rank: rank.exposed_by.get('expert', 0.0)))
    assert 0 < exposed[1] < 0.1 * exposed[0]


def test_every_rank_unfolded_takes_as_long():
    changes = ['workload.transformer.layers=4', 'plan.pipeline=2', 'plan.micro_batches=2', 'workload.batch=64']
    case = load_case(EXAMPLE, changes)
    costs = price(case.program, case.cluster)
    folded, unfolded = (simulate(case.program, costs, unfold=unfold).step_ends for unfold in (None, True))
    assert list(folded) == list(unfolded)


# what does not fit


def test_expert_ranks_need_experts_and_data_ranks():
    with pytest.raises(ScheduleError, match=r'plan\.expert: the transformer has no experts; leave it out'):
        load_schedule(EXAMPLE.parent / 'transformer_h100.yaml', ['plan.expert=2'])
    with pytest.raises(Infeasible, match=r'plan\.expert: 4 does not divide the 2 data ranks; choose a divisor of 2'):
        lower(workload(FOUR), Plan(tensor=2, expert=4), 4)


def test_the_example_answers_with_the_published_count_of_numbers():
    case = load_case(EXAMPLE)
    assert len(EXAMPLE.read_text().splitlines()) <= 15
    assert case_of(case.schedule).predict().throughput.parameters == 46_702_792_704
