"""Multi-head latent attention of a ``transformer:`` (DeepSeek-V2, 2024): its operators, and whether its keys fit.

As Megatron-LM splits it: the products down to latents are on every tensor rank, with sequence parallelism each for its
own tokens; those up to heads are split by heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from simpar.errors import Problem
from simpar.model.operators.attention import Heads
from simpar.model.operators.base import Operator
from simpar.model.operators.latent import LastFeatures, LatentNorm, LatentQkv
from simpar.model.operators.linear import Product
from simpar.model.operators.norm import RmsNorm

if TYPE_CHECKING:
    from simpar.model.library.gpt import Transformer

OF_HEADS: Final = 'attention (its groups of heads)'
KEYS: Final = ('kv_lora_rank', 'qk_nope_head_dim', 'qk_rope_head_dim', 'v_head_dim')
"""All of these, or none."""
MORE: Final = ('q_lora_rank', 'latent_epsilon')
BARRED: Final = ('head_dim', 'qk_norm', 'rotary_share')
"""Keys of other attention that latent attention has in other words, or not."""
FILE: Final = ('workload', 'transformer')

Part = tuple[str, Operator, tuple[str, ...]]
"""Name, operator, and what it reads, in a layer."""


def latent_parts(model: Transformer, heads: Heads) -> Iterator[Part]:
    """The operators between ``norm1`` and ``qkv``, the last of which is what attention reads."""
    rope, epsilon = model.qk_rope_head_dim, model.latent_epsilon or model.norm_epsilon
    queries = '.norm1'
    if model.q_lora_rank:
        yield 'q_down', _down(model, model.q_lora_rank), ('.norm1',)
        yield 'q_norm', RmsNorm(epsilon=epsilon), ('.q_down',)
        queries = '.q_norm'
    yield 'q_up', _up(heads, heads.head_dim, model.q_lora_rank or model.hidden), (queries,)
    yield 'kv_down', _down(model, model.kv_lora_rank + rope), ('.norm1',)
    yield 'kv_norm', LatentNorm(features=model.kv_lora_rank, epsilon=epsilon), ('.kv_down',)
    yield 'kv_up', _up(heads, model.qk_nope_head_dim + model.v_head_dim, model.kv_lora_rank), ('.kv_norm',)
    yield 'k_rope', LastFeatures(features=rope), ('.kv_down',)
    yield 'qkv', LatentQkv(heads=heads, rotation=model.turned(rope)), ('.q_up', '.kv_up', '.k_rope')


def _down(model: Transformer, outputs: int) -> Product:
    """To a latent: too small to be split, so each tensor rank has all of its weight."""
    return Product(outputs=(outputs,), inputs=(model.hidden,), bias='qkv' in model.bias, split='inputs')


def _up(heads: Heads, features: int, inputs: int) -> Product:
    return Product(
        outputs=(heads.groups, features), inputs=(inputs,), bias=False, gathers=True, what=OF_HEADS
    )  # fmt: skip


def latent_problems(model: Transformer) -> Iterator[Problem]:
    """What of its keys does not fit together."""
    if model.mtp_layers:
        what = f'not yet: multi-token prediction (got {model.mtp_layers})'
        yield Problem((*FILE, 'mtp_layers'), what, 'write 0: the model is then trained without these modules')
    if not model.kv_lora_rank:
        for key in (*KEYS[1:], *MORE):
            if getattr(model, key):
                what = 'is of latent attention, and there is none without kv_lora_rank'
                yield Problem((*FILE, key), what, 'add e.g. kv_lora_rank: 512, or leave it out')
        return
    for key in KEYS[1:]:
        if not getattr(model, key):
            what = f'latent attention (kv_lora_rank {model.kv_lora_rank}) needs {key}'
            yield Problem((*FILE, key), what, f'add e.g. {key}: {64 if "rope" in key else 128}')
    if model.qk_rope_head_dim % 2:
        what = f'{model.qk_rope_head_dim} features cannot be turned in pairs'
        yield Problem((*FILE, 'qk_rope_head_dim'), what, 'write an even count')
    if model.position != 'rotary':
        what = f'latent attention turns part of its keys (got {model.position})'
        yield Problem((*FILE, 'position'), what, 'write rotary')
    if model.key_value_heads != model.heads:
        what = f'latent attention makes keys and values for all {model.heads} heads (got {model.key_value_heads})'
        yield Problem((*FILE, 'kv_heads'), what, 'leave kv_heads out')
    if model.head_dim not in (0, model.qk_nope_head_dim + model.qk_rope_head_dim):
        what = f'latent attention has heads of qk_nope_head_dim + qk_rope_head_dim features (got {model.head_dim})'
        yield Problem((*FILE, 'head_dim'), what, 'leave head_dim out')
    if model.qk_norm:
        yield Problem((*FILE, 'qk_norm'), 'latent attention normalises its latents instead', 'write false')
    if model.rotary_share != 1:
        what = 'latent attention turns qk_rope_head_dim features of a key'
        yield Problem((*FILE, 'rotary_share'), what, 'leave rotary_share out')
