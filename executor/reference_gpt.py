"""The reference of a ``transformer:``: a GPT in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, cast

import torch
from torch.nn import functional

from executor.dropout import kept
from executor.reference_model import Declared, Input, OfModel, Parameters
from executor.reference_network import EPSILON
from simpar.model.library.gpt import Transformer
from simpar.workload import Workload


def _model(workload: Workload) -> Transformer:
    return cast('Transformer', workload.model)


def _inputs(workload: Workload) -> tuple[Input, Input]:
    """Tokens and labels."""
    model = _model(workload)
    shape, initial = (workload.batch, model.sequence), f'tokens:{model.vocab}'
    return ('tokens', initial, shape, True), ('labels', initial, shape, True)


def _loss(
    workload: Workload, parameters: Parameters, x: torch.Tensor, target: torch.Tensor, keys: torch.Tensor
) -> torch.Tensor:
    # The mean over all tokens, which is what ``scale`` makes of the program's sums.
    logits = _transformer(_model(workload), parameters, x, keys)
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def _parameters(workload: Workload) -> Iterator[Declared]:
    """Name, shape and draw of every parameter."""
    model = _model(workload)
    weight = f'normal:{model.init_std}'
    hidden, ffn, groups = model.hidden, model.ffn_width, model.key_value_heads
    queries, head_dim = model.heads // groups, hidden // model.heads
    yield 'embedding.weight', (model.vocab, hidden), weight
    yield 'position.weight', (model.sequence, hidden), weight
    for layer in (f'layer{index}' for index in range(model.layers)):
        for norm in ('norm1', 'norm2'):
            yield f'{layer}.{norm}.gain', (hidden,), 'ones'
            yield f'{layer}.{norm}.bias', (hidden,), 'zeros'
        for name, outputs, inputs in (
            # By groups, as the kernels split it: each group's queries, then its key and value.
            ('qkv', (groups, queries + 2, head_dim), (hidden,)),
            ('proj', (hidden,), (groups, queries, head_dim)),
            ('fc1', (ffn,), (hidden,)),
            ('fc2', (hidden,), (ffn,)),
        ):
            yield f'{layer}.{name}.weight', (*outputs, *inputs), weight
            yield f'{layer}.{name}.bias', outputs, 'zeros'
    yield 'norm.gain', (hidden,), 'ones'
    yield 'norm.bias', (hidden,), 'zeros'
    if not model.tied:
        yield 'head.weight', (model.vocab, hidden), weight


def _transformer(model: Transformer, parameters: Parameters, tokens: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    def drop(site: str, x: torch.Tensor) -> torch.Tensor:
        if not model.dropout:
            return x
        return x * kept(keys, site, x.shape[1:], model.dropout) / (1 - model.dropout)

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, x.shape[-1:], parameters[f'{name}.gain'], parameters[f'{name}.bias'], EPSILON)

    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        weight, bias = parameters[f'{name}.weight'], parameters[f'{name}.bias'].flatten()
        return functional.linear(x, weight.reshape(bias.numel(), -1), bias)

    x = functional.embedding(tokens, parameters['embedding.weight']) + parameters['position.weight']
    x = drop('position', x)
    for layer in (f'layer{index}' for index in range(model.layers)):
        y = _attention(model, linear(f'{layer}.qkv', norm(f'{layer}.norm1', x)), partial(drop, f'{layer}.attention'))
        x = x + drop(f'{layer}.residual1', linear(f'{layer}.proj', y))
        y = functional.gelu(linear(f'{layer}.fc1', norm(f'{layer}.norm2', x)))
        x = x + drop(f'{layer}.residual2', linear(f'{layer}.fc2', y))
    head = parameters['embedding.weight' if model.tied else 'head.weight']
    return functional.linear(norm('norm', x), head)


def _attention(model: Transformer, qkv: torch.Tensor, drop: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    groups = model.key_value_heads
    queries = model.heads // groups
    qkv_BSGCD = qkv.unflatten(-1, (groups, queries + 2, -1))
    q = qkv_BSGCD[..., :queries, :].flatten(2, 3).transpose(1, 2)
    k, v = (qkv_BSGCD[..., queries + part, :].transpose(1, 2) for part in (0, 1))
    if not model.dropout:
        # Not our kernel: an oracle must not share the code that it checks.
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=queries > 1)
        return y.transpose(1, 2).flatten(2)
    # torch's fused attention draws dropout masks of its own, so with dropout it is written out.
    k, v = (tensor.repeat_interleave(queries, dim=1) for tensor in (k, v))
    scores = q @ k.mT / q.shape[-1] ** 0.5
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    y = drop(scores.masked_fill(future, float('-inf')).softmax(-1)) @ v
    return y.transpose(1, 2).flatten(2)


REFERENCE_OF_GPT: Final = OfModel(inputs=_inputs, parameters=_parameters, loss=_loss)
