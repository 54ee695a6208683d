"""A mixture of experts: the router and its auxiliary loss, rows of tokens to slots and back, products of each expert.

B batch, S sequence, E experts, C slots of an expert for each sample, K and N features. What is chosen is no function
with a gradient; weights and the loss are. A token's slot is its place in the sequence where there are as many slots as
tokens; else its turn among the tokens of the expert.
"""

import torch
from torch.nn.functional import pad

from executor.kernels.context import Context, Tensor, Tensors, plain, rows, wide
from simpar.program import OpClass

TINY = 1e-20
"""Added to a sum of sigmoids, which may all be zero."""


def route_forward(op: OpClass, where: Context, *tensors: Tensor) -> Tensors:
    """logits[, correction] → weights [B, S, E], zero but for the experts of a token; map [B, S, E]."""
    logits, *correction = map(wide, tensors)
    scores = _scores(op, logits)
    chosen = _chosen(op, scores + correction[0] if correction else scores)
    return [_weights(op, scores * chosen), chosen]


def route_dx(op: OpClass, where: Context, dy: Tensor, logits: Tensor, chosen: Tensor) -> Tensors:
    """dweights, logits, map → dlogits."""
    scores = _scores(op, wide(logits))
    dy = wide(dy) * chosen * float(op.attributes.get('factor', 1.0))
    if 'normalise' in op.attributes:
        picked = scores * chosen
        total = picked.sum(-1, keepdim=True) + _tiny(op)
        dy = (dy - (dy * picked).sum(-1, keepdim=True) / total) / total * chosen
    return [_scores_dx(op, scores, dy)]


def balance_forward(op: OpClass, where: Context, logits: Tensor, chosen: Tensor) -> Tensors:
    """logits, map → [B, 2, E], or together [1, 2, E]: tokens of each expert, and the sum of its scores.

    The scores of a token add up to one.
    """
    scores = _scores(op, wide(logits))
    if op.attributes['score'] != 'softmax':
        scores = scores / scores.sum(-1, keepdim=True)
    sums = torch.stack([chosen.to(scores.dtype).sum(1), scores.sum(1)], 1)
    return [sums.sum(0, keepdim=True) if 'together' in op.attributes else sums]


def aux_loss_forward(op: OpClass, where: Context, weights: Tensor, balance: Tensor) -> Tensors:
    """weights, balance → loss, weights."""
    counts, scores = (part / float(op.attributes['tokens']) for part in wide(balance).unbind(1))
    of_rank = op.attributes['group'] == 'rank'
    loss = (counts.mean(0) * scores.mean(0)).sum() if of_rank else (counts * scores).sum(-1).mean()
    return [(loss * _scale(op)).reshape(1), weights.clone()]


def aux_loss_dx(op: OpClass, where: Context, *tensors: Tensor) -> Tensors:
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


def _scores(op: OpClass, logits: Tensor) -> Tensor:
    return logits.softmax(-1) if op.attributes['score'] == 'softmax' else logits.sigmoid()


def _scores_dx(op: OpClass, scores: Tensor, dscores: Tensor) -> Tensor:
    if op.attributes['score'] == 'softmax':
        return scores * (dscores - (dscores * scores).sum(-1, keepdim=True))
    return dscores * scores * (1 - scores)


def _tiny(op: OpClass) -> float:
    return 0.0 if op.attributes['score'] == 'softmax' else TINY


def _chosen(op: OpClass, scores: Tensor) -> Tensor:
    """The experts of each token; of equal scores, those of lower numbers."""
    groups = int(op.attributes.get('groups', 1))
    if groups > 1:
        scores_BSGE = scores.unflatten(-1, (groups, -1))
        of_group = scores_BSGE.topk(int(op.attributes['group_scores']), -1).values.sum(-1)
        best = _mask(of_group, int(op.attributes['group_top_k']))
        scores = scores_BSGE.masked_fill(~best.unsqueeze(-1), float('-inf')).flatten(-2)
    return _mask(scores, int(op.attributes['top_k']))


def _mask(scores: Tensor, count: int) -> Tensor:
    """The largest of each row; a stable sort, so that every rank and step decides ties alike."""
    order = scores.sort(dim=-1, descending=True, stable=True).indices[..., :count]
    return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, order, value=True)


def _weights(op: OpClass, picked: Tensor) -> Tensor:
    if 'normalise' in op.attributes:
        picked = picked / (picked.sum(-1, keepdim=True) + _tiny(op))
    return picked * float(op.attributes.get('factor', 1.0))


# Experts of a mixture: rows of tokens to slots and back, products of each expert, the gate of shared experts.


def dispatch_forward(op: OpClass, where: Context, x: Tensor, chosen: Tensor) -> Tensors:
    """x [B, S, K], map [B, S, E] → [B, E, C, K], zeros in empty slots."""
    return [_slot_rows(x, _tokens(op, chosen))]


def dispatch_dx(op: OpClass, where: Context, dy: Tensor, chosen: Tensor) -> Tensors:
    """dy [B, E, C, K], map → dx."""
    return [_added(_tokens(op, chosen), dy, chosen.shape[1])]


def combine_forward(op: OpClass, where: Context, weights: Tensor, z: Tensor, chosen: Tensor) -> Tensors:
    """weights [B, S, E], z [B, E, C, K], map → [B, S, K]."""
    tokens = _tokens(op, chosen)
    return [_added(tokens, z * _slot_weights(weights, tokens), chosen.shape[1])]


def combine_dx(op: OpClass, where: Context, dy: Tensor, other: Tensor, chosen: Tensor) -> Tensors:
    """dy [B, S, K], z, map → dweights; or dy, weights, map → dz."""
    tokens = _tokens(op, chosen)
    rows = _slot_rows(dy, tokens)
    if op.attributes['of'] == 'weights':
        batch, sequence, experts = chosen.shape
        dweights = dy.new_zeros(batch, experts, sequence + 1).scatter_(2, tokens, (rows * other).sum(-1))
        return [dweights[..., :sequence].transpose(1, 2).contiguous()]
    return [rows * _slot_weights(other, tokens)]


def grouped_forward(op: OpClass, where: Context, x: Tensor, weight: Tensor) -> Tensors:
    """x [B, E, C, K], weight [E, N..., K] → [B, E, C, N]."""
    return [_products(x, weight.flatten(1, -2).mT)]


def grouped_dx(op: OpClass, where: Context, dy: Tensor, weight: Tensor) -> Tensors:
    """dy, weight → dx."""
    return [_products(dy, weight.flatten(1, -2))]


def grouped_dw(op: OpClass, where: Context, *tensors: Tensor) -> Tensors:
    """dy, x → dweight."""
    dy_ETN, x_ETK = (tensor.transpose(0, 1).flatten(1, 2) for tensor in tensors)
    return [dy_ETN.mT @ x_ETK]


def _products(x_BECK: Tensor, weight_EKN: Tensor) -> Tensor:
    # All samples in one product: broadcast over them, torch would copy the weights for each.
    rows_ETK = x_BECK.transpose(0, 1).flatten(1, 2)
    return (rows_ETK @ weight_EKN).unflatten(1, (len(x_BECK), -1)).transpose(0, 1).contiguous()


def gate_forward(op: OpClass, where: Context, x: Tensor, gate: Tensor) -> Tensors:
    """x, gate [B, S, 1] → x · sigmoid(gate)."""
    return [x * gate.sigmoid()]


def gate_dx(op: OpClass, where: Context, *tensors: Tensor) -> Tensors:
    """dy, gate → dx; or dy, x, gate → dgate."""
    dy, *x, gate = tensors
    share = gate.sigmoid()
    if op.attributes['of'] == 'x':
        return [dy * share]
    return [(dy * x[0]).sum(-1, keepdim=True) * share * (1 - share)]


def _tokens(op: OpClass, chosen: Tensor) -> Tensor:
    """[B, E, C], the token in each slot; S where there is none. No size depends on what was chosen."""
    slots, sequence = int(op.attributes['slots']), chosen.shape[1]
    every = torch.arange(sequence, device=chosen.device)
    chosen_BES = chosen.bool().transpose(1, 2)
    # The first tokens of a sample come first.
    turn = every.expand_as(chosen_BES) if slots == sequence else chosen_BES.long().cumsum(2) - 1
    # What no expert takes goes to a slot behind all others, which nobody reads.
    slot = torch.where(chosen_BES & (turn < slots), turn, slots)
    tokens = slot.new_full((*chosen_BES.shape[:2], slots + 1), sequence)
    return tokens.scatter_(2, slot, every.expand_as(slot))[..., :slots]


def _slot_rows(x: Tensor, tokens: Tensor) -> Tensor:
    """[B, E, C, K]: the row of each slot's token, zeros in empty ones."""
    samples = torch.arange(len(x), device=x.device)[:, None, None]
    return pad(x, (0, 0, 0, 1))[samples, tokens]


def _slot_weights(weights: Tensor, tokens: Tensor) -> Tensor:
    """[B, E, C, 1]: the weight of each slot's token."""
    return pad(weights.transpose(1, 2), (0, 1)).gather(2, tokens).unsqueeze(-1)


def _added(tokens: Tensor, rows: Tensor, sequence: int) -> Tensor:
    """[B, S, K]: the sum of the rows of each token."""
    batch, features = len(rows), rows.shape[-1]
    # One row more a sample, for empty slots.
    first = torch.arange(batch, device=rows.device)[:, None, None] * (sequence + 1)
    total = rows.new_zeros(batch * (sequence + 1), features)
    total.index_add_(0, (first + tokens).flatten(), rows.reshape(-1, features))
    return total.unflatten(0, (batch, sequence + 1))[:, :sequence].contiguous()


KERNELS = {
    **rows('route', F=route_forward, I=route_dx),
    # A sweep of the balance is priced, not computed.
    ('sinkhorn', 'F'): plain(Tensor.clone),
    ('balance', 'F'): balance_forward,
    **rows('aux_loss', F=aux_loss_forward, I=aux_loss_dx),
    **rows('dispatch', F=dispatch_forward, I=dispatch_dx),
    **rows('combine', F=combine_forward, I=combine_dx),
    **rows('grouped_matmul', F=grouped_forward, I=grouped_dx, W=grouped_dw),
    **rows('sigmoid_gate', F=gate_forward, I=gate_dx),
}
