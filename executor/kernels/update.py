"""Optimizer updates, in place and for all weights of an op at once, as fused optimizers do.

An update reads gradients..., weights..., the states of its rule..., masters... (fp32 weights, which it updates and
casts to the weights), where a loss scale can leave it out the count of updates done, and of all ranks' gradients the
squares, to clip by their norm, and how many are not finite: then it changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import torch

from executor.kernels.clip import factor
from executor.kernels.context import Context
from executor.kernels.skipped import overflow_of, restore, saved
from simpar.program import OpClass

Tensors = list[torch.Tensor]
STATES: Final = {'sgd': 0, 'momentum': 1, 'adam': 2}
"""Operator → states of a weight, without its master."""


@dataclass(frozen=True, slots=True, eq=False)
class _Given:
    """What an update reads, by kind.

    Arguments:
        exact: what the rule changes: the masters, or the weights themselves.
        count: how many updates were done.
        factor: what gradients are multiplied by.
        overflow: how many gradients on all ranks are not finite; None where this is not asked.
        before: what the op changes, as it was, where all of it may have to be put back.
    """

    gradients: Tensors
    weights: Tensors
    states: list[Tensors]
    exact: Tensors
    count: torch.Tensor | None
    factor: float | torch.Tensor
    overflow: torch.Tensor | None
    before: Tensors

    @property
    def written(self) -> Tensors:
        """All but gradients and the numbers of all ranks, in order."""
        # Without master weights, ``exact`` is the weights themselves and must not stand there twice.
        kinds = [self.weights, *self.states, *([self.exact] if self.exact is not self.weights else [])]
        return [tensor for kind in kinds for tensor in kind] + ([] if self.count is None else [self.count])

    @property
    def plain(self) -> bool:
        """Whether gradients are neither unscaled nor clipped."""
        return not isinstance(self.factor, torch.Tensor) and self.factor == 1

    def scaled(self) -> Tensors:
        """The gradients, unscaled and clipped, in the form of the states; new tensors."""
        return list(torch._foreach_mul(_like(self.gradients, self.states[0]), self.factor))

    def change(self, by: Tensors, rate: float | torch.Tensor) -> None:
        """Take ``rate`` times something from the weights."""
        by = _like(by, self.exact)
        if isinstance(rate, torch.Tensor):
            # The coefficient is on the device, where an ``alpha`` cannot be.
            torch._foreach_sub_(self.exact, torch._foreach_mul(by, rate))
        else:
            torch._foreach_add_(self.exact, by, alpha=-rate)

    def cast(self) -> Tensors:
        """The weights follow their masters, if all gradients are finite; what the op writes."""
        if self.exact is not self.weights:
            torch._foreach_copy_(self.weights, self.exact)
        restore(self.overflow, self.written, self.before)
        return self.written


def sgd(op: OpClass, where: Context, tensors: Tensors) -> Tensors:
    """→ weights...[, masters...]"""
    given = _given(op, tensors)
    # SGD is linear in its gradients, so unscaling and clipping go into the rate.
    given.change(given.gradients, float(op.attributes['learning_rate']) * given.factor)
    return given.cast()


def momentum(op: OpClass, where: Context, tensors: Tensors) -> Tensors:
    """→ weights..., v...[, masters...]: v = momentum · v + g, and w −= learning_rate · v.

    g has weight_decay · w added; with ``nesterov``, w −= learning_rate · (g + momentum · v).
    """
    given = _given(op, tensors)
    (v,), gradients = given.states, given.scaled()
    decay, mu = float(op.attributes['weight_decay']), float(op.attributes['momentum'])
    if decay:
        # Before the momentum, as torch's SGD does it (L2, not decoupled).
        torch._foreach_add_(gradients, _like(given.exact, gradients), alpha=decay)
    torch._foreach_mul_(v, mu)
    torch._foreach_add_(v, gradients)
    if op.attributes['nesterov']:
        torch._foreach_add_(gradients, v, alpha=mu)
    change = gradients if op.attributes['nesterov'] else v
    given.change(change, float(op.attributes['learning_rate']))
    return given.cast()


def adam(op: OpClass, where: Context, tensors: Tensors) -> Tensors:
    """→ weights..., m..., v...[, masters...][, count]; Kingma and Ba 2014, algorithm 1.

    With ``weight_decay``, weights first lose learning_rate · weight_decay of themselves: AdamW, Loshchilov and Hutter
    2019, algorithm 2.
    """
    given = _given(op, tensors)
    m, v = given.states
    # Where steps may be skipped, the bias correction counts updates, not steps.
    step = where.step + 1 if given.count is None else given.count.add_(1).double().reshape(())
    rate, decay = float(op.attributes['learning_rate']), float(op.attributes.get('weight_decay', 0.0))
    if decay:
        # Decoupled decay comes first, as in torch's AdamW.
        torch._foreach_mul_(given.exact, 1 - rate * decay)
    gradients = _like(given.gradients, m) if given.plain else given.scaled()
    beta1, beta2 = float(op.attributes['beta1']), float(op.attributes['beta2'])
    torch._foreach_lerp_(m, gradients, 1 - beta1)
    torch._foreach_mul_(v, beta2)
    torch._foreach_addcmul_(v, gradients, gradients, 1 - beta2)
    # In torch's order of operations, so that results agree to the last digits.
    denominator = torch._foreach_sqrt(v)
    torch._foreach_div_(denominator, (1 - beta2**step) ** 0.5)
    torch._foreach_add_(denominator, float(op.attributes['epsilon']))
    change = torch._foreach_div(m, denominator)
    given.change(change, rate / (1 - beta1**step))
    return given.cast()


def _given(op: OpClass, tensors: Tensors) -> _Given:
    """Sort what an update reads by kind."""
    attributes = op.attributes
    # Read from the back: what is optional stands last, so its places are known.
    overflow = overflow_of(op, tensors)
    tensors = tensors[:-1] if overflow is not None else tensors
    squares = tensors[-1] if 'clip_norm' in attributes else None
    tensors = tensors[:-1] if 'clip_norm' in attributes else tensors
    counts = 'loss_scale' in attributes and op.operator == 'adam'
    count, tensors = (tensors[-1], tensors[:-1]) if counts else (None, tensors)
    kinds = 2 + STATES[op.operator] + bool(attributes.get('master_weights'))
    gradients, weights, *states = _by_kind(tensors, kinds)
    exact = states.pop() if attributes.get('master_weights') else weights
    # A gradient that is not finite leaves all as it was, on every rank: the count was summed over all of them.
    given = _Given(gradients, weights, states, exact, count, factor(op, squares), overflow, [])
    return replace(given, before=saved(overflow, given.written))


def _by_kind(tensors: Tensors, kinds: int) -> list[Tensors]:
    count = len(tensors) // kinds
    return [tensors[first : first + count] for first in range(0, len(tensors), count)]


def _like(tensors: Tensors, others: Tensors) -> Tensors:
    """The tensors in the shapes and dtypes of the others."""
    return [tensor.reshape(other.shape).to(other.dtype) for tensor, other in zip(tensors, others, strict=True)]


KERNELS = {('sgd', 'U'): sgd, ('momentum', 'U'): momentum, ('adam', 'U'): adam}
