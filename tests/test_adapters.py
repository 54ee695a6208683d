"""Adapters of a low rank: they alone are trained, have gradients and states, and are summed."""

from dataclasses import replace
from pathlib import Path

import pytest
from every import some
from trains import ONCE, plans, trains

from executor.inprocess import InProcess
from executor.numerics import check
from simpar.errors import Infeasible, ScheduleError
from simpar.importing.read import imported
from simpar.lower import lower
from simpar.memory import memory, sequential
from simpar.model.library.gpt import Lora
from simpar.plans import Plan
from simpar.workload import Adam, AdamW, Transformer, Workload

MODEL = Transformer(
    layers=4, hidden=16, heads=4, kv_heads=2, vocab=32, sequence=8, ffn=32, activation='swiglu', norm='rms_norm',
    position='rotary', bias=(), lora=Lora(rank=2, scale=2.0),
)  # fmt: skip
TRAINING = Workload(model=MODEL, batch=8, precision='fp32', optimizer=Adam(learning_rate=1e-2))
PLANS = plans(__file__, 'PLANS')


@pytest.mark.parametrize(('plan', 'world'), some(PLANS.values(), 2), ids=some(PLANS, 2))
def test_adapters_train_as_autograd_trains_them(plan: Plan, world: int) -> None:
    trains(TRAINING, plan, world, steps=ONCE)


def test_a_model_with_biases_and_dropout_keeps_all_but_its_adapters() -> None:
    model = replace(MODEL, bias=('qkv', 'proj', 'ffn', 'head'), norm='layer_norm', position='learned', dropout=0.1,
                    tied=True, lora=Lora(rank=3, of=('qkv', 'fc2')))  # fmt: skip
    training = replace(TRAINING, model=model, clip_norm=0.1)
    program = lower(training, Plan(tensor=2, data=2), 4)
    check(program, training, Plan(tensor=2, data=2))
    machine = InProcess(program, seed=1)
    begun = {name: tensor.clone() for name, tensor in machine.run(1).parameters.items()}
    ended = machine.run(2).parameters
    moved = {name.rpartition('.')[0] for name, tensor in ended.items() if not bool((tensor == begun[name]).all())}
    names = ('qkv.lora_a', 'qkv.lora_b', 'fc2.lora_a', 'fc2.lora_b')
    assert moved == {f'layer{layer}.{name}' for layer in range(4) for name in names}


def test_frozen_weights_have_no_gradient_no_state_and_no_message() -> None:
    masters = replace(TRAINING, precision='bf16', optimizer=AdamW(learning_rate=1e-2, master_weights=True))
    models = (MODEL, replace(MODEL, lora=None))
    adapted, full = (lower(replace(masters, model=model), Plan(data=2), 2) for model in models)
    trained = {tensor.like for tensor in adapted.tensors if tensor.kind == 'gradient'}
    # Four products of four layers, each with two weights.
    assert len(trained) == 32
    assert all('.lora_' in name for name in trained)
    sums = [sum(op.bytes for op in program.op_classes if op.operator == 'all_reduce') for program in (adapted, full)]
    assert sums[0] < sums[1] / 2
    ours, theirs = (memory(sequential(program)).fullest.peak_kinds for program in (adapted, full))
    assert ours['state'] < theirs['state'] / 2
    assert ours['parameter'] > theirs['parameter']


@pytest.mark.parametrize(
    ('training', 'plan', 'what'),
    [(TRAINING, Plan(data=2, zero=3), 'plan.zero'), (replace(TRAINING, fp8='hybrid'), Plan(data=2), 'workload.fp8')],
)
def test_what_is_not_modelled_beside_adapters_is_refused_by_name(training: Workload, plan: Plan, what: str) -> None:
    with pytest.raises(Infeasible, match=what):
        lower(training, plan, 2)


def test_a_search_says_that_it_does_not_know_adapters(tmp_path: Path, refused) -> None:
    (tmp_path / 'a.yaml').write_text(
        'simpar: 1\ncluster: {profile: h100-sxm-8}\nworkload:\n  transformer: {layers: 4, hidden: 64, heads: 4, '
        'vocab: 64, sequence: 32, lora: {rank: 2}}\n  batch: 8\nplan: {}\nplanner: {keys: {plan.tensor: [1, 2]}}\n',
        encoding='utf-8',
    )
    assert 'a.yaml:4: workload.transformer.lora: not yet in a search' in refused('plan', tmp_path / 'a.yaml')


SCRIPT = (
    'torchrun --nproc_per_node 8 posttrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 '
    '--ffn-hidden-size 11008 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 '
    '--global-batch-size 64 --bf16 --vocab-size 32000 --hidden-dropout 0 --attention-dropout 0 --swiglu '
    '--use-rotary-position-embeddings --normalization RMSNorm --disable-bias-linear --use-flash-attn --stage sft '
    '--untie-embeddings-and-output-weights --lora-fusion --lora-r 8 --lora-alpha 16 --no-pad-to-seq-lengths '
)


def test_a_script_of_mindspeed_with_adapters_comes_in_whole(tmp_path: Path) -> None:
    script = tmp_path / 'a.sh'
    of = 'linear_qkv linear_proj linear_fc1 linear_fc2'
    script.write_text(f'{SCRIPT} --lora-target-modules {of}\n', encoding='utf-8')
    made = imported(script, given={})
    lora = {key.rpartition('.')[2]: value for key, value in made.values.items() if '.lora.' in key}
    assert lora == {'rank': 8, 'scale': 2.0, 'of': ['qkv', 'proj', 'fc1', 'fc2']}
    assert 'gaps' not in made.values
    assert any('seq-length' in what for what in made.assumed)


@pytest.mark.parametrize('more', ['linear_qb', 'linear_fc1 --num-experts 8'])
def test_adapters_that_are_not_modelled_are_refused_by_name(put, more: str) -> None:
    script = put('a.sh', f'{SCRIPT} --lora-target-modules {more}\n')
    with pytest.raises(ScheduleError, match='not modelled: adapters of'):
        imported(script, given={})
