"""Packed documents: a sample of several computes what each computes alone, and costs what each costs alone."""

from dataclasses import replace

import pytest
from trains import ONCE

from simpar import Plan, load_profile
from simpar.cost.compute import DeviceCompute
from simpar.lower import lower
from simpar.workload import AdamW, Transformer, Workload

SIZES = {'layers': 2, 'hidden': 16, 'heads': 4, 'vocab': 24, 'sequence': 12, 'init_std': 0.3, 'ffn': 24}
LLAMA = Transformer(
    **SIZES, kv_heads=2, norm='rms_norm', activation='swiglu', bias=(), position='rotary', rope_theta=50.0
)
GPT = Transformer(**SIZES)
MODELS = {
    'llama': replace(LLAMA, documents=(5, 3, 4)),
    'gpt': replace(GPT, documents=5, dropout=0.1),
    'window, unfused': replace(LLAMA, documents=(2, 7, 3), window=3, attention='unfused'),
    'latent': replace(
        LLAMA, kv_heads=0, documents=(6, 6), kv_lora_rank=10, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5
    ),
}
PLANS = {
    'split': (Plan(tensor=2, sequence_parallel=True, copies=2, pipeline=2, micro_batches=2, recompute='full'), 4),
    'zero': (Plan(data=2, tensor=2, zero=3, recompute='selective', sequence_parallel=True), 4),
}


def workload(model, **more):
    return Workload(model=model, batch=8, **{'optimizer': AdamW(learning_rate=0.01), **more})


@pytest.mark.parametrize(
    ('model', 'plan'), [('llama', 'zero'), ('gpt', 'split'), ('window, unfused', 'split'), ('latent', 'zero')]
)
def test_it_trains_as_the_unsharded_model(model, plan):
    from executor.numerics import check
    from executor.validate import validate

    chosen, ranks = PLANS[plan]
    program = lower(workload(MODELS[model]), chosen, ranks)
    validate(program)
    check(program, workload(MODELS[model]), chosen, steps=ONCE)


@pytest.mark.parametrize('kind', ['llama', 'gpt2'])
def test_losses_and_gradients_are_those_of_transformers_on_each_document_alone(kind, tmp_path):
    pytest.importorskip('transformers', reason='needs the extra test')
    from huggingface_cases import TINY
    from huggingface_oracle import TOLERANCE, Oracle

    oracle = Oracle(kind, TINY[kind], tmp_path, documents=(3, 1, 4))
    for plan, ranks in PLANS.values():
        assert oracle.compared(plan, ranks) <= TOLERANCE


def attention(model, batch=8, phase='F'):
    program = lower(Workload(model=model, batch=batch, precision='bf16'), Plan(), 1)
    return next(op for op in program.op_classes if op.name == f'layer1.attention.{phase}')


@pytest.mark.parametrize('window', [0, 4])
def test_work_is_that_of_the_documents_alone(window):
    whole = replace(LLAMA, sequence=30, window=window)
    alone = sum(attention(replace(whole, sequence=length)).flops for length in (16, 4, 10))
    assert attention(replace(whole, documents=(16, 4, 10))).flops == pytest.approx(alone, rel=1e-12)
    assert attention(replace(whole, documents=(30,))) == attention(whole)
    assert attention(replace(whole, documents=10)) == attention(replace(whole, documents=(10, 10, 10)))


@pytest.mark.parametrize('profile', ['h100-sxm-8', 'ascend910b-8'])
def test_a_sample_of_equal_documents_takes_as_long_as_that_many_samples(profile):
    compute = DeviceCompute(load_profile(profile))
    model = replace(LLAMA, hidden=2048, heads=16, kv_heads=16, sequence=8192)
    whole, short = attention(replace(model, documents=2048), 2), attention(replace(model, sequence=2048), 8)
    assert compute.seconds(whole).seconds == pytest.approx(compute.seconds(short).seconds, rel=1e-9)
    assert compute.seconds(whole).seconds < compute.seconds(attention(model, 2)).seconds / 2
    # Of unequal ones the long one decides: its share of the work is more than that of its tokens.
    uneven = attention(replace(model, documents=(6144, *(512,) * 4)), 2)
    seconds = {name: compute.seconds(op).seconds for name, op in (('whole', whole), ('uneven', uneven))}
    assert seconds['whole'] < seconds['uneven'] < compute.seconds(attention(model, 2)).seconds
    assert compute.seconds(uneven).grade == 'estimate'
