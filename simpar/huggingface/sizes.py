"""Sizes of known models, as keys of a ``transformer:``: by name, and by flavour for torchtitan.

Those of Llama, Qwen and GPT-2 are of their published configs (docs/models.md has their sources), GPT-3's of Brown et
al. 2020, table 2.1. DeepSeek-V3 and those of torchtitan's debug flavours are of torchtitan/models/*/__init__.py.
"""

from __future__ import annotations

from typing import Any, Final

Sizes = dict[str, Any]


def _llama(
    layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int = 128256, theta: float = 5e5
) -> Sizes:
    return {'layers': layers, 'hidden': hidden, 'heads': heads, 'kv_heads': kv_heads, 'ffn': ffn, 'vocab': vocab,
            'norm': 'rms_norm', 'activation': 'swiglu', 'bias': [], 'position': 'rotary',
            'rope_theta': theta}  # fmt: skip


def _qwen3(
    layers: int, hidden: int, heads: int, ffn: int, *, tied: bool = False, vocab: int = 151936, kv: int = 8
) -> Sizes:
    return {**_llama(layers, hidden, heads, kv, ffn, vocab, 1e6), 'head_dim': 128, 'qk_norm': True, 'tied': tied,
            'norm_epsilon': 1e-6}  # fmt: skip


def _gpt(layers: int, hidden: int, heads: int, vocab: int = 50257) -> Sizes:
    return {'layers': layers, 'hidden': hidden, 'heads': heads, 'vocab': vocab, 'tied': True}


def _deepseek(layers: int, hidden: int, heads: int, ffn_dense: int, vocab: int, q_lora: int, **experts: Any) -> Sizes:
    return {'layers': layers, 'hidden': hidden, 'heads': heads, 'ffn': ffn_dense, 'vocab': vocab, 'norm': 'rms_norm',
            'activation': 'swiglu', 'bias': [], 'position': 'rotary', 'rope_interleaved': True, 'q_lora_rank': q_lora,
            'kv_lora_rank': 512, 'qk_nope_head_dim': 128, 'qk_rope_head_dim': 64, 'v_head_dim': 128,
            'experts': experts}  # fmt: skip


SIZES: Final[dict[str, Sizes]] = {
    'gpt2': _gpt(12, 768, 12),
    'gpt2-medium': _gpt(24, 1024, 16),
    'gpt2-large': _gpt(36, 1280, 20),
    'gpt2-xl': _gpt(48, 1600, 25),
    'gpt3-1.3b': _gpt(24, 2048, 16),
    'gpt3-2.7b': _gpt(32, 2560, 32),
    'gpt3-6.7b': _gpt(32, 4096, 32),
    'gpt3-13b': _gpt(40, 5120, 40),
    'gpt3-175b': _gpt(96, 12288, 96),
    'llama2-7b': _llama(32, 4096, 32, 32, 11008, 32000, 1e4),
    'llama2-13b': _llama(40, 5120, 40, 40, 13824, 32000, 1e4),
    'llama2-70b': _llama(80, 8192, 64, 8, 28672, 32000, 1e4),
    'llama3-8b': _llama(32, 4096, 32, 8, 14336),
    'llama3-70b': _llama(80, 8192, 64, 8, 28672),
    'llama3-405b': _llama(126, 16384, 128, 8, 53248),
    'qwen3-0.6b': _qwen3(28, 1024, 16, 3072, tied=True),
    'qwen3-1.7b': _qwen3(28, 2048, 16, 6144, tied=True),
    'qwen3-4b': _qwen3(36, 2560, 32, 9728, tied=True),
    'qwen3-8b': _qwen3(36, 4096, 32, 12288),
    'qwen3-14b': _qwen3(40, 5120, 40, 17408),
    'qwen3-32b': _qwen3(64, 5120, 64, 25600),
}
"""Models without experts, by name."""
_QWEN_EXPERTS: Final = {'count': 128, 'top_k': 8}
FLAVOURS: Final[dict[str, dict[str, Sizes]]] = {
    'llama3': {
        'debugmodel': _llama(6, 256, 16, 16, 768, 2048),
        **{size.upper(): SIZES[f'llama3-{size}'] for size in ('8b', '70b', '405b')},
    },
    'llama2': {size.upper(): SIZES[f'llama2-{size}'] for size in ('7b', '13b', '70b')},
    'qwen3': {
        'debugmodel': _qwen3(8, 256, 16, 3072, tied=True, vocab=2048),
        **{size.upper(): SIZES[f'qwen3-{size}'] for size in ('0.6b', '1.7b', '4b', '8b', '14b', '32b')},
        'debugmodel_moe': {**_qwen3(8, 256, 16, 3072, vocab=2048), 'experts': {'count': 64, 'top_k': 8, 'ffn': 768}},
        '30B-A3B': {**_qwen3(48, 2048, 32, 6144, kv=4), 'experts': {**_QWEN_EXPERTS, 'ffn': 768}},
        '235B-A22B': {**_qwen3(94, 4096, 64, 12288, kv=4), 'experts': {**_QWEN_EXPERTS, 'ffn': 1536}},
    },
    'deepseek_v3': {
        'debugmodel': _deepseek(
            6, 256, 16, 1024, 2048, 0, count=8, top_k=3, ffn=256, shared=512, first_dense=1, normalise=False
        ),
        '16B': _deepseek(
            27, 2048, 16, 10944, 102400, 0, count=64, top_k=6, ffn=1408, shared=2816, first_dense=1, normalise=False
        ),
        '236B': _deepseek(
            60, 5120, 128, 12288, 102400, 1536, count=160, top_k=6, ffn=1536, shared=3072, first_dense=1,
            normalise=False, groups=8, group_top_k=3, group_scores=1, scaling_factor=16.0,
        ),
        '671B': _deepseek(
            61, 7168, 128, 18432, 129280, 1536, count=256, top_k=8, ffn=2048, shared=2048, first_dense=3,
            score='sigmoid', groups=8, group_top_k=4, scaling_factor=2.5, correction_bias=True,
        ),
    },
}  # fmt: skip
"""By torchtitan's ``model.name`` and ``model.flavor``."""
MODELS: Final[dict[str, Sizes]] = {
    **SIZES,
    'mixtral-8x7b': {**_llama(32, 4096, 32, 8, 14336, 32000, 1e6), 'experts': {'count': 8, 'top_k': 2}},
    'mixtral-8x22b': {**_llama(56, 6144, 48, 8, 16384, 32768, 1e6), 'experts': {'count': 8, 'top_k': 2}},
    'qwen3-30b-a3b': FLAVOURS['qwen3']['30B-A3B'],
    'qwen3-235b-a22b': FLAVOURS['qwen3']['235B-A22B'],
    'deepseek-v2': FLAVOURS['deepseek_v3']['236B'],
    'deepseek-v3': FLAVOURS['deepseek_v3']['671B'],
}
"""All that ``workload.model`` and ``simpar init`` know by name."""


def flavour(name: str, size: str) -> Sizes | None:
    """Sizes of a flavour; what stands behind ``_flex_attn`` and the like is the same model with another kernel."""
    of_name = FLAVOURS.get(name.removesuffix('_ft'), {})
    bare = size
    for tail in ('_flex_attn', '_varlen_attn', '_flex', '_varlen'):
        bare = bare.removesuffix(tail)
    return of_name.get(bare)
