"""The router of a mixture of experts: scores, the choice of experts, weights, and the auxiliary loss.

B batch, S sequence, E experts. What is chosen is no function with a gradient; weights and the loss are.
"""

from __future__ import annotations

import torch

from executor.kernels.context import Context
from executor.kernels.precision import wide
from simpar.program import OpClass

TINY = 1e-20
"""Added to a sum of sigmoids, which may all be zero."""


def route_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """logits[, correction] → weights [B, S, E], zero but for the experts of a token; map [B, S, E]."""
    logits, *correction = map(wide, tensors)
    scores = _scores(op, logits)
    chosen = _chosen(op, scores + correction[0] if correction else scores)
    return [_weights(op, scores * chosen), chosen]


def route_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dweights, logits, map → dlogits."""
    dy, logits, chosen = wide(tensors[0]), wide(tensors[1]), tensors[2]
    scores = _scores(op, logits)
    dy = dy * chosen * float(op.attributes.get('factor', 1.0))
    if 'normalise' in op.attributes:
        picked = scores * chosen
        total = picked.sum(-1, keepdim=True) + _tiny(op)
        dy = (dy - (dy * picked).sum(-1, keepdim=True) / total) / total * chosen
    return [_scores_dx(op, scores, dy)]


def balance_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """logits, map → [B, 2, E], or together [1, 2, E]: tokens of each expert, and the sum of its scores.

    The scores of a token add up to one.
    """
    scores = _shares(op, _scores(op, wide(tensors[0])))
    sums = torch.stack([tensors[1].to(scores.dtype).sum(1), scores.sum(1)], 1)
    return [sums.sum(0, keepdim=True) if 'together' in op.attributes else sums]


def aux_loss_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """weights, balance → loss, weights."""
    weights, balance = tensors[0], wide(tensors[1])
    counts, scores = (part / float(op.attributes['tokens']) for part in balance.unbind(1))
    if op.attributes['group'] == 'rank':
        counts, scores = counts.mean(0), scores.mean(0)
        loss = (counts * scores).sum()
    else:
        loss = (counts * scores).sum(-1).mean()
    return [(loss * _scale(op)).reshape(1), weights.clone()]


def aux_loss_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """logits, balance → dlogits."""
    logits, balance = map(wide, tensors)
    counts = balance[:, 0] / float(op.attributes['tokens'])
    if op.attributes['group'] == 'rank':
        counts = counts.mean(0, keepdim=True)
    counts = counts.expand(logits.shape[0], -1)
    # The mean over samples, and over the tokens of each.
    each = counts * (_scale(op) / (logits.shape[0] * float(op.attributes['sequence'])))
    scores = _scores(op, logits)
    dscores = each.unsqueeze(1).expand_as(scores)
    if op.attributes['score'] == 'sigmoid':
        total = scores.sum(-1, keepdim=True)
        dscores = (dscores - (dscores * scores).sum(-1, keepdim=True) / total) / total
    return [_scores_dx(op, scores, dscores)]


def _scale(op: OpClass) -> float:
    # A token has several choices; their shares add up to one.
    return float(op.attributes['scale']) / float(op.attributes['top_k'])


def _scores(op: OpClass, logits: torch.Tensor) -> torch.Tensor:
    return logits.softmax(-1) if op.attributes['score'] == 'softmax' else logits.sigmoid()


def _scores_dx(op: OpClass, scores: torch.Tensor, dscores: torch.Tensor) -> torch.Tensor:
    if op.attributes['score'] == 'softmax':
        return scores * (dscores - (dscores * scores).sum(-1, keepdim=True))
    return dscores * scores * (1 - scores)


def _shares(op: OpClass, scores: torch.Tensor) -> torch.Tensor:
    """Scores that add up to one for each token, as those of a softmax do."""
    return scores if op.attributes['score'] == 'softmax' else scores / scores.sum(-1, keepdim=True)


def _tiny(op: OpClass) -> float:
    return 0.0 if op.attributes['score'] == 'softmax' else TINY


def _chosen(op: OpClass, scores: torch.Tensor) -> torch.Tensor:
    """The experts of each token; of equal scores, those of lower numbers."""
    groups = int(op.attributes.get('groups', 1))
    if groups > 1:
        scores_BSGE = scores.unflatten(-1, (groups, -1))
        of_group = scores_BSGE.topk(int(op.attributes['group_scores']), -1).values.sum(-1)
        best = _mask(of_group, int(op.attributes['group_top_k']))
        scores = scores_BSGE.masked_fill(~best.unsqueeze(-1), float('-inf')).flatten(-2)
    return _mask(scores, int(op.attributes['top_k']))


def _mask(scores: torch.Tensor, count: int) -> torch.Tensor:
    """The largest of each row; a stable sort, so that every rank and step decides ties alike."""
    order = scores.sort(dim=-1, descending=True, stable=True).indices[..., :count]
    return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, order, value=True)


def _weights(op: OpClass, picked: torch.Tensor) -> torch.Tensor:
    if 'normalise' in op.attributes:
        picked = picked / (picked.sum(-1, keepdim=True) + _tiny(op))
    return picked * float(op.attributes.get('factor', 1.0))


KERNELS = {
    ('route', 'F'): route_forward,
    ('route', 'I'): route_dx,
    ('balance', 'F'): balance_forward,
    ('aux_loss', 'F'): aux_loss_forward,
    ('aux_loss', 'I'): aux_loss_dx,
}
