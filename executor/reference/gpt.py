"""The reference of a ``transformer:``: a GPT in plain torch, token by token, without slots and without ranks."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from math import ceil, floor, log, log2, pi
from typing import Final, cast

import torch
from torch.nn import functional

from executor.draws import dropout_mask, in_sequence
from executor.reference.network import Declared, Input, OfModel, Parameters, Slices
from simpar.model.library.gpt import Transformer
from simpar.model.operators.experts import Experts
from simpar.workload import Workload


def rotated(model: Transformer, x: torch.Tensor) -> torch.Tensor:
    """Pairs of features as complex numbers, each turned by its own angle."""
    count = (model.qk_rope_head_dim or int(model.head_width * model.rotary_share)) // 2
    exponents = -torch.arange(count, dtype=torch.float64) / count
    base = _base(model, 2 * count)
    rates = torch.tensor([_scaled(model, rate) for rate in (base**exponents).tolist()], dtype=torch.float64)
    size, long = model.rope_scaling[4] if len(model.rope_scaling) == 5 else 1.0, model.longrope
    if long is not None:
        size, beyond = long.magnitude, int(places(model).max()) >= long.original
        rates /= torch.tensor(long.long if beyond else long.short, dtype=torch.float64)
    turns = torch.polar(torch.tensor(size, dtype=torch.float64), places(model)[:, None] * rates)
    one, other = x[..., :count], x[..., count : 2 * count]
    if model.rope_interleaved:
        one, other = x[..., 0 : 2 * count : 2], x[..., 1 : 2 * count : 2]
    pairs = torch.complex(one, other) * turns.to(torch.complex(x, x).dtype)
    return torch.cat([pairs.real, pairs.imag, x[..., 2 * count :]], -1)


def _base(model: Transformer, features: int) -> float:
    """Of the rates; larger where a document is longer than the positions of dynamic NTK."""
    length = int(places(model).max()) + 1
    if len(model.rope_scaling) != 2 or length <= model.rope_scaling[1] or features == 2:
        return model.rope_theta
    factor, positions = model.rope_scaling
    return float(model.rope_theta * (1 + factor * (length / positions - 1)) ** (features / (features - 2)))


def _scaled(model: Transformer, rate: float) -> float:
    """A rate of turning, by Llama 3.1's rule, or divided by a factor."""
    if not model.rope_scaling:
        return rate
    factor, *band = model.rope_scaling
    if not band:
        return rate / factor
    if len(band) == 1:
        return rate
    if len(band) == 4:
        return _yarned(model, rate)
    low, high, original = band
    wave = 2 * pi / rate
    if wave > original / low:
        return rate / factor
    if wave < original / high:
        return rate
    smooth = (original / wave - low) / (high - low)
    return (1 - smooth) * rate / factor + smooth * rate


def places(model: Transformer) -> torch.Tensor:
    """Positions of a sample's tokens, each document's from 0."""
    return torch.cat([torch.arange(length) for length in model.packed or (model.sequence,)])


def _yarned(model: Transformer, rate: float) -> float:
    """By YaRN's ramp over features, whose ends are those that turn so often in the original positions."""
    factor, original, fast, slow, _ = model.rope_scaling
    features = model.qk_rope_head_dim or int(model.head_width * model.rotary_share)

    def feature(turns: float) -> float:
        return features / 2 * log(original / (2 * pi * turns)) / log(model.rope_theta)

    low, high = max(floor(feature(fast)), 0), min(ceil(feature(slow)), features - 1)
    place = -features / 2 * log(rate) / log(model.rope_theta)
    ramp = min(max((round(place) - low) / ((high - low) or 0.001), 0.0), 1.0)
    return rate * (1 - ramp) + rate / factor * ramp


# The reference's mixture of experts: token by token, in plain torch, without slots and without ranks.

Activation = Callable[[torch.Tensor], torch.Tensor]


def mixture_parameters(model: Transformer, experts: Experts, layer: str, weight: str) -> Iterator[Declared]:
    """Name, shape and draw of the parameters of a layer's mixture; ``weight``, the draw of weights."""
    hidden, width, gates = model.hidden, experts.ffn or model.ffn_width, (2,) if model.gated else ()
    yield f'{layer}.router.weight', (experts.count, hidden), weight
    if experts.correction_bias:
        yield f'{layer}.route.correction', (experts.count,), 'zeros'
    yield f'{layer}.experts.fc1.weight', (experts.count, width, *gates, hidden), weight
    yield f'{layer}.experts.fc2.weight', (experts.count, hidden, width), weight
    if experts.shared:
        yield f'{layer}.shared.fc1.weight', (experts.shared, *gates, hidden), weight
        yield f'{layer}.shared.fc2.weight', (hidden, experts.shared), weight
        if experts.shared_gate:
            yield f'{layer}.shared.gate.weight', (1, hidden), weight


def mixture(
    experts: Experts, activation: Activation, parameters: Parameters, layer: str, x: torch.Tensor, slices: Slices
) -> tuple[torch.Tensor, torch.Tensor]:
    """What a mixture makes of x [batch, sequence, hidden], and its auxiliary loss over all of x.

    Arguments: ``slices`` of a sequence that ranks hold, each with its share of an expert's slots.
    """

    def weight(name: str) -> torch.Tensor:
        return parameters[f'{layer}.{name}.weight']

    logits = x @ weight('router').T
    scores = logits.softmax(-1) if experts.score == 'softmax' else logits.sigmoid()
    chosen = _chosen(experts, scores + parameters.get(f'{layer}.route.correction', torch.zeros(())))
    picked = scores.gather(-1, chosen)
    if experts.normalise:
        picked = picked / picked.sum(-1, keepdim=True)
    picked = picked * experts.scaling_factor
    y = torch.zeros_like(x)
    for expert in range(experts.count):
        goes = (chosen == expert).any(-1)
        if experts.capacity:
            goes = _first_tokens(goes, experts.slots(x.shape[1]), slices)
        share = (picked * (chosen == expert)).sum(-1)[goes]
        inside = functional.linear(x[goes], weight('experts.fc1')[expert].reshape(-1, x.shape[-1]))
        rows = activation(inside) @ weight('experts.fc2')[expert].T
        y = y.index_put((goes,), rows * share[:, None], accumulate=True)
    if experts.shared:
        inside = functional.linear(x, weight('shared.fc1').reshape(-1, x.shape[-1]))
        beside = activation(inside) @ weight('shared.fc2').T
        y = y + (beside * (x @ weight('shared.gate').T).sigmoid() if experts.shared_gate else beside)
    return y, _aux_loss(experts, scores, chosen)


def _first_tokens(goes: torch.Tensor, slots: int, slices: Slices) -> torch.Tensor:
    """The first tokens of each sequence that have a slot; of each slice, where slots can be dealt out to slices."""
    sequence, count = goes.shape[1], slices.parts
    if sequence % count or slots % count:
        count = 1
    # Balanced context ranks have a chunk from the front and one from the back, in this order.
    order = in_sequence(torch.arange(sequence), sequence, slices.balanced)
    each = goes[:, order].unflatten(1, (count, -1))
    mask = (each & (each.cumsum(2) <= slots // count)).flatten(1)
    return mask[:, order.argsort()]


def _chosen(experts: Experts, scores: torch.Tensor) -> torch.Tensor:
    """The numbers of each token's experts."""
    if experts.groups > 1:
        of_group = scores.unflatten(-1, (experts.groups, -1)).sort(-1, descending=True).values
        best = of_group[..., : experts.group_scores].sum(-1).topk(experts.group_top_k).indices
        size = experts.count // experts.groups
        allowed = (torch.arange(experts.count) // size == best.unsqueeze(-1)).any(-2)
        scores = scores.masked_fill(~allowed, float('-inf'))
    return scores.topk(experts.top_k).indices


def _aux_loss(experts: Experts, scores: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    scores = scores / scores.sum(-1, keepdim=True)
    share = functional.one_hot(chosen, experts.count).to(scores.dtype).mean(-2)
    # The slice that it is given has all tokens that are balanced together.
    if experts.aux_group == 'sample':
        each = (share.mean(1) * scores.mean(1)).sum(-1).mean()
    else:
        each = (share.mean((0, 1)) * scores.mean((0, 1))).sum()
    return experts.aux_loss * experts.count * each


# The reference of a ``transformer:``: a GPT in plain torch.

OfLayer = Callable[[str, torch.Tensor], torch.Tensor]
"""A product or norm, by its name, of what it reads."""


def _model(workload: Workload) -> Transformer:
    return cast('Transformer', workload.model)


def _inputs(workload: Workload) -> tuple[Input, Input]:
    """Tokens and labels."""
    model = _model(workload)
    shape, initial = (workload.batch, model.sequence), f'tokens:{model.vocab}'
    return ('tokens', initial, shape, True), ('labels', initial, shape, True)


def _loss(
    workload: Workload,
    parameters: Parameters,
    x: torch.Tensor,
    target: torch.Tensor,
    keys: torch.Tensor,
    slices: Slices,
) -> torch.Tensor:
    # The mean over all tokens, which is what ``scale`` makes of the program's sums.
    model = _model(workload)
    if model.lora is not None:
        parameters = {name: one if '.lora_' in name else one.detach() for name, one in parameters.items()}
    (logits, *further), aux_loss = _transformer(model, parameters, x, keys, slices)
    loss = functional.cross_entropy(logits.flatten(0, 1), target.flatten()) + aux_loss
    for ahead, one in enumerate(further, 1):
        # The last tokens have no label so far on.
        further_loss = functional.cross_entropy(one[:, :-ahead].flatten(0, 1), target[:, ahead:].flatten())
        loss = loss + model.mtp_loss / len(further) * further_loss
    return loss


def _parameters(workload: Workload) -> Iterator[Declared]:
    """Name, shape and draw of every parameter."""
    model = _model(workload)
    weight = f'normal:{model.init_std}'
    hidden, ffn, groups = model.hidden, model.ffn_width, model.key_value_heads
    queries, head_dim, rows = model.heads // groups, model.head_width, model.padded_vocab
    yield 'embedding.weight', (rows, hidden), weight
    if model.embedding_norm:
        yield from _norm_parameters(model, 'embedding.norm')
    if model.position == 'learned':
        yield 'position.weight', (model.positions or model.sequence, hidden), weight
    norms = ['norm1', *([] if model.parallel and not model.parallel_norms else ['norm2'])] if model.pre_norms else []
    norms += ['post_norm1', 'post_norm2'] if model.post_norms else []
    for index, layer in enumerate(f'layer{index}' for index in range(model.layers + model.mtp_layers)):
        experts = model.experts_of(min(index, model.layers - 1))
        if index >= model.layers:
            yield f'{layer}.eh_proj.weight', (hidden, 2 * hidden), weight
        for norm in [*norms, *(['enorm', 'hnorm', 'final_norm'] if index >= model.layers else [])]:
            yield from _norm_parameters(model, f'{layer}.{norm}')
        for gain, count in (('q_gain', groups * queries), ('k_gain', groups)) if model.qk_norm else ():
            yield f'{layer}.qk_norm.{gain}', (head_dim * (count if model.qk_norm == 'whole' else 1),), 'ones'
        if model.sinks == 'learned':
            yield f'{layer}.attention.sink', (groups, queries), weight
        for norm, features in (('q_norm', model.q_lora_rank), ('kv_norm', model.kv_lora_rank)):
            if features:
                yield f'{layer}.{norm}.gain', (features,), 'ones'
        products = [*_to_heads(model), ('proj', 'proj', (hidden,), (groups, queries, model.v_head_dim or head_dim))]
        if experts is None:
            products += [
                ('fc1', 'ffn', (ffn, 2) if model.gated else (ffn,), (hidden,)),
                ('fc2', 'ffn', (hidden,), (ffn,)),
            ]
        for name, part, outputs, inputs in products:
            yield f'{layer}.{name}.weight', (*outputs, *inputs), weight
            if part in model.bias:
                yield f'{layer}.{name}.bias', outputs, 'zeros'
            if model.lora is not None and name in model.lora.of:
                yield f'{layer}.{name}.lora_a.weight', (model.lora.rank, *inputs), weight
                yield f'{layer}.{name}.lora_b.weight', (*outputs, model.lora.rank), weight
        if experts is not None:
            yield from mixture_parameters(model, experts, layer, weight)
    yield from _norm_parameters(model, 'norm')
    if not model.tied:
        yield 'head.weight', (rows, hidden), weight
    if 'head' in model.bias:
        yield 'head.bias', (rows,), 'zeros'


def _to_heads(model: Transformer) -> Iterator[tuple[str, str, tuple[int, ...], tuple[int, ...]]]:
    """Products down to latents and up to heads, or one: name, the part whose biases it has, outputs, inputs."""
    hidden, heads, rank, rope = model.hidden, model.heads, model.kv_lora_rank, model.qk_rope_head_dim
    if not rank:
        # By groups, as the kernels split it: each group's queries, then its key and value.
        groups = model.key_value_heads
        yield 'qkv', 'qkv', (groups, heads // groups + 2, model.head_width), (hidden,)
        return
    if model.q_lora_rank:
        yield 'q_down', 'qkv', (model.q_lora_rank,), (hidden,)
    yield 'q_up', '', (heads, model.qk_nope_head_dim + rope), (model.q_lora_rank or hidden,)
    yield 'kv_down', 'qkv', (rank + rope,), (hidden,)
    yield 'kv_up', '', (heads, model.qk_nope_head_dim + model.v_head_dim), (rank,)


def _norm_parameters(model: Transformer, name: str) -> Iterator[Declared]:
    yield f'{name}.gain', (model.hidden,), 'ones'
    if model.norm == 'layer_norm' and model.norm_bias:
        yield f'{name}.bias', (model.hidden,), 'zeros'


def _transformer(
    model: Transformer, parameters: Parameters, tokens: torch.Tensor, keys: torch.Tensor, slices: Slices
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The logits, of the next token and of those further on, and the sum of auxiliary losses."""

    def drop(site: str, x: torch.Tensor) -> torch.Tensor:
        if not model.dropout:
            return x
        return x * dropout_mask(keys, site, x.shape[1:], model.dropout) / (1 - model.dropout)

    def norm(name: str, x: torch.Tensor, epsilon: float = model.norm_epsilon, kind: str = model.norm) -> torch.Tensor:
        gain = parameters[f'{name}.gain']
        if kind == 'rms_norm':
            return functional.rms_norm(x, x.shape[-1:], gain, epsilon)
        return functional.layer_norm(x, x.shape[-1:], gain, parameters.get(f'{name}.bias'), epsilon)

    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        weight, bias = parameters[f'{name}.weight'], parameters.get(f'{name}.bias')
        y = functional.linear(x, weight.reshape(-1, x.shape[-1]), None if bias is None else bias.flatten())
        if model.lora is None or name.partition('.')[2] not in model.lora.of:
            return y
        down, up = (parameters[f'{name}.{part}.weight'] for part in ('lora_a', 'lora_b'))
        return y + model.lora.scale * (x @ down.reshape(len(down), -1).T) @ up.reshape(-1, len(down)).T

    def branch(name: str, number: int, x: torch.Tensor) -> torch.Tensor:
        return branched(name.partition('.')[0], number, linear(name, x))

    def branched(layer: str, number: int, y: torch.Tensor) -> torch.Tensor:
        y = norm(f'{layer}.post_norm{number}', y) if model.post_norms else y
        return drop(f'{layer}.residual{number}', y * model.residual_scale)

    def block(layer: str, index: int, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A layer of the kind of layer ``index``, and its auxiliary loss."""
        y = norm(f'{layer}.norm1', x) if model.pre_norms else x
        gains = [parameters.get(f'{layer}.qk_norm.{gain}') for gain in ('q_gain', 'k_gain')]
        if model.kv_lora_rank:
            latent_norm = partial(norm, epsilon=model.latent_epsilon or model.norm_epsilon, kind='rms_norm')
            qkv = _of_latents(model, linear, latent_norm, layer, y)
        else:
            qkv = _together(model, index, linear(f'{layer}.qkv', y), gains)
        sink = parameters.get(f'{layer}.attention.sink')
        heads = _attention(model, index, *qkv, partial(drop, f'{layer}.attention'), sink)
        attended = x + branch(f'{layer}.proj', 1, heads)
        if model.parallel_norms or not model.parallel:
            source = x if model.parallel else attended
            y = norm(f'{layer}.norm2', source) if model.pre_norms else source
        experts = model.experts_of(index)
        if experts is None:
            return attended + branch(f'{layer}.fc2', 2, _activation(model, linear(f'{layer}.fc1', y))), x.new_zeros(())
        mixed, aux = mixture(experts, partial(_activation, model), parameters, layer, y, slices)
        return attended + branched(layer, 2, mixed), aux

    def logits(x: torch.Tensor) -> torch.Tensor:
        head = parameters['embedding.weight' if model.tied else 'head.weight']
        return _capped(functional.linear(x, head, parameters.get('head.bias')) * model.logit_scale, model.logit_softcap)

    x = functional.embedding(tokens, parameters['embedding.weight']) * model.embedding_scale
    x = norm('embedding.norm', x) if model.embedding_norm else x
    if model.position == 'learned':
        x = x + parameters['position.weight'][places(model)]
    x = drop('position' if model.position == 'learned' else 'embedding', x)
    aux_loss = x.new_zeros(())
    for index in range(model.layers):
        x, aux = block(f'layer{index}', index, x)
        aux_loss = aux_loss + aux
    x = norm('norm', x)
    all_logits = [logits(x)]
    for ahead in range(1, model.mtp_layers + 1):
        layer = f'layer{model.layers + ahead - 1}'
        # Behind the end stands token 0, whose row no counted label sees.
        later = functional.pad(tokens[:, ahead:], (0, ahead))
        words = functional.embedding(later, parameters['embedding.weight']) * model.embedding_scale
        words = drop(f'{layer}.embedding', words)
        both = torch.cat([norm(f'{layer}.enorm', words), norm(f'{layer}.hnorm', x)], -1)
        x, aux = block(layer, model.layers - 1, linear(f'{layer}.eh_proj', both))
        x, aux_loss = norm(f'{layer}.final_norm', x), aux_loss + aux
        all_logits.append(logits(x))
    return all_logits, aux_loss


def _activation(model: Transformer, x: torch.Tensor) -> torch.Tensor:
    plain: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        'gelu': functional.gelu,
        'gelu_tanh': partial(functional.gelu, approximate='tanh'),
        'relu': functional.relu,
        'squared_relu': lambda y: functional.relu(y) ** 2,
        'silu': functional.silu,
    }
    if not model.gated:
        return plain[model.activation](x)
    gates = {'swiglu': 'silu', 'geglu': 'gelu', 'geglu_tanh': 'gelu_tanh'}
    return plain[gates[model.activation]](x[..., 0::2]) * x[..., 1::2]


def _capped(x: torch.Tensor, cap: float) -> torch.Tensor:
    return torch.tanh(x / cap) * cap if cap else x


def _of_latents(
    model: Transformer, linear: OfLayer, norm: OfLayer, layer: str, y: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values [batch, heads, sequence, features] of latent attention."""
    rope, nope, heads = model.qk_rope_head_dim, model.qk_nope_head_dim, model.heads
    compressed = norm(f'{layer}.q_norm', linear(f'{layer}.q_down', y)) if model.q_lora_rank else y
    q = linear(f'{layer}.q_up', compressed).unflatten(-1, (heads, -1)).transpose(1, 2)
    latent = linear(f'{layer}.kv_down', y)
    kv = linear(f'{layer}.kv_up', norm(f'{layer}.kv_norm', latent[..., : model.kv_lora_rank]))
    kv = kv.unflatten(-1, (heads, -1)).transpose(1, 2)
    shared = rotated(model, latent[..., -rope:].unsqueeze(1)).expand(-1, heads, -1, -1)
    turned = torch.cat([q[..., :nope], rotated(model, q[..., nope:])], -1)
    return turned, torch.cat([kv[..., :nope], shared], -1), kv[..., nope:]


def _together(
    model: Transformer, layer: int, qkv: torch.Tensor, gains: list[torch.Tensor | None]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values [batch, heads, sequence, features] of one product."""
    groups = model.key_value_heads
    queries = model.heads // groups
    qkv_BSGCD = qkv.unflatten(-1, (groups, queries + 2, -1))
    q = qkv_BSGCD[..., :queries, :].flatten(2, 3).transpose(1, 2)
    k, v = (qkv_BSGCD[..., queries + part, :].transpose(1, 2) for part in (0, 1))
    if model.qk_norm:

        def normed(x: torch.Tensor, gain: torch.Tensor | None) -> torch.Tensor:
            """Of each head, or of all heads together."""
            every = x.transpose(1, 2).flatten(2) if model.qk_norm == 'whole' else x
            y = functional.rms_norm(every, every.shape[-1:], gain, model.norm_epsilon)
            return y.unflatten(-1, (x.shape[1], -1)).transpose(1, 2) if y.ndim < x.ndim else y

        q, k = map(normed, (q, k), gains)
    if model.position == 'rotary':
        windows = model.window if isinstance(model.window, tuple) else (model.window,)
        if model.window_theta and windows[layer % len(windows)]:
            model = replace(model, rope_theta=model.window_theta, rope_scaling=())
        q, k = (rotated(model, x) for x in (q, k))
    return q, k, v


def _attention(
    model: Transformer,
    layer: int,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    drop: Callable[[torch.Tensor], torch.Tensor],
    sink: torch.Tensor | None,
) -> torch.Tensor:
    queries, head_dim = model.heads // model.key_value_heads, model.head_width
    places = torch.arange(q.shape[2])
    ahead = places[None, :] - places[:, None]
    window = model.window_of(layer) or model.sequence
    seen = (ahead <= 0) & (ahead > -window)
    if model.packed:
        seen &= torch.block_diag(*(torch.ones(length, length) for length in model.packed)) > 0
    scale = model.attention_scale or head_dim**-0.5
    if not model.dropout and not model.attention_softcap and model.position != 'alibi' and model.sinks == 'none':
        # Not our kernel: an oracle must not share the code that it checks.
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale, enable_gqa=queries > 1)
        return y.transpose(1, 2).flatten(2)
    # torch's fused attention draws dropout masks of its own, so with dropout it is written out.
    k, v = (tensor.repeat_interleave(queries, dim=1) for tensor in (k, v))
    scores = _capped(q @ k.mT * scale, model.attention_softcap)
    if model.position == 'alibi':
        scores = scores + _slopes(model.heads).to(scores)[:, None, None] * places
    scores = scores.masked_fill(~seen, float('-inf'))
    if model.sinks != 'none':
        # As of transformers' gpt_oss: a column more, which is left out behind the softmax.
        logits = scores.new_zeros(model.heads) if sink is None else sink.flatten()
        scores = torch.cat([scores, logits[:, None, None].expand(*scores.shape[:-1], 1)], -1)
    y = drop(scores.softmax(-1)[..., : len(places)]) @ v
    return y.transpose(1, 2).flatten(2)


def _slopes(heads: int) -> torch.Tensor:
    """2^(-8/n), 2^(-16/n), …, where n heads are a power of 2; others take more from those of twice as many."""
    if heads & (heads - 1) == 0:
        return torch.tensor([2 ** (-8 / heads)]) ** torch.arange(1, heads + 1)
    power = 2 ** int(log2(heads))
    return torch.cat([_slopes(power), _slopes(2 * power)[0::2][: heads - power]])


REFERENCE_OF_GPT: Final = OfModel(inputs=_inputs, parameters=_parameters, loss=_loss)
