"""Rules of mixtures of experts: what configs say of them, as keys of ``experts``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from simpar.huggingface.family import Config, Refused, Says

MIXTRAL_KEYS: Final = ('num_local_experts', 'num_experts_per_tok', 'output_router_logits', 'router_aux_loss_coef')
QWEN_KEYS: Final = (
    *('num_experts', 'num_local_experts', 'num_experts_per_tok', 'moe_intermediate_size', 'norm_topk_prob'),
    *('decoder_sparse_step', 'mlp_only_layers', 'output_router_logits', 'router_aux_loss_coef'),
)
SHARED: Final = 'shared_expert_intermediate_size'
DEEPSEEK_KEYS: Final = (
    *('n_routed_experts', 'num_experts_per_tok', 'moe_intermediate_size', 'routed_scaling_factor'),
    *('first_k_dense_replace', 'n_shared_experts', 'n_group', 'topk_group', 'norm_topk_prob', 'output_router_logits'),
)
GROUPED: Final = {'greedy': False, 'group_limited_greedy': True}
"""Ways of V2 to choose, and whether groups limit the choice."""
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
    told: dict[str, Any] = {
        'count': _number(config, count),
        'top_k': _number(config, 'num_experts_per_tok'),
        'ffn': _number(config, 'moe_intermediate_size'),
        'normalise': bool(config['norm_topk_prob']),
    }
    if config[SHARED]:
        told |= {'shared': _number(config, SHARED), 'shared_gate': True}
    told |= {key: value for key, value in (('every', every), ('first_dense', dense)) if value != (key == 'every')}
    having = sum((layer + 1) % every == 0 for layer in range(dense, layers))
    yield Says('experts', {**told, **_aux_loss(config, told['top_k'], having)}, count)


def deepseek_v2(config: Config) -> Iterator[Says]:
    """Weights of a softmax, never divided by their sum, whatever the config says; groups count by their best."""
    method = config['topk_method']
    if method not in GROUPED:
        what = f'not modelled (got {str(method)[:40]})'
        raise Refused('topk_method', what, f'write one of {", ".join(GROUPED)}', 'experts')
    chosen = {'normalise': False, **(_groups(config, 1) if GROUPED[method] else {})}
    yield from _deepseek(config, chosen)


def deepseek_v3(config: Config) -> Iterator[Says]:
    """Sigmoids, a bias that chooses; groups count by their two best."""
    chosen = {'normalise': bool(config['norm_topk_prob']), 'score': 'sigmoid', 'correction_bias': True}
    yield from _deepseek(config, {**chosen, **_groups(config, 2)})


def _deepseek(config: Config, chosen: dict[str, Any]) -> Iterator[Says]:
    """Experts behind dense layers, beside shared ones. Arguments: ``chosen``, how tokens choose."""
    if config['output_router_logits']:
        what = 'its auxiliary loss is not read'
        raise Refused('output_router_logits', what, 'write experts: {aux_loss: ...} beside model', 'experts')
    dense, layers = config['first_k_dense_replace'], config['num_hidden_layers']
    if not isinstance(dense, int) or isinstance(dense, bool) or dense < 0:
        raise Refused('first_k_dense_replace', f'not a count (got {str(dense)[:40]})', 'write e.g. 1', 'experts')
    if isinstance(layers, int) and dense >= layers:
        return
    width = _number(config, 'moe_intermediate_size')
    told: dict[str, Any] = {
        'count': _number(config, 'n_routed_experts'),
        'top_k': _number(config, 'num_experts_per_tok'),
        'ffn': width,
        'first_dense': dense,
        'scaling_factor': config['routed_scaling_factor'],
        **({'shared': width * _number(config, 'n_shared_experts')} if config['n_shared_experts'] else {}),
    }
    yield Says('experts', {**told, **chosen}, 'n_routed_experts')


def _groups(config: Config, scores: int) -> dict[str, Any]:
    """Groups that limit the choice. Arguments: ``scores``, by how many of its largest a group counts."""
    if config['n_group'] in (None, 1):
        return {}
    return {'groups': _number(config, 'n_group'), 'group_top_k': _number(config, 'topk_group'), 'group_scores': scores}


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
