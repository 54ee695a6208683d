"""Families that are others by another name, texts of larger models, checkpoints of 8 bits: counts of weights."""

import json

import pytest

from simpar.errors import ScheduleError
from simpar.schedule import load_schedule


def read(config, tmp_path, **beside):
    path = tmp_path / 'config.json'
    path.write_text(json.dumps(config))
    work = {'model': str(path), 'sequence': 16, 'batch': 8, **beside}
    return load_schedule({'simpar': 1, 'cluster': 'h100-sxm-8', 'workload': work, 'plan': {'data': 8}})


def sizes(vocab, hidden, ffn, layers, heads, kv_heads, **more):
    return {
        'vocab_size': vocab, 'hidden_size': hidden, 'intermediate_size': ffn, 'num_hidden_layers': layers,
        'num_attention_heads': heads, 'num_key_value_heads': kv_heads, **more,
    }  # fmt: skip


QWEN3_32B = sizes(151936, 5120, 25600, 64, 64, 8, head_dim=128)
PUBLISHED = {
    '01-ai/Yi-34B': (34_388_917_248, {'model_type': 'Yi', **sizes(64000, 7168, 20480, 60, 56, 8)}),
    'internlm/internlm2-7b': (
        7_737_708_544, {'model_type': 'internlm2', 'bias': False, **sizes(92544, 4096, 14336, 32, 32, 8)}
    ),
    'facebook/opt-6.7b': (
        6_658_473_984,
        {'model_type': 'opt', 'vocab_size': 50272, 'hidden_size': 4096, 'ffn_dim': 16384, 'num_hidden_layers': 32,
         'num_attention_heads': 32, 'word_embed_proj_dim': 4096},
    ),
    'nvidia/Nemotron-4-15B': (15_628_775_424, {'model_type': 'nemotron', **sizes(256000, 6144, 24576, 32, 48, 8)}),
    'THUDM/GLM-4-9B-0414': (
        9_400_279_040, {'model_type': 'glm4', 'attention_bias': True, **sizes(151552, 4096, 13696, 40, 32, 2)}
    ),
    'bigcode/starcoder2-7b': (7_173_923_840, {'model_type': 'starcoder2', **sizes(49152, 4608, 18432, 32, 36, 4)}),
    'Qwen/Qwen3-32B-FP8': (
        32_762_123_264, {'model_type': 'qwen3', 'quantization_config': {'quant_method': 'fp8'}, **QWEN3_32B}
    ),
    'tiiuae/falcon-7b': (
        6_921_720_704, {'model_type': 'falcon', 'vocab_size': 65024, 'hidden_size': 4544, 'num_hidden_layers': 32,
                        'num_attention_heads': 71, 'multi_query': True, 'parallel_attn': True},
    ),
    'EleutherAI/pythia-6.9b': (
        6_857_302_016, {'model_type': 'gpt_neox', 'rotary_pct': 0.25, 'vocab_size': 50432, 'hidden_size': 4096,
                        'intermediate_size': 16384, 'num_hidden_layers': 32, 'num_attention_heads': 32},
    ),
    'allenai/OLMo-2-1124-7B': (7_298_617_344, {'model_type': 'olmo2', **sizes(100352, 4096, 11008, 32, 32, 32)}),
    'CohereForAI/c4ai-command-r-v01': (
        34_980_831_232, {'model_type': 'cohere', **sizes(256000, 8192, 22528, 40, 64, 64)}
    ),
    'baichuan-inc/Baichuan2-7B-Base': (
        7_505_973_248, {'model_type': 'baichuan', 'max_position_embeddings': 4096, 'vocab_size': 125696,
                        'hidden_size': 4096, 'intermediate_size': 11008, 'num_hidden_layers': 32,
                        'num_attention_heads': 32},
    ),
    'bigscience/bloom': (
        176_247_271_424, {'model_type': 'bloom', 'n_embed': 14336, 'n_layer': 70, 'n_head': 112, 'vocab_size': 250880},
    ),
    'the texts of a model of pictures': (
        32_762_123_264, {'model_type': 'qwen3_vl', 'text_config': {'model_type': 'qwen3_vl_text', **QWEN3_32B}}
    ),
}  # fmt: skip
"""Counts of parameters as the models' safetensors have them."""


@pytest.mark.parametrize('name', PUBLISHED)
def test_a_config_of_another_name_has_the_published_parameters(name, tmp_path):
    count, config = PUBLISHED[name]
    assert read(config, tmp_path).workload.model.graph(8).parameters == count


SMALL = sizes(128, 64, 96, 2, 4, 2, head_dim=16)
SQUARE = sizes(128, 64, 96, 2, 4, 2)
EXPERTS = {
    **SMALL, 'n_routed_experts': 4, 'num_experts_per_tok': 2, 'n_shared_experts': 1, 'moe_intermediate_size': 32,
    'first_k_dense_replace': 1, 'num_nextn_predict_layers': 0,
}  # fmt: skip
PLAIN = {key: value for key, value in SQUARE.items() if key != 'num_key_value_heads'}
FEW = {**SQUARE, 'num_experts': 4, 'num_experts_per_tok': 2}
LATENT = {
    **PLAIN, 'num_key_value_heads': 4, 'kv_lora_rank': 16, 'q_lora_rank': 24, 'qk_nope_head_dim': 16,
    'qk_rope_head_dim': 8, 'v_head_dim': 16,
}  # fmt: skip
FAMILIES = {
    'seed_oss': SMALL, 'ernie4_5': SMALL, 'helium': SMALL, 'glm': SMALL, 'glm4': SMALL, 'nemotron': SMALL,
    'arcee': SQUARE, 'internlm3': SQUARE, 'smollm3': SQUARE, 'stablelm': SQUARE, 'starcoder2': SQUARE,
    'granite': SQUARE, 'iquestcoder': SMALL, 'jais2': SMALL, 'gemma3_text': SMALL, 'vaultgemma': SMALL,
    'hyperclovax': SMALL, 'hunyuan_v1_dense': SMALL, 'ministral': SMALL, 'olmo2': SQUARE, 'olmo3': SQUARE,
    'cohere': SQUARE, 'gpt_neox': PLAIN, 'cwm': SMALL, 'minicpm3': LATENT, 'youtu': LATENT,
    'olmoe': FEW, 'flex_olmo': FEW, 'minimax_m2': {**FEW, 'num_local_experts': 4, 'head_dim': 16},
    'phimoe': {**FEW, 'num_local_experts': 4, 'attention_bias': True, 'lm_head_bias': True},
    'granitemoe': {**FEW, 'num_local_experts': 4},
    'granitemoeshared': {**FEW, 'num_local_experts': 4, 'shared_intermediate_size': 48},
    'ernie4_5_moe': {**SQUARE, 'moe_num_experts': 4, 'moe_k': 2, 'moe_intermediate_size': 32, 'moe_layer_end_index': 1},
    'solar_open': {**EXPERTS, 'first_k_dense_replace': 0},
    'glm4_moe_lite': {**LATENT, **FEW, 'num_key_value_heads': 4, 'n_routed_experts': 4, 'moe_intermediate_size': 32,
                      'mlp_layer_types': ['dense', 'sparse']},
    'falcon': PLAIN, 'biogpt': PLAIN, 'bloom': {'n_layer': 2, 'hidden_size': 64, 'n_head': 4, 'vocab_size': 128},
    'mpt': {'n_layers': 2, 'd_model': 64, 'n_heads': 4, 'vocab_size': 128},
    'gptj': {'n_layer': 2, 'n_embd': 64, 'n_head': 4, 'vocab_size': 128, 'rotary_dim': 8},
    'codegen': {'n_layer': 2, 'n_embd': 64, 'n_head': 4, 'vocab_size': 128, 'rotary_dim': 8},
    'gpt_neo': {'num_layers': 2, 'hidden_size': 64, 'num_heads': 4, 'vocab_size': 128,
                'attention_types': [[['global', 'local'], 1]]},
    'dots1': EXPERTS, 'glm4_moe': {**EXPERTS, 'use_qk_norm': True},
    'gpt_bigcode': {'n_layer': 2, 'n_embd': 64, 'n_head': 4, 'vocab_size': 128},
    'opt': {'num_hidden_layers': 2, 'hidden_size': 64, 'ffn_dim': 96, 'num_attention_heads': 4, 'vocab_size': 128,
            'word_embed_proj_dim': 64},
}  # fmt: skip


@pytest.mark.parametrize('kind', FAMILIES)
def test_transformers_counts_the_same_of_a_small_one(kind, tmp_path):
    import torch

    transformers = pytest.importorskip('transformers', reason='needs the extra test')
    tokens = {'pad_token_id': None, 'bos_token_id': 1, 'eos_token_id': 2}
    config = transformers.AutoConfig.for_model(kind, **FAMILIES[kind], **tokens)
    with torch.device('meta'):
        model = transformers.AutoModelForCausalLM.from_config(config)
    told = {**json.loads(json.dumps(config.to_dict(), default=str)), 'model_type': kind}
    told.pop('architectures', None)
    counted = read(told, tmp_path).workload.model.graph(8).parameters
    # A bias that chooses experts is a parameter there at times, and is not trained.
    assert counted == sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def test_yarn_may_have_no_ramp(tmp_path):
    scaling = {
        'type': 'yarn', 'factor': 32.0, 'original_max_position_embeddings': 4096, 'beta_fast': 1.0, 'beta_slow': 1.0,
    }  # fmt: skip
    model = read({'model_type': 'llama', 'rope_scaling': scaling, **SQUARE}, tmp_path).workload.model
    assert model.rope_scaling[2:4] == (1.0, 1.0)


@pytest.mark.parametrize(
    ('config', 'told'),
    [
        ({'model_type': 'cohere2'}, 'some have no positions.*--module'),
        ({'model_type': 'gpt_oss'}, 'biases of experts.*--module'),
        ({'model_type': 'qwen3_next'}, 'linear attention.*--module'),
        ({'model_type': 'internlm2', 'bias': True, **SQUARE}, 'bias: not modelled'),
        ({'model_type': 'opt', 'word_embed_proj_dim': 32, **SQUARE}, 'words of another width'),
        (
            {
                'model_type': 'mpt',
                'd_model': 64,
                'n_layers': 2,
                'n_heads': 4,
                'vocab_size': 128,
                'attn_config': {'clip_qkv': 8},
            },
            'clip_qkv 8',
        ),
        ({'model_type': 'gemma3n', 'text_config': {'model_type': 'gemma3n_text'}}, 'gemma3n_text.*--module'),
    ],
)
def test_what_is_not_modelled_is_refused_with_a_way_on(config, told, tmp_path):
    with pytest.raises(ScheduleError, match=told):
        read(config, tmp_path)
