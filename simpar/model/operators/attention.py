"""Attention with grouped queries: flash, which keeps no probabilities, or unfused, which keeps them, dropped or not.

All read ``qkv`` [batch, sequence, groups × width], split by batch and by groups of heads. A group is as wide as its
queries, one key and one value.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from simpar.layout import ONE, Rule, TensorLayout, size_of
from simpar.model.documents import dims_of, seen, told
from simpar.model.operators.base import Operator, Sharded, Unary, operator
from simpar.model.operators.norm import SOFTMAX, SameShape
from simpar.model.operators.stream import dropped
from simpar.model.ops import Attributes, Kept, Local, Ops, Work
from simpar.model.primitive import Call, Primitive, Shape, ShardCounts, Strategy, Use, dim_names
from simpar.program import Attribute

_SEQUENCE = 'needs all of a sequence and must stay unsharded'


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Heads of attention.

    Arguments:
        groups: of heads that share a key and a value.
        queries: heads of a group.
        head_dim: features of a query and of a key.
        value_dim: features of a value; 0: head_dim.
        causal: no token sees those behind it.
        window: how many tokens one sees, itself and those before it; 0: all.
        scale: what scores are multiplied by; 0: 1 / √head_dim.
        softcap: scores become softcap · tanh(score / softcap); 0: they stay.
        documents: lengths of those that a sample packs, of which no token sees another's; empty: one.
        alibi: each head adds its slope × the place of a key to its scores.
    """

    groups: int
    queries: int
    head_dim: int
    value_dim: int = 0
    causal: bool = True
    window: int = 0
    scale: float = 0.0
    softcap: float = 0.0
    documents: tuple[int, ...] = ()
    alibi: bool = False

    @property
    def count(self) -> int:
        """Heads of queries."""
        return self.groups * self.queries

    @property
    def values(self) -> int:
        """Features of a value."""
        return self.value_dim or self.head_dim

    @property
    def width(self) -> int:
        """Features of a group: its queries, its key and its value."""
        return (self.queries + 1) * self.head_dim + self.values

    def groups_held(self, layout: TensorLayout) -> int:
        """Groups on one rank, from the layout of ``qkv``."""
        return self.groups // size_of(layout.dims[2])

    def told(self, local: Local) -> Attributes:
        """What a kernel must know."""
        # Heads of a whole sequence see its tokens in the order in which context ranks hold them.
        order = {'balanced': local.balanced} if local.balanced else {}
        return {**self.told_of(self.held(local.layout('qkv'))), **order}

    def told_of(self, held: Attributes) -> dict[str, Attribute]:
        """The same of given heads.

        Arguments: ``held``, which heads a rank has.
        """
        more = {'window': self.window, 'scale': self.scale, 'softcap': self.softcap}
        known = {key: value for key, value in more.items() if value}
        return {**held, 'causal': self.causal, **known, **told(self.documents)}

    def held(self, layout: TensorLayout) -> Attributes:
        """Which heads a rank has, from the layout of ``qkv``."""
        apart: Attributes = {'value_dim': self.values} if self.values != self.head_dim else {}
        return {'groups': self.groups_held(layout), 'queries': self.queries, 'head_dim': self.head_dim, **apart}

    def seen(self, sequence: int) -> float:
        """Pairs of tokens of which one sees the other, as a share of those of one document without a window.

        Arguments: ``sequence``, tokens of a sample.
        """
        return seen(Counter(self.documents) or {sequence: 1}, self.window, sequence)

    def rows(self, name: str, qkv: Shape) -> Rule:
        """Of what changes ``qkv`` head by head: batch b, sequence s and groups g."""
        names = ('b', 's', 'g')
        return Rule(name, (names,), names, (qkv,), qkv, names, {}, {'g': self.groups})

    def axes(self, name: str, *shapes: Shape, result: Shape, inner: int) -> Rule:
        """Batch b, sequence s and groups g: of the result's dims, ``inner`` is the one of heads."""
        inputs = tuple(self._dims(shape) for shape in shapes)
        output = tuple('b' if dim == 0 else 'g' if dim == inner else ONE for dim in range(len(result)))
        return Rule(name, inputs, output, shapes, result, ('b', 's', 'g'), {'s': _SEQUENCE}, {'g': self.groups})

    @staticmethod
    def _dims(shape: Shape) -> tuple[str, ...]:
        # By rank: keys of dropout, values of three dims, probabilities of heads.
        return {1: ('b',), 3: ('b', 's', 'g'), 4: ('b', 'g', ONE, ONE)}[len(shape)]


class AttentionCore(Primitive):
    """Attention, or a product or a softmax of it: split by batch and by heads."""

    def axes(self, name: str, call: Call, shapes: tuple[Shape, ...], output: Shape) -> Rule:
        """b, s, g, as its operator tells them."""
        raise NotImplementedError

    def strategy(self, use: Use, shards: ShardCounts) -> Strategy:
        """By samples, and by heads as the features of one input are."""
        return tuple(_by_heads(shards, len(shape)) for shape in use.shapes)

    def output_shards(self, use: Use, strategy: Strategy) -> ShardCounts:
        """The same of its result."""
        return _by_heads(strategy[0], len(use.output))


class Qkv(AttentionCore):
    """What changes queries and keys head by head; tokens may be split, too."""

    def strategy(self, use: Use, shards: ShardCounts) -> Strategy:
        """As its input lies."""
        return (shards,)

    def output_shards(self, use: Use, strategy: Strategy) -> ShardCounts:
        """As its input."""
        return strategy[0]


def _by_heads(shards: ShardCounts, rank: int) -> ShardCounts:
    """Slices of samples and of heads, which are features of three dims and a dim of four."""
    # Tokens stay in one place: attention needs all of a sequence.
    heads = shards[-1] if len(shards) == 3 else shards[1] if len(shards) == 4 else 1
    return {1: shards[:1], 3: (shards[0], 1, heads), 4: (shards[0], heads, 1, 1)}[rank]


ATTENTION = AttentionCore('FlashAttention', 'attention')
SCORES, VALUES = AttentionCore('AttentionScores', 'matrix'), AttentionCore('AttentionValues', 'matrix')


@operator
class Attention(Sharded):
    """Flash attention: the backward does the scores again (5 products to 2), dropped probabilities are drawn again.

    Arguments: ``dropout``, probability of a zero. Causal: half of the scores.
    """

    key = 'attention'
    written = False
    primitives = {'attention': ATTENTION}
    inputs_told = 'qkv, keys [batch]'
    unsharded = 'sequence'
    roles = ('qkv', 'keys')

    heads: Heads
    dropout: float = 0.0

    def result_shape(self, samples: int, *reads: Shape) -> Shape:
        """[batch, sequence, heads × features of a value]."""
        return (*reads[0][:2], self.heads.count * self.heads.values)

    def axes(self, name: str, *reads: Shape) -> Rule:
        """Split by batch and by groups."""
        return self.heads.axes(name, *reads, result=self.result_shape(0, *reads), inner=2)

    def ops(self, local: Local) -> Ops:
        """2 products forward, 5 backward."""
        heads = self.heads
        batch, sequence, _ = local.shape('qkv')
        layout = local.layout('qkv')
        held = heads.groups_held(layout)
        dims = {
            'batch': batch // size_of(layout.dims[0]) // local.copies,
            'sequence': sequence,
            'heads': held * heads.queries,
            'kv_heads': held,
            'head_dim': heads.head_dim,
            **({'value_dim': heads.values} if heads.values != heads.head_dim else {}),
            **({'window': heads.window} if heads.window and heads.window < sequence else {}),
            **dims_of(heads.documents),
        }
        # A product takes 2 operations for each pair and feature, half of the pairs masked. ``causal: false`` is counted
        # alike. Forward: scores and values. Backward: scores again, and four more.
        pairs, seen = dims['batch'] * dims['heads'] * sequence * sequence, heads.seen(sequence)
        forward = 2.0 * (pairs * ((heads.head_dim + heads.values) / 2) * seen)
        backward = 5.0 * (pairs * ((3 * heads.head_dim + 2 * heads.values) / 5) * seen)
        # The features of qkv are split by groups of heads, so the heads of what is kept are split alike.
        rows = TensorLayout(local.world, (layout.dims[0], layout.dims[2], ()))
        kept = Kept(role='lse', shape=(batch, heads.count, sequence), layout=rows, dtype='fp32')
        known = {**heads.told(local), **(slopes(local, heads.count, rows) if heads.alibi else {})}
        keys: tuple[str, ...] = ()
        if self.dropout:
            known, keys = {**known, **dropped(local, self.dropout, local.name, rows)}, ('keys',)
        return Ops(
            F=Work(operator='attention', reads=('qkv', *keys), writes=('y', 'lse'), flops=forward, dims=dims,
                   attributes=known),
            I={'qkv': Work(operator='attention', reads=('dy', 'qkv', 'y', 'lse', *keys), flops=backward,
                           dims=dims, attributes=known)},
            kept=(kept,),
        )  # fmt: skip


@operator
class AttentionScores(Sharded):
    """q · kᵀ for every head, of all pairs of tokens; its backward also takes the gradient of the values.

    Arguments: ``values``, name of the operator that multiplies with the values.
    """

    key = 'attention_scores'
    written = False
    primitives = {'attention_scores': SCORES}
    inputs_told = 'qkv'
    unsharded = 'sequence'
    roles = ('qkv',)

    heads: Heads
    values: str

    def result_shape(self, samples: int, *reads: Shape) -> Shape:
        """[batch, heads, sequence, sequence]."""
        batch, sequence, _ = reads[0]
        return (batch, self.heads.count, sequence, sequence)

    def axes(self, name: str, *reads: Shape) -> Rule:
        """Split by batch and by groups."""
        return self.heads.axes(name, *reads, result=self.result_shape(0, *reads), inner=1)

    def ops(self, local: Local) -> Ops:
        """One product forward, two backward."""
        rows, sequence, width, product = _product(local, 'y', self.heads.head_dim)
        known = self.heads.told(local)
        return Ops(
            F=Work(operator='attention_scores', reads=('qkv',), writes=('y',), flops=product,
                   dims={'m': rows, 'n': sequence, 'k': width}, attributes=known),
            I={'qkv': Work(operator='attention_scores', reads=('dy', 'qkv', f'=d:{self.values}.v'), flops=2 * product,
                           dims={'m': 2 * rows, 'n': width, 'k': sequence}, attributes=known, of=self.values)},
        )  # fmt: skip


def slopes(local: Local, heads: int, rows: TensorLayout) -> Attributes:
    """What a kernel must know to add ALiBi. Arguments: ``heads`` of all ranks; ``rows``, a layout [batch, heads, …]."""
    partition = local.partition(rows, 1)
    return {'alibi': heads, **({'partition': partition} if partition else {})}


@operator
class Alibi(SameShape, Sharded, Unary):
    """Adds the slope of each head × the place of the key to scores (Press et al. 2022); their gradient stays.

    Arguments: ``heads`` of all ranks.
    """

    key = 'alibi'
    written = False
    primitives = {'alibi': AttentionCore('Alibi')}
    inputs_told = 'scores [batch, heads, sequence, sequence]'
    unsharded = 'last two dims'

    heads: int

    def axes(self, name: str, *reads: Shape) -> Rule:
        """Split along batch and heads."""
        (x,) = reads
        names = dim_names(x)
        return Rule(name, (names,), names, (x,), x, names, dict.fromkeys(names[-2:], _SEQUENCE))

    def ops(self, local: Local) -> Ops:
        """One operation an element."""
        told = slopes(local, self.heads, local.layout('x'))
        work = Work(operator='alibi', reads=('x',), writes=('y',), flops=local.elements('x'), attributes=told)
        return Ops(F=work, I={'x': None})


@operator
class AttentionValues(Operator):
    """Probabilities · v for every head; the gradient of v is handed to the operator of the scores, as which it lies."""

    key = 'attention_values'
    written = False
    primitives = {'attention_values': VALUES}
    inputs_told = 'probabilities, qkv'
    unsharded = 'sequence'
    roles = ('kept', 'qkv')

    heads: Heads

    def result_shape(self, samples: int, *reads: Shape) -> Shape:
        """[batch, sequence, heads × features of a value]."""
        return (*reads[1][:2], self.heads.count * self.heads.values)

    def axes(self, name: str, *reads: Shape) -> Rule:
        """Split by batch and by groups."""
        return self.heads.axes(name, *reads, result=self.result_shape(0, *reads), inner=2)

    def ops(self, local: Local) -> Ops:
        """One product forward, two backward."""
        heads = self.heads
        rows, sequence, width, product = _product(local, 'kept', heads.values)
        known = heads.told(local)
        # One op makes both gradients; that of v joins those of q and k in the operator of the scores.
        of_v = Kept(
            role=f'=d:{local.name}.v',
            shape=(*local.shape('qkv')[:2], heads.groups * heads.values),
            layout=local.layout('qkv'),
        )
        return Ops(
            F=Work(operator='attention_values', reads=('kept', 'qkv'), writes=('y',), flops=product,
                   dims={'m': rows, 'n': width, 'k': sequence}, attributes=known),
            I={'kept': Work(operator='attention_values', reads=('dy', 'kept', 'qkv'), writes=(of_v.role,),
                            flops=2 * product, dims={'m': 2 * rows, 'n': sequence, 'k': width}, attributes=known)},
            made_backward=(of_v,),
        )  # fmt: skip


@operator
class CausalSoftmax(SameShape):
    """Softmax over the last dim of the scores of attention, zero for tokens of the future.

    Arguments: ``window``, how many tokens one sees, itself and those before it; 0: all; ``documents`` as of ``Heads``.
    """

    key = 'causal_softmax'
    written = False
    primitives = {'softmax': SOFTMAX}
    unsharded = 'last two dims'

    window: int = 0
    documents: tuple[int, ...] = ()

    def axes(self, name: str, *reads: Shape) -> Rule:
        """Split along batch and heads."""
        (x,) = reads
        names = dim_names(x)
        return Rule(name, (names,), names, (x,), x, names, dict.fromkeys(names[-2:], _SEQUENCE))

    def ops(self, local: Local) -> Ops:
        """About five operations an element forward, four backward."""
        elements = local.elements('x')
        window: Attributes = {'window': self.window} if self.window else {}
        order: Attributes = {'balanced': local.balanced} if local.balanced else {}
        # Context ranks may have the scores of their own tokens alone.
        rows = local.partition(local.layout('x'), len(local.shape('x')) - 2)
        own: Attributes = {'partition': rows} if rows else {}
        known: Attributes = {'causal': True, **window, **told(self.documents), **order, **own}
        return Ops(
            F=Work(operator='softmax', reads=('x',), writes=('y',), flops=5 * elements, attributes=known),
            I={'x': Work(operator='softmax', reads=('dy', 'y'), flops=4 * elements)},
        )


def _product(local: Local, scores: str, features: int) -> tuple[int, int, int, float]:
    """Rows of all heads on one rank, tokens, features, and floating-point operations of one product."""
    sequence = local.shape('qkv')[1]
    rows = local.elements(scores) // sequence
    return rows, sequence, features, 2.0 * rows * sequence * features


CONTEXT_ATTENTION: Final = 'context_attention'
"""Attention of a rank's queries with keys and values that are there."""
SPLIT_QKV: Final = 'split_qkv'
"""Queries apart from keys and values, which go to other ranks; backward their gradients become one again."""
REPEAT_KV: Final = 'repeat_kv'
"""Groups of heads as several with fewer queries, each with the group's key and value; backward these are summed."""
CONTEXT_SCORES: Final = 'context_scores'
"""Unfused: a rank's queries times keys that are there; backward also the gradient of their values."""
CONTEXT_VALUES: Final = 'context_values'
"""Unfused: probabilities of a rank's queries times values that are there, added to those before."""
CHUNK_ATTENTION: Final = 'chunk_attention'
"""Attention of one chunk of a sequence with keys and values of all chunks so far."""
JOIN_KEYS: Final = 'join_keys'
"""Unfused: blocks of scores, or of their gradients, one for each rank's keys, as one."""
OF_CONTEXT: Final = {
    CONTEXT_ATTENTION: AttentionCore('ContextAttention', 'attention'),
    SPLIT_QKV: Qkv('SplitQkv'),
    REPEAT_KV: Qkv('RepeatKv'),
    CONTEXT_SCORES: AttentionCore('ContextScores', 'matrix'),
    CONTEXT_VALUES: AttentionCore('ContextValues', 'matrix'),
    CHUNK_ATTENTION: AttentionCore('ChunkAttention', 'attention'),
    JOIN_KEYS: AttentionCore('JoinKeys'),
}
"""By the operator of an op class, what bounds it."""
