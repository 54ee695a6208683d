"""The families of models whose configs are read; defaults are those of transformers 5 (a test compares them)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import sqrt
from typing import Any, Final

from simpar.huggingface import deepseek, mixtures, stretched
from simpar.huggingface.family import Config, Family, Refused, Says
from simpar.huggingface.rotary import ROPE, rope, rope_of_part

GATES: Final = {
    'silu': 'swiglu',
    'swish': 'swiglu',
    'gelu': 'geglu',
    **dict.fromkeys(('gelu_pytorch_tanh', 'gelu_new'), 'geglu_tanh'),
}
PLAIN: Final = {
    'silu': 'silu',
    'swish': 'silu',
    'gelu': 'gelu',
    'relu': 'relu',
    'relu2': 'squared_relu',
    **dict.fromkeys(('gelu_pytorch_tanh', 'gelu_new'), 'gelu_tanh'),
}
SLIDING, FULL = 'sliding_attention', 'full_attention'


def _activation(names: Mapping[str, str], *keys: str) -> Any:
    """The rule of the activation; the first of some keys that is not null tells it."""

    def rule(config: Config) -> Iterator[Says]:
        key = next((key for key in keys if config[key] is not None), keys[-1])
        if not isinstance(config[key], str) or config[key] not in names:
            raise Refused(
                key, f'no such activation (got {config[key]!r})', f'write one of {", ".join(names)}', 'activation'
            )
        yield Says('activation', names[config[key]], key)

    return rule


def _biases(**parts: str) -> Any:
    """The rule of biases: for each part of a layer the key that says whether it has one, or ``yes``."""

    def rule(config: Config) -> Iterator[Says]:
        has = [part for part, key in parts.items() if key == 'yes' or config[key]]
        wrong = [key for key in parts.values() if key != 'yes' and not isinstance(config[key], bool)]
        if wrong:
            raise Refused(wrong[0], 'not true or false', 'write true or false', 'bias')
        by = [key for key in parts.values() if key != 'yes']
        yield Says('bias', has, by[0] if by else '')

    return rule


def _window(config: Config) -> Iterator[Says]:
    """A window for all layers, null: none."""
    yield Says('window', config['sliding_window'] or 0, 'sliding_window')


def _windows(config: Config) -> Iterator[Says]:
    """A window for those layers that ``layer_types`` lists, or that ``max_window_layers`` leaves to it."""
    layers, window = config['num_hidden_layers'], config['sliding_window']
    if 'use_sliding_window' in config.defaults and not config['use_sliding_window']:
        window = 0
    kinds = config['layer_types']
    if not window or not isinstance(layers, int):
        return
    if kinds is None:
        kinds = _kinds(config, layers)
    if not isinstance(kinds, list) or not kinds or any(kind not in (SLIDING, FULL) for kind in kinds):
        raise Refused('layer_types', 'not a list of known kinds', f'write {SLIDING} or {FULL} for each layer', 'window')
    if len(kinds) != layers:
        raise Refused('layer_types', f'{len(kinds)} kinds for {layers} layers', 'write one for each layer', 'window')
    windows = [window if kind == SLIDING else 0 for kind in kinds]
    yield Says('window', _shortest(windows), 'sliding_window')


def _kinds(config: Config, layers: int) -> list[str]:
    full = config['max_window_layers']
    if full is None:
        # Gemma 2: every other layer, the first one too.
        return [FULL if layer % 2 else SLIDING for layer in range(layers)]
    return [SLIDING if layer >= full else FULL for layer in range(layers)]


def _shortest(windows: list[Any]) -> Any:
    """The shortest list that repeats to the same."""
    for count in range(1, len(windows)):
        if all(one == windows[place % count] for place, one in enumerate(windows)):
            return windows[0] if count == 1 else windows[:count]
    return windows


def _gemma_activation(config: Config) -> Iterator[Says]:
    """Of two keys; the first files say gelu and mean its form with tanh."""
    names = {**GATES, 'gelu': 'geglu_tanh'}
    found = [config[key] for key in ('hidden_activation', 'hidden_act') if config[key] is not None]
    if len({names.get(str(one), one) if isinstance(one, str) else str(one) for one in found}) > 1:
        what = f'not what hidden_act says ({found[0]!r}, {found[1]!r}): versions of transformers read one or the other'
        raise Refused('hidden_activation', what, 'leave one of them out', 'activation')
    yield from _activation(names, 'hidden_activation', 'hidden_act')(config)


def _gemma(config: Config) -> Iterator[Says]:
    """The embedding times √hidden."""
    hidden = config['hidden_size']
    if isinstance(hidden, int) and hidden > 0:
        yield Says('embedding_scale', sqrt(hidden), 'hidden_size')


def _gemma2(config: Config) -> Iterator[Says]:
    """Scores by a number of its own."""
    scalar = config['query_pre_attn_scalar']
    if not isinstance(scalar, int | float) or isinstance(scalar, bool) or scalar <= 0:
        raise Refused('query_pre_attn_scalar', 'not a positive number', 'write e.g. 256', 'attention_scale')
    yield Says('attention_scale', 1 / sqrt(scalar), 'query_pre_attn_scalar')


def _dropouts(*keys: str) -> Any:
    """The rule of dropout: one probability for the three places that a transformer drops at."""

    def rule(config: Config) -> Iterator[Says]:
        # Anything may stand in a file, mappings too, which no set takes.
        found = [config[key] for key in keys]
        if any(one != found[0] for one in found):
            shown = ', '.join(f'{key} {config[key]}' for key in keys)
            raise Refused(
                keys[0], f'not modelled: unlike probabilities ({shown})', 'write dropout beside model', 'dropout'
            )
        yield Says('dropout', found[0], keys[0])

    return rule


_NO_DROPOUT: Final = {'attention_dropout': (0, None)}
_SIZES: Final = {
    'vocab_size': 'vocab',
    'hidden_size': 'hidden',
    'intermediate_size': 'ffn',
    'num_hidden_layers': 'layers',
    'num_attention_heads': 'heads',
    'num_key_value_heads': 'kv_heads',
    'initializer_range': 'init_std',
    'tie_word_embeddings': 'tied',
}
_LLAMA: Final = {**_SIZES, 'head_dim': 'head_dim', 'rms_norm_eps': 'norm_epsilon'}
_LATENT: Final = {**_SIZES, 'rms_norm_eps': 'norm_epsilon'}
_NEEDED: Final = ('vocab_size', 'hidden_size', 'intermediate_size', 'num_hidden_layers', 'num_attention_heads')
_ALWAYS: Final = {'norm': 'rms_norm', 'position': 'rotary'}
_DEFAULTS: Final = {
    'initializer_range': 0.02,
    'tie_word_embeddings': False,
    'rms_norm_eps': 1e-6,
    'rope_theta': 10000.0,
    'hidden_act': 'silu',
    'attention_bias': False,
    'mlp_bias': False,
}
_WITHOUT_ACT: Final = {key: value for key, value in _DEFAULTS.items() if key != 'hidden_act'}
_WITHOUT_MLP: Final = {key: value for key, value in _DEFAULTS.items() if key != 'mlp_bias'}
_QWEN: Final = {
    **_DEFAULTS,
    'num_key_value_heads': 32,
    'use_sliding_window': False,
    'sliding_window': 4096,
    'max_window_layers': 28,
}
_QWEN_MOE: Final = {
    **{key: value for key, value in _DEFAULTS.items() if key not in ('attention_bias', 'mlp_bias')},
    **mixtures.AUX_LOSS,
    'use_sliding_window': False,
    'norm_topk_prob': False,
    'decoder_sparse_step': 1,
}
_NO_WINDOW: Final = {'use_sliding_window': (False, None)}
_UNUSED_WINDOW: Final = ('sliding_window', 'max_window_layers')
_DEEPSEEK: Final = {
    'kv_lora_rank': 512,
    'q_lora_rank': 1536,
    'qk_nope_head_dim': 128,
    'qk_rope_head_dim': 64,
    'v_head_dim': 128,
}
_WINDOWS: Final = ('use_sliding_window', 'sliding_window', 'max_window_layers', 'layer_types')
_BIDIRECTIONAL: Final = {'use_bidirectional_attention': (None, False)}

FAMILIES: Final[Mapping[str, Family]] = {
    'llama': Family(
        copied=_LLAMA,
        needed=_NEEDED,
        always=_ALWAYS,
        defaults=_DEFAULTS,
        only=_NO_DROPOUT,
        rules=(_activation(GATES, 'hidden_act'), rope, _biases(qkv='attention_bias', proj='attention_bias',
               ffn='mlp_bias')),
        reads=('hidden_act', *ROPE, 'attention_bias', 'mlp_bias'),
    ),
    'mistral': Family(
        copied=_LLAMA,
        needed=_NEEDED,
        always={**_ALWAYS, 'bias': []},
        defaults={**_DEFAULTS, 'num_key_value_heads': 8, 'sliding_window': 4096},
        only=_NO_DROPOUT,
        rules=(_activation(GATES, 'hidden_act'), rope, _window),
        reads=('hidden_act', *ROPE, 'sliding_window'),
    ),
    'qwen2': Family(
        copied=_LLAMA,
        needed=_NEEDED,
        always={**_ALWAYS, 'bias': ['qkv']},
        defaults=_QWEN,
        only=_NO_DROPOUT,
        rules=(_activation(GATES, 'hidden_act'), rope, _windows),
        reads=('hidden_act', *ROPE, *_WINDOWS),
    ),
    'qwen3': Family(
        copied=_LLAMA,
        needed=_NEEDED,
        always={**_ALWAYS, 'qk_norm': True},
        defaults={**_QWEN, 'head_dim': 128},
        only=_NO_DROPOUT,
        rules=(_activation(GATES, 'hidden_act'), rope, _windows, _biases(qkv='attention_bias',
               proj='attention_bias')),
        reads=('hidden_act', *ROPE, *_WINDOWS, 'attention_bias'),
    ),
    'mixtral': Family(
        copied=_LLAMA,
        needed=_NEEDED,
        always={**_ALWAYS, 'bias': []},
        defaults={**_DEFAULTS, **mixtures.AUX_LOSS, 'num_key_value_heads': 8, 'rms_norm_eps': 1e-5, 'rope_theta': 1e6,
                  'sliding_window': None, 'num_local_experts': 8, 'num_experts_per_tok': 2},
        only={**_NO_DROPOUT, 'router_jitter_noise': (0, None)},
        rules=(_activation(GATES, 'hidden_act'), rope, _window, mixtures.mixtral),
        reads=('hidden_act', *ROPE, 'sliding_window', *mixtures.MIXTRAL_KEYS),
    ),
    'qwen2_moe': Family(
        copied=_LLAMA,
        needed=_NEEDED,
        always=_ALWAYS,
        defaults={**_QWEN_MOE, 'num_key_value_heads': 16, 'moe_intermediate_size': 1408, 'num_experts_per_tok': 4,
                  'num_experts': 60, mixtures.SHARED: 5632, 'qkv_bias': True},
        only={**_NO_DROPOUT, **_NO_WINDOW},
        rules=(_activation(GATES, 'hidden_act'), rope, _biases(qkv='qkv_bias'), mixtures.qwen),
        reads=('hidden_act', *ROPE, *_UNUSED_WINDOW, 'qkv_bias', mixtures.SHARED, *mixtures.QWEN_KEYS),
    ),
    'qwen3_moe': Family(
        copied=_LLAMA,
        needed=_NEEDED,
        always={**_ALWAYS, 'qk_norm': True},
        defaults={**_QWEN_MOE, 'num_key_value_heads': 4, 'moe_intermediate_size': 768, 'num_experts_per_tok': 8,
                  'num_experts': 128, 'attention_bias': False},
        only={**_NO_DROPOUT, **_NO_WINDOW},
        rules=(_activation(GATES, 'hidden_act'), rope, _biases(qkv='attention_bias', proj='attention_bias'),
               mixtures.qwen),
        reads=('hidden_act', *ROPE, *_UNUSED_WINDOW, 'attention_bias', *mixtures.QWEN_KEYS),
    ),
    'gemma': Family(
        copied=_LLAMA,
        needed=_NEEDED,
        always=_ALWAYS,
        defaults={**_DEFAULTS, 'num_key_value_heads': 16, 'head_dim': 256, 'tie_word_embeddings': True,
                  'hidden_act': 'gelu_pytorch_tanh'},
        only={**_NO_DROPOUT, **_BIDIRECTIONAL},
        rules=(_gemma_activation, rope, _gemma, _biases(qkv='attention_bias',
               proj='attention_bias')),
        reads=('hidden_activation', 'hidden_act', *ROPE, 'attention_bias'),
    ),
    'gemma2': Family(
        copied={**_LLAMA, 'attn_logit_softcapping': 'attention_softcap', 'final_logit_softcapping': 'logit_softcap'},
        needed=_NEEDED,
        always={**_ALWAYS, 'post_norms': True},
        defaults={**_WITHOUT_ACT, 'num_key_value_heads': 4, 'head_dim': 256, 'tie_word_embeddings': True,
                  'hidden_activation': 'gelu_pytorch_tanh', 'query_pre_attn_scalar': 256, 'sliding_window': 4096,
                  'attn_logit_softcapping': 50.0, 'final_logit_softcapping': 30.0},
        only={**_NO_DROPOUT, **_BIDIRECTIONAL},
        rules=(_activation(GATES, 'hidden_activation'), rope, _gemma, _gemma2, _windows,
               _biases(qkv='attention_bias', proj='attention_bias')),
        # Gemma 2 looks at hidden_activation alone; files have the other key, too.
        reads=('hidden_activation', 'hidden_act', *ROPE, 'attention_bias', 'query_pre_attn_scalar', 'sliding_window',
               'layer_types', 'sliding_window_size'),
    ),
    'phi': Family(
        copied={**_SIZES, 'head_dim': 'head_dim', 'layer_norm_eps': 'norm_epsilon'},
        needed=_NEEDED,
        always={'position': 'rotary', 'parallel': True, 'bias': ['qkv', 'proj', 'ffn', 'head']},
        defaults={**_DEFAULTS, 'layer_norm_eps': 1e-5, 'hidden_act': 'gelu_new', 'partial_rotary_factor': 0.5,
                  'resid_pdrop': 0.0, 'embd_pdrop': 0.0, 'attention_dropout': 0.0},
        only={'qk_layernorm': (False, None)},
        rules=(_activation(PLAIN, 'hidden_act'), rope_of_part,
               _dropouts('resid_pdrop', 'embd_pdrop', 'attention_dropout')),
        reads=('hidden_act', *ROPE, 'resid_pdrop', 'embd_pdrop', 'attention_dropout'),
    ),
    'phi3': Family(
        copied=_LLAMA,
        needed=_NEEDED,
        always={**_ALWAYS, 'bias': []},
        defaults={**_DEFAULTS, 'rms_norm_eps': 1e-5, 'resid_pdrop': 0.0, 'embd_pdrop': 0.0, 'attention_dropout': 0.0,
                  'max_position_embeddings': 4096, stretched.ORIGINAL: 4096},
        only={'attention_bias': (False, None)},
        rules=(_activation(GATES, 'hidden_act'), rope_of_part, _window,
               _dropouts('resid_pdrop', 'embd_pdrop', 'attention_dropout')),
        reads=('hidden_act', *ROPE, 'sliding_window', 'resid_pdrop', 'embd_pdrop', 'attention_dropout'),
    ),
    'deepseek_v2': Family(
        copied={**_LATENT, **deepseek.LATENT},
        needed=_NEEDED,
        # Norms of latents have the default of their class, whatever the config says of others.
        always={**_ALWAYS, 'latent_epsilon': 1e-6, 'rope_interleaved': True},
        defaults={**_DEFAULTS, **_DEEPSEEK, 'first_k_dense_replace': 0, 'n_routed_experts': 64,
                  'n_shared_experts': 2, 'routed_scaling_factor': 1.0, 'topk_method': 'greedy',
                  'moe_intermediate_size': 1407, 'output_router_logits': False},
        only={**deepseek.ONLY, 'moe_layer_freq': (1,), 'scoring_func': ('softmax',)},
        rules=(_activation(GATES, 'hidden_act'), rope, deepseek.scores, mixtures.deepseek_v2, deepseek.further,
               _biases(qkv='attention_bias', proj='attention_bias', ffn='mlp_bias')),
        reads=('hidden_act', *ROPE, 'attention_bias', 'mlp_bias', 'topk_method', *deepseek.READ,
               *mixtures.DEEPSEEK_KEYS),
    ),
    'deepseek_v3': Family(
        copied={**_LATENT, **deepseek.LATENT},
        needed=_NEEDED,
        always={**_ALWAYS, 'latent_epsilon': 1e-6},
        defaults={**_WITHOUT_MLP, **_DEEPSEEK, 'num_key_value_heads': 128, 'first_k_dense_replace': 3,
                  'rope_interleave': True, 'n_routed_experts': 256, 'n_shared_experts': 1,
                  'routed_scaling_factor': 2.5, 'n_group': 8, 'topk_group': 4, 'num_experts_per_tok': 8,
                  'norm_topk_prob': True, 'moe_intermediate_size': 2048, 'output_router_logits': False},
        only={**deepseek.ONLY, 'moe_layer_freq': (1,), 'scoring_func': ('sigmoid',), 'topk_method': ('noaux_tc',)},
        rules=(_activation(GATES, 'hidden_act'), rope, deepseek.scores, deepseek.interleaved, mixtures.deepseek_v3,
               deepseek.further, _biases(qkv='attention_bias', proj='attention_bias')),
        reads=('hidden_act', *ROPE, 'attention_bias', *deepseek.READ, *mixtures.DEEPSEEK_KEYS),
    ),
    'gpt2': Family(
        copied={'vocab_size': 'vocab', 'n_embd': 'hidden', 'n_inner': 'ffn', 'n_layer': 'layers', 'n_head': 'heads',
                'n_positions': 'positions', 'initializer_range': 'init_std', 'layer_norm_epsilon': 'norm_epsilon',
                'tie_word_embeddings': 'tied'},
        needed=('vocab_size', 'n_embd', 'n_layer', 'n_head'),
        defaults={'n_positions': 1024, 'initializer_range': 0.02, 'layer_norm_epsilon': 1e-5,
                  'tie_word_embeddings': True, 'activation_function': 'gelu_new', 'resid_pdrop': 0.1,
                  'embd_pdrop': 0.1, 'attn_pdrop': 0.1},
        only={'scale_attn_weights': (True,), 'scale_attn_by_inverse_layer_idx': (False,)},
        rules=(_activation(PLAIN, 'activation_function'), _dropouts('resid_pdrop', 'embd_pdrop', 'attn_pdrop')),
        reads=('activation_function', 'resid_pdrop', 'embd_pdrop', 'attn_pdrop'),
    ),
}  # fmt: skip
"""By ``model_type``."""
