"""Attention with grouped queries; backward from the saved log-sum-exp, as in FlashAttention-2 (Dao 2023, 3.1.2).

Torch's fused kernel does it where there is one (``flash_kernel``). Else scores are held in full, [sequence, sequence]
for each head: the arithmetic is flash attention's, its memory is not. Unfused attention has scores, softmax and the
product with the values as ops of their own.
B batch, S sequence, G groups (key/value heads on this rank), Q queries of a group, D head_dim of queries and keys.
Values may have other features.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any, Final

import torch

from executor.devices import KINDS
from executor.draws import on_device
from executor.kernels.context import Context, document_of, held, in_order, in_slice, left, mask_of, position, rows, wide
from simpar.program import OpClass

Tensors = list[torch.Tensor]
ASKS_MORE: Final = frozenset({'window', 'softcap', 'documents', 'balanced', 'value_dim', 'dropout', 'alibi'})
"""Attributes that torch's kernels do not know."""


def flash_kernel(op: OpClass, qkv: torch.Tensor) -> str:
    """The name of torch's kernel for an op on the device of what it reads; empty: there is none."""
    kind = KINDS.get(qkv.device.type)
    return '' if kind is None or ASKS_MORE & op.attributes.keys() else kind.attention


def flash_forward(
    name: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """y [B, H, S, D] and lse [B, H, S].

    Arguments: ``q`` [B, H, S, D], ``k`` and ``v`` [B, G, S, D], where H is a multiple of G.
    """
    k, v = _for_all(k, q), _for_all(v, q)
    y, lse = _aten(name)(q, k, v, 0.0, causal, scale=scale)[:2]
    return y, lse


def flash_backward(
    name: str,
    dy: torch.Tensor,
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    y: torch.Tensor,
    lse: torch.Tensor,
    causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dq, dk and dv in the shapes of q, k and v.

    Arguments: ``tensors``, q, k and v as the forward read them.
    """
    q, k, v = tensors
    everywhere = _for_all(k, q), _for_all(v, q)
    dq, dk, dv = _aten(f'{name}_backward')(dy, q, *everywhere, y, wide(lse), 0.0, causal, scale=scale)
    return dq, _of_group(dk, k), _of_group(dv, v)


def _aten(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(torch.ops.aten, name)
    return found


def _for_all(k: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Keys or values of groups, one for every query head."""
    queries = q.shape[1] // k.shape[1]
    return k if queries == 1 else k.repeat_interleave(queries, 1)


def _of_group(dk: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """The sum over the query heads of each group."""
    return dk if dk.shape == k.shape else dk.unflatten(1, (k.shape[1], -1)).sum(2)


# Attention with grouped queries; backward from the saved log-sum-exp, as in FlashAttention-2 (Dao 2023, 3.1.2).


def attention_forward(op: OpClass, where: Context, tensors: Tensors) -> Tensors:
    """qkv[, keys of dropout] → y, lse [B, G, Q, S]."""
    qkv, *keys = tensors
    if name := flash_kernel(op, qkv):
        q, k, v = split(op, qkv)
        y, lse = flash_forward(name, by_head(op, q), k, v, bool(op.attributes['causal']), scale_of(op))
        return [y.transpose(1, 2).flatten(2), lse]
    # The backward has lse alone and forms the probabilities in the same way.
    y, lse = _whole(op, where, qkv, keys).forward()
    return [join(op, y), lse.reshape(lse.shape[0], lse.shape[1], int(op.attributes['queries']), -1)]


def attention_dx(op: OpClass, where: Context, tensors: Tensors) -> Tensors:
    """dy, qkv, y, lse[, keys of dropout] → dqkv."""
    dy, qkv, y, lse, *keys = tensors
    dy_heads, y_heads = heads(op, dy), heads(op, y)
    if name := flash_kernel(op, qkv):
        q, k, v = split(op, qkv)
        dy, y, lse = by_head(op, dy_heads), by_head(op, y_heads), lse.reshape(q.shape[0], -1, k.shape[2])
        causal = bool(op.attributes['causal'])
        dq, dk, dv = flash_backward(name, dy, (by_head(op, q), k, v), y, lse, causal, scale_of(op))
        return [merge(op, dq.reshape(q.shape), dk, dv)]
    part = _whole(op, where, qkv, keys)
    dq, dkv = part.backward(dy_heads, y_heads, lse.reshape(part.q.shape[:-1]))
    return split_dx(op, where, [join(op, dq), dkv])


def _whole(op: OpClass, where: Context, qkv: torch.Tensor, keys: Tensors) -> Part:
    """All queries and keys of a sequence, in the order in which context ranks hold it."""
    (q, kv), tokens = split_forward(op, where, [qkv]), in_order(op, qkv.shape[1])
    return Part(op, where, q, kv, keys, (tokens, tokens))


def split(op: OpClass, qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q [B, G, Q × S, D], k and v [B, G, S, D]: a group's queries lie below one another, so they share its keys."""
    groups, queries, head_dim = _attributes(op)
    # Each group holds its queries, then its key and value, so that tensor parallelism can shard by groups.
    q, k, v = qkv.unflatten(-1, (groups, -1)).split((queries * head_dim, head_dim, values_of(op)), -1)
    q_BGQSD = q.unflatten(-1, (queries, head_dim)).permute(0, 2, 3, 1, 4)
    return q_BGQSD.flatten(2, 3), k.transpose(1, 2), v.transpose(1, 2)


def by_head(op: OpClass, q: torch.Tensor) -> torch.Tensor:
    """[B, G, Q × S, D] → [B, G × Q, S, D]: every head for itself."""
    return q.unflatten(2, (int(op.attributes['queries']), -1)).flatten(1, 2)


def merge(op: OpClass, dq: torch.Tensor, dk: torch.Tensor, dv: torch.Tensor) -> torch.Tensor:
    """The inverse of ``split``."""
    _, queries, _ = _attributes(op)
    dq_BSGQD = dq.unflatten(2, (queries, -1)).permute(0, 3, 1, 2, 4)
    return torch.cat([dq_BSGQD.flatten(3), dk.transpose(1, 2), dv.transpose(1, 2)], -1).flatten(2)


def heads(op: OpClass, y: torch.Tensor) -> torch.Tensor:
    """[B, S, G × Q × D] → [B, G, Q × S, D]."""
    groups, queries, _ = _attributes(op)
    return y.unflatten(-1, (groups, queries, values_of(op))).permute(0, 2, 3, 1, 4).flatten(2, 3)


def join(op: OpClass, y: torch.Tensor) -> torch.Tensor:
    """The inverse of ``_heads``."""
    _, queries, _ = _attributes(op)
    return y.unflatten(2, (queries, -1)).permute(0, 3, 1, 2, 4).flatten(2)


def scale_of(op: OpClass) -> float:
    """What scores are multiplied by."""
    return float(op.attributes.get('scale', 0)) or 1 / sqrt(float(op.attributes['head_dim']))


def unseen(op: OpClass, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """[queries, keys], true where a token must not see another, from which tokens these are."""
    window = int(op.attributes.get('window', 0))
    hidden = queries.unsqueeze(1) < keys
    if window:
        hidden |= queries.unsqueeze(1) >= keys + window
    if 'documents' not in op.attributes:
        return hidden
    return hidden | (document_of(op, queries).unsqueeze(1) != document_of(op, keys))


def values_of(op: OpClass) -> int:
    """Features of a value."""
    return int(op.attributes.get('value_dim', op.attributes['head_dim']))


def _attributes(op: OpClass) -> tuple[int, int, int]:
    return int(op.attributes['groups']), int(op.attributes['queries']), int(op.attributes['head_dim'])


# Unfused attention: scores, softmax and the product with the values, each an op, probabilities [B, heads, S, S]
# kept.


def scores_forward(op: OpClass, where: Context, tensors: Tensors) -> Tensors:
    """qkv → scores, those of the future too."""
    q, k, _ = split(op, tensors[0])
    return [by_head(op, q @ k.mT * scale_of(op))]


def scores_dx(op: OpClass, where: Context, tensors: Tensors) -> Tensors:
    """dscores, qkv, dv [B, S, G × D] → dqkv."""
    dscores, qkv, dv = tensors
    q, k, _ = split(op, qkv)
    # Scores are kept by head; products want a group's queries below one another.
    dscores, scale = by_group(op, dscores), scale_of(op)
    dv = dv.unflatten(-1, (k.shape[1], -1)).transpose(1, 2)
    return [merge(op, dscores @ k * scale, dscores.mT @ q * scale, dv)]


def softmax_forward(op: OpClass, where: Context, tensors: Tensors) -> Tensors:
    """scores → probability, zero for the future, and before a window, where ``causal``."""
    scores = wide(tensors[0])
    if op.attributes['causal']:
        scores = scores.masked_fill(_hidden(op, where, scores), float('-inf'))
    # The softmax runs in at least fp32, its result is kept in the program's dtype.
    return [scores.softmax(-1).to(tensors[0].dtype)]


def _hidden(op: OpClass, where: Context, scores: torch.Tensor) -> torch.Tensor:
    """[queries of this rank, S], true where a token must not see another: one behind it, before its window, or of
    another document."""
    # Heads of context ranks see a sequence in the order in which these hold it.
    rows, keys = scores.shape[-2:]
    return on_device(unseen(op, held(op, where, rows), in_order(op, keys)), scores)


def softmax_dx(op: OpClass, where: Context, tensors: Tensors) -> Tensors:
    """dprobability, probability → dscores."""
    dy, y = map(wide, tensors)
    return [(y * (dy - (dy * y).sum(-1, keepdim=True))).to(tensors[0].dtype)]


def slopes_of(op: OpClass, where: Context, held: int) -> torch.Tensor:
    """The slope of each head of this rank, [heads]. Arguments: ``held``, how many these are."""
    heads, first = int(op.attributes['alibi']), position(op, where) * held
    # Of a number of heads that is no power of 2: those of the next lower one, then every second of twice as many.
    power = 1 << (heads.bit_length() - 1)
    every = [2.0 ** (-8 * (head + 1) / power) for head in range(power)]
    every += [2.0 ** (-4 * (2 * head + 1) / power) for head in range(heads - power)]
    return torch.tensor(every[first : first + held], dtype=torch.float64)


def alibi_forward(op: OpClass, where: Context, tensors: Tensors) -> Tensors:
    """scores → scores with the slope of each head × the place of its key."""
    x = tensors[0]
    added = slopes_of(op, where, x.shape[1])[:, None, None] * torch.arange(x.shape[-1])
    return [x + on_device(added, x).to(x.dtype)]


def values_forward(op: OpClass, where: Context, tensors: Tensors) -> Tensors:
    """probability, qkv → y."""
    _, _, v = split(op, tensors[1])
    return [join(op, by_group(op, tensors[0]) @ v)]


def values_dx(op: OpClass, where: Context, tensors: Tensors) -> Tensors:
    """dy, probability, qkv → dprobability, dv [B, S, G × D]."""
    dy, probability, qkv = tensors
    _, _, v = split(op, qkv)
    dy = heads(op, dy)
    dv = by_group(op, probability).mT @ dy
    return [by_head(op, dy @ v.mT), dv.transpose(1, 2).flatten(2)]


def by_group(op: OpClass, scores: torch.Tensor) -> torch.Tensor:
    """The inverse of ``by_head``."""
    return scores.unflatten(1, (int(op.attributes['groups']), -1)).flatten(2, 3)


# Attention of a rank's queries with keys and values that are there: those of all context ranks, or of one of them.
# Results over some keys are joined with those over others by their log-sum-exp, as in Ring Attention (Liu et al. 2023).
# Queries and keys may be of different tokens.


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
        queries, self.q = int(op.attributes['queries']), _queries(op, q)
        self.k, self.v = _keys_and_values(op, kv)
        own, there = places or self._places(q.shape[1], kv.shape[1])
        hidden = unseen(op, own, there) if op.attributes['causal'] else own.new_zeros(len(own), len(there)).bool()
        # What a whole row or column hides is left out, as a kernel skips its blocks.
        seen, columns = ~hidden.all(1), ~hidden.all(0)
        self.places = own[seen], there[columns]
        # Numbers, not masks, and found on the host: a device would have to be asked how many a mask picks.
        self.rows, self.columns = (
            on_device(picked.nonzero().flatten(), q) for picked in (seen.repeat(queries), columns)
        )
        # Queries of a group lie below one another, so the mask repeats.
        shown = hidden if seen.all() else hidden[seen]
        self.hidden = on_device(shown if columns.all() else shown[:, columns], q).repeat(queries, 1)

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
        own = int(self.q.shape[2]) // int(self.op.attributes['queries'])
        return own * (self.where.size[str(self.op.attributes['context'])] if 'context' in self.op.attributes else 1)

    def _scores(self) -> tuple[torch.Tensor, torch.Tensor | float]:
        """Scores of what is seen, and the derivative of their cap."""
        q, k = self.q[:, :, self.rows], self.k[:, :, self.columns]
        scores, cap = wide(q @ k.mT) * scale_of(self.op), float(self.op.attributes.get('softcap', 0))
        slope: torch.Tensor | float = 1.0
        if cap:
            bent = (scores / cap).tanh()
            scores, slope = bent * cap, (1 - bent.square()).to(q.dtype)
        if 'alibi' in self.op.attributes:
            queries, groups = int(self.op.attributes['queries']), self.q.shape[1]
            heads = slopes_of(self.op, self.where, groups * queries).unflatten(0, (groups, queries))
            rows = heads.repeat_interleave(self.q.shape[2] // queries, 1)[:, self.rows.cpu(), None]
            scores = scores + on_device(rows * self.places[1], scores).to(scores.dtype)
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


def context_scores_forward(op: OpClass, where: Context, tensors: Tensors) -> Tensors:
    """q, kv → scores, those of the future too."""
    q, kv = tensors
    k, _ = _keys_and_values(op, kv)
    return [by_head(op, _queries(op, q) @ k.mT * scale_of(op))]


def context_scores_dx(op: OpClass, where: Context, tensors: Tensors) -> Tensors:
    """dscores, probability, dy, q, kv[, dq of keys before] → dq of all keys so far, dkv."""
    dscores, probability, dy, q, kv, *before = tensors
    k, _ = _keys_and_values(op, kv)
    dscores, probability = (by_group(op, _there(op, where, one, kv.shape[1])) for one in (dscores, probability))
    dq = dscores @ k * scale_of(op)
    dk, dv = dscores.mT @ _queries(op, q) * scale_of(op), probability.mT @ heads(op, dy)
    dq = dq.unflatten(2, (int(op.attributes['queries']), -1)).permute(0, 3, 1, 2, 4).flatten(2)
    dkv = torch.cat([dk.transpose(1, 2), dv.transpose(1, 2)], -1).flatten(2)
    return [dq + before[0] if before else dq, dkv]


def context_values_forward(op: OpClass, where: Context, tensors: Tensors) -> Tensors:
    """probability, kv[, y of keys before] → y of all keys so far."""
    probability, kv, *before = tensors
    _, v = _keys_and_values(op, kv)
    y = join(op, by_group(op, _there(op, where, probability, kv.shape[1])) @ v)
    return [y + before[0] if before else y]


def context_values_dx(op: OpClass, where: Context, tensors: Tensors) -> Tensors:
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
    return q.unflatten(-1, _attributes(op)).permute(0, 2, 3, 1, 4).flatten(2, 3)


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
    **rows('attention', F=attention_forward, I=attention_dx),
    **rows('attention_scores', F=scores_forward, I=scores_dx),
    ('alibi', 'F'): alibi_forward,
    **rows('softmax', F=softmax_forward, I=softmax_dx),
    **rows('attention_values', F=values_forward, I=values_dx),
    **rows('context_attention', F=part_forward, I=part_dx),
    **rows('repeat_kv', F=repeat_forward, I=repeat_dx),
    **rows('split_qkv', F=split_forward, I=split_dx),
    **rows('context_scores', F=context_scores_forward, I=context_scores_dx),
    **rows('context_values', F=context_values_forward, I=context_values_dx),
    **rows('join_keys', F=join_keys, I=join_keys),
    **rows('chunk_attention', F=chunk_forward, I=chunk_dx),
}
