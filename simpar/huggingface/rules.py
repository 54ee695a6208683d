"""What follows from several keys of a config, or from one in other words; ``families.yaml`` names these rules."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import log, sqrt
from typing import Any, Final, NamedTuple

from simpar.huggingface.families import TABLE

SLIDING, FULL = 'sliding_attention', 'full_attention'
GROUPED: Final = {'greedy': False, 'group_limited_greedy': True}
"""Ways of DeepSeek V2 to choose experts, and whether groups limit the choice."""
LONGEST: Final = 'max_position_embeddings'
ORIGINAL: Final = 'original_max_position_embeddings'
SCALED: Final[Mapping[str, list[str]]] = TABLE['scaled']
"""Ways to scale rotary, and the numbers that each needs."""


class Entry(NamedTuple):
    """A key of a ``transformer:``, its value, and the key of the config that says so; empty: all models do.

    Arguments: ``note``, what a reader should know of it, unless the key stands beside ``model``.
    """

    key: str
    value: Any
    by: str = ''
    note: str = ''


class Refused(Exception):
    """What of a config is not modelled.

    Arguments: ``key`` of the config; ``what`` is wrong; ``instead``, what to write; ``of``, the key of a
    ``transformer`` that it would say: where that stands beside ``model``, nothing is refused.
    """

    def __init__(self, key: str, what: str, instead: str, of: str) -> None:
        super().__init__(key, what, instead, of)
        self.key, self.what, self.instead, self.of = key, what, instead, of


@dataclass(frozen=True, slots=True)
class Config:
    """A config's values, with its family's defaults for those that are missing."""

    values: Mapping[str, Any]
    defaults: Mapping[str, Any]

    def __getitem__(self, key: str) -> Any:
        """The value of a key; None where neither the file nor the family has one."""
        return self.values.get(key, self.defaults.get(key))


# activations, biases, dropout


def _activation(names: Mapping[str, str], config: Config, *keys: str) -> Iterator[Entry]:
    """The first of some keys that is not null tells it."""
    key = next((key for key in keys if config[key] is not None), keys[-1])
    if not isinstance(config[key], str) or config[key] not in names:
        what = f'no such activation (got {config[key]!r})'
        raise Refused(key, what, f'write one of {", ".join(names)}', 'activation')
    yield Entry('activation', names[config[key]], key)


gated, plain = (partial(_activation, TABLE['activations'][kind]) for kind in ('gated', 'plain'))
"""The activation of a feed-forward that has a gate, and of one that has none."""


def gated_of_gemma(config: Config, *keys: str) -> Iterator[Entry]:
    """Of two keys; the first files say gelu and mean its form with tanh."""
    names = {**TABLE['activations']['gated'], 'gelu': 'geglu_tanh'}
    activations = [config[key] for key in keys if config[key] is not None]
    if len({names.get(str(one), one) if isinstance(one, str) else str(one) for one in activations}) > 1:
        both = f'{activations[0]!r}, {activations[1]!r}'
        what = f'not what hidden_act says ({both}): versions of transformers read one or the other'
        raise Refused('hidden_activation', what, 'leave one of them out', 'activation')
    yield from _activation(names, config, *keys)


def biases(config: Config, **parts: str) -> Iterator[Entry]:
    """For each part of a layer the key that says whether it has one."""
    names = [part for part, key in parts.items() if _switch(config, key, 'bias')]
    yield Entry('bias', names, next(iter(parts.values())))


def dropouts(config: Config, *keys: str) -> Iterator[Entry]:
    """One probability for the three places that a transformer drops at."""
    # Anything may stand in a file, mappings too, which no set takes.
    rates = [config[key] for key in keys]
    if any(one != rates[0] for one in rates):
        both = ', '.join(f'{key} {config[key]}' for key in keys)
        what = f'not modelled: unlike probabilities ({both})'
        raise Refused(keys[0], what, 'write dropout beside model', 'dropout')
    yield Entry('dropout', rates[0], keys[0])


# heads and positions


def one_head_of_keys(config: Config, key: str) -> Iterator[Entry]:
    """All heads of queries share one of keys and values, where it says so."""
    if _switch(config, key, 'kv_heads'):
        yield Entry('kv_heads', 1, key)


def positions_of_opt(config: Config, key: str) -> Iterator[Entry]:
    """Learned positions of which the first two rows are of padding."""
    yield Entry('positions', _positive(config[key], key, key, 'positions') + 2, key)


def narrow_words(config: Config, words: str, hidden: str) -> Iterator[Entry]:
    """Words as wide as the stream: a product between them is not modelled."""
    if config[words] not in (None, config[hidden]):
        what = f'not modelled: words of another width (got {str(config[words])[:20]})'
        raise Refused(words, what, f'write {hidden}, or --module', 'hidden')
    yield from ()


def heads_of_falcon(config: Config) -> Iterator[Entry]:
    """One head of keys and values, or some with the newer layers, whose halves have a norm each."""
    if config['new_decoder_architecture']:
        yield Entry('kv_heads', _number(config, 'num_kv_heads'), 'num_kv_heads')
        if config['num_ln_in_parallel_attn'] in (None, 2):
            yield Entry('parallel', True, 'new_decoder_architecture')
            yield Entry('parallel_norms', True, 'num_ln_in_parallel_attn')
    elif config['multi_query']:
        yield Entry('kv_heads', 1, 'multi_query')


def norms_of_both(config: Config, key: str) -> Iterator[Entry]:
    """Both halves of a parallel layer have a norm each."""
    if config[key]:
        yield Entry('parallel_norms', True, key)


def biases_beside(config: Config, key: str) -> Iterator[Entry]:
    """The feed-forward has biases anyway, attention where the key says so."""
    yield Entry('bias', ['qkv', 'proj', 'ffn'] if config[key] else ['ffn'], key)


def other_hidden(config: Config, key: str) -> Iterator[Entry]:
    """The width of the stream under another name."""
    if config['hidden_size'] is None:
        yield Entry('hidden', _number(config, key), key)


def times_hidden(config: Config, ratio: str, hidden: str) -> Iterator[Entry]:
    """A feed-forward so many times as wide as the stream."""
    yield Entry('ffn', int(_positive(config[ratio], ratio, ratio, 'ffn') * _number(config, hidden)), ratio)


def divided_logits(config: Config) -> Iterator[Entry]:
    """Logits divided by a number."""
    by = 'logits_scaling'
    yield Entry('logit_scale', 1 / _positive(config[by], by, by, 'logit_scale'), by)


def scales_of_minicpm(config: Config) -> Iterator[Entry]:
    """Halves of layers by their number, logits by the width of a smaller model."""
    depth, base = (_positive(config[key], key, key, 'residual_scale') for key in ('scale_depth', 'dim_model_base'))
    yield Entry('residual_scale', depth / sqrt(_number(config, 'num_hidden_layers')), 'scale_depth')
    if 'dim_model_base' in config.values:
        yield Entry('logit_scale', base / _number(config, 'hidden_size'), 'dim_model_base')


# windows and scores


def window(config: Config) -> Iterator[Entry]:
    """A window for all layers, null: none."""
    yield Entry('window', config['sliding_window'] or 0, 'sliding_window')


def windows(config: Config) -> Iterator[Entry]:
    """A window for those layers that ``layer_types`` lists, or that ``max_window_layers`` leaves to it."""
    layers, width = config['num_hidden_layers'], config['sliding_window']
    if 'use_sliding_window' in config.defaults and not config['use_sliding_window']:
        width = 0
    kinds = config['layer_types']
    if not width or not isinstance(layers, int):
        return
    if kinds is None:
        kinds = _kinds(config, layers)
    if not isinstance(kinds, list) or not kinds or any(kind not in (SLIDING, FULL) for kind in kinds):
        raise Refused('layer_types', 'not a list of known kinds', f'write {SLIDING} or {FULL} for each layer', 'window')
    if len(kinds) != layers:
        raise Refused('layer_types', f'{len(kinds)} kinds for {layers} layers', 'write one for each layer', 'window')
    yield Entry('window', _shortest([width if kind == SLIDING else 0 for kind in kinds]), 'sliding_window')


def _kinds(config: Config, layers: int) -> list[str]:
    full, every = config['max_window_layers'], config['sliding_window_pattern']
    if isinstance(every, int) and every > 0:
        return [SLIDING if (layer + 1) % every else FULL for layer in range(layers)]
    if full is None:
        # Gemma 2: every other layer, the first one too.
        return [FULL if layer % 2 else SLIDING for layer in range(layers)]
    return [SLIDING if layer >= full else FULL for layer in range(layers)]


def _shortest(of_layers: list[Any]) -> Any:
    """The shortest list that repeats to the same."""
    for count in range(1, len(of_layers)):
        if all(one == of_layers[place % count] for place, one in enumerate(of_layers)):
            return of_layers[0] if count == 1 else of_layers[:count]
    return of_layers


def scaled_embedding(config: Config) -> Iterator[Entry]:
    """The embedding times √hidden."""
    hidden = config['hidden_size']
    if isinstance(hidden, int) and hidden > 0:
        yield Entry('embedding_scale', sqrt(hidden), 'hidden_size')


def scaled_scores(config: Config) -> Iterator[Entry]:
    """Scores by a number of its own."""
    scalar = config['query_pre_attn_scalar']
    if not _is_positive(scalar):
        raise Refused('query_pre_attn_scalar', 'not a positive number', 'write e.g. 256', 'attention_scale')
    yield Entry('attention_scale', 1 / sqrt(scalar), 'query_pre_attn_scalar')


# rotary: its base, which features are turned, and how positions are scaled


def rope(config: Config) -> Iterator[Entry]:
    """Base and scaling; all features are turned."""
    by, rotary = _rotary(config)
    share, key = _share(config, by, rotary)
    if share not in (None, 1):
        what = f'these models turn all features, whatever it says (got {share!r})'
        raise Refused(key, what, 'leave it out, or write rotary_share beside model', 'rotary_share')
    yield from _turns(config, by, rotary)


def rope_of_part(config: Config) -> Iterator[Entry]:
    """The same of a share of the features."""
    by, rotary = _rotary(config)
    share, key = _share(config, by, rotary)
    if share is not None:
        yield Entry('rotary_share', share, key)
    yield from _turns(config, by, rotary)


def rope_of_kinds(config: Config) -> Iterator[Entry]:
    """A base for layers with a window and another for those without, of which scaling is."""
    by, rotary = _rotary(config, apart=True)
    if isinstance(rotary.get(FULL), dict):
        full, narrow = rotary[FULL], rotary.get(SLIDING)
        theta = (narrow if isinstance(narrow, dict) else full).get('rope_theta', full.get('rope_theta'))
    else:
        full, theta = rotary, config['rope_local_base_freq'] or rotary.get('rope_theta', config['rope_theta'])
    yield from _turns(config, by, full)
    yield Entry('window_theta', _positive(theta, 'the base of windows', by, 'window_theta'), by)


def rope_of_falcon(config: Config, alibi: str) -> Iterator[Entry]:
    """Rotary, or a slope of each head."""
    if config[alibi]:
        yield Entry('position', 'alibi', alibi)
        return
    yield Entry('position', 'rotary', alibi)
    yield from _turns(config, *_rotary(config))


def rotary_features(config: Config, features: str, head: str) -> Iterator[Entry]:
    """So many features of a head are turned."""
    if config[features]:
        share = _positive(config[features], features, features, 'rotary_share') / _number(config, head)
        yield Entry('rotary_share', share, features)


def rotary_of_heads(config: Config, features: str, hidden: str, heads: str) -> Iterator[Entry]:
    """The same where heads share the width of the stream."""
    width = _number(config, hidden) // _number(config, heads)
    yield Entry('rotary_share', (_number(config, features) if config[features] else width) / width, features)


def words_of_neox(config: Config, share: str, base: str) -> Iterator[Entry]:
    """What older files of GPT-NeoX call the share of features and the base."""
    for key, name in (('rotary_share', share), ('rope_theta', base)):
        if config[name] is not None:
            yield Entry(key, _positive(config[name], name, name, key), name)


def alibi_of_baichuan(config: Config, positions: str, longest: str) -> Iterator[Entry]:
    """The 13B has a slope of each head; it tells no positions, but the longest text alone."""
    if config[positions] is None and config[longest] is not None:
        yield Entry('position', 'alibi', longest)


def attention_of_mpt(config: Config, key: str) -> Iterator[Entry]:
    """A mapping of its own; ALiBi where it says nothing."""
    attention = config[key] or {}
    if not isinstance(attention, dict):
        raise Refused(key, 'not a mapping', 'write one', 'position')
    defaults = {'attn_type': 'multihead_attention', 'alibi': True, 'alibi_bias_max': 8, 'qk_ln': False}
    defaults |= {'clip_qkv': None, 'softmax_scale': None, 'prefix_lm': False, 'attn_pdrop': 0}
    for name, value in defaults.items():
        if attention.get(name, value) != value:
            raise Refused(
                key, f'not modelled: {name} {attention[name]}', f'write {name}: {value}, or --module', 'position'
            )
    yield from ()


def windows_of_neo(config: Config, kinds: str, width: str) -> Iterator[Entry]:
    """A window in local layers, of which every second is one unless a list says others."""
    listed = config[kinds] or ['global', 'local']
    if not isinstance(listed, list) or any(one not in ('global', 'local') for one in listed):
        raise Refused(kinds, 'not a list of global and local', 'write one', 'window')
    yield Entry('window', _shortest([config[width] if one == 'local' else 0 for one in listed]), kinds)


def _rotary(config: Config, *, apart: bool = False) -> tuple[str, Mapping[str, Any]]:
    """What is said of rotary in one mapping, and the key that says it: as transformers 5, the older one goes before."""
    by = 'rope_scaling' if config['rope_scaling'] else 'rope_parameters'
    rotary = config[by] or {}
    if not isinstance(rotary, dict):
        raise Refused(by, 'not a mapping', 'write null, or a mapping with rope_type', 'rope_scaling')
    kinds = [key for key, value in rotary.items() if isinstance(value, dict)]
    if kinds and not apart:
        what = f'not yet: rotary unlike in layers of a kind ({", ".join(map(str, kinds))[:60]})'
        raise Refused(by, what, 'write one mapping for all layers', 'rope_scaling')
    return by, rotary


def _share(config: Config, by: str, rotary: Mapping[str, Any]) -> tuple[Any, str]:
    """The share of features that are turned, None: not told; and the key that tells it."""
    key = 'partial_rotary_factor'
    return (rotary[key], by) if key in rotary else (config[key], key)


def _turns(config: Config, by: str, rotary: Mapping[str, Any]) -> Iterator[Entry]:
    theta = rotary.get('rope_theta', config['rope_theta'])
    yield Entry('rope_theta', theta, by if 'rope_theta' in rotary else 'rope_theta')
    kind = str(rotary.get('rope_type', rotary.get('type', 'default')))
    if kind == 'longrope' or (kind in ('su', 'yarn') and 'short_factor' in rotary):
        yield Entry('longrope', _longrope(config, rotary, by), by)
        return
    if kind not in SCALED:
        what = f'not yet: rotary scaled as {kind[:20]}'
        kinds = 'default, linear, dynamic, llama3, yarn or longrope'
        instead = f'write rope_type: {kinds}, or beside model rope_scaling: [], a step as long'
        raise Refused(by, what, instead, 'rope_scaling')
    missing = [key for key in SCALED[kind] if not isinstance(rotary.get(key), int | float)]
    if missing:
        raise Refused(by, f'{kind} without a number for {", ".join(missing)}', 'add it', 'rope_scaling')
    if kind == 'dynamic':
        longest = float(_positive(config[LONGEST], LONGEST, by, 'rope_scaling'))
        yield Entry('rope_scaling', [float(rotary['factor']), longest], by)
    elif kind == 'yarn':
        yield Entry('rope_scaling', _yarn(rotary, by), by)
    elif SCALED[kind]:
        yield Entry('rope_scaling', [float(rotary[key]) for key in SCALED[kind]], by)


def _magnitude(factor: float, times: float = 1.0) -> float:
    """What YaRN multiplies by, from how far positions are stretched (Peng et al. 2023, section 3.4)."""
    return 0.1 * times * log(factor) + 1 if factor > 1 else 1.0


def _yarn(scaling: Mapping[str, Any], by: str) -> list[float]:
    """[factor, original, fast, slow, magnitude] of a mapping of a config's key ``by``; raises ``Refused``."""
    numbers = ('beta_fast', 'beta_slow', 'mscale', 'mscale_all_dim', 'attention_factor')
    wrong = [key for key in numbers if not isinstance(scaling.get(key), int | float | None)]
    if wrong:
        raise Refused(by, f'yarn without a number for {", ".join(wrong)}', 'write one', 'rope_scaling')
    if scaling.get('truncate') is False:
        raise Refused(by, 'not modelled: yarn without truncate', 'leave truncate out', 'rope_scaling')
    factor, times, all_dims = scaling['factor'], scaling.get('mscale'), scaling.get('mscale_all_dim')
    size = scaling.get('attention_factor')
    if size is None:
        size = _magnitude(factor, times) / _magnitude(factor, all_dims) if times and all_dims else _magnitude(factor)
    turns = scaling.get('beta_fast') or 32, scaling.get('beta_slow') or 1
    return [float(one) for one in (factor, scaling[ORIGINAL], *turns, size)]


def _longrope(config: Config, rotary: Mapping[str, Any], by: str) -> dict[str, Any]:
    """The keys of ``longrope`` of a mapping of a config's key ``by``; raises ``Refused``."""
    for key in ('short_factor', 'long_factor'):
        if not isinstance(rotary.get(key), list) or not all(map(_is_positive, rotary[key])):
            raise Refused(by, f'longrope without positive numbers as {key}', 'write a list of numbers', 'longrope')
    # As transformers 5: what stands beside the mapping goes before what stands in it.
    first = next((one for one in (config[ORIGINAL], rotary.get(ORIGINAL), config[LONGEST]) if one is not None), None)
    original = _positive(first, ORIGINAL, by, 'longrope')
    size = rotary.get('attention_factor')
    if size is None:
        size = _stretched(config, rotary, by, original)
    return {
        'short': [float(one) for one in rotary['short_factor']],
        'long': [float(one) for one in rotary['long_factor']],
        'original': original,
        'magnitude': float(_positive(size, 'attention_factor', by, 'longrope')),
    }


def _stretched(config: Config, rotary: Mapping[str, Any], by: str, original: float) -> float:
    """What queries and keys are multiplied by, from how far positions are stretched."""
    factor = rotary.get('factor')
    if factor is None:
        factor = _positive(config[LONGEST], LONGEST, by, 'longrope') / original
    factor = _positive(factor, 'factor', by, 'longrope')
    return sqrt(1 + log(factor) / log(original)) if factor > 1 and original > 1 else 1.0


def _switch(config: Config, key: str, of: str) -> bool:
    if not isinstance(config[key], bool):
        raise Refused(key, 'not true or false', 'write true or false', of)
    return bool(config[key])


def _is_positive(number: Any) -> bool:
    return isinstance(number, int | float) and not isinstance(number, bool) and number > 0


def _positive(number: Any, name: str, by: str, of: str) -> Any:
    if not _is_positive(number):
        raise Refused(by, f'without a positive number for {name} (got {str(number)[:20]})', f'write {name}', of)
    return number


# DeepSeek: latent attention, further tokens


def scores(config: Config) -> Iterator[Entry]:
    """With YaRN scores are multiplied by its magnitude, once for queries and once for keys."""
    by, scaling = _rotary(config)
    if scaling.get('rope_type', scaling.get('type', 'default')) == 'default':
        return
    times, factor = scaling.get('mscale_all_dim'), scaling.get('factor')
    features = (config['qk_nope_head_dim'], config['qk_rope_head_dim'])
    # What is no number is told where it is read.
    if not isinstance(times, int | float) or not isinstance(factor, int | float):
        return
    if times and all(isinstance(one, int) and one > 0 for one in features):
        yield Entry('attention_scale', _magnitude(factor, times) ** 2 / sqrt(sum(features)), by)


def interleaved(config: Config, key: str) -> Iterator[Entry]:
    """Pairs of neighbours, unless it says otherwise."""
    yield Entry('rope_interleaved', _switch(config, key, 'rope_interleaved'), key)


def further(config: Config, *keys: str) -> Iterator[Entry]:
    """Modules that predict further tokens: transformers leaves them out, so that they are trained where one says so."""
    mtp_key = next((key for key in keys if config[key] and config['use_mtp'] is not False), '')
    if mtp_key:
        what = (
            f'not trained, as transformers does; write mtp_layers: {str(config[mtp_key])[:20]} beside model to train it'
        )
        yield Entry('mtp_layers', 0, mtp_key, what)


# mixtures of experts


def mixture(config: Config, count: str, top_k: str, **more: str) -> Iterator[Entry]:
    """Experts in every layer, as wide as ``intermediate_size`` unless told. Arguments: keys of the config."""
    experts: dict[str, Any] = _numbers(config, count=count, top_k=top_k)
    if 'normalise' in more:
        experts['normalise'] = bool(config[more['normalise']])
    experts |= {key: _number(config, name) for key, name in more.items() if key != 'normalise' and config[name]}
    layers = _number(config, 'num_hidden_layers')
    yield Entry('experts', {**experts, **_aux_loss(config, experts['top_k'], layers)}, count)


def mixture_of_ernie(config: Config, count: str, top_k: str) -> Iterator[Entry]:
    """Experts behind dense layers, chosen by scores and a bias, beside shared ones."""
    width, layers = _number(config, 'moe_intermediate_size'), _number(config, 'num_hidden_layers')
    last, dense = config['moe_layer_end_index'], config['moe_layer_start_index']
    if last not in (None, -1, layers - 1) or not isinstance(dense, int) or dense < 0:
        raise Refused(
            'moe_layer_end_index', 'not modelled: dense layers behind those with experts', 'write -1', 'experts'
        )
    experts: dict[str, Any] = {**_numbers(config, count=count, top_k=top_k), 'ffn': width, 'first_dense': dense}
    experts['correction_bias'] = True
    if config['moe_num_shared_experts']:
        experts['shared'] = width * _number(config, 'moe_num_shared_experts')
    yield Entry('experts', {**experts, **_aux_loss(config, experts['top_k'], layers - dense)}, count)


def chosen_by_sigmoid(config: Config, count: str, top_k: str) -> Iterator[Entry]:
    """The same, chosen by sigmoids and a bias."""
    (entry,) = mixture(config, count, top_k)
    yield entry._replace(value={**entry.value, 'score': 'sigmoid', 'correction_bias': True})


def qwen(config: Config) -> Iterator[Entry]:
    """Some layers are dense; Qwen 2 has shared experts with a gate."""
    layers, every = _number(config, 'num_hidden_layers'), _number(config, 'decoder_sparse_step')
    dense, shared = _dense(config), 'shared_expert_intermediate_size'
    # transformers 5 writes the other name into new files.
    count = 'num_local_experts' if config['num_local_experts'] and 'num_experts' not in config.values else 'num_experts'
    experts: dict[str, Any] = _numbers(config, count=count, top_k='num_experts_per_tok', ffn='moe_intermediate_size')
    experts['normalise'] = bool(config['norm_topk_prob'])
    if config[shared]:
        experts |= {'shared': _number(config, shared), 'shared_gate': True}
    experts |= {key: value for key, value in (('every', every), ('first_dense', dense)) if value != (key == 'every')}
    having = sum((layer + 1) % every == 0 for layer in range(dense, layers))
    yield Entry('experts', {**experts, **_aux_loss(config, experts['top_k'], having)}, count)


def deepseek_v2(config: Config, key: str) -> Iterator[Entry]:
    """Weights of a softmax, never divided by their sum, whatever the config says; groups count by their best."""
    method = config[key]
    if method not in GROUPED:
        raise Refused(key, f'not modelled (got {str(method)[:40]})', f'write one of {", ".join(GROUPED)}', 'experts')
    yield from _deepseek(config, {'normalise': False, **(_groups(config, 1) if GROUPED[method] else {})})


def deepseek_v3(config: Config) -> Iterator[Entry]:
    """Sigmoids, a bias that chooses; groups count by their two best."""
    chosen = {'normalise': bool(config['norm_topk_prob']), 'score': 'sigmoid', 'correction_bias': True}
    yield from _deepseek(config, {**chosen, **_groups(config, 2)})


def _deepseek(config: Config, chosen: dict[str, Any]) -> Iterator[Entry]:
    """Experts behind dense layers, beside shared ones. Arguments: ``chosen``, how tokens choose."""
    if config['output_router_logits']:
        what = 'its auxiliary loss is not read'
        raise Refused('output_router_logits', what, 'write experts: {aux_loss: ...} beside model', 'experts')
    dense, layers, kinds = config['first_k_dense_replace'], config['num_hidden_layers'], config['mlp_layer_types']
    if isinstance(kinds, list):
        dense = kinds.count('dense')
        if kinds != ['dense'] * dense + ['sparse'] * (len(kinds) - dense):
            raise Refused(
                'mlp_layer_types', 'not modelled: dense layers that are not the first', 'write them first', 'experts'
            )
    if not isinstance(dense, int) or isinstance(dense, bool) or dense < 0:
        raise Refused('first_k_dense_replace', f'not a count (got {str(dense)[:40]})', 'write e.g. 1', 'experts')
    if isinstance(layers, int) and dense >= layers:
        return
    width = _number(config, 'moe_intermediate_size')
    experts: dict[str, Any] = _numbers(config, count='n_routed_experts', top_k='num_experts_per_tok')
    experts |= {'ffn': width, 'first_dense': dense, 'scaling_factor': config['routed_scaling_factor']}
    experts |= {'shared': width * _number(config, 'n_shared_experts')} if config['n_shared_experts'] else {}
    yield Entry('experts', {**experts, **chosen}, 'n_routed_experts')


def _groups(config: Config, count: int) -> dict[str, Any]:
    """Groups that limit the choice. Arguments: ``count``, by how many of its largest scores a group counts."""
    if config['n_group'] in (None, 1):
        return {}
    return {'groups': _number(config, 'n_group'), 'group_top_k': _number(config, 'topk_group'), 'group_scores': count}


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


def _numbers(config: Config, **keys: str) -> dict[str, int]:
    return {name: _number(config, key) for name, key in keys.items()}


def _number(config: Config, key: str) -> int:
    value = config[key]
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise Refused(key, f'not a positive number (got {str(value)[:40]})', 'write e.g. 8', 'experts')
    return value


def _dense(config: Config) -> int:
    """How many of the first layers are dense; ``mlp_only_layers`` may list these."""
    listed = config['mlp_only_layers'] or []
    if not isinstance(listed, list) or listed != list(range(len(listed))):
        what = f'not modelled: dense layers that are not the first ({str(listed)[:40]})'
        raise Refused('mlp_only_layers', what, 'write the first layers, or none', 'experts')
    return len(listed)
