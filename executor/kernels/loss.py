"""Embeddings, and losses: ``attributes['scale']`` × the sum over the local samples, the vocabulary sharded or not.

Cross entropy over a sharded vocabulary is Megatron's (Shoeybi et al. 2019, section 3). It all-reduces a maximum and two
sums, and never logits.
"""

from collections.abc import Callable
from typing import Final

import torch

from executor.draws import on_device
from executor.kernels.context import Context, Kernel, Tensor, Tensors, of_phases, places, plain, position, rows, wide
from executor.kernels.pointwise import numbers, reduced
from simpar.program import OpClass


def local_rows(op: OpClass, where: Context, tokens: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Tokens as rows of this rank's shard of the vocabulary, and which of them lie in it; the others become row 0."""
    local = tokens - position(op, where) * rows
    inside = (local >= 0) & (local < rows)
    # Row 0 stands in for tokens of other ranks: an index out of range would abort, and ``inside`` removes what it
    # gives.
    return local.where(inside, 0), inside


def embedding_forward(op: OpClass, where: Context, tokens: Tensor, weight: Tensor) -> Tensors:
    """tokens, weight → y; zeros for tokens outside of this rank's rows."""
    local, inside = local_rows(op, where, tokens, weight.shape[0])
    # Zeros elsewhere, so that the sum over ranks is the full result.
    return [weight[local] * inside.unsqueeze(-1)]


def embedding_dw(op: OpClass, where: Context, tokens: Tensor, dy: Tensor) -> Tensors:
    """tokens, dy → dweight; ``attributes['rows']``: how many rows of the weight this rank has."""
    rows = int(op.attributes['rows'])
    local, inside = local_rows(op, where, tokens, rows)
    # As in torch, the row of a padding token is not trained.
    inside = inside & (tokens != int(op.attributes.get('padding', -1)))
    dweight = dy.new_zeros(rows, dy.shape[-1])
    # A token may occur several times; ``index_add_`` sums, where an assignment would keep one.
    return [dweight.index_add_(0, local.flatten(), (dy * inside.unsqueeze(-1)).flatten(0, -2))]


def position_forward(op: OpClass, where: Context, x: Tensor, weight: Tensor) -> Tensors:
    """x, weight → y; the weight is unsharded, x may be this rank's shard of the sequence."""
    return [x + weight[on_device(places(op, where, x.shape[1]), weight)]]


def position_dw(op: OpClass, where: Context, dy: Tensor) -> Tensors:
    """dy → dweight of the full weight: zero rows outside of this rank's shard of the sequence, and behind its end."""
    drows = dy.sum(0)
    rows = int(op.attributes['rows'])
    # Documents that a sample packs share the rows of their places.
    at = on_device(places(op, where, drows.shape[0]), drows)
    return [drows.new_zeros(rows, drows.shape[1]).index_add_(0, at, drows)]


# Losses: ``attributes['scale']`` × the sum over the local samples, unsharded or with the vocabulary over a
# partition.


def cross_entropy_forward(op: OpClass, where: Context, logits: Tensor, labels: Tensor) -> Tensors:
    """logits, labels → loss, lse [..., 1]."""
    logits = wide(logits)
    lse = logits.logsumexp(-1, keepdim=True)
    each = lse - logits.gather(-1, (labels.clamp(min=0) if 'masked' in op.attributes else labels).unsqueeze(-1))
    if 'masked' in op.attributes:
        each = each * (labels >= 0).unsqueeze(-1)
    return [_scale(op) * each.sum(), lse]


def cross_entropy_dx(op: OpClass, where: Context, logits: Tensor, labels: Tensor, lse: Tensor) -> Tensors:
    """logits, labels, lse → dlogits, of this rank's shard of the vocabulary where it is sharded."""
    logits = wide(logits)
    local, inside = local_rows(op, where, labels, logits.shape[-1])
    dlogits = (logits - lse.reshape(*labels.shape, 1)).exp()
    # One is subtracted at the target, and nothing where another rank holds the target's logit.
    dlogits.scatter_add_(-1, local.unsqueeze(-1), -inside.unsqueeze(-1).to(dlogits.dtype))
    if 'masked' in op.attributes:
        dlogits *= (labels >= 0).unsqueeze(-1)
    return [dlogits * (_scale(op) * _partial_share(op))]


def ce_sum(op: OpClass, where: Context, logits: Tensor, labels: Tensor, maximum: Tensor) -> Tensors:
    """logits, labels, maximum → parts [..., 2]: Σ exp(logit − maximum), and the target's logit − maximum if here."""
    shifted = wide(logits) - maximum.reshape(*labels.shape, 1)
    local, inside = local_rows(op, where, labels, logits.shape[-1])
    target = shifted.gather(-1, local.unsqueeze(-1)).squeeze(-1)
    # Both sums in one tensor, so that one all-reduce does for them.
    return [torch.stack([shifted.exp().sum(-1), target * inside], dim=-1)]


def ce_loss(op: OpClass, where: Context, parts: Tensor, maximum: Tensor, *labels: Tensor) -> Tensors:
    """parts, maximum[, labels] → loss, lse [..., 1]; what has a negative label is not counted."""
    total, target = wide(parts).unbind(-1)
    logarithm = total.log()
    each = logarithm - target
    for one in labels:
        each = each * (one >= 0)
    # The maximum cancels in the loss, and is part of the log-sum-exp that the backward reads.
    return [_scale(op) * each.sum(), wide(maximum).reshape(*total.shape, 1) + logarithm.unsqueeze(-1)]


def error_forward(op: OpClass, where: Context, y: Tensor, target: Tensor) -> Tensors:
    """y, target → loss, of squares or of absolute values."""
    error = wide(y) - wide(target)
    return [_scale(op) * (error.square() if op.operator == 'mse' else error.abs()).sum()]


def error_dx(op: OpClass, where: Context, y: Tensor, target: Tensor) -> Tensors:
    """y, target → dy; of absolute values 0 where they are equal."""
    error, share = y - target, _scale(op) * _partial_share(op)
    return [error * (2 * share) if op.operator == 'mse' else error.sign() * share]


def _scale(op: OpClass) -> float:
    return float(op.attributes['scale'])


def _partial_share(op: OpClass) -> float:
    return float(op.attributes.get('partial_share', 1.0))


LOSSES = frozenset({'cross_entropy', 'ce_loss', 'cross_entropy_mean', 'mse', 'mae', 'aux_loss'})
"""Operators whose first written tensor in phase F is a loss."""


# The operators of cross-entropy where it is no single one: see ``simpar.model.library.cross_entropy``.


def maximum(op: OpClass, where: Context, x: Tensor) -> Tensors:
    """x → its maximum over ``dims``, which stay with length 1."""
    return [x.amax(numbers(op, 'dims'), keepdim=True)]


def spread(op: OpClass, where: Context, dy: Tensor) -> Tensors:
    """dy → the same everywhere along what was summed, in memory of its own."""
    # An expanded view shares one element; a later op that works in place would change all of them.
    return [dy.expand(numbers(op, 'shape')).contiguous()]


def equal(op: OpClass, where: Context, x: Tensor) -> Tensors:
    """x → where it is ``value``."""
    return [x == int(op.attributes['value'])]


def masked_fill(op: OpClass, where: Context, *tensors: Tensor) -> Tensors:
    """x, mask → x, zeros where the mask is true; a mask alone: ones, zeros where it is."""
    *x, mask = tensors
    return [x[0].masked_fill(mask, 0) if x else ~mask]


def gather_elements_dx(op: OpClass, where: Context, dy: Tensor, index: Tensor) -> Tensors:
    """dy, index → dx of ``shape``, zeros but for what was named."""
    return [dy.new_zeros(numbers(op, 'shape')).scatter_(-1, index, dy)]


def mean(op: OpClass, where: Context, likelihood: Tensor, smoothing: Tensor, count: Tensor) -> Tensors:
    """Σ likelihoods, Σ smoothing, count → loss; nothing is smoothed."""
    return [_scale(op) * wide(likelihood) / wide(count)]


def mean_dx(op: OpClass, where: Context, count: Tensor) -> Tensors:
    """count → the gradients of both sums."""
    gradient = _scale(op) * _partial_share(op) / wide(count)
    # Label smoothing is off, but the compiler's graph still has its sum, which therefore gets a gradient.
    return [gradient, torch.zeros_like(gradient)]


PLAIN: Final[dict[tuple[str, str], Callable[..., Tensor]]] = {
    # logits → their maximum [..., 1].
    ('ce_max', 'F'): lambda logits: logits.amax(-1, keepdim=True),
    ('subtract', 'F'): torch.sub,
    # dy → dz [..., 1]: z was broadcast over the last dim, so its gradient is summed there.
    ('subtract', 'I'): lambda dy: -wide(dy).sum(-1, keepdim=True),
    # x → y; dy, y → dx.
    **rows('exp', F=torch.exp, I=torch.mul),
    # x → y; dy, x → dx.
    **rows('log', F=torch.log, I=torch.div),
    **of_phases('negate', 'FI', torch.neg),
    # x, index → of each row the elements that the index names.
    ('gather_elements', 'F'): lambda x, index: x.gather(-1, index),
}
"""(operator, phase) → a function of tensors alone, that gives one."""
KERNELS: Final[dict[tuple[str, str], Kernel]] = {
    **{key: plain(function) for key, function in PLAIN.items()},
    **rows('embedding', F=embedding_forward, W=embedding_dw),
    **rows('position', F=position_forward, W=position_dw),
    **rows('cross_entropy', F=cross_entropy_forward, I=cross_entropy_dx),
    ('ce_sum', 'F'): ce_sum,
    ('ce_loss', 'F'): ce_loss,
    **rows('mse', F=error_forward, I=error_dx),
    **rows('mae', F=error_forward, I=error_dx),
    ('maximum', 'F'): maximum,
    **rows('reduce_sum', F=reduced, I=spread),
    ('equal', 'F'): equal,
    **of_phases('masked_fill', 'FI', masked_fill),
    ('gather_elements', 'I'): gather_elements_dx,
    **rows('cross_entropy_mean', F=mean, I=mean_dx),
}
