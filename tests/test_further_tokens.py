"""Multi-token prediction: trained under plans as unsharded, counted as published, refused where it is not built."""

import json
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest
from every import some
from trains import ONCE, plans, trains

from simpar import Plan, load_schedule
from simpar.errors import Infeasible, ScheduleError
from simpar.lower import lower
from simpar.model.library.experts import Experts
from simpar.workload import AdamW, Transformer, Workload

PLAIN = Transformer(
    layers=3, hidden=16, heads=4, vocab=24, sequence=8, init_std=0.3, ffn=24, norm='rms_norm', activation='swiglu',
    bias=(), position='rotary', mtp_layers=1, mtp_loss=0.3,
)  # fmt: skip
MODELS = {
    'one': PLAIN,
    'two tied': replace(PLAIN, mtp_layers=2, tied=True, logit_softcap=3.0, embedding_scale=2.0),
    'dropped': replace(PLAIN, norm='layer_norm', dropout=0.1, bias=('qkv', 'proj', 'ffn'), logit_scale=0.5),
    'deepseek': replace(
        PLAIN, kv_lora_rank=10, q_lora_rank=12, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5, mtp_layers=2,
        experts=Experts(count=4, top_k=2, ffn=8, first_dense=1, shared=8, score='sigmoid', correction_bias=True),
    ),
}  # fmt: skip
ONE_STAGE = plans(__file__, 'ONE_STAGE')


def workload(model, **more):
    return Workload(model=model, batch=8, **{'optimizer': AdamW(learning_rate=0.01), **more})


@pytest.mark.parametrize(
    ('model', 'plan'),
    [
        ('one', 'one rank'), ('two tied', 'sharded'), ('two tied', 'context'), ('dropped', 'copies'),
        ('dropped', 'sharded'), ('deepseek', 'sharded'), ('deepseek', 'one rank'),
    ],
)  # fmt: skip
def test_it_trains_as_the_unsharded_model(model, plan):
    trains(workload(MODELS[model]), *ONE_STAGE[plan], steps=ONCE)


STAGES = {
    # The module is the last stage's, or stands where a plan lays it: alone, before the stage of the loss.
    'last': (PLAIN, Plan(pipeline=2, tensor=2, sequence_parallel=True, zero=1, micro_batches=4), 4),
    'by itself': (PLAIN, Plan(pipeline=4, stages=(2, 1, 1, 0), micro_batches=4), 4),
    'with its loss': (PLAIN, Plan(pipeline=3, stages=(2, 1, 1), micro_batches=4), 3),
    'chunks': (MODELS['two tied'], Plan(pipeline=2, chunks=2, order='interleaved-1f1b', micro_batches=4), 2),
    'a V': (MODELS['deepseek'], Plan(pipeline=2, chunks=2, order='zb-v', micro_batches=4), 2),
    'both ways': (MODELS['two tied'], Plan(pipeline=2, order='dualpipe', micro_batches=4, recompute='full'), 2),
}


@pytest.mark.parametrize('stages', some(STAGES, 2))
def test_a_pipeline_trains_it_as_the_unsharded_model(stages):
    model, plan, ranks = STAGES[stages]
    trains(workload(model), plan, ranks, steps=ONCE)


def test_a_plan_that_counts_a_module_lays_it_where_it_says():
    """Embedding of the module with it, the model's norm with its last layer, both heads with the loss."""
    from simpar.lower.graph.stages import stages_of

    names = [node.name for node in PLAIN.nodes]
    placed = dict(zip(names, stages_of(PLAIN, 4, (2, 1, 1, 0)), strict=True))
    asked = ('layer1.proj', 'norm', 'layer3.embedding', 'layer3.proj', 'layer3.final_norm', 'head.mtp1', 'head')
    assert [placed[name] for name in asked] == [0, 1, 2, 2, 2, 3, 3]
    placed = dict(zip(names, stages_of(PLAIN, 4, (2, 1, 0, 0)), strict=True))
    assert [placed[name] for name in asked] == [0, 3, 3, 3, 3, 3, 3]


def test_a_module_sees_as_many_tokens_more_as_it_predicts_further():
    """Changing one token changes no logit of depth d before the place that is d before it, and that one it does."""
    import torch

    from executor.draws import draw
    from executor.reference.gpt import REFERENCE_OF_GPT, _transformer
    from executor.reference.network import Slices

    model = replace(PLAIN, mtp_layers=2)
    weights = {
        name: draw(initial, shape, torch.float64, 0, name)
        for name, shape, initial in REFERENCE_OF_GPT.parameters(workload(model))
    }
    tokens = torch.arange(model.sequence).unsqueeze(0)
    other = tokens.clone()
    other[0, 5] = 20
    of_depth = [_transformer(model, weights, one, torch.zeros(1), Slices(1, 0))[0] for one in (tokens, other)]
    for depth, (before, after) in enumerate(zip(*of_depth, strict=True)):
        changed = (before != after).any(-1)[0].tolist()
        assert changed[: 5 - depth] == [False] * (5 - depth)
        assert changed[5 - depth]


def test_deepseek_v3_has_as_many_numbers_as_its_published_files():
    """3,918,786,560 in bf16 and 680,571,043,840 in 8 bits, as Hugging Face counts; embedding and head are there twice.

    What is in fp32 are scales of 8 bits, and the biases that choose experts.
    """
    config = Path(__file__).parent / 'configs' / 'deepseek_v3.json'
    said = json.loads(config.read_text())
    counts = [
        load_schedule(
            {'simpar': 1, 'cluster': 'h100-sxm-8',
             'workload': {'model': str(config), 'sequence': 512, 'batch': 8, 'mtp_layers': modules}}
        ).workload.model.graph(8).parameters
        for modules in (0, 1)
    ]  # fmt: skip
    table = said['vocab_size'] * said['hidden_size']
    assert counts[0] == 671_026_404_352
    assert counts[1] + 2 * table == 3_918_786_560 + 680_571_043_840


def test_the_program_holds_each_weight_once():
    """What modules add, by hand: two norms, a product from two widths, a layer, a norm."""
    held = [
        sum(prod(tensor.shape) for tensor in lower(workload(model), Plan(tensor=2), 2).tensors
            if tensor.kind == 'parameter')
        for model in (PLAIN, replace(PLAIN, mtp_layers=0, mtp_loss=0.1))
    ]  # fmt: skip
    layer = 2 * 16 + 4 * 16 * 16 + 3 * 16 * 24
    assert held[0] - held[1] == 3 * 16 + 2 * 16 * 16 + layer


REFUSED = {
    'position: learned': 'not yet: multi-token prediction with learned positions',
    'position: rotary, documents: 4': 'not yet: multi-token prediction beside documents',
    'position: rotary, bias: [head]': 'not yet: multi-token prediction beside a head in bias',
}


@pytest.mark.parametrize('keys', REFUSED)
def test_what_is_not_built_is_refused_by_name(keys, put):
    path = put(
        'plan.yaml',
        'simpar: 1\ncluster: h100-sxm-8\nworkload:\n  transformer: {layers: 2, hidden: 16, heads: 4, vocab: 24, '
        f'sequence: 8, mtp_layers: 1, {keys}}}\n  batch: 8\nplan: {{data: 8}}\n',
    )
    with pytest.raises(ScheduleError, match=REFUSED[keys]):
        load_schedule(path)


def test_strategies_beside_it_are_refused():
    with pytest.raises(Infeasible, match='mtp_layers: not yet beside strategies'):
        lower(workload(PLAIN), Plan(strategies={'layer0.fc1': ((2, 1, 1), (1, 1))}), 2)


def test_chunks_of_a_sequence_are_refused():
    plan = Plan(pipeline=2, order='mindspore-2.10/seqpipe', sequence_chunks=2, micro_batches=4)
    with pytest.raises(Infeasible, match='mtp_layers: not built beside sequence_chunks'):
        lower(workload(PLAIN), plan, 2)


def test_tokens_of_a_step_are_counted_once(put):
    """The tokens further on are those of the sample, not more of them."""
    from simpar import load_case

    told = []
    for modules in (0, 2):
        path = put(
            f'{modules}.yaml',
            'simpar: 1\ncluster: h100-sxm-8\nworkload:\n  transformer: {layers: 2, hidden: 16, heads: 4, vocab: 24, '
            f'sequence: 8, position: rotary, mtp_layers: {modules}}}\n  batch: 8\nplan: {{data: 8}}\n',
        )
        told.append(load_case(path).throughput.tokens)
    assert told == [64, 64]
