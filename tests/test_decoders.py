"""Decoders of today as graphs: every part trained under plans, wrong parts found, windows and gates priced."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
from every import some
from tables import load_table
from trains import ONCE, plans, trains

from simpar import Plan, case_of, cluster, load_profile, load_schedule
from simpar.cost.compute import DeviceCompute
from simpar.lower import lower
from simpar.model.library.gpt import LongRope
from simpar.model.model import Asked
from simpar.resolve import find_strategies
from simpar.workload import AdamW, Muon, Transformer, Workload

EXAMPLE = Path(__file__).parent.parent / 'examples' / 'llama3_8b_h100.yaml'
SIZES = {'layers': 3, 'hidden': 16, 'heads': 4, 'kv_heads': 2, 'vocab': 24, 'sequence': 8, 'init_std': 0.3}
LLAMA = Transformer(**SIZES, norm='rms_norm', activation='swiglu', bias=(), position='rotary', ffn=24)
LONG = LongRope(short=(1.0, 2.0), long=(2.0, 3.0), original=4)
MODELS = {
    'qwen': replace(LLAMA, qk_norm=True, head_dim=8, tied=True, bias=('qkv',), rope_scaling=(2.0, 3.0)),
    'scaled': replace(LLAMA, window=3, rope_scaling=(4.0, 1.0, 4.0, 16.0), rope_theta=50.0, norm='layer_norm'),
    'gemma': replace(
        LLAMA, window=(3, 0), activation='geglu_tanh', attention_softcap=2.0, logit_softcap=3.0, embedding_scale=4.0,
        post_norms=True, attention_scale=0.3, tied=True, dropout=0.1, bias=('proj', 'ffn'),
    ),
    'unfused': replace(
        LLAMA, window=(3, 0), activation='geglu', attention_softcap=2.0, attention='unfused', attention_scale=0.3,
        pad_vocab=16,
    ),
    'phi': Transformer(
        **{**SIZES, 'kv_heads': 0}, parallel=True, position='rotary', rotary_share=0.5, activation='gelu_tanh',
        bias=('qkv', 'proj', 'ffn', 'head'), pad_vocab=64, norm_epsilon=1e-2, positions=0,
        longrope=LongRope(short=(1.5,), long=(3.0,), original=7, magnitude=1.2),
    ),
    'gpt': Transformer(**SIZES, positions=12, activation='squared_relu', bias=('qkv',), rope_scaling=(2.0,)),
    'bloom': replace(
        LLAMA, heads=6, kv_heads=0, hidden=24, position='alibi', embedding_norm=True, norm='layer_norm',
        bias=('qkv', 'proj', 'ffn'), activation='gelu_tanh', attention='unfused', dropout=0.1,
    ),
    'mpt': replace(LLAMA, position='alibi', norm='layer_norm', norm_bias=False, activation='gelu', window=(3, 0)),
    'neox': replace(LLAMA, parallel=True, parallel_norms=True, norm='layer_norm', bias=('qkv', 'proj', 'ffn')),
    'olmo': replace(LLAMA, pre_norms=False, post_norms=True, window=(3, 0), window_theta=50.0, rope_scaling=(2.0,)),
    'granite': replace(LLAMA, residual_scale=0.3, logit_scale=0.5, embedding_scale=3.0, bias=('proj', 'ffn')),
    'bare': Transformer(**SIZES, position='none', activation='silu', bias=()),
    'sinks': replace(LLAMA, sinks='learned', window=(3, 0), bias=('qkv', 'proj'), dropout=0.1),
    'off by one': replace(LLAMA, sinks='zero'),
}  # fmt: skip
PLANS = plans(__file__, 'PLANS')

CASES = [*((model, plan) for model in MODELS for plan in ('split', 'late')), ('qwen', 'tiles'), ('unfused', 'tiles')]
MODELS['whole'] = replace(LLAMA, qk_norm='whole', pre_norms=False, post_norms=True)
CASES += [('whole', 'alone'), ('whole', 'around')]
"""A pattern of recompute that names no operator is refused: those of the last plan name rotary and a gate."""


def workload(model, **more):
    return Workload(model=model, batch=8, **{'optimizer': AdamW(learning_rate=0.01), **more})


@pytest.mark.parametrize(('model', 'plan'), some(CASES))
def test_a_decoder_trains_as_the_unsharded_model(model, plan):
    chosen, ranks = PLANS[plan]
    # Muon sees queries, keys and values as one matrix, with a bias and without.
    case = workload(MODELS[model], **({'optimizer': Muon()} if plan == 'late' else {}))
    trains(case, chosen, ranks, steps=ONCE)


@pytest.mark.parametrize('strategies', load_table(__file__, 'test_parts_of_heads_are_split_by_sequence_and_by_groups'))
def test_parts_of_heads_are_split_by_sequence_and_by_groups(strategies):
    from executor.numerics import check

    chosen, plan = workload(MODELS['qwen']), Plan(strategies=strategies)
    program = lower(chosen, plan, 4)
    assert any(op.operator == 'rotary' and 'partition' in op.attributes for op in program.op_classes)
    check(program, chosen, plan, steps=ONCE)


@pytest.mark.parametrize('search', ['double-recursive', 'sharding-propagation', 'exact'])
@pytest.mark.parametrize('model', some(['qwen', 'gemma', 'phi'], 2))
def test_a_searched_decoder_trains_as_the_unsharded_one(model, search):
    chosen = workload(replace(MODELS[model], layers=1))
    given = {'layer0.fc1': ((2, 1, 1), (1, 2))} if search == 'sharding-propagation' else {}
    hardware = cluster(load_profile('h100-sxm-8'), devices=4)
    found = find_strategies(chosen, Plan(search=search, strategies=given), hardware)
    assert {'layer0.rotary', 'layer0.fc1', 'norm'} <= found.origins.keys()
    trains(found.workload, found.plan, 4, steps=ONCE)


@pytest.mark.parametrize(
    ('changes', 'told'),
    [
        ({'parallel': True, 'post_norms': True}, 'a parallel layer has norms before its halves alone'),
        ({'rotary_share': 0.75, 'head_dim': 4}, '3 features of a head cannot be turned in pairs'),
        ({'rotary_share': 0.1}, '0.1 of 4 features is none'),
        ({'rope_scaling': (2.0, 1.0, 2.0)}, '3 numbers, or a zero among them'),
        ({'rope_scaling': (2.0, 0.0)}, '2 numbers, or a zero among them'),
        ({'rope_scaling': (2.0, 4.0, 1.0, 8.0)}, 'low 4 is not below high 1'),
        ({'longrope': LONG, 'rope_scaling': (2.0,)}, 'frequencies are scaled by rope_scaling, too'),
        ({'longrope': LONG, 'position': 'none'}, 'position is none'),
        ({'longrope': replace(LONG, short=(1.0,))}, '1 factors for 2 pairs of features'),
        ({'position': 'learned', 'positions': 4}, '8 tokens, but only 4 positions'),
    ],
)
def test_parts_that_do_not_fit_are_told(changes, told):
    asked = Asked(loss='cross-entropy', data='random', batch=8, slices=1, tensor=1, sequence_parallel=False)
    problems = list(replace(LLAMA, **changes).problems(asked))
    assert [problem.what for problem in problems] == [told]


def attention(window, sequence=4096, **more):
    """The forward of attention, and its price on an H100."""
    model = Transformer(layers=1, hidden=4096, heads=32, kv_heads=8, vocab=64, sequence=sequence, window=window, **more)
    program = lower(Workload(model=model, batch=1, precision='bf16'), Plan(), 1)
    (op,) = (op for op in program.op_classes if op.name == 'layer0.attention.F')
    return op, DeviceCompute(load_profile('h100-sxm-8')).seconds(op)


def test_a_window_costs_the_pairs_that_it_sees():
    whole, full = attention(0)
    for window in (64, 1024, 4095):
        op, cost = attention(window)
        # Counted one by one: token t sees min(t + 1, w) tokens; a continuous triangle stands for the steps.
        pairs = sum(min(token + 1, window) for token in range(4096)) / sum(range(1, 4097))
        assert op.flops / whole.flops == pytest.approx(pairs, rel=0.01)
        assert cost.seconds < full.seconds
    assert attention(4096)[0] == whole
    assert attention(9999)[0] == whole
    assert attention(1024)[1].grade == 'estimate'


def test_llama_3_8b_on_64_h100():
    begin = time.process_time()
    case = case_of(load_schedule(EXAMPLE))
    assert case.predict().gain is not None
    assert time.process_time() - begin < 3
    assert case.parameters == 8_030_261_248
    # Of a step, for each token and weight of a product 6 operations; embedding and norms are no products.
    tokens, weights = 128 * 8192, 8_030_261_248 - 128256 * 4096 - (2 * 32 + 1) * 4096
    program = case.program
    role = program.role(0)
    ops = (program.op(role, slot) for slot in range(len(role)))
    assert sum(op.flops for op in ops if op.operator == 'matmul') == 6 * tokens * weights / 64
