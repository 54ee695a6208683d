"""Rules of mixtures of experts: what configs say of them, as keys of ``experts``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from simpar.huggingface.family import Config, Refused, Says

MIXTRAL_KEYS: Final = ('num_local_experts', 'num_experts_per_tok', 'output_router_logits', 'router_aux_loss_coef')
QWEN_KEYS: Final = (
    'num_experts', 'num_local_experts', 'num_experts_per_tok', 'moe_intermediate_size', 'norm_topk_prob', 'decoder_sparse_step',
    'mlp_only_layers', 'output_router_logits', 'router_aux_loss_coef', 'shared_expert_intermediate_size',
)  # fmt: skip
DEEPSEEK_KEYS: Final = (
    'n_routed_experts', 'num_experts_per_tok', 'moe_intermediate_size', 'norm_topk_prob', 'routed_scaling_factor',
    'first_k_dense_replace', 'n_shared_experts', 'n_group', 'topk_group', 'topk_method', 'scoring_func',
    'output_router_logits',
)  # fmt: skip
AUX_LOSS: Final[Mapping[str, Any]] = {'output_router_logits': False, 'router_aux_loss_coef': 0.001}


def mixtral(config: Config) -> Iterator[Says]:
    """All layers have experts as wide as ``intermediate_size``."""
    layers = _number(config, 'num_hidden_layers')
    told = {'count': _number(config, 'num_local_experts'), 'top_k': _number(config, 'num_experts_per_tok')}
    yield Says('experts', {**told, **_aux_loss(config, told['top_k'], layers)}, 'num_local_experts')


def qwen(config: Config) -> Iterator[Says]:
    """Some layers are dense; Qwen 2 has shared experts with a gate."""
    layers, every, dense = (
        _number(config, 'num_hidden_layers'), _number(config, 'decoder_sparse_step'), _dense(config),
    )  # fmt: skip
    # transformers 5 writes the other name into new files.
    count = 'num_local_experts' if config['num_local_experts'] and 'num_experts' not in config.values else 'num_experts'
    told = {
        'count': _number(config, count),
        'top_k': _number(config, 'num_experts_per_tok'),
        'ffn': _number(config, 'moe_intermediate_size'),
        'normalise': bool(config['norm_topk_prob']),
    }
    if config['shared_expert_intermediate_size']:
        told |= {'shared': _number(config, 'shared_expert_intermediate_size'), 'shared_gate': True}
    told |= {key: value for key, value in (('every', every), ('first_dense', dense)) if value != (key == 'every')}
    having = sum((layer + 1) % every == 0 for layer in range(dense, layers))
    yield Says('experts', {**told, **_aux_loss(config, told['top_k'], having)}, count)


def deepseek(config: Config) -> Iterator[Says]:
    """Experts beside shared ones, chosen from groups; V2 by a softmax, V3 by sigmoids and a bias (``noaux_tc``)."""
    third = config['topk_method'] in (None, 'noaux_tc')
    known = ('noaux_tc', 'group_limited_greedy', 'greedy')
    if not third and config['topk_method'] not in known:
        raise Refused('topk_method', f'not modelled (got {str(config["topk_method"])[:40]})',
                      f'write one of {", ".join(known)}', 'experts')  # fmt: skip
    if config['output_router_logits']:
        raise Refused(
            'output_router_logits', 'its auxiliary loss is not read', 'write aux_loss beside model', 'experts'
        )
    width = _number(config, 'moe_intermediate_size')
    told = {
        'count': _number(config, 'n_routed_experts'),
        'top_k': _number(config, 'num_experts_per_tok'),
        'ffn': width,
        'first_dense': int(config['first_k_dense_replace'] or 0),
        'shared': width * int(config['n_shared_experts'] or 0),
        # V2's code never divides by the sum, whatever its config says.
        'normalise': third and bool(config['norm_topk_prob']),
        'scaling_factor': float(config['routed_scaling_factor']),
    }
    if third:
        told |= {'score': 'sigmoid', 'correction_bias': True}
    if config['topk_method'] != 'greedy' and (config['n_group'] or 1) > 1:
        scores = 2 if third else 1
        told |= {'groups': config['n_group'], 'group_top_k': config['topk_group'], 'group_scores': scores}
    yield Says('experts', told, 'n_routed_experts')


def _aux_loss(config: Config, top_k: int, layers: int) -> dict[str, Any]:
    """The coefficient of one layer.

    transformers balances the tokens of all layers together, and counts each of a token's choices as one; here each
    layer is balanced for itself, and the choices of a token add up to one.
    """
    coefficient = config['router_aux_loss_coef']
    if not config['output_router_logits'] or not coefficient:
        return {}
    if not isinstance(coefficient, int | float):
        raise Refused('router_aux_loss_coef', 'not a number', 'write e.g. 0.001', 'experts')
    return {'aux_loss': coefficient * top_k / max(layers, 1)}


def _number(config: Config, key: str) -> int:
    value = config[key]
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise Refused(key, f'not a positive number (got {str(value)[:40]})', 'write e.g. 8', 'experts')
    return value


def _dense(config: Config) -> int:
    """How many of the first layers are dense; ``mlp_only_layers`` may list these."""
    listed = config['mlp_only_layers'] or []
    if listed != list(range(len(listed))):
        what = f'not modelled: dense layers that are not the first ({str(listed)[:40]})'
        raise Refused('mlp_only_layers', what, 'write the first layers, or none', 'experts')
    return len(listed)
