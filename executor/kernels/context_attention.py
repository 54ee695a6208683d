"""Attention of a rank's queries with keys and values that are there: those of all context ranks, or of one of them.

Results over some keys are joined with those over others by their log-sum-exp, as in Ring Attention (Liu et al. 2023).
Shapes as in ``attention``; queries and keys may be of different tokens.
"""

from __future__ import annotations

import torch

from executor.draws import on_device
from executor.kernels.attention import by_group, by_head, heads, join, scale_of, unseen, values_of
from executor.kernels.context import Context, in_order, in_slice, left, mask_of, wide
from simpar.program import OpClass

Tensors = list[torch.Tensor]


def split_forward(op: OpClass, where: Context, tensors: Tensors) -> Tensors:
    """qkv → q [B, S, G × Q × D], kv [B, S, G × (D + values)]."""
    qkv = tensors[0].unflatten(-1, (_groups(op), -1))
    queries = int(op.attributes['queries']) * int(op.attributes['head_dim'])
    return [qkv[..., :queries].flatten(2), qkv[..., queries:].flatten(2)]


def split_dx(op: OpClass, where: Context, tensors: Tensors) -> Tensors:
    """dq, dkv → dqkv."""
    return [torch.cat([tensor.unflatten(-1, (_groups(op), -1)) for tensor in tensors], -1).flatten(2)]


def repeat_forward(op: OpClass, where: Context, tensors: Tensors) -> Tensors:
    """qkv of G groups → qkv of G × times, each with a part of a group's queries and all of its key and value."""
    times, queries = _times(op)
    parts = tensors[0].unflatten(-1, (_groups(op) // times, -1))
    q = parts[..., : times * queries].unflatten(-1, (times, queries))
    kv = parts[..., times * queries :].unsqueeze(-2).expand(*q.shape[:-1], -1)
    return [torch.cat([q, kv], -1).flatten(2)]


def repeat_dx(op: OpClass, where: Context, tensors: Tensors) -> Tensors:
    """dqkv of G × times groups → dqkv of G, the gradients of keys and values summed."""
    times, queries = _times(op)
    parts = tensors[0].unflatten(-1, (_groups(op) // times, times, -1))
    return [torch.cat([parts[..., :queries].flatten(-2), parts[..., queries:].sum(-2)], -1).flatten(2)]


def part_forward(op: OpClass, where: Context, tensors: Tensors) -> Tensors:
    """q, kv[, y, lse of keys before] → y, lse, of all keys so far."""
    q, kv, *more = tensors
    before, keys = _before_and_keys(op, more)
    part = Part(op, where, q, kv, keys)
    # Rows that see nothing keep the log of an empty sum, and give nothing.
    y_rows, lse_rows = part.forward()
    y = wide(q).new_zeros(*part.q.shape[:-1], values_of(op))
    lse = wide(q).new_full(part.q.shape[:-1], float('-inf'))
    y[:, :, part.rows], lse[:, :, part.rows] = y_rows.to(y.dtype), lse_rows
    if before:
        y, lse = _joined(op, y, lse, heads(op, before[0]), before[1].reshape(lse.shape))
    return [join(op, y), lse.reshape(lse.shape[0], lse.shape[1], int(op.attributes['queries']), -1)]


def part_dx(op: OpClass, where: Context, tensors: Tensors) -> Tensors:
    """dy, q, kv, y, lse[, dq of keys before] → dq of all keys so far, dkv."""
    dy, q, kv, y, lse, *more = tensors
    before, keys = _before_and_keys(op, more)
    part = Part(op, where, q, kv, keys)
    dq, dkv = part.backward(heads(op, dy), heads(op, y), lse.reshape(part.q.shape[:-1]))
    dq = join(op, dq)
    return [dq + before[0] if before else dq, dkv]


def _joined(
    op: OpClass, y: torch.Tensor, lse: torch.Tensor, other: torch.Tensor, other_lse: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Results over two sets of keys as one over both."""
    total = torch.logaddexp(lse, other_lse)
    # Where neither sees anything both shares are 0, not the exponential of inf − inf.
    shares = ((one - total).nan_to_num(float('-inf')).exp().unsqueeze(-1) for one in (lse, other_lse))
    ours, theirs = (share * part for share, part in zip(shares, (y, other), strict=True))
    return ours + theirs, total


class Part:
    """Queries and keys of one op, without rows and columns in which no one sees anything."""

    def __init__(
        self,
        op: OpClass,
        where: Context,
        q: torch.Tensor,
        kv: torch.Tensor,
        keys: Tensors,
        places: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> None:
        self.op, self.where, self.keys = op, where, keys
        groups, queries, head_dim = (int(op.attributes[key]) for key in ('groups', 'queries', 'head_dim'))
        self.q = q.unflatten(-1, (groups, queries, head_dim)).permute(0, 2, 3, 1, 4).flatten(2, 3)
        k, v = kv.unflatten(-1, (groups, -1)).split((head_dim, values_of(op)), -1)
        self.k, self.v = k.transpose(1, 2), v.transpose(1, 2)
        own, there = places or self._places(q.shape[1], kv.shape[1])
        hidden = unseen(op, own, there) if op.attributes['causal'] else own.new_zeros(len(own), len(there)).bool()
        # What a whole row or column hides is left out, as a kernel skips its blocks.
        seen, columns = (~hidden).any(1), (~hidden).any(0)
        self.places = own[seen], there[columns]
        # Numbers, not masks, and found on the host: a device would have to be asked how many a mask picks.
        self.rows, self.columns = (
            on_device(picked.nonzero().flatten(), q) for picked in (seen.repeat(queries), columns)
        )
        self.hidden = on_device(hidden[seen][:, columns].repeat(queries, 1), q)

    def _places(self, own: int, there: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Of queries and of keys."""
        op, context = self.op, str(self.op.attributes['context'])
        ranks, position = self.where.size[context], self.where.position[context]
        # Keys have come from the rank so many before this one, or are those of all.
        source = (position - int(op.attributes.get('step', 0))) % ranks
        of_keys = in_slice(op, source, there, ranks) if 'step' in op.attributes else in_order(op, there)
        return in_slice(op, position, own, ranks), of_keys

    def _dropped(self, probability: torch.Tensor) -> torch.Tensor:
        """[B, G, Q × rows, columns], what dropout leaves of it."""
        if not self.keys:
            return probability
        heads = int(self.op.attributes['groups']) * int(self.op.attributes['queries'])
        shape = (len(probability), heads, *map(len, self.places))
        full = self._sequence
        mask = mask_of(self.op, self.where, self.keys[0], (*shape[:2], full, full), self.places)
        return left(self.op, probability, mask.reshape(probability.shape))

    @property
    def _sequence(self) -> int:
        """Tokens of all ranks."""
        if 'tokens' in self.op.attributes:
            return int(self.op.attributes['tokens'])
        queries = int(self.op.attributes['queries'])
        return int(self.q.shape[2]) // queries * self.where.size[str(self.op.attributes['context'])]

    def _scores(self) -> tuple[torch.Tensor, torch.Tensor | float]:
        """Scores of what is seen, and the derivative of their cap."""
        q, k = self.q[:, :, self.rows], self.k[:, :, self.columns]
        scores, cap = wide(q @ k.mT) * scale_of(self.op), float(self.op.attributes.get('softcap', 0))
        slope: torch.Tensor | float = 1.0
        if cap:
            bent = (scores / cap).tanh()
            scores, slope = bent * cap, (1 - bent.square()).to(q.dtype)
        return scores.masked_fill(self.hidden, float('-inf')), slope

    def forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Result and log-sum-exp of the rows that see something."""
        scores, _ = self._scores()
        lse = scores.logsumexp(-1)
        probability = self._dropped((scores - lse.unsqueeze(-1)).exp().to(self.v.dtype))
        return probability @ self.v[:, :, self.columns], lse

    def backward(self, dy: torch.Tensor, y: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """dq [B, G, Q × S, D], dkv [B, S, G × (D + values)].

        Arguments: ``lse`` over all keys, also those of other ops.
        """
        scores, slope = self._scores()
        dq, dk, dv = self.q.new_zeros(self.q.shape), self.k.new_zeros(self.k.shape), self.v.new_zeros(self.v.shape)
        dy_rows = dy[:, :, self.rows]
        q, k, v = self.q[:, :, self.rows], self.k[:, :, self.columns], self.v[:, :, self.columns]
        probability = (scores - lse[:, :, self.rows].unsqueeze(-1)).exp().to(v.dtype)
        ours = (dy_rows * y[:, :, self.rows]).sum(-1, keepdim=True)
        dscores, scale = probability * (self._dropped(dy_rows @ v.mT) - ours) * slope, scale_of(self.op)
        dq[:, :, self.rows] = dscores @ k * scale
        dk[:, :, self.columns] = dscores.mT @ q * scale
        dv[:, :, self.columns] = self._dropped(probability).mT @ dy_rows
        return dq, torch.cat([dk.transpose(1, 2), dv.transpose(1, 2)], -1).flatten(2)


def _before_and_keys(op: OpClass, more: Tensors) -> tuple[Tensors, Tensors]:
    """What keys before have given, and the keys of masks."""
    return (more[:-1], more[-1:]) if 'dropout' in op.attributes else (more, [])


def _times(op: OpClass) -> tuple[int, int]:
    """How many groups become of one, and features of the queries of each."""
    return int(op.attributes['times']), int(op.attributes['queries']) * int(op.attributes['head_dim'])


def _groups(op: OpClass) -> int:
    return int(op.attributes['groups'])


# Unfused attention of a rank's queries with keys and values that are there: those of all context ranks, or of one.


def scores_forward(op: OpClass, where: Context, tensors: Tensors) -> Tensors:
    """q, kv → scores, those of the future too."""
    q, kv = tensors
    k, _ = _keys_and_values(op, kv)
    return [by_head(op, _queries(op, q) @ k.mT * scale_of(op))]


def scores_dx(op: OpClass, where: Context, tensors: Tensors) -> Tensors:
    """dscores, probability, dy, q, kv[, dq of keys before] → dq of all keys so far, dkv."""
    dscores, probability, dy, q, kv, *before = tensors
    k, _ = _keys_and_values(op, kv)
    dscores, probability = (by_group(op, _there(op, where, one, kv.shape[1])) for one in (dscores, probability))
    dq = dscores @ k * scale_of(op)
    dk, dv = dscores.mT @ _queries(op, q) * scale_of(op), probability.mT @ heads(op, dy)
    dq = dq.unflatten(2, (int(op.attributes['queries']), -1)).permute(0, 3, 1, 2, 4).flatten(2)
    dkv = torch.cat([dk.transpose(1, 2), dv.transpose(1, 2)], -1).flatten(2)
    return [dq + before[0] if before else dq, dkv]


def values_forward(op: OpClass, where: Context, tensors: Tensors) -> Tensors:
    """probability, kv[, y of keys before] → y of all keys so far."""
    probability, kv, *before = tensors
    _, v = _keys_and_values(op, kv)
    y = join(op, by_group(op, _there(op, where, probability, kv.shape[1])) @ v)
    return [y + before[0] if before else y]


def values_dx(op: OpClass, where: Context, tensors: Tensors) -> Tensors:
    """dy, kv → dprobability."""
    dy, kv = tensors
    _, v = _keys_and_values(op, kv)
    return [by_head(op, heads(op, dy) @ v.mT)]


def join_keys(op: OpClass, where: Context, tensors: Tensors) -> Tensors:
    """blocks by step → the blocks in the order of the ranks that their keys are of."""
    ranks = len(tensors)
    steps = [(where.position[str(op.attributes['context'])] - rank) % ranks for rank in range(ranks)]
    return [torch.cat([tensors[step] for step in steps], -1)]


def _there(op: OpClass, where: Context, scores: torch.Tensor, keys: int) -> torch.Tensor:
    """The columns of the keys that are there."""
    if 'step' not in op.attributes:
        return scores
    context = str(op.attributes['context'])
    source = (where.position[context] - int(op.attributes['step'])) % where.size[context]
    return scores.narrow(-1, source * keys, keys)


def _queries(op: OpClass, q: torch.Tensor) -> torch.Tensor:
    """[B, S, G × Q × D] → [B, G, Q × S, D]."""
    groups, queries, head_dim = (int(op.attributes[key]) for key in ('groups', 'queries', 'head_dim'))
    return q.unflatten(-1, (groups, queries, head_dim)).permute(0, 2, 3, 1, 4).flatten(2, 3)


def _keys_and_values(op: OpClass, kv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [B, G, S, D]."""
    sizes = int(op.attributes['head_dim']), values_of(op)
    k, v = kv.unflatten(-1, (int(op.attributes['groups']), -1)).split(sizes, -1)
    return k.transpose(1, 2), v.transpose(1, 2)


# Attention of one chunk of a sequence with keys and values of all chunks so far, as in a cache of them.


def chunk_forward(op: OpClass, where: Context, tensors: Tensors) -> Tensors:
    """q, kv of each chunk that is seen[, keys of dropout] → y, lse."""
    q, *more = tensors
    count = int(op.attributes['parts'])
    part = _part(op, where, q, more[:count], more[count:])
    # A token sees itself, so no row is left out.
    y, lse = part.forward()
    return [join(op, y.to(q.dtype)), lse.reshape(lse.shape[0], lse.shape[1], int(op.attributes['queries']), -1)]


def chunk_dx(op: OpClass, where: Context, tensors: Tensors) -> Tensors:
    """dy, q, y, lse, kv of each chunk[, dkv of the last, from later chunks][, keys] → dq, dkv of each chunk."""
    dy, q, y, lse, *more = tensors
    count, dropped = int(op.attributes['parts']), 'dropout' in op.attributes
    kv, later, keys = more[:count], more[count : len(more) - dropped], more[len(more) - dropped :]
    part = _part(op, where, q, kv, keys)
    dq, dkv = part.backward(heads(op, dy), heads(op, y), lse.reshape(part.q.shape[:-1]))
    own = list(dkv.split(q.shape[1], 1))
    # Later chunks see a run of chunks that ends with this one; those before it, past a window, they do not.
    unseen = count - len(later)
    return [join(op, dq), *own[:unseen], *(one + other for one, other in zip(own[unseen:], later, strict=True))]


def _part(op: OpClass, where: Context, q: torch.Tensor, kv: Tensors, keys: Tensors) -> Part:
    own = int(op.attributes.get('first', 0)) + torch.arange(q.shape[1])
    there = int(op.attributes['first_key']) + torch.arange(q.shape[1] * len(kv))
    return Part(op, where, q, torch.cat(kv, 1), keys, (own, there))


KERNELS = {
    ('context_attention', 'F'): part_forward,
    ('context_attention', 'I'): part_dx,
    ('repeat_kv', 'F'): repeat_forward,
    ('repeat_kv', 'I'): repeat_dx,
    ('split_qkv', 'F'): split_forward,
    ('split_qkv', 'I'): split_dx,
    ('context_scores', 'F'): scores_forward,
    ('context_scores', 'I'): scores_dx,
    ('context_values', 'F'): values_forward,
    ('context_values', 'I'): values_dx,
    ('join_keys', 'F'): join_keys,
    ('join_keys', 'I'): join_keys,
    ('chunk_attention', 'F'): chunk_forward,
    ('chunk_attention', 'I'): chunk_dx,
}
