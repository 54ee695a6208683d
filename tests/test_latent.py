"""Multi-head latent attention: trained under plans, counted and priced by hand, refused where its keys do not fit."""

from dataclasses import replace

import pytest
from trains import ONCE, plans, trains

from simpar import Plan, load_profile
from simpar.cost.compute import DeviceCompute
from simpar.lower import lower
from simpar.workload import AdamW, Muon, Transformer, Workload

SIZES = {'layers': 3, 'hidden': 16, 'heads': 4, 'vocab': 24, 'sequence': 8, 'init_std': 0.3, 'ffn': 24}
LATENT = {'kv_lora_rank': 10, 'qk_nope_head_dim': 6, 'qk_rope_head_dim': 4, 'v_head_dim': 5}
V3 = Transformer(
    **SIZES, **LATENT, q_lora_rank=12, norm='rms_norm', activation='swiglu', bias=(), position='rotary',
    rope_interleaved=True, rope_theta=50.0, latent_epsilon=1e-2,
)  # fmt: skip
MODELS = {
    'v3': replace(V3, rope_scaling=(4.0, 16.0, 4.0, 1.0, 1.2)),
    'biased': replace(V3, q_lora_rank=0, bias=('qkv', 'proj', 'head'), norm='layer_norm', dropout=0.1),
    'unfused': replace(V3, attention='unfused', attention_softcap=2.0, rope_interleaved=False, window=3),
}
PLANS = plans(__file__, 'PLANS')


def workload(model, **more):
    return Workload(model=model, batch=8, **{'optimizer': AdamW(learning_rate=0.01), **more})


@pytest.mark.parametrize(
    ('model', 'plan'),
    [('v3', 'late'), ('biased', 'split'), ('biased', 'late'), ('unfused', 'split'), ('unfused', 'tiles')],
)
def test_it_trains_as_the_unsharded_model(model, plan):
    chosen, ranks = PLANS[plan]
    case = workload(MODELS[model], **({'optimizer': Muon()} if plan == 'late' else {}))
    trains(case, chosen, ranks, steps=ONCE)


def parameters_of(model):
    """The weights of a layer's attention, by hand."""
    query, value = model.qk_nope_head_dim + model.qk_rope_head_dim, model.v_head_dim
    down = model.hidden * (model.q_lora_rank + model.kv_lora_rank + model.qk_rope_head_dim)
    up = model.heads * (model.q_lora_rank * query + model.kv_lora_rank * (model.qk_nope_head_dim + value))
    return down + up + model.heads * value * model.hidden + model.q_lora_rank + model.kv_lora_rank


def test_its_weights_are_those_of_the_paper():
    deepseek = replace(
        V3, hidden=7168, heads=128, kv_lora_rank=512, q_lora_rank=1536, qk_nope_head_dim=128, qk_rope_head_dim=64,
        v_head_dim=128,
    )  # fmt: skip
    # DeepSeek-V3's report: 187,107,328 numbers in the attention of a layer.
    assert parameters_of(deepseek) == 187_107_328
    for model in (V3, deepseek):
        with_two, with_one = (replace(model, layers=layers).graph(1).parameters for layers in (2, 1))
        rest = 2 * model.hidden + 3 * model.hidden * model.ffn
        assert with_two - with_one == parameters_of(model) + rest


@pytest.mark.parametrize(('tensor', 'sequence_parallel'), [(1, False), (2, False), (2, True)])
def test_products_of_a_layer_are_counted_by_hand(tensor, sequence_parallel):
    plan = Plan(tensor=tensor, sequence_parallel=sequence_parallel)
    program = lower(workload(V3), plan, tensor)
    tokens, held = 8 * V3.sequence, V3.heads // tensor
    # Down to latents each rank does all, or with sequence parallelism its own tokens.
    own = tokens // tensor if sequence_parallel else tokens
    wanted = {
        'q_down': own * 16 * 12,
        'q_up': tokens * 12 * held * 10,
        'kv_down': own * 16 * 14,
        'kv_up': tokens * 10 * held * 11,
        'proj': tokens * held * 5 * 16,
    }
    found = {op.name: op.flops for op in program.op_classes}
    assert {name: found[f'layer1.{name}.F'] for name in wanted} == {name: 2.0 * n for name, n in wanted.items()}
    # Scores are as wide as keys (10), what they weigh as wide as values (5); half of the pairs are masked.
    pairs = 8 * held * V3.sequence**2 / 2
    assert found['layer1.attention.F'] == pytest.approx(2 * pairs * (10 + 5))
    assert found['layer1.attention.I'] == pytest.approx(2 * pairs * (3 * 10 + 2 * 5))


def test_attention_keeps_queries_keys_and_values_and_products_what_they_read():
    program = lower(workload(V3), Plan(), 1)
    size = {tensor.name: tensor.shape[-1] for tensor in program.tensors}
    assert size['layer1.qkv'] == 4 * (10 + 10 + 5)
    read_later = {name for op in program.op_classes if op.phase in 'IW' for name in op.reads}
    assert {'layer1.qkv', 'layer1.q_norm', 'layer1.kv_norm', 'layer1.q_down', 'layer1.kv_down'} <= read_later
    # A rotation is linear: what it turned need not be kept.
    assert not {'layer1.q_up', 'layer1.kv_up', 'layer1.k_rope'} & read_later


def test_the_price_of_attention_knows_both_widths():
    compute = DeviceCompute(load_profile('h100-sxm-8'))
    sizes = {'heads': 16, 'sequence': 4096, 'hidden': 2048, 'qk_nope_head_dim': 128, 'qk_rope_head_dim': 64}

    def seconds(phase, **changes):
        model = replace(V3, **sizes, **changes)
        program = lower(workload(model, precision='bf16'), Plan(), 1)
        return next(compute.seconds(op).seconds for op in program.op_classes if op.name == f'layer1.attention.{phase}')

    # Narrower values take less time, and more of what is left is the backward's: 3 of its 5 products are of keys.
    wide, narrow = ({phase: seconds(phase, v_head_dim=width) for phase in 'FI'} for width in (192, 128))
    assert all(narrow[phase] < wide[phase] for phase in 'FI')
    assert narrow['I'] / narrow['F'] == pytest.approx(wide['I'] / wide['F'] * (3 * 192 + 2 * 128) / 5 / 160)
