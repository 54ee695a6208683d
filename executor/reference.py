"""The reference: the unsharded model in plain torch with autograd, built from the workload alone, never from a Program.

Shares with the machines only the names of parameters and how global tensors are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch.nn import functional

from executor.dropout import kept
from executor.reference_network import (
    EPSILON,
    Declared,
    Input,
    Parameters,
    network_inputs,
    network_parameters,
    network_result,
)
from executor.result import Result
from executor.single_thread import single_thread
from executor.tensors import batch_of, draw
from simpar.model import Network
from simpar.model.library.transformer import Transformer
from simpar.plan import Plan
from simpar.workload import Adam, AdamW, Momentum, Workload

DIFFERENCES = {'mse': functional.mse_loss, 'mae': functional.l1_loss}
"""Losses of a network whose target is a tensor like its result."""


class Reference:
    """Trains the whole model on the whole batch in one process.

    Arguments: ``plan``: its copies and whether their losses are averaged or summed; all else of it must not matter.
    """

    def __init__(self, workload: Workload, plan: Plan, seed: int = 0, dtype: torch.dtype = torch.float64) -> None:
        self._workload = workload
        self._plan = plan
        self._seed = seed
        self._dtype = dtype
        self.parameters: Parameters = {
            name: draw(initial, shape, dtype, seed, name).requires_grad_()
            for name, shape, initial in _parameters(workload)
        }
        self._optimizer = _optimizer(workload, self.parameters)
        self._gradients: Parameters = {}
        self._step = 0

    def run(self, steps: int = 1) -> Result:
        """Train ``steps`` more steps."""
        with single_thread():
            losses = tuple(self._train() for _ in range(steps))
        return Result(
            losses=losses,
            parameters={name: parameter.detach().clone() for name, parameter in self.parameters.items()},
            gradients=self._gradients,
        )

    def _train(self) -> float:
        x, target = (self._input(*named) for named in _inputs(self._workload))
        copies = self._plan.copies
        keys = self._input('dropout.keys', f'tokens:{2**62}', (self._workload.batch,), True)
        losses = [
            _loss(self._workload, self.parameters, *slices)
            for slices in zip(x.chunk(copies), target.chunk(copies), keys.chunk(copies), strict=True)
        ]
        loss = torch.stack(losses).sum() / (copies if self._plan.copies_loss == 'mean' else 1)
        self._optimizer.zero_grad()
        (loss * self._workload.loss_scale).backward()
        self._gradients = {f'd:{name}': parameter.grad.clone() for name, parameter in self.parameters.items()}
        self._update()
        self._step += 1
        return float(loss.detach())

    def _update(self) -> None:
        """Unscale, look whether all is finite, clip, step; with a loss scale nothing is updated where it is not."""
        workload, gradients = self._workload, [parameter.grad for parameter in self.parameters.values()]
        if workload.loss_scale != 1:
            if not all(bool(gradient.isfinite().all()) for gradient in gradients):
                return
            torch._foreach_div_(gradients, workload.loss_scale)
        if workload.clip_norm:
            torch.nn.utils.clip_grad_norm_(self.parameters.values(), workload.clip_norm)
        self._optimizer.step()

    def _input(self, name: str, initial: str, shape: tuple[int, ...], integer: bool) -> torch.Tensor:
        dtype = torch.int64 if integer else self._dtype
        return batch_of(name, initial, shape, dtype, self._seed, self._step)


def _optimizer(workload: Workload, parameters: Parameters) -> torch.optim.Optimizer:
    rule = workload.optimizer
    weights, rate = parameters.values(), rule.learning_rate
    if isinstance(rule, Momentum):
        return torch.optim.SGD(
            weights, lr=rate, momentum=rule.momentum, nesterov=rule.nesterov, weight_decay=rule.weight_decay
        )
    if isinstance(rule, Adam):
        return torch.optim.Adam(weights, lr=rate, betas=(rule.beta1, rule.beta2), eps=rule.epsilon)
    if isinstance(rule, AdamW):
        betas, decay = (rule.beta1, rule.beta2), rule.weight_decay
        return torch.optim.AdamW(weights, lr=rate, betas=betas, eps=rule.epsilon, weight_decay=decay)
    return torch.optim.SGD(weights, lr=rate)


def _inputs(workload: Workload) -> tuple[Input, Input]:
    """The model's input and its target."""
    model, batch = workload.model, workload.batch
    if isinstance(model, Network):
        classes, mnist = workload.loss not in DIFFERENCES, workload.data == 'mnist'
        return network_inputs(model, batch, classes=classes, mnist=mnist)
    shape, initial = (batch, model.sequence), f'tokens:{model.vocab}'
    return ('tokens', initial, shape, True), ('labels', initial, shape, True)


def _loss(
    workload: Workload, parameters: Parameters, x: torch.Tensor, target: torch.Tensor, keys: torch.Tensor
) -> torch.Tensor:
    model = workload.model
    if isinstance(model, Network):
        y = network_result(model, parameters, x)
        return DIFFERENCES.get(workload.loss, functional.cross_entropy)(y, target)
    logits = _transformer(model, parameters, x, keys)
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def _parameters(workload: Workload) -> Iterator[Declared]:
    """Name, shape and draw of every parameter."""
    model = workload.model
    if isinstance(model, Network):
        yield from network_parameters(model, workload.batch)
        return
    weight = f'normal:{model.weight_deviation}'
    hidden, ffn, groups = model.hidden, model.ffn_width, model.key_value_heads
    queries, head_dim = model.heads // groups, hidden // model.heads
    yield 'embedding.weight', (model.vocab, hidden), weight
    yield 'position.weight', (model.sequence, hidden), weight
    for layer in (f'layer{index}' for index in range(model.layers)):
        for norm in ('norm1', 'norm2'):
            yield f'{layer}.{norm}.gain', (hidden,), 'ones'
            yield f'{layer}.{norm}.bias', (hidden,), 'zeros'
        for name, outputs, inputs in (
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
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=queries > 1)
        return y.transpose(1, 2).flatten(2)
    k, v = (tensor.repeat_interleave(queries, dim=1) for tensor in (k, v))
    scores = q @ k.mT / q.shape[-1] ** 0.5
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    y = drop(scores.masked_fill(future, float('-inf')).softmax(-1)) @ v
    return y.transpose(1, 2).flatten(2)
