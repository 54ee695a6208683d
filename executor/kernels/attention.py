"""Attention with grouped queries; backward from the saved log-sum-exp, as in FlashAttention-2 (Dao 2023, 3.1.2).

Torch's fused kernel does it where there is one (devices/kernels.csv). Else scores are held in full, [sequence,
sequence] for each head: the arithmetic is flash attention's, its memory is not. Unfused attention has scores, softmax
and the product with the values as ops of their own.
B batch, S sequence, G groups (key/value heads on this rank), Q queries of a group, D head_dim of queries and keys.
Values may have other features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any, Final

import torch
from torch.nn import functional

from executor.devices.fused import fused
from executor.draws import on_device
from executor.kernels import context as shared
from executor.kernels.context import Context, Tensor, Tensors, position, rows, wide
from simpar.program import OpClass

FLASH: Final = '_scaled_dot_product_flash_attention'
EFFICIENT: Final = '_scaled_dot_product_efficient_attention'
ALIGNED: Final = 32
"""A multiple of so many queries the efficient kernel keeps log-sum-exps for."""


def fused_forward(name: str, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """y [B, H, S, D] and lse [B, H, S].

    Arguments: ``q`` [B, H, S, D], ``k`` and ``v`` [B, G, S, D], where H is a multiple of G.
    """
    if name != FLASH:
        k, v = _for_all(k, q), _for_all(v, q)
    how = (None, True, 0.0, causal) if name == EFFICIENT else (0.0, causal)
    y, lse = _aten(name)(q, k, v, *how, scale=scale)[:2]
    return y, lse[..., : q.shape[2]]


def fused_backward(
    name: str, dy: Tensor, tensors: tuple[Tensor, Tensor, Tensor], y: Tensor, lse: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk and dv in the shapes of q, k and v.

    Arguments: ``tensors``, q, k and v as the forward read them.
    """
    q, k, v = tensors
    everywhere = (k, v) if name == FLASH else (_for_all(k, q), _for_all(v, q))
    lse, backward = wide(lse), _aten(f'{name}_backward')
    # The state of a generator, which nobody asks for without dropout.
    state = q.new_empty(2, dtype=torch.int64)
    if name == FLASH:
        sizes = (None, None, q.shape[2], k.shape[2])
        gradients = backward(dy, q, *everywhere, y, lse, *sizes, 0.0, causal, state, state, scale=scale)
    elif name == EFFICIENT:
        # Rows that are not there must add nothing: the exponential of minus infinity.
        lse = functional.pad(lse, (0, -lse.shape[-1] % ALIGNED), value=float('inf'))
        wanted = [True, True, True, False]
        gradients = backward(dy, q, *everywhere, None, y, lse, state, state, 0.0, wanted, causal, scale=scale)
    else:
        gradients = backward(dy, q, *everywhere, y, lse, 0.0, causal, scale=scale)
    dq, dk, dv = gradients[:3]
    return dq, _of_group(dk, k), _of_group(dv, v)


def _aten(name: str) -> Callable[..., Any]:
    operator: Callable[..., Any] = getattr(torch.ops.aten, name)
    return operator


def _for_all(k: Tensor, q: Tensor) -> Tensor:
    """Keys or values of groups, one for every query head."""
    queries = q.shape[1] // k.shape[1]
    return k if queries == 1 else k.repeat_interleave(queries, 1)


def _of_group(dk: Tensor, k: Tensor) -> Tensor:
    """The sum over the query heads of each group."""
    return dk if dk.shape == k.shape else dk.unflatten(1, (k.shape[1], -1)).sum(2)


# Attention with grouped queries; backward from the saved log-sum-exp, as in FlashAttention-2 (Dao 2023, 3.1.2).


def attention_forward(op: OpClass, where: Context, qkv: Tensor, *keys: Tensor) -> Tensors:
    """qkv[, keys of dropout][, sinks] → y, lse [B, G, Q, S]."""
    keys, sinks = (keys[:-1], keys[-1:]) if op.attributes.get('sink') == 'learned' else (keys, ())
    if name := _in_order(op, qkv):
        q, k, v = split(op, qkv)
        y, lse = fused_forward(name, by_head(op, q), k, v, bool(op.attributes['causal']), scale_of(op))
        return _beside_sinks(op, y.transpose(1, 2).flatten(2), lse, sinks)
    # The backward has lse alone and forms the probabilities in the same way.
    y, lse = _joined(op, *_whole(op, where, qkv, keys).forward())
    return _beside_sinks(op, y, lse, sinks)


def _beside_sinks(op: OpClass, y: Tensor, lse: Tensor, sinks: tuple[Tensor, ...]) -> Tensors:
    """What is left of a result where a logit of each head, or zero, takes its share; and the log-sum-exp with it."""
    if 'sink' not in op.attributes:
        return [y, lse]
    groups, queries, _ = _attributes(op)
    every = lse.reshape(lse.shape[0], groups, queries, -1)
    logits = sinks[0].to(lse.dtype)[..., None] if sinks else every.new_zeros(())
    left = (every - logits).sigmoid().permute(0, 3, 1, 2).unsqueeze(-1)
    y = (y.unflatten(-1, (groups, queries, -1)) * left).to(y.dtype).flatten(2)
    return [y, torch.logaddexp(every, logits.expand_as(every)).reshape(lse.shape)]


def sinks_dw(op: OpClass, where: Context, dy: Tensor, y: Tensor, lse: Tensor, sinks: Tensor) -> Tensors:
    """dy, y, lse, sinks → dsinks [G, Q]."""
    groups, queries, _ = _attributes(op)
    every = lse.reshape(lse.shape[0], groups, queries, -1)
    # No value stands behind it, so that its gradient is what all others leave: minus the sum of dy · y.
    dots = (wide(dy) * wide(y)).unflatten(-1, (groups, queries, -1)).sum(-1).permute(0, 2, 3, 1)
    share = (wide(sinks)[..., None] - every).exp()
    return [-(share * dots).sum((0, 3)).to(sinks.dtype)]


def attention_dx(op: OpClass, where: Context, *tensors: Tensor) -> Tensors:
    """dy, qkv, y, lse[, keys of dropout] → dqkv."""
    dy, qkv, y, lse, *keys = tensors
    if name := _in_order(op, qkv):
        q, k, v = split(op, qkv)
        dy, y = (by_head(op, heads(op, one)) for one in (dy, y))
        lse, causal = lse.reshape(q.shape[0], -1, k.shape[2]), bool(op.attributes['causal'])
        dq, dk, dv = fused_backward(name, dy, (by_head(op, q), k, v), y, lse, causal, scale_of(op))
        return [merge(op, dq.reshape(q.shape), dk, dv)]
    return split_dx(op, where, *_whole(op, where, qkv, keys).backward(dy, y, lse))


def _in_order(op: OpClass, qkv: Tensor) -> str:
    """The fused kernel for whole sequences that are held in their own order; empty: none."""
    return '' if 'balanced' in op.attributes else fused('attention', op, qkv)


def _whole(op: OpClass, where: Context, qkv: Tensor, keys: Sequence[Tensor]) -> Part:
    """All queries and keys of a sequence, in the order in which context ranks hold it."""
    (q, kv), tokens = split_forward(op, where, qkv), shared.in_order(op, qkv.shape[1])
    return Part(op, where, q, kv, keys, (tokens, tokens))


def split(op: OpClass, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q [B, G, Q × S, D], k and v [B, G, S, D]: a group's queries lie below one another, so they share its keys."""
    return _queries(op, qkv), *_keys_and_values(op, qkv)


def _queries(op: OpClass, q: Tensor) -> Tensor:
    """[B, G, Q × S, D], of queries alone or of qkv."""
    groups, queries, head_dim = _attributes(op)
    # Each group holds its queries, then its key and value, so that tensor parallelism can shard by groups.
    own = q.unflatten(-1, (groups, -1))[..., : queries * head_dim]
    return own.unflatten(-1, (queries, head_dim)).permute(0, 2, 3, 1, 4).flatten(2, 3)


def _keys_and_values(op: OpClass, kv: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values [B, G, S, D], of them alone or of qkv."""
    sizes = int(op.attributes['head_dim']), values_of(op)
    k, v = kv.unflatten(-1, (_groups(op), -1))[..., -sum(sizes) :].split(sizes, -1)
    return k.transpose(1, 2), v.transpose(1, 2)


def by_head(op: OpClass, q: Tensor) -> Tensor:
    """[B, G, Q × S, D] → [B, G × Q, S, D]: every head for itself."""
    return q.unflatten(2, (int(op.attributes['queries']), -1)).flatten(1, 2)


def merge(op: OpClass, dq: Tensor, dk: Tensor, dv: Tensor) -> Tensor:
    """The inverse of ``split``."""
    _, queries, _ = _attributes(op)
    dq_BSGQD = dq.unflatten(2, (queries, -1)).permute(0, 3, 1, 2, 4)
    return torch.cat([dq_BSGQD.flatten(3), dk.transpose(1, 2), dv.transpose(1, 2)], -1).flatten(2)


def heads(op: OpClass, y: Tensor) -> Tensor:
    """[B, S, G × Q × D] → [B, G, Q × S, D]."""
    groups, queries, _ = _attributes(op)
    return y.unflatten(-1, (groups, queries, values_of(op))).permute(0, 2, 3, 1, 4).flatten(2, 3)


def join(op: OpClass, y: Tensor) -> Tensor:
    """The inverse of ``_heads``."""
    _, queries, _ = _attributes(op)
    return y.unflatten(2, (queries, -1)).permute(0, 3, 1, 2, 4).flatten(2)


def scale_of(op: OpClass) -> float:
    """What scores are multiplied by."""
    return float(op.attributes.get('scale', 0)) or 1 / sqrt(float(op.attributes['head_dim']))


def first_seen(op: OpClass, queries: Tensor) -> Tensor:
    """The first token that each of some may see: of its document, and of its window."""
    window = int(op.attributes.get('window', 0))
    begin = shared.begin_of(op, queries)
    return torch.maximum(begin, queries - window + 1) if window else begin


def unseen(op: OpClass, queries: Tensor, keys: Tensor, like: Tensor) -> Tensor:
    """[queries, keys], true where a token must not see another.

    Arguments: ``like``, on whose device it is made: two vectors go there, not their pairs.
    """
    own, there = on_device(queries, like).unsqueeze(1), on_device(keys, like)
    hidden = own < there
    if {'window', 'documents'} & op.attributes.keys():
        hidden |= there < on_device(first_seen(op, queries), like).unsqueeze(1)
    return hidden


def seen(op: OpClass, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Which queries see any key, and which keys any query sees; keys and queries in any order."""
    # The nearest key at or before a query is seen if any is; of queries at or behind a key the nearest sees farthest.
    every, asking = keys.sort().values, queries.sort().values
    before = torch.searchsorted(every, queries, right=True) - 1
    behind = torch.searchsorted(asking, keys)
    rows = (before >= 0) & (every[before.clamp(min=0)] >= first_seen(op, queries))
    nearest = asking[behind.clamp(max=len(asking) - 1)]
    return rows, (behind < len(asking)) & (first_seen(op, nearest) <= keys)


def values_of(op: OpClass) -> int:
    """Features of a value."""
    return int(op.attributes.get('value_dim', op.attributes['head_dim']))


def _attributes(op: OpClass) -> tuple[int, int, int]:
    return int(op.attributes['groups']), int(op.attributes['queries']), int(op.attributes['head_dim'])


# Unfused attention: scores, softmax and the product with the values, each an op, probabilities [B, heads, S, S]
# kept.


def scores_forward(op: OpClass, where: Context, *tensors: Tensor) -> Tensors:
    """qkv, or q and kv → scores, those of the future too."""
    k, _ = _keys_and_values(op, tensors[-1])
    return [by_head(op, _queries(op, tensors[0]) @ k.mT * scale_of(op))]


def scores_dx(op: OpClass, where: Context, dscores: Tensor, qkv: Tensor, dv: Tensor) -> Tensors:
    """dscores, qkv, dv [B, S, G × D] → dqkv."""
    q, k, _ = split(op, qkv)
    # Scores are kept by head; products want a group's queries below one another.
    dscores, scale = by_group(op, dscores), scale_of(op)
    dv = dv.unflatten(-1, (k.shape[1], -1)).transpose(1, 2)
    return [merge(op, dscores @ k * scale, dscores.mT @ q * scale, dv)]


def softmax_forward(op: OpClass, where: Context, x: Tensor) -> Tensors:
    """scores → probability, zero for the future, before a window and of other documents, where ``causal``."""
    scores = wide(x)
    if op.attributes['causal']:
        # Heads of context ranks see a sequence in the order in which these hold it.
        queries, keys = shared.held(op, where, x.shape[-2]), shared.in_order(op, x.shape[-1])
        scores = scores.masked_fill(unseen(op, queries, keys, scores), float('-inf'))
    # The softmax runs in at least fp32, its result is kept in the program's dtype.
    return [scores.softmax(-1).to(x.dtype)]


def softmax_dx(op: OpClass, where: Context, *tensors: Tensor) -> Tensors:
    """dprobability, probability → dscores."""
    dy, y = map(wide, tensors)
    return [(y * (dy - (dy * y).sum(-1, keepdim=True))).to(tensors[0].dtype)]


def slopes_of(op: OpClass, where: Context, held: int) -> Tensor:
    """The slope of each head of this rank, [heads]. Arguments: ``held``, how many these are."""
    heads, first = int(op.attributes['alibi']), position(op, where) * held
    # Of a number of heads that is no power of 2: those of the next lower one, then every second of twice as many.
    power = 1 << (heads.bit_length() - 1)
    every = [2.0 ** (-8 * (head + 1) / power) for head in range(power)]
    every += [2.0 ** (-4 * (2 * head + 1) / power) for head in range(heads - power)]
    return torch.tensor(every[first : first + held], dtype=torch.float64)


def alibi_forward(op: OpClass, where: Context, x: Tensor) -> Tensors:
    """scores → scores with the slope of each head × the place of its key."""
    added = slopes_of(op, where, x.shape[1])[:, None, None] * torch.arange(x.shape[-1])
    return [x + on_device(added, x).to(x.dtype)]


def values_forward(op: OpClass, where: Context, probability: Tensor, kv: Tensor, *before: Tensor) -> Tensors:
    """probability, qkv or kv[, y of keys before] → y of all keys so far."""
    _, v = _keys_and_values(op, kv)
    y = join(op, by_group(op, _there(op, where, probability, kv.shape[1])) @ v)
    return [y + before[0] if before else y]


def values_dx(op: OpClass, where: Context, dy: Tensor, probability: Tensor, qkv: Tensor) -> Tensors:
    """dy, probability, qkv → dprobability, dv [B, S, G × D]."""
    (_, v), dy = _keys_and_values(op, qkv), heads(op, dy)
    dv = by_group(op, probability).mT @ dy
    return [by_head(op, dy @ v.mT), dv.transpose(1, 2).flatten(2)]


def by_group(op: OpClass, scores: Tensor) -> Tensor:
    """The inverse of ``by_head``."""
    return scores.unflatten(1, (int(op.attributes['groups']), -1)).flatten(2, 3)


# Attention of a rank's queries with keys and values that are there: those of all context ranks, or of one of them.
# Results over some keys are joined with those over others by their log-sum-exp, as in Ring Attention (Liu et al. 2023).
# Queries and keys may be of different tokens.


def split_forward(op: OpClass, where: Context, qkv: Tensor) -> Tensors:
    """qkv → q [B, S, G × Q × D], kv [B, S, G × (D + values)]."""
    groups, queries, head_dim = _attributes(op)
    return [part.flatten(2) for part in qkv.unflatten(-1, (groups, -1)).tensor_split([queries * head_dim], -1)]


def split_dx(op: OpClass, where: Context, *tensors: Tensor) -> Tensors:
    """dq, dkv → dqkv."""
    return [torch.cat([tensor.unflatten(-1, (_groups(op), -1)) for tensor in tensors], -1).flatten(2)]


def repeat_forward(op: OpClass, where: Context, qkv: Tensor) -> Tensors:
    """qkv of G groups → qkv of G × times, each with a part of a group's queries and all of its key and value."""
    times, queries = _times(op)
    parts = qkv.unflatten(-1, (_groups(op) // times, -1))
    q = parts[..., : times * queries].unflatten(-1, (times, queries))
    kv = parts[..., times * queries :].unsqueeze(-2).expand(*q.shape[:-1], -1)
    return [torch.cat([q, kv], -1).flatten(2)]


def repeat_dx(op: OpClass, where: Context, dqkv: Tensor) -> Tensors:
    """dqkv of G × times groups → dqkv of G, the gradients of keys and values summed."""
    times, queries = _times(op)
    parts = dqkv.unflatten(-1, (_groups(op) // times, times, -1))
    return [torch.cat([parts[..., :queries].flatten(-2), parts[..., queries:].sum(-2)], -1).flatten(2)]


def part_forward(op: OpClass, where: Context, q: Tensor, kv: Tensor, *more: Tensor) -> Tensors:
    """q, kv[, y, lse of keys before] → y, lse, of all keys so far."""
    before, keys = _before_and_keys(op, more)
    y, lse = Part(op, where, q, kv, keys).forward()
    y = wide(y)
    if before:
        # Results over two sets of keys as one over both.
        other, other_lse = heads(op, before[0]), before[1].reshape(lse.shape)
        total = torch.logaddexp(lse, other_lse)
        # Where neither sees anything both shares are 0, not the exponential of inf − inf.
        ours, theirs = ((one - total).nan_to_num(float('-inf')).exp().unsqueeze(-1) for one in (lse, other_lse))
        y, lse = ours * y + theirs * other, total
    return _joined(op, y, lse)


def _joined(op: OpClass, y: Tensor, lse: Tensor) -> Tensors:
    """Results of all heads as one, and their log-sum-exp [B, G, Q, S]."""
    return [join(op, y), lse.unflatten(2, (int(op.attributes['queries']), -1))]


def part_dx(op: OpClass, where: Context, *tensors: Tensor) -> Tensors:
    """dy, q, kv, y, lse[, dq of keys before] → dq of all keys so far, dkv."""
    dy, q, kv, y, lse, *more = tensors
    before, keys = _before_and_keys(op, more)
    dq, dkv = Part(op, where, q, kv, keys).backward(dy, y, lse)
    return [dq + before[0] if before else dq, dkv]


class Part:
    """Queries and keys of one op, without rows and columns in which no one sees anything."""

    def __init__(
        self,
        op: OpClass,
        where: Context,
        q: Tensor,
        kv: Tensor,
        keys: Sequence[Tensor],
        places: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        self.op, self.where, self.keys = op, where, keys
        queries, self.q = int(op.attributes['queries']), _queries(op, q)
        self.causal = bool(op.attributes['causal'])
        self.k, self.v = _keys_and_values(op, kv)
        own, there = places or self._places(q.shape[1], kv.shape[1])
        every = (torch.ones_like(one, dtype=torch.bool) for one in (own, there))
        mask = seen(op, own, there) if self.causal else every
        # What a whole row or column hides is left out, as a kernel skips its blocks; what is left stands in order.
        order = own.argsort(), there.argsort()
        rows, columns = (at[there_is[at]] for at, there_is in zip(order, mask, strict=True))
        self.places = own[rows], there[columns]
        # Numbers, not masks, and found on the host: a device would have to be asked how many a mask picks.
        self._rows = (torch.arange(queries).unsqueeze(1) * len(own) + rows).flatten()
        self.rows, self.columns = _picked(self._rows, queries * len(own), q), _picked(columns, len(there), q)
        # A fused kernel has masks that hide nothing, or all that is behind a token.
        self._square = self.causal and torch.equal(*self.places)
        whole = (
            not self.causal or self._square or (len(rows) > 0 and bool(self.places[1].max() <= self.places[0].min()))
        )
        self._name = fused('attention', op, q) if whole and len(rows) else ''

    def _places(self, own: int, there: int) -> tuple[Tensor, Tensor]:
        """Of queries and of keys."""
        op, context = self.op, str(self.op.attributes['context'])
        ranks, position = self.where.size[context], self.where.position[context]
        # Keys have come from the rank so many before this one, or are those of all.
        source = (position - int(op.attributes.get('step', 0))) % ranks
        of_keys = shared.in_slice(op, source, there, ranks) if 'step' in op.attributes else shared.in_order(op, there)
        return shared.in_slice(op, position, own, ranks), of_keys

    def _dropped(self, probability: Tensor) -> Tensor:
        """[B, G, Q × rows, columns], what dropout leaves of it."""
        if not self.keys:
            return probability
        heads = int(self.op.attributes['groups']) * int(self.op.attributes['queries'])
        shape = (len(probability), heads, *map(len, self.places))
        full = self._sequence
        mask = shared.mask_of(self.op, self.where, self.keys[0], (*shape[:2], full, full), self.places)
        return shared.left(self.op, probability, mask.reshape(probability.shape))

    @property
    def _sequence(self) -> int:
        """Tokens of all ranks."""
        if 'tokens' in self.op.attributes:
            return int(self.op.attributes['tokens'])
        own = int(self.q.shape[2]) // int(self.op.attributes['queries'])
        return own * (self.where.size[str(self.op.attributes['context'])] if 'context' in self.op.attributes else 1)

    def _scores(self) -> tuple[Tensor, Tensor | float]:
        """Scores of what is seen, and the derivative of their cap."""
        q, k = self.q[:, :, self.rows], self.k[:, :, self.columns]
        scores, cap = wide(q @ k.mT) * scale_of(self.op), float(self.op.attributes.get('softcap', 0))
        slope: Tensor | float = 1.0
        if cap:
            bent = (scores / cap).tanh()
            scores, slope = bent * cap, (1 - bent.square()).to(q.dtype)
        if 'alibi' in self.op.attributes:
            queries, groups = int(self.op.attributes['queries']), self.q.shape[1]
            heads = slopes_of(self.op, self.where, groups * queries).unflatten(0, (groups, queries))
            rows = heads.repeat_interleave(self.q.shape[2] // queries, 1)[:, self._rows, None]
            scores = scores + on_device(rows * self.places[1], scores).to(scores.dtype)
        if self.causal:
            # Queries of a group lie below one another, so the mask repeats.
            hidden = unseen(self.op, *self.places, scores).repeat(int(self.op.attributes['queries']), 1)
            scores = scores.masked_fill(hidden, float('-inf'))
        return scores, slope

    def forward(self) -> tuple[Tensor, Tensor]:
        """Result and log-sum-exp; rows that see nothing keep the log of an empty sum, and give nothing."""
        q, k, v = self.q[:, :, self.rows], self.k[:, :, self.columns], self.v[:, :, self.columns]
        if self._name:
            y, lse = fused_forward(self._name, by_head(self.op, q), k, v, self._square, scale_of(self.op))
            y_rows, lse_rows = by_group(self.op, y), by_group(self.op, lse)
        else:
            scores, _ = self._scores()
            lse_rows = scores.logsumexp(-1)
            y_rows = self._dropped((scores - lse_rows.unsqueeze(-1)).exp().to(v.dtype)) @ v
        if isinstance(self.rows, slice):
            return y_rows, lse_rows
        y = self.v.new_zeros(*self.q.shape[:-1], self.v.shape[-1])
        lse = lse_rows.new_full(self.q.shape[:-1], float('-inf'))
        y[:, :, self.rows], lse[:, :, self.rows] = y_rows, lse_rows
        return y, lse

    def backward(self, dy: Tensor, y: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        """dq [B, S, G × Q × D], dkv [B, S, G × (D + values)], of results in the form of dq.

        Arguments: ``lse`` over all keys, also those of other ops.
        """
        op, every = self.op, (heads(self.op, dy), heads(self.op, y), lse.reshape(self.q.shape[:-1]))
        dy_rows, y_rows, lse_rows = (one[:, :, self.rows] for one in every)
        q, k, v = self.q[:, :, self.rows], self.k[:, :, self.columns], self.v[:, :, self.columns]
        if self._name:
            dy, y, lse = (by_head(op, one) for one in (dy_rows, y_rows.to(dy.dtype), lse_rows))
            how = self._square, scale_of(op)
            dq_heads, *others = fused_backward(self._name, dy, (by_head(op, q), k, v), y, lse, *how)
            gradients = (by_group(op, dq_heads), *others)
        else:
            scores, slope = self._scores()
            probability = (scores - lse_rows.unsqueeze(-1)).exp().to(v.dtype)
            ours = (dy_rows * y_rows).sum(-1, keepdim=True)
            dscores = probability * (self._dropped(dy_rows @ v.mT) - ours) * slope
            gradients = (
                dscores @ k * scale_of(op),
                dscores.mT @ q * scale_of(op),
                self._dropped(probability).mT @ dy_rows,
            )
        dq, dk, dv = self.q.new_zeros(self.q.shape), self.k.new_zeros(self.k.shape), self.v.new_zeros(self.v.shape)
        dq[:, :, self.rows], dk[:, :, self.columns], dv[:, :, self.columns] = gradients
        return join(op, dq), _together(dk, dv)


def _picked(numbers: Tensor, count: int, like: Tensor) -> Tensor | slice:
    """What picks some of so many places of a tensor, on its device: a slice where these are all, in order."""
    everything = len(numbers) == count and torch.equal(numbers, torch.arange(count))
    return slice(None) if everything else on_device(numbers, like)


def _before_and_keys(op: OpClass, more: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """What keys before or later chunks have given, and the keys of masks."""
    return (more[:-1], more[-1:]) if 'dropout' in op.attributes else (more, ())


def _times(op: OpClass) -> tuple[int, int]:
    """How many groups become of one, and features of the queries of each."""
    return int(op.attributes['times']), int(op.attributes['queries']) * int(op.attributes['head_dim'])


def _groups(op: OpClass) -> int:
    return int(op.attributes['groups'])


# Unfused attention of a rank's queries with keys and values that are there: those of all context ranks, or of one.


def context_scores_dx(op: OpClass, where: Context, *tensors: Tensor) -> Tensors:
    """dscores, probability, dy, q, kv[, dq of keys before] → dq of all keys so far, dkv."""
    dscores, probability, dy, q, kv, *before = tensors
    k, _ = _keys_and_values(op, kv)
    dscores, probability = (by_group(op, _there(op, where, one, kv.shape[1])) for one in (dscores, probability))
    dq, dk = dscores @ k * scale_of(op), dscores.mT @ _queries(op, q) * scale_of(op)
    dq = join(op, dq)
    return [dq + before[0] if before else dq, _together(dk, probability.mT @ heads(op, dy))]


def context_values_dx(op: OpClass, where: Context, dy: Tensor, kv: Tensor) -> Tensors:
    """dy, qkv or kv → dprobability."""
    _, v = _keys_and_values(op, kv)
    return [by_head(op, heads(op, dy) @ v.mT)]


def join_keys(op: OpClass, where: Context, *tensors: Tensor) -> Tensors:
    """blocks by step → the blocks in the order of the ranks that their keys are of."""
    ranks = len(tensors)
    steps = [(where.position[str(op.attributes['context'])] - rank) % ranks for rank in range(ranks)]
    return [torch.cat([tensors[step] for step in steps], -1)]


def _there(op: OpClass, where: Context, scores: Tensor, keys: int) -> Tensor:
    """The columns of the keys that are there."""
    if 'step' not in op.attributes:
        return scores
    context = str(op.attributes['context'])
    source = (where.position[context] - int(op.attributes['step'])) % where.size[context]
    return scores.narrow(-1, source * keys, keys)


def _together(dk: Tensor, dv: Tensor) -> Tensor:
    """[B, G, S, D] each → [B, S, G × (D + values)]."""
    return torch.cat([dk.transpose(1, 2), dv.transpose(1, 2)], -1).flatten(2)


# Attention of one chunk of a sequence with keys and values of all chunks so far, as in a cache of them.


def chunk_forward(op: OpClass, where: Context, q: Tensor, *more: Tensor) -> Tensors:
    """q, kv of each chunk that is seen[, keys of dropout] → y, lse."""
    count = int(op.attributes['parts'])
    # A token sees itself, so no row is left out.
    y, lse = _part(op, where, q, more[:count], more[count:]).forward()
    return _joined(op, y.to(q.dtype), lse)


def chunk_dx(op: OpClass, where: Context, dy: Tensor, q: Tensor, y: Tensor, lse: Tensor, *more: Tensor) -> Tensors:
    """dy, q, y, lse, kv of each chunk[, dkv of the last, from later chunks][, keys] → dq, dkv of each chunk."""
    count = int(op.attributes['parts'])
    later, keys = _before_and_keys(op, more[count:])
    dq, dkv = _part(op, where, q, more[:count], keys).backward(dy, y, lse)
    own = list(dkv.split(q.shape[1], 1))
    # Later chunks see a run of chunks that ends with this one; those before it, past a window, they do not.
    unseen = count - len(later)
    # Tensors apart: parts of one would keep the memory of all until the last of them is freed.
    first = (one.clone() if count > 1 else one for one in own[:unseen])
    return [dq, *first, *(one + other for one, other in zip(own[unseen:], later, strict=True))]


def _part(op: OpClass, where: Context, q: Tensor, kv: tuple[Tensor, ...], keys: Sequence[Tensor]) -> Part:
    own = int(op.attributes.get('first', 0)) + torch.arange(q.shape[1])
    there = int(op.attributes['first_key']) + torch.arange(q.shape[1] * len(kv))
    return Part(op, where, q, torch.cat(kv, 1), keys, (own, there))


KERNELS = {
    **rows('attention', F=attention_forward, I=attention_dx),
    ('attention_sink', 'W'): sinks_dw,
    **rows('attention_scores', F=scores_forward, I=scores_dx),
    ('alibi', 'F'): alibi_forward,
    **rows('softmax', F=softmax_forward, I=softmax_dx),
    **rows('attention_values', F=values_forward, I=values_dx),
    **rows('context_attention', F=part_forward, I=part_dx),
    **rows('repeat_kv', F=repeat_forward, I=repeat_dx),
    **rows('split_qkv', F=split_forward, I=split_dx),
    **rows('context_scores', F=scores_forward, I=context_scores_dx),
    **rows('context_values', F=values_forward, I=context_values_dx),
    **rows('join_keys', F=join_keys, I=join_keys),
    **rows('chunk_attention', F=chunk_forward, I=chunk_dx),
}
