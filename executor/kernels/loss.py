"""Embeddings, and losses: ``attributes['scale']`` × the sum over the local samples, the vocabulary sharded or not.

Cross entropy over a sharded vocabulary is Megatron's (Shoeybi et al. 2019, section 3). It all-reduces a maximum and two
sums, and never logits.
"""

from collections.abc import Callable
from typing import Final

import torch

from executor.draws import on_device
from executor.kernels.context import Context, Kernel, of_phases, places, plain, position, rows, wide
from executor.kernels.pointwise import numbers, reduced
from simpar.program import OpClass


def local_rows(op: OpClass, where: Context, tokens: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens as rows of this rank's shard of the vocabulary, and which of them lie in it; the others become row 0."""
    local = tokens - position(op, where) * rows
    inside = (local >= 0) & (local < rows)
    # Row 0 stands in for tokens of other ranks: an index out of range would abort, and ``inside`` removes what it
    # gives.
    return local.where(inside, 0), inside


def embedding_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """tokens, weight → y; zeros for tokens outside of this rank's rows."""
    tokens, weight = tensors
    local, inside = local_rows(op, where, tokens, weight.shape[0])
    # Zeros elsewhere, so that the sum over ranks is the full result.
    return [weight[local] * inside.unsqueeze(-1)]


def embedding_dw(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """tokens, dy → dweight; ``attributes['rows']``: how many rows of the weight this rank has."""
    tokens, dy = tensors
    rows = int(op.attributes['rows'])
    local, inside = local_rows(op, where, tokens, rows)
    # As in torch, the row of a padding token is not trained.
    inside = inside & (tokens != int(op.attributes.get('padding', -1)))
    dweight = dy.new_zeros(rows, dy.shape[-1])
    # A token may occur several times; ``index_add_`` sums, where an assignment would keep one.
    return [dweight.index_add_(0, local.flatten(), (dy * inside.unsqueeze(-1)).flatten(0, -2))]


def position_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """x, weight → y; the weight is unsharded, x may be this rank's shard of the sequence."""
    x, weight = tensors
    return [x + weight[on_device(places(op, where, x.shape[1]), weight)]]


def position_dw(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy → dweight of the full weight: zero rows outside of this rank's shard of the sequence, and behind its end."""
    drows = tensors[0].sum(0)
    rows = int(op.attributes['rows'])
    # Documents that a sample packs share the rows of their places.
    at = on_device(places(op, where, drows.shape[0]), drows)
    return [drows.new_zeros(rows, drows.shape[1]).index_add_(0, at, drows)]


# Losses: ``attributes['scale']`` × the sum over the local samples, unsharded or with the vocabulary over a
# partition.


def cross_entropy_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """logits, labels → loss, lse [..., 1]."""
    logits, labels = wide(tensors[0]), tensors[1]
    lse = logits.logsumexp(-1, keepdim=True)
    each = lse - logits.gather(-1, (labels.clamp(min=0) if 'masked' in op.attributes else labels).unsqueeze(-1))
    if 'masked' in op.attributes:
        each = each * (labels >= 0).unsqueeze(-1)
    return [_scale(op) * each.sum(), lse]


def cross_entropy_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """logits, labels, lse → dlogits, of this rank's shard of the vocabulary where it is sharded."""
    logits, labels, lse = wide(tensors[0]), *tensors[1:]
    local, inside = local_rows(op, where, labels, logits.shape[-1])
    dlogits = (logits - lse.reshape(*labels.shape, 1)).exp()
    # One is subtracted at the target, and nothing where another rank holds the target's logit.
    dlogits.scatter_add_(-1, local.unsqueeze(-1), -inside.unsqueeze(-1).to(dlogits.dtype))
    if 'masked' in op.attributes:
        dlogits *= (labels >= 0).unsqueeze(-1)
    return [dlogits * (_scale(op) * _partial_share(op))]


def ce_sum(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """logits, labels, maximum → parts [..., 2]: Σ exp(logit − maximum), and the target's logit − maximum if here."""
    logits, labels, maximum = wide(tensors[0]), *tensors[1:]
    shifted = logits - maximum.reshape(*labels.shape, 1)
    local, inside = local_rows(op, where, labels, logits.shape[-1])
    target = shifted.gather(-1, local.unsqueeze(-1)).squeeze(-1)
    # Both sums in one tensor, so that one all-reduce does for them.
    return [torch.stack([shifted.exp().sum(-1), target * inside], dim=-1)]


def ce_loss(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """parts, maximum[, labels] → loss, lse [..., 1]; what has a negative label is not counted."""
    parts, maximum = map(wide, tensors[:2])
    total, target = parts.unbind(-1)
    logarithm = total.log()
    each = logarithm - target
    for labels in tensors[2:]:
        each = each * (labels >= 0)
    # The maximum cancels in the loss, and is part of the log-sum-exp that the backward reads.
    return [_scale(op) * each.sum(), maximum.reshape(*total.shape, 1) + logarithm.unsqueeze(-1)]


def mse_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """y, target → loss."""
    y, target = map(wide, tensors)
    return [_scale(op) * (y - target).square().sum()]


def mse_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """y, target → dy."""
    y, target = tensors
    return [(y - target) * (2 * _scale(op) * _partial_share(op))]


def mae_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """y, target → loss."""
    y, target = map(wide, tensors)
    return [_scale(op) * (y - target).abs().sum()]


def mae_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """y, target → dy; 0 where they are equal."""
    y, target = tensors
    return [(y - target).sign() * (_scale(op) * _partial_share(op))]


def _scale(op: OpClass) -> float:
    return float(op.attributes['scale'])


def _partial_share(op: OpClass) -> float:
    return float(op.attributes.get('partial_share', 1.0))


LOSSES = frozenset({'cross_entropy', 'ce_loss', 'cross_entropy_mean', 'mse', 'mae', 'aux_loss'})
"""Operators whose first written tensor in phase F is a loss."""


# The operators of cross-entropy where it is no single one: see ``simpar.model.library.cross_entropy``.


def maximum(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """x → its maximum over ``dims``, which stay with length 1."""
    return [tensors[0].amax(numbers(op, 'dims'), keepdim=True)]


def spread(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy → the same everywhere along what was summed, in memory of its own."""
    # An expanded view shares one element; a later op that works in place would change all of them.
    return [tensors[0].expand(numbers(op, 'shape')).contiguous()]


def equal(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """x → where it is ``value``."""
    return [tensors[0] == int(op.attributes['value'])]


def masked_fill(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """x, mask → x, zeros where the mask is true; a mask alone: ones, zeros where it is."""
    *x, mask = tensors
    return [x[0].masked_fill(mask, 0) if x else ~mask]


def gather_elements_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy, index → dx of ``shape``, zeros but for what was named."""
    dy, index = tensors
    return [dy.new_zeros(numbers(op, 'shape')).scatter_(-1, index, dy)]


def mean(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Σ likelihoods, Σ smoothing, count → loss; nothing is smoothed."""
    likelihood, _, count = map(wide, tensors)
    return [float(op.attributes['scale']) * likelihood / count]


def mean_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """count → the gradients of both sums."""
    share = float(op.attributes['scale']) * float(op.attributes['partial_share'])
    gradient = share / wide(tensors[0])
    # Label smoothing is off, but the compiler's graph still has its sum, which therefore gets a gradient.
    return [gradient, torch.zeros_like(gradient)]


PLAIN: Final[dict[tuple[str, str], Callable[..., torch.Tensor]]] = {
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
    **rows('mse', F=mse_forward, I=mse_dx),
    **rows('mae', F=mae_forward, I=mae_dx),
    ('maximum', 'F'): maximum,
    **rows('reduce_sum', F=reduced, I=spread),
    ('equal', 'F'): equal,
    **of_phases('masked_fill', 'FI', masked_fill),
    ('gather_elements', 'I'): gather_elements_dx,
    **rows('cross_entropy_mean', F=mean, I=mean_dx),
}
