"""Attention: scores, softmax and values, rotary positions, norms of queries and keys, latent attention."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from simpar.layout import ONE, Rule, TensorLayout, operators, size_of
from simpar.model.operators import base, norm, stream
from simpar.model.ops import Attributes, Kept, Local, Ops, Parameter, Work, dims_of, given, placed, seen, told
from simpar.model.ops import told as told_of
from simpar.model.primitive import Primitive, Shape, ShardCounts, Strategy, Use, dim_names
from simpar.program import Attribute

# Attention with grouped queries: flash, which keeps no probabilities, or unfused, which keeps them, dropped or not.
#
# All read ``qkv`` [batch, sequence, groups × width], split by batch and by groups of heads. A group is as wide as its
# queries, one key and one value.

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
        return {**self.told_of(self.held(local.layout('qkv'))), **given(balanced=local.balanced)}

    def told_of(self, held: Attributes) -> dict[str, Attribute]:
        """The same of given heads.

        Arguments: ``held``, which heads a rank has.
        """
        more = given(window=self.window, scale=self.scale, softcap=self.softcap)
        return {**held, 'causal': self.causal, **more, **told(self.documents)}

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
    return {1: shards[:1], 2: (heads, 1), 3: (shards[0], 1, heads), 4: (shards[0], heads, 1, 1)}[rank]


ATTENTION = AttentionCore('FlashAttention', 'attention')


@base.operator
class Attention(base.Sharded):
    """Flash attention: the backward does the scores again (5 products to 2), dropped probabilities are drawn again.

    Arguments: ``dropout``, probability of a zero. Causal: half of the scores.
    """

    key = 'attention'
    primitives = {'attention': ATTENTION}
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
        lse = Kept(role='lse', shape=(batch, heads.count, sequence), layout=rows, dtype='fp32')
        attributes = {**heads.told(local), **(slopes(local, heads.count, rows) if heads.alibi else {})}
        keys: tuple[str, ...] = ()
        if self.dropout:
            attributes, keys = {**attributes, **stream.dropped(local, self.dropout, local.name, rows)}, ('keys',)
        return Ops(
            F=Work('attention', ('qkv', *keys), ('y', 'lse'), flops=forward, dims=dims, attributes=attributes),
            I={'qkv': Work('attention', ('dy', 'qkv', 'y', 'lse', *keys), flops=backward, dims=dims,
                           attributes=attributes)},
            kept=(lse,),
        )  # fmt: skip


@base.operator
class SinkAttention(Attention, base.Trained):
    """Flash attention whose softmax has a logit more that no value stands behind: of each head, trained, or zero.

    Its probability is one less in the sum of a token's others: with the log-sum-exp that counts it the backward of
    queries, keys and values is as without. Arguments: ``learned``, else it is zero.
    """

    key = 'sink_attention'
    primitives = {'attention': ATTENTION, 'attention_sink': AttentionCore('AttentionSink')}

    learned: bool = True

    @property
    def has_own(self) -> bool:
        """Whether the logits are trained."""
        return self.learned

    def axes(self, name: str, *reads: Shape) -> Rule:
        """As without; the logits are split by groups."""
        rule, own = super().axes(name, *reads), [one.shape for one in self.parameters(())]
        inputs = (*rule.inputs, *(('g', ONE) for _ in own))
        return replace(rule, inputs=inputs, shapes=(*rule.shapes, *own))

    def steps(self, reads: tuple[str, ...], result: Shape) -> Iterator[base.Step]:
        """One primitive."""
        yield base.Step(primitive=ATTENTION, reads=(*reads, *self.parameters(result)), shape=result)

    def parameters(self, result: Shape) -> tuple[Parameter, ...]:
        """A logit of each head."""
        return (Parameter('sink', (self.heads.groups, self.heads.queries)),) if self.learned else ()

    def ops(self, local: Local) -> Ops:
        """As without, and the gradient of the logits by one number of each head and token."""
        plain_ops = super().ops(local)
        forward = plain_ops.F
        own = self.parameters(())
        own = tuple(one.on(at) for one, at in zip(own, local.inputs[len(forward.reads) :], strict=True))
        attributes: Attributes = {**forward.attributes, 'sink': 'learned' if self.learned else 'zero'}
        roles = tuple(one.role for one in own)
        weights = Work('attention_sink', ('dy', 'y', 'lse', *roles), flops=2 * local.elements('y'),
                       attributes=attributes)  # fmt: skip
        made = replace(forward, reads=(*forward.reads, *roles), attributes=attributes)
        return replace(plain_ops, F=made, W=weights if own else None, parameters=own)


@base.operator
class AttentionScores(base.Sharded):
    """q · kᵀ for every head, of all pairs of tokens; its backward also takes the gradient of the values.

    Arguments: ``values``, name of the operator that multiplies with the values.
    """

    key = 'attention_scores'
    primitives = {'attention_scores': AttentionCore('AttentionScores', 'matrix')}
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
        attributes = self.heads.told(local)
        return Ops(
            F=Work('attention_scores', ('qkv',), ('y',), flops=product,
                   dims={'m': rows, 'n': sequence, 'k': width}, attributes=attributes),
            I={'qkv': Work('attention_scores', ('dy', 'qkv', f'=d:{self.values}.v'), flops=2 * product,
                           dims={'m': 2 * rows, 'n': width, 'k': sequence}, attributes=attributes, of=self.values)},
        )  # fmt: skip


def slopes(local: Local, heads: int, rows: TensorLayout) -> Attributes:
    """What a kernel must know to add ALiBi. Arguments: ``heads`` of all ranks; ``rows``, a layout [batch, heads, …]."""
    return {'alibi': heads, **given(partition=local.partition(rows, 1))}


class OfScores(base.SameShape):
    """Of scores of attention [batch, heads, queries, keys]."""

    def axes(self, name: str, *reads: Shape) -> Rule:
        """Split along batch and heads."""
        (x,) = reads
        names = dim_names(x)
        return Rule(name, (names,), names, (x,), x, names, dict.fromkeys(names[-2:], _SEQUENCE))


@base.operator
class Alibi(OfScores, base.Sharded, base.Unary):
    """Adds the slope of each head × the place of the key to scores (Press et al. 2022); their gradient stays.

    Arguments: ``heads`` of all ranks.
    """

    key = 'alibi'
    primitives = {'alibi': AttentionCore('Alibi')}

    heads: int

    def ops(self, local: Local) -> Ops:
        """One operation an element."""
        attributes = slopes(local, self.heads, local.layout('x'))
        work = Work('alibi', ('x',), ('y',), flops=local.elements('x'), attributes=attributes)
        return Ops(F=work, I={'x': None})


@base.operator
class AttentionValues(base.Operator):
    """Probabilities · v for every head; the gradient of v is handed to the operator of the scores, as which it lies."""

    key = 'attention_values'
    primitives = {'attention_values': AttentionCore('AttentionValues', 'matrix')}
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
        attributes = heads.told(local)
        # One op makes both gradients; that of v joins those of q and k in the operator of the scores.
        of_v = Kept(
            role=f'=d:{local.name}.v',
            shape=(*local.shape('qkv')[:2], heads.groups * heads.values),
            layout=local.layout('qkv'),
        )
        return Ops(
            F=Work('attention_values', ('kept', 'qkv'), ('y',), flops=product,
                   dims={'m': rows, 'n': width, 'k': sequence}, attributes=attributes),
            I={'kept': Work('attention_values', ('dy', 'kept', 'qkv'), (of_v.role,),
                            flops=2 * product, dims={'m': 2 * rows, 'n': sequence, 'k': width}, attributes=attributes)},
            made_backward=(of_v,),
        )  # fmt: skip


@base.operator
class CausalSoftmax(OfScores):
    """Softmax over the last dim of the scores of attention, zero for tokens of the future.

    Arguments: ``window``, how many tokens one sees, itself and those before it; 0: all; ``documents`` as of ``Heads``.
    """

    key = 'causal_softmax'
    primitives = {'softmax': norm.SOFTMAX}

    window: int = 0
    documents: tuple[int, ...] = ()

    def ops(self, local: Local) -> Ops:
        """About five operations an element forward, four backward."""
        elements = local.elements('x')
        # Context ranks may have the scores of their own tokens alone.
        rows = local.partition(local.layout('x'), len(local.shape('x')) - 2)
        own = given(balanced=local.balanced, partition=rows)
        attributes = {'causal': True, **given(window=self.window), **told(self.documents), **own}
        return Ops(
            F=Work('softmax', ('x',), ('y',), flops=5 * elements, attributes=attributes),
            I={'x': Work('softmax', ('dy', 'y'), flops=4 * elements)},
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


# Rotary position embedding of queries and keys (Su et al. 2021), each feature with that half a rotation away.
#
# Feature i of r is turned with feature i + r / 2, by position × theta^(−2i / r): the order of GPT-NeoX and Llama.


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """Which features are turned, and how fast.

    Arguments:
        features: of a head, an even count; those behind them stay.
        theta: base of the frequencies.
        scaling: empty: none; (factor,): positions are divided by it (Chen et al. 2023); (factor, low, high, original):
            frequencies whose waves are longer than original / low positions are divided by the factor, those shorter
            than original / high stay, and those between are mixed (Llama 3.1); (factor, original, fast, slow,
            magnitude): those that turn less than ``slow`` times in the original positions are divided by the factor,
            those that turn more than ``fast`` times stay, a ramp over features lies between, and what is turned is
            multiplied by the magnitude (YaRN, Peng et al. 2023).
        factors: each frequency is divided by its own; empty: none (LongRoPE, Ding et al. 2024). ``magnitude``: what is
            turned is multiplied by it.
        interleaved: each feature is turned with its neighbour (the order of RoFormer and DeepSeek); the first of each
            pair come out in front of all others.
    """

    features: int
    theta: float = 10000.0
    scaling: tuple[float, ...] = ()
    factors: tuple[float, ...] = ()
    magnitude: float = 1.0
    interleaved: bool = False

    @property
    def told(self) -> Attributes:
        """What a kernel must know."""
        return {
            'rotated': self.features,
            'theta': self.theta,
            **given(scaling=' '.join(map(repr, self.scaling)), factors=' '.join(map(repr, self.factors))),
            **({'magnitude': self.magnitude} if self.magnitude != 1 else {}),
            **given(interleaved=self.interleaved),
        }


def _turning(local: Local, heads: Heads, rotation: Rotation, layout: TensorLayout) -> Attributes:
    """What a kernel must know that turns features; only where a sequence is split, where a rank's positions begin."""
    attributes = {**heads.held(layout), **rotation.told, **told_of(heads.documents)}
    return {**attributes, **placed(local, layout, 1)}


@base.operator
class Rotary(base.SameShape, base.Sharded, base.Unary):
    """Turns queries and keys by their positions; values stay where they are.

    Arguments: ``heads`` of attention; ``rotation``.
    """

    key = 'rotary'
    primitives = {'rotary': Qkv('RotaryPositionEmbedding')}

    heads: Heads
    rotation: Rotation

    def axes(self, name: str, *reads: Shape) -> Rule:
        """Split by batch, by sequence and by groups."""
        return self.heads.rows(name, *reads)

    def ops(self, local: Local) -> Ops:
        """Three operations for each feature of a query or key that is turned, forward and backward."""
        heads, rotation = self.heads, self.rotation
        layout = local.layout('x')
        attributes = _turning(local, heads, rotation, layout)
        turned = (heads.queries + 1) / (heads.queries + 2)
        # A device turns queries and keys in their place in memory; values are neither read nor written.
        moved = 2 * turned * local.size('x')
        flops = 3 * turned * local.elements('x') * rotation.features / heads.head_dim
        return Ops(
            F=Work('rotary', ('x',), ('y',), flops=flops, moved=moved, attributes=attributes),
            I={'x': Work('rotary', ('dy',), flops=flops, moved=moved, attributes=attributes)},
        )


# RMSNorm of every head of queries and of keys with one gain for all (Qwen 3), or of all heads together (OLMo 2).

GAINS = ('q_gain', 'k_gain')


@base.operator
class QkNorm(base.SameShape, base.Trained, base.Unary):
    """Divides every head of queries and keys by its root mean square, with gains; values stay.

    Arguments: ``heads`` of attention; ``epsilon``, added to the mean of squares; ``whole``: the mean is of all queries,
    and of all keys.
    """

    key = 'qk_norm'
    primitives = {'qk_norm': Qkv('QkNorm')}
    full = True

    heads: Heads
    epsilon: float = norm.EPSILON
    whole: bool = False

    def axes(self, name: str, *reads: Shape) -> Rule:
        """Split by batch, by sequence and by groups; every rank has the gains in full."""
        rule = self.heads.rows(name, *reads)
        return replace(rule, fixed={**rule.fixed, 'g': operators.NORMALISED}) if self.whole else rule

    def parameters(self, result: Shape) -> tuple[Parameter, ...]:
        """The gains of queries and of keys."""
        of_queries, of_keys = (self.heads.count, self.heads.groups) if self.whole else (1, 1)
        counts = zip(GAINS, (of_queries, of_keys), strict=True)
        return tuple(Parameter(gain, (count * self.heads.head_dim,), 'ones') for gain, count in counts)

    def ops(self, local: Local) -> Ops:
        """As of RMSNorm; the backward reads x and one number of each head that is normalised."""
        heads, x, layout = self.heads, local.shape('x'), local.layout('x')
        attributes: Attributes = {**heads.held(layout), 'epsilon': self.epsilon, **given(whole=self.whole)}
        share = (heads.queries + 1) / (heads.queries + 2)
        elements = share * local.elements('x')
        # Values are neither read nor written: x and y count without them, the backward reads dy too.
        moved = share * local.size('x')
        groups = 1 if self.whole else heads.groups
        if self.whole:
            layout = TensorLayout(local.world, (*layout.dims[:-1], ()))
        rstd = Kept(role='rstd', shape=(*x[:-1], groups * (heads.queries + 1)), layout=layout)
        return Ops(
            F=Work('qk_norm', ('x', *GAINS), ('y', 'rstd'), flops=5 * elements, moved=2 * moved, attributes=attributes),
            I={'x': Work('qk_norm', ('dy', 'x', *GAINS, 'rstd'), flops=9 * elements, moved=3 * moved,
                         attributes=attributes)},
            W=Work('qk_norm', ('dy', 'x', 'rstd'), flops=3 * elements, moved=2 * moved, attributes=attributes),
            parameters=self.parameters(x),
            kept=(rstd,),
        )  # fmt: skip


# Multi-head latent attention (DeepSeek-V2, 2024): what lies between its products, down to what attention reads.
#
# Keys and values come from a latent vector of each token, ``kv_down`` [..., rank + rope]: its first features are
# normalised and made keys and values of all heads, its last are the one part of the keys that is turned. Keys are put
# together before attention, as in training, so that kernels see ordinary heads.


class Rows(Primitive):
    """What changes rows one by one; their features stay unsharded."""

    def strategy(self, use: Use, shards: ShardCounts) -> Strategy:
        """The last dim unsharded."""
        return ((*shards[:-1], 1), *((1,) for _ in use.shapes[1:]))


class LatentJoin(AttentionCore):
    """Queries, keys and values of all heads, of their parts."""

    def strategy(self, use: Use, shards: ShardCounts) -> Strategy:
        """As its queries lie, but for the key that all heads share."""
        return (shards, shards, (*shards[:-1], 1))

    def output_shards(self, use: Use, strategy: Strategy) -> ShardCounts:
        """As its queries."""
        return strategy[0]


def row_axes(name: str, x: Shape, result: Shape) -> Rule:
    """Every dim but the last may be split."""
    names = (*dim_names(x)[:-1], ONE)
    return Rule(name, (names,), names, (x,), result, names[:-1], {})


@base.operator
class LatentNorm(base.Trained, base.Unary):
    """RMSNorm of the first features of what it reads; the others are left out.

    Arguments: ``features``, how many; ``epsilon``, added to the mean of squares.
    """

    key = 'latent_norm'
    primitives = {'latent_norm': Rows('LatentNorm')}
    full = True

    features: int
    epsilon: float = norm.EPSILON

    def result_shape(self, samples: int, *reads: Shape) -> Shape:
        """With so many features."""
        return (*reads[0][:-1], self.features)

    def axes(self, name: str, *reads: Shape) -> Rule:
        """Rows; every rank has the gain in full."""
        return row_axes(name, reads[0], self.result_shape(0, *reads))

    def parameters(self, result: Shape) -> tuple[Parameter, ...]:
        """The gain."""
        return (Parameter('gain', (self.features,), 'ones'),)

    def ops(self, local: Local) -> Ops:
        """As of RMSNorm; the gradient of the features left out is zero."""
        attributes: Attributes = {'epsilon': self.epsilon}
        elements, size, full = local.elements('y'), local.size('y'), local.size('x')
        column = TensorLayout(local.world, (*local.layout('x').dims[:-1], ()))
        rstd = Kept(role='rstd', shape=(*local.shape('x')[:-1], 1), layout=column)
        return Ops(
            F=Work('latent_norm', ('x', 'gain'), ('y', 'rstd'), flops=5 * elements, moved=2 * size,
                   attributes=attributes),
            I={'x': Work('latent_norm', ('dy', 'x', 'gain', 'rstd'), flops=9 * elements,
                         moved=2 * size + full, attributes=attributes)},
            W=Work('latent_norm', ('dy', 'x', 'rstd'), flops=3 * elements, moved=2 * size, attributes=attributes),
            parameters=self.parameters(()),
            kept=(rstd,),
        )  # fmt: skip


@base.operator
class LastFeatures(base.Sharded, base.Unary):
    """The last features of what it reads, as a tensor of their own.

    Arguments: ``features``, how many.
    """

    key = 'last_features'
    primitives = {'last_features': Rows('LastFeatures')}

    features: int

    def result_shape(self, samples: int, *reads: Shape) -> Shape:
        """With so many features."""
        return (*reads[0][:-1], self.features)

    def axes(self, name: str, *reads: Shape) -> Rule:
        """Rows."""
        return row_axes(name, reads[0], self.result_shape(0, *reads))

    def ops(self, local: Local) -> Ops:
        """A copy; backward it is put behind zeros."""
        moved, attributes = 2 * local.size('y'), {'before': local.shape('x')[-1] - self.features}
        return Ops(
            F=Work('last_features', ('x',), ('y',), moved=moved, attributes=attributes),
            I={'x': Work('last_features', ('dy',), attributes=attributes)},
        )


@base.operator
class LatentQkv(base.Operator):
    """Queries, keys and values of all heads as attention reads them, rotary parts turned.

    Arguments: ``heads`` of attention; ``rotation`` of the last features of queries and keys.
    """

    key = 'latent_qkv'
    primitives = {'latent_qkv': LatentJoin('LatentQkv')}
    roles = ('q', 'kv', 'k_rope')

    heads: Heads
    rotation: Rotation

    def result_shape(self, samples: int, *reads: Shape) -> Shape:
        """[batch, sequence, heads × (query, key and value)]."""
        return (*reads[0][:2], self.heads.count * self.heads.width)

    def axes(self, name: str, *reads: Shape) -> Rule:
        """Batch b, sequence s and heads g; shared keys have no heads."""
        names = ('b', 's', 'g')
        inputs, result = (names, names, ('b', 's', ONE)), self.result_shape(0, *reads)
        return Rule(name, inputs, names, reads, result, names, {}, {'g': self.heads.groups})

    def ops(self, local: Local) -> Ops:
        """Bytes of what is read and written; forward and backward three operations for each feature that is turned."""
        heads, layout = self.heads, local.layout('q')
        turned = self.rotation.features * local.elements('q') / heads.head_dim
        attributes = _turning(local, heads, self.rotation, layout)
        # Of the gradient dy each op reads what its part became: queries; keys but for the shared part, and values; the
        # shared part of all heads' keys.
        size, rope = local.size('q') / heads.head_dim, self.rotation.features
        width = heads.head_dim - rope + heads.values
        return Ops(
            F=Work('latent_qkv', self.roles, ('y',), flops=6 * turned, attributes=attributes),
            I={
                'q': Work('latent_qkv', ('dy',), flops=3 * turned, moved=2 * size * heads.head_dim,
                          attributes={**attributes, 'of': 'q'}, suffix='.q'),
                'kv': Work('latent_qkv', ('dy',), moved=2 * size * width,
                           attributes={**attributes, 'of': 'kv'}, suffix='.kv'),
                'k_rope': Work('latent_qkv', ('dy',), flops=4 * turned,
                               moved=size * rope + local.size('k_rope'), attributes={**attributes, 'of': 'k_rope'},
                               suffix='.k_rope'),
            },
        )  # fmt: skip
