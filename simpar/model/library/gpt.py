"""GPT: a decoder of any width and depth, with its positions, its latent attention and its layers."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from math import gcd
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal

from pydantic import Field

from simpar.errors import Problem, divisors, multiple
from simpar.keys import conflicts_of, described
from simpar.model.keys import Deviation, Size
from simpar.model.library.experts import mixture_nodes, mixture_problems
from simpar.model.model import AHEAD, Asked, Further, Graph, Model, Node, Source
from simpar.model.operators import attention as mha
from simpar.model.operators import base, linear, shape
from simpar.model.operators.experts import Experts
from simpar.model.operators.norm import GainNorm, LayerNorm, RmsNorm
from simpar.model.operators.pointwise import GATED, Add, Gelu, GeluTanh, Mul, Relu, Silu, Softcap, SquaredRelu
from simpar.model.operators.stream import DRAW, KEYS, Dropout, Position, Residual
from simpar.model.ops import packed

if TYPE_CHECKING:
    from typing_extensions import Self


# Rotary of a ``transformer:`` that is stretched to more positions: its keys, its rotation, and what does not fit.

FILE: Final = ('workload', 'transformer')
Factor = Annotated[float, Field(gt=0, le=1e12)]
Factors = Annotated[tuple[Factor, ...], Field(min_length=1, max_length=2**12)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRope:
    """LongRoPE (Ding et al. 2024): every frequency is divided by a factor of its own.

    Arguments:
        short, long: factors of samples up to so many positions as the model was first trained with, and of longer ones.
        original: those positions.
        magnitude: what is turned is multiplied by it.
    """

    short: Annotated[Factors, Field(description='of samples of up to original tokens, a factor for each pair')]
    long: Annotated[Factors, Field(description='the same of longer samples')]
    original: Annotated[Size, Field(description='positions that the model was first trained with')]
    magnitude: Annotated[float, Field(gt=0, le=1e6, description='queries and keys are multiplied by it')] = 1.0


def rotation_of(model: Transformer, features: int) -> mha.Rotation:
    """How so many features are turned; some kinds of scaling look at the longest document of a sample."""
    longest = max(model.packed or (model.sequence,))
    theta, scaling, long = model.rope_theta, model.rope_scaling, model.longrope
    if len(scaling) == 2:
        theta, scaling = _stretched(theta, *scaling, longest, features), ()
    factors = () if long is None else long.short if longest <= long.original else long.long
    return mha.Rotation(
        features=features,
        theta=theta,
        scaling=scaling,
        factors=factors,
        magnitude=long.magnitude if long else 1.0,
        interleaved=model.rope_interleaved,
    )


def _stretched(theta: float, factor: float, positions: float, longest: int, features: int) -> float:
    """A base whose slowest frequency is divided by so much as a sample is longer than the positions (dynamic NTK)."""
    # A zero is told by ``rope_problems``; the only frequency of two features has no base.
    if longest <= positions or positions == 0 or features <= 2:
        return theta
    return float(theta * (factor * longest / positions - (factor - 1)) ** (features / (features - 2)))


FORMS: Final = (
    '[factor], [factor, positions], [factor, low, high, original positions], or [factor, original, fast, slow, '
    'magnitude]'
)


def rope_problems(model: Transformer) -> Iterator[Problem]:
    """What of the keys of a stretched rotary does not fit together."""
    at, scaling = (*FILE, 'rope_scaling'), model.rope_scaling
    if len(scaling) not in (0, 1, 2, 4, 5) or 0 in scaling:
        yield Problem(at, f'{len(scaling)} numbers, or a zero among them', f'write {FORMS}')
    elif len(scaling) == 5 and scaling[2] < scaling[3]:
        what = f'fast {scaling[2]:g} is below slow {scaling[3]:g}'
        yield Problem(at, what, 'write [factor, original, fast, slow, magnitude]')
    elif len(scaling) == 4 and scaling[1] >= scaling[2]:
        what = f'low {scaling[1]:g} is not below high {scaling[2]:g}'
        yield Problem(at, what, 'write [factor, low, high, original positions]')
    if model.longrope is not None:
        yield from _of_longrope(model, model.longrope)


def _of_longrope(model: Transformer, long: LongRope) -> Iterator[Problem]:
    at = (*FILE, 'longrope')
    if model.position != 'rotary':
        yield Problem(at, f'position is {model.position}', 'leave it out, or write position: rotary')
        return
    if model.rope_scaling:
        yield Problem(at, 'frequencies are scaled by rope_scaling, too', 'leave one of them out')
    features = model.qk_rope_head_dim or int(model.head_width * model.rotary_share)
    for name, factors in (('short', long.short), ('long', long.long)):
        if len(factors) != features // 2:
            what = f'{len(factors)} factors for {features // 2} pairs of features'
            yield Problem((*at, name), what, f'write {features // 2} numbers')


# Multi-head latent attention of a ``transformer:`` (DeepSeek-V2, 2024): its operators, and whether its keys fit.
#
# As Megatron-LM splits it: the products down to latents are on every tensor rank, with sequence parallelism each for
# its own tokens; those up to heads are split by heads.

OF_HEADS: Final = 'attention (its groups of heads)'
Part = tuple[str, base.Operator, tuple[str, ...]]
"""Name, operator, and what it reads, in a layer."""


def latent_parts(model: Transformer, heads: mha.Heads) -> Iterator[Part]:
    """The operators between ``norm1`` and ``qkv``, the last of which is what attention reads."""
    rope, epsilon = model.qk_rope_head_dim, model.latent_epsilon or model.norm_epsilon
    queries = '.norm1'
    if model.q_lora_rank:
        yield 'q_down', _down(model, model.q_lora_rank), ('.norm1',)
        yield 'q_norm', RmsNorm(epsilon=epsilon), ('.q_down',)
        queries = '.q_norm'
    yield 'q_up', _up(heads, heads.head_dim, model.q_lora_rank or model.hidden), (queries,)
    yield 'kv_down', _down(model, model.kv_lora_rank + rope), ('.norm1',)
    yield 'kv_norm', mha.LatentNorm(features=model.kv_lora_rank, epsilon=epsilon), ('.kv_down',)
    yield 'kv_up', _up(heads, model.qk_nope_head_dim + model.v_head_dim, model.kv_lora_rank), ('.kv_norm',)
    yield 'k_rope', mha.LastFeatures(features=rope), ('.kv_down',)
    yield 'qkv', mha.LatentQkv(heads=heads, rotation=rotation_of(model, rope)), ('.q_up', '.kv_up', '.k_rope')


def _down(model: Transformer, outputs: int) -> linear.Product:
    """To a latent: too small to be split, so each tensor rank has all of its weight."""
    return linear.Product(outputs=(outputs,), inputs=(model.hidden,), bias='qkv' in model.bias, split='inputs')


def _up(heads: mha.Heads, features: int, inputs: int) -> linear.Product:
    return linear.Product(
        outputs=(heads.groups, features), inputs=(inputs,), bias=False, gathers=True, what=OF_HEADS
    )  # fmt: skip


def latent_problems(model: Transformer) -> Iterator[Problem]:
    """What of its keys does not fit together, beside what the table of conflicts has."""
    if not model.kv_lora_rank:
        return
    if model.qk_rope_head_dim % 2:
        what = f'{model.qk_rope_head_dim} features cannot be turned in pairs'
        yield Problem((*FILE, 'qk_rope_head_dim'), what, 'write an even count')
    if model.head_dim not in (0, model.qk_nope_head_dim + model.qk_rope_head_dim):
        what = f'latent attention has heads of qk_nope_head_dim + qk_rope_head_dim features (got {model.head_dim})'
        yield Problem((*FILE, 'head_dim'), what, 'leave head_dim out')


# The operators of a ``transformer:`` in order (Shoeybi et al. 2019; Korthikanti et al. 2022).
#
# Operators that Megatron-LM fuses are one: bias, dropout and residual; all of a group's queries, keys and values; a
# gate and what it lets through.

TOKENS: Final = 'tokens'
_DOWN, _UP = '.lora_a', '.lora_b'
"""What the products of an adapter have behind the name of the one beside."""
MODULES: Final = 'layers and modules that predict further tokens'
VOCABULARY: Final = 'the vocabulary (embedding and head)'
PLAIN: Final[tuple[type[base.Operator], ...]] = (Gelu, GeluTanh, Relu, SquaredRelu, Silu)
ACTIVATIONS: Final[Mapping[str, type[base.Operator]]] = {kind.key: kind for kind in (*PLAIN, *GATED)}


def decoder_nodes(model: Transformer) -> Iterator[Node]:
    """All operators; embedding and position stand before the layers, norm and head behind them."""
    table = linear.Embedding(vocab=model.padded_vocab, width=model.hidden)
    before = yield from _embedded(model, 'embedding', table, TOKENS, -1)
    for layer in range(model.layers):
        block = _Block(model, layer, layer)
        yield from block.layer_of(before)
        before = f'layer{layer}.residual2'
    yield Node('norm', _norm(model), (before,), model.blocks)
    before = 'norm'
    for depth in range(1, model.mtp_layers + 1):
        yield from _further(model, depth, before)
        before = f'layer{model.layers + depth - 1}.final_norm'
    # The heads behind all modules: Megatron-LM has them where the loss is, which may be another stage.
    for depth in range(1, model.mtp_layers + 1):
        yield from _head(model, f'layer{model.layers + depth - 1}.final_norm', f'.mtp{depth}')
    yield from _head(model, 'norm', '')


def _head(model: Transformer, before: str, ending: str) -> Iterator[Node]:
    """Logits of what a norm gives. Arguments: ``ending`` of names; where there is one, the weight is the model's."""
    own = 'embedding.weight' if model.tied else 'head.weight' if ending else ''
    head = linear.Product(outputs=(model.padded_vocab,), inputs=(model.hidden,), bias='head' in model.bias, weight=own,
                   gathers=True, what=VOCABULARY)  # fmt: skip
    cap = Softcap(cap=model.logit_softcap) if model.logit_softcap else None
    scaled = (f'head{ending}.scaled', _factor(model.logit_scale))
    yield from _in_turn(before, model.blocks, (f'head{ending}', head), scaled, (f'logits{ending}', cap))


def _further(model: Transformer, depth: int, hidden: str) -> Iterator[Node]:
    """A module of multi-token prediction, as DeepSeek-V3 and Megatron-LM have it; it counts on behind the layers.

    Arguments: ``depth``, how many tokens further it looks; ``hidden``, what the norm of the one before gives.
    """
    block = _Block(model, model.layers + depth - 1, model.layers - 1)
    # Outside of the module: its recomputation does not embed again.
    table = linear.TiedEmbedding(vocab=model.padded_vocab, width=model.hidden, weight='embedding.weight')
    name, source = f'layer{block.layer}.embedding', f'{TOKENS}{AHEAD}{depth}'
    before = yield from _embedded(model, name, table, source, model.blocks)
    yield block.node('enorm', _norm(model), before)
    yield block.node('hnorm', _norm(model), hidden)
    yield block.node('concat', shape.Concat(), '.enorm', '.hnorm')
    joint = linear.Product(outputs=(model.hidden,), inputs=(2 * model.hidden,), bias=False, split='rejoined')
    yield block.node('eh_proj', joint, '.concat')
    yield from block.layer_of(f'layer{block.layer}.eh_proj')
    yield block.node('final_norm', _norm(model), '.residual2')


def _embedded(
    model: Transformer, name: str, table: base.Operator, source: str, layer: int
) -> Generator[Node, None, str]:
    """A table's rows, their factor and norm, positions, dropout; returns the name of the last."""
    scaled, normed = (f'{name}.scaled', _factor(model.embedding_scale)), _norm(model) if model.embedding_norm else None
    before = yield from _in_turn(source, layer, (name, table), scaled, (f'{name}.norm', normed))
    if model.position == 'learned':
        added = Position(rows=model.positions, documents=model.packed)
        yield Node('position', added, (before,), layer, 'position.added')
        before = 'position'
    if model.dropout:
        # Masks are drawn for a place in the model: the name of what is dropped.
        site = 'position' if model.position == 'learned' else name
        drop = Dropout(probability=model.dropout, site=site)
        yield Node(f'{site}.dropout', drop, (before, KEYS), layer, f'{site}.dropped')
        before = f'{site}.dropout'
    return before


def _in_turn(before: str, layer: int, *parts: tuple[str, base.Operator | None]) -> Generator[Node, None, str]:
    """Those operators that are there, each reading the one before; returns the name of the last."""
    for name, operator in parts:
        if operator is not None:
            yield Node(name, operator, (before,), layer)
            before = name
    return before


def _factor(value: float) -> Mul | None:
    return Mul(factor=value) if value != 1 else None


def _norm(model: Transformer) -> base.Operator:
    kind = RmsNorm if model.norm == 'rms_norm' else LayerNorm if model.norm_bias else GainNorm
    return kind(epsilon=model.norm_epsilon)


@dataclass(frozen=True, slots=True)
class _Block:
    """One layer. Arguments: ``like``, the layer whose window and experts it has."""

    model: Transformer
    layer: int
    like: int

    def node(self, name: str, operator: base.Operator, *reads: str, result: str = '') -> Node:
        """A node whose name and reads stand in this layer, if they are not those of others."""
        return Node(self.own(f'.{name}'), operator, tuple(map(self.own, reads)), self.layer,
                    self.own(f'.{result}') if result else '')  # fmt: skip

    def own(self, name: str) -> str:
        """The name of a node; a dot in front stands for this layer."""
        return f'layer{self.layer}{name}' if name.startswith('.') else name

    def in_turn(self, before: str, *parts: tuple[str, base.Operator | None]) -> Generator[Node, None, str]:
        """Operators of this layer that are there, each reading the one before; returns the name of the last."""
        named = ((self.own(f'.{name}'), operator) for name, operator in parts)
        return (yield from _in_turn(self.own(before), self.layer, *named))

    @property
    def keys(self) -> tuple[str, ...]:
        """The input that dropout draws from, if there is any."""
        return (KEYS,) if self.model.dropout else ()

    def layer_of(self, x: str) -> Iterator[Node]:
        """Both halves, one behind the other or side by side."""
        yield from self.attention(x)
        yield from self.feed_forward(x if self.model.parallel else f'layer{self.layer}.residual1')

    def attention(self, x: str) -> Iterator[Node]:
        """x + what attention makes of it."""
        model, heads = self.model, self.model.heads_of(self.like)
        if model.pre_norms:
            yield self.node('norm1', _norm(model), x)
        source = '.norm1' if model.pre_norms else x
        if model.kv_lora_rank:
            yield from (self.node(name, operator, *reads) for name, operator, reads in latent_parts(model, heads))
        else:
            yield from self.together(heads, source)
        normed = mha.QkNorm(heads=heads, epsilon=model.norm_epsilon, whole=model.qk_norm == 'whole')
        rotation = None if model.kv_lora_rank else model.rotation_of(self.like)
        turned = mha.Rotary(heads=heads, rotation=rotation) if rotation else None
        optional = (('qk_norm', normed if model.qk_norm else None), ('rotary', turned))
        before = yield from self.in_turn(self.result_of('qkv'), *optional)
        if model.attention == 'unfused':
            yield from self.unfused(heads, before)
        else:
            core = mha.Attention(heads=heads, dropout=model.dropout)
            if model.sinks != 'none':
                core = mha.SinkAttention(heads=heads, dropout=model.dropout, learned=model.sinks == 'learned')
            yield self.node('attention', core, before, *self.keys)
        inputs = (heads.groups, heads.queries, heads.values)
        yield from self.half('proj', inputs, '.attention', x, '1', biased='proj' in model.bias)

    def product(self, name: str, operator: linear.Product, read: str) -> Iterator[Node]:
        """A product, and the adapter beside it if there is one: two of a low rank, scaled, and the sum of both."""
        yield self.node(name, operator, read)
        lora = self.model.lora
        if lora is None or name not in lora.of:
            return
        # As the product, so that inputs which come in split stay so, and the outputs are.
        down = linear.Product(outputs=(lora.rank,), inputs=operator.inputs, bias=False, split='inputs')
        up = replace(operator, inputs=(lora.rank,), bias=False)
        yield self.node(f'{name}{_DOWN}', down, read)
        yield self.node(f'{name}.lora_scale', Mul(factor=lora.scale), f'.{name}{_DOWN}')
        yield self.node(f'{name}{_UP}', up, f'.{name}.lora_scale')
        names = tuple(f'layer{self.layer}.{one}' for one in (name, f'{name}{_UP}'))
        yield self.node(f'{name}.adapted', Add(of=names), *names)

    def result_of(self, name: str) -> str:
        """The node that has the result of a product."""
        lora = self.model.lora
        return f'.{name}.adapted' if lora is not None and name in lora.of else f'.{name}'

    def together(self, heads: mha.Heads, source: str) -> Iterator[Node]:
        """Queries, keys and values as one product."""
        # Group by group its queries, one key and one value: a split by groups keeps what belongs together.
        outputs = (heads.groups, heads.queries + 2, heads.head_dim)
        bias = 'qkv' in self.model.bias
        qkv = linear.Product(outputs=outputs, inputs=(self.model.hidden,), bias=bias, gathers=True, what=OF_HEADS)
        yield from self.product('qkv', qkv, source)

    def unfused(self, heads: mha.Heads, qkv: str) -> Iterator[Node]:
        """Scores, softmax, dropout and the product with the values, each through memory."""
        name = f'layer{self.layer}.attention'
        scores = yield from self.in_turn(
            qkv,
            ('attention.scores', mha.AttentionScores(heads=heads, values=name)),
            ('attention.capped', Softcap(cap=heads.softcap) if heads.softcap else None),
            ('attention.biased', mha.Alibi(heads=heads.count) if heads.alibi else None),
            ('attention.softmax', mha.CausalSoftmax(window=heads.window, documents=heads.documents)),
        )
        if self.model.dropout:
            drop = Dropout(probability=self.model.dropout, site=name)
            yield self.node('attention.dropout', drop, scores, KEYS, result='attention.dropped')
            scores = '.attention.dropout'
        yield self.node('attention', mha.AttentionValues(heads=heads), scores, qkv)

    def feed_forward(self, x: str) -> Iterator[Node]:
        """What the feed-forward, or a mixture of experts, makes of x, added to the residual stream."""
        model, experts = self.model, self.model.experts_of(self.like)
        hidden, width, biased = model.hidden, model.ffn_width, 'ffn' in model.bias
        is_shared = model.parallel and not model.parallel_norms
        read = f'.{"norm1" if is_shared else "norm2"}' if model.pre_norms else x
        if model.pre_norms and not is_shared:
            yield self.node('norm2', _norm(model), x)
        stream = '.residual1' if model.parallel else x
        if experts is not None:
            yield from mixture_nodes(
                experts, self.node, self.layer, read, hidden=hidden, ffn=width, sequence=model.sequence,
                gated=model.gated, activation=ACTIVATIONS[model.activation],
            )  # fmt: skip
            yield from self.added('mixture', stream, '2')
            return
        # A gate stands beside what it lets through: a split by width keeps both together.
        outputs = (width, 2) if model.gated else (width,)
        fc1 = linear.Product(outputs=outputs, inputs=(hidden,), bias=biased, what='the feed-forward (its width)')
        yield from self.product('fc1', fc1, read)
        yield self.node(model.activation, ACTIVATIONS[model.activation](), self.result_of('fc1'))
        yield from self.half('fc2', (width,), f'.{model.activation}', stream, '2', biased=biased)

    def half(
        self, name: str, inputs: tuple[int, ...], read: str, x: str, number: str, *, biased: bool
    ) -> Iterator[Node]:
        """The last product of one half of a layer, a norm behind it if there is one, and their sum with x."""
        model = self.model
        # The residual adds the bias, unless a norm or a factor stands between.
        own = biased and (model.post_norms or model.residual_scale != 1)
        product = linear.Product(outputs=(model.hidden,), inputs=inputs, bias=own, split='inputs')
        yield from self.product(name, product, read)
        bias_of = f'layer{self.layer}.{name}' if biased and not own else ''
        yield from self.added(name, x, number, bias_of)

    def added(self, name: str, x: str, number: str, bias_of: str = '') -> Iterator[Node]:
        """A norm behind one half of a layer if there is one, and their sum with x."""
        model = self.model
        normed, scaled = _norm(model) if model.post_norms else None, _factor(model.residual_scale)
        parts = ((f'post_norm{number}', normed), (f'scaled{number}', scaled))
        branch = yield from self.in_turn(self.result_of(name), *parts)
        yield self.node(f'residual{number}', Residual(bias_of=bias_of, dropout=model.dropout), x, branch, *self.keys)


# A ``transformer:``, a dense decoder from GPT-2 to Llama, Qwen, Gemma and Phi: its keys, and whether they fit.

Activation = Literal['gelu', 'gelu_tanh', 'relu', 'squared_relu', 'silu', 'swiglu', 'geglu', 'geglu_tanh']
Biased = Literal['qkv', 'proj', 'ffn', 'head']
Adapted = Literal['qkv', 'proj', 'fc1', 'fc2']
Number = Annotated[float, Field(ge=0, le=1e12)]
Window = Annotated[int, Field(ge=0, le=2**20)]
Rank = Annotated[int, Field(ge=0, le=2**20)]
MOST_ELEMENTS: Final = 2**58
"""Of a tensor of experts: bytes are counted in 64 bits."""
GPT_BIASES: Final[tuple[Biased, ...]] = ('qkv', 'proj', 'ffn')


@dataclass(frozen=True, slots=True, kw_only=True)
@described('workload.transformer.lora')
class Lora:
    """Adapters of a low rank beside products; they alone are trained (Hu et al. 2021).

    Arguments: ``scale``, what an adapter's result is multiplied by, α / rank; ``of``, the products that have one.
    """

    rank: int
    scale: float = 1.0
    of: tuple[Adapted, ...] = ('qkv', 'proj', 'fc1', 'fc2')


@dataclass(frozen=True, slots=True, kw_only=True)
@described('workload.transformer')
class Transformer(Model):
    """A decoder: embedding, pre-norm blocks of causal attention and feed-forward, norm, head; a GPT-2 unless told.

    Arguments:
        ffn: width of the feed-forward; 4 × hidden unless given.
        kv_heads: heads of keys and values (GQA); as many as heads unless given.
        tied: the head uses the token embedding's weight.
        attention: ``flash`` keeps no probabilities, ``unfused`` keeps them.
        dropout: probability of zeros behind the embedding, in the probabilities of attention and behind both halves of
            a layer, before they are added (Megatron-LM).
        window: of attention, by layer; a list repeats over the layers.
        mtp_layers: modules that predict further tokens, each a layer of the last one's kind between norms, which share
            embedding and head; ``mtp_loss``, what the mean of their losses counts in the loss.
        documents: every sample is packed alike.
        parallel: both halves of a layer read one norm, and both are added to what it read (GPT-J, Phi); with
            ``parallel_norms`` each has a norm of its own (GPT-NeoX).
    """

    layers: int
    hidden: int
    heads: int
    vocab: int
    sequence: int
    ffn: int = 0
    kv_heads: int = 0
    tied: bool = False
    attention: Literal['flash', 'unfused'] = 'flash'
    dropout: float = 0.0
    init_std: Deviation = 0.02
    head_dim: int = 0
    norm: Literal['layer_norm', 'rms_norm'] = 'layer_norm'
    norm_epsilon: float = 1e-5
    norm_bias: bool = True
    pre_norms: bool = True
    embedding_norm: bool = False
    post_norms: bool = False
    qk_norm: bool | Literal['whole'] = False
    activation: Activation = 'gelu'
    bias: tuple[Biased, ...] = GPT_BIASES
    position: Literal['learned', 'rotary', 'alibi', 'none'] = 'learned'
    positions: int = 0
    rope_theta: float = 10000.0
    window_theta: float = 0.0
    rotary_share: float = 1.0
    rope_scaling: tuple[Number, ...] = ()
    longrope: LongRope | None = None
    rope_interleaved: bool = False
    kv_lora_rank: int = 0
    q_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    latent_epsilon: float = 0.0
    mtp_layers: int = 0
    mtp_loss: float = 0.1
    window: Window | tuple[Window, ...] = 0
    documents: Window | tuple[Annotated[int, Field(ge=1, le=2**20)], ...] = 0
    parallel: bool = False
    parallel_norms: bool = False
    attention_scale: float = 0.0
    attention_softcap: float = 0.0
    sinks: Literal['none', 'zero', 'learned'] = 'none'
    logit_softcap: float = 0.0
    logit_scale: float = 1.0
    residual_scale: float = 1.0
    embedding_scale: float = 1.0
    pad_vocab: int = 1
    experts: Experts | None = None
    lora: Lora | None = None

    key: ClassVar[str] = 'transformer'
    empty_stages: ClassVar[bool] = True

    @property
    def blocks(self) -> int:
        """Layers, and modules that predict further tokens."""
        return self.layers + self.mtp_layers

    @property
    def ffn_width(self) -> int:
        """Width of the feed-forward."""
        return self.ffn or 4 * self.hidden

    @property
    def key_value_heads(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def head_width(self) -> int:
        """Features of a head."""
        return self.head_dim or self.qk_nope_head_dim + self.qk_rope_head_dim or self.hidden // self.heads

    @property
    def gated(self) -> bool:
        """Whether the feed-forward has a gate."""
        return 'glu' in self.activation

    @property
    def padded_vocab(self) -> int:
        """Rows of embedding and head."""
        return -(-self.vocab // self.pad_vocab) * self.pad_vocab

    @property
    def rotation(self) -> mha.Rotation | None:
        """How queries and keys are turned, if they are."""
        return rotation_of(self, int(self.head_width * self.rotary_share)) if self.position == 'rotary' else None

    def rotation_of(self, layer: int) -> mha.Rotation | None:
        """The same of one layer: those with a window may have a base of their own."""
        rotation = self.rotation
        # Be its window wider than a sample.
        if rotation is None or not self.window_theta or not self._window(layer):
            return rotation
        return replace(rotation, theta=self.window_theta, scaling=())

    def _window(self, layer: int) -> int:
        windows = self.window if isinstance(self.window, tuple) else (self.window,)
        return windows[layer % len(windows)] if windows else 0

    @property
    def packed(self) -> tuple[int, ...]:
        """Lengths of the documents of a sample; empty: one."""
        return packed(self.documents, self.sequence)

    def experts_of(self, layer: int) -> Experts | None:
        """The mixture of experts of a layer; None: it is dense."""
        return self.experts if self.experts is not None and self.experts.in_layer(layer) else None

    def window_of(self, layer: int) -> int:
        """Tokens that attention of a layer sees; 0: all."""
        window = self._window(layer)
        return window if window < self.sequence else 0

    def heads_of(self, layer: int) -> mha.Heads:
        """The heads of a layer."""
        return mha.Heads(
            groups=self.key_value_heads,
            queries=self.heads // self.key_value_heads,
            head_dim=self.head_width,
            value_dim=self.v_head_dim,
            window=self.window_of(layer),
            scale=self.attention_scale,
            softcap=self.attention_softcap,
            documents=self.packed,
            alibi=self.position == 'alibi',
        )

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Embedding, position, the operators of all layers, norm and head."""
        return _nodes(self)

    def graph(self, batch: int, *, digits: bool = False) -> Graph:
        """Of tokens and, with dropout, keys that masks are drawn from."""
        drawn, depths = f'tokens:{self.vocab}', range(1, self.mtp_layers + 1)
        sources = [Source(TOKENS, (batch, self.sequence), drawn, integer=True)]
        sources += [
            Source(f'{TOKENS}{AHEAD}{depth}', (batch, self.sequence), f'{drawn}{AHEAD}{depth}', integer=True)
            for depth in depths
        ]
        if self.dropout:
            sources.append(Source(KEYS, (batch,), DRAW, integer=True))
        shapes = {source.name: source.shape for source in sources}
        for node in self.nodes:
            shapes[node.name] = node.operator.result_shape(batch, *(shapes[read] for read in node.reads))
        return Graph(
            nodes=self.nodes,
            sources=tuple(sources),
            shapes=shapes,
            deviation=self.init_std,
            # Rows that only pad the vocabulary are no one's label.
            drawn_labels=drawn,
            layers=self.blocks,
            hands_on=True,
            frozen=frozenset(
                node.name for node in self.nodes if self.lora is not None and not node.name.endswith((_DOWN, _UP))
            ),
            further=tuple(
                Further(f'{"logits" if self.logit_softcap else "head"}.mtp{depth}'
                        f'{"" if self.logit_softcap or self.logit_scale == 1 else ".scaled"}',
                        depth, self.mtp_loss / self.mtp_layers)
                for depth in depths
            ),
        )  # fmt: skip

    @property
    def counted(self) -> Mapping[str, Sequence[int]]:
        """In layers, or in these and modules that predict further tokens; the model's norm is then its last layer's."""
        alone = tuple(min(node.layer, self.layers) for node in self.nodes)
        if not self.mtp_layers:
            return {'layers': alone}
        return {MODULES: tuple(self._place(node) for node in self.nodes), 'layers': alone}

    def _place(self, node: Node) -> int:
        if node.name == 'norm':
            return self.layers - 1
        own = node.name.startswith('layer') and node.layer == self.blocks
        # The embedding of a module stands with it.
        return int(node.name.partition('.')[0].removeprefix('layer')) if own else node.layer

    @property
    def counts(self) -> dict[str, int]:
        """Norm and head stand behind the layers."""
        return {**({MODULES: self.blocks} if self.mtp_layers else {}), 'layers': self.layers}

    @property
    def trained_layers(self) -> int:
        """Layers alone, where adapters are trained."""
        # Without arguments super() does not find the class, which its slots made anew.
        return super(Transformer, self).trained_layers if self.lora is None else self.layers

    def settled(self) -> Self:
        """With its widths and heads."""
        # The width of experts stays 0 where it is that of ``ffn``: written out it would say the same twice.
        return replace(self, ffn=self.ffn_width, kv_heads=self.key_value_heads, head_dim=self.head_width)

    def problems(self, job: Asked) -> Iterator[Problem]:
        """Widths, heads, the loss, the data and degrees."""
        return chain(
            _parts(self),
            conflicts_of('transformer', model=self, asked=job),
            latent_problems(self),
            _mixture(self, job),
            _degrees(self, job),
        )


# One lowering asks for the nodes many times; few models are in use at once.
@lru_cache(maxsize=8)
def _nodes(model: Transformer) -> tuple[Node, ...]:
    return tuple(decoder_nodes(model))


def _parts(model: Transformer) -> Iterator[Problem]:
    """What of its sizes, and of the keys of its parts, does not fit together."""
    is_misfit = not model.head_dim and not model.kv_lora_rank and model.hidden % model.heads
    if is_misfit:
        what = f'{model.hidden} does not divide by heads {model.heads}'
        yield Problem((*FILE, 'hidden'), what, multiple(model.hidden, model.heads))
    if model.heads % model.key_value_heads:
        what = f'{model.key_value_heads} does not divide heads {model.heads}'
        yield Problem((*FILE, 'kv_heads'), what, f'write one of {divisors(model.heads, model.key_value_heads)}')
    if not isinstance(model.documents, int) and sum(model.documents) != model.sequence:
        what = f'documents of {sum(model.documents)} tokens in all, but a sample has {model.sequence}'
        yield Problem((*FILE, 'documents'), what, f'write lengths that add up to {model.sequence}, or one for all')
    if is_misfit:
        # Told already; features of a head are not known.
        return
    yield from rope_problems(model)
    if model.rotation and model.rotation.features % 2:
        what = f'{model.rotation.features} features of a head cannot be turned in pairs'
        yield Problem((*FILE, 'rotary_share'), what, 'write a share that leaves an even count, e.g. 1')
    if model.rotation and not model.rotation.features:
        what = f'{model.rotary_share:g} of {model.head_width} features is none'
        yield Problem((*FILE, 'rotary_share'), what, 'write a larger share, e.g. 1')


def _mixture(model: Transformer, job: Asked) -> Iterator[Problem]:
    """Experts, and the ranks that share them."""
    experts, at = model.experts, (*FILE, 'experts')
    if experts is None:
        return
    yield from mixture_problems(experts, at, model.layers)
    if 'ffn' in model.bias and all(map(experts.in_layer, range(model.layers))):
        left = ', '.join(one for one in model.bias if one != 'ffn')
        yield Problem((*FILE, 'bias'), 'experts add no bias, and no layer is dense', f'write bias: [{left}]')
    slots = experts.slots(model.sequence)
    used = slots * experts.count if experts.capacity else model.sequence * experts.top_k
    if job.batch * used * max(model.hidden, 2 * (experts.ffn or model.ffn_width)) > MOST_ELEMENTS:
        what = f'{used} slots of a sample are more than can be counted'
        yield Problem((*at, 'top_k'), what, 'write smaller sizes of batch, sequence, widths or experts')
    slices = job.context * (job.tensor if job.sequence_parallel else 1)
    if model.sequence % slices == 0 != slots % slices:
        degrees = {'context': job.context, 'tensor': slices // job.context}
        text = ' × '.join(f'{name} {degree}' for name, degree in degrees.items() if degree > 1)
        what = f'{slots} slots of an expert do not divide by {text}'
        share = model.sequence * experts.top_k / experts.count
        more = -(-slots // slices) * slices
        yield Problem((*at, 'capacity'), what, f'write e.g. {more / share:.6g}, which is {more}')
    if experts.count % job.expert:
        what = f'{job.expert} ranks cannot share {experts.count} experts equally'
        yield Problem(('plan', 'expert'), what, f'write one of {divisors(experts.count, job.expert)}')


def _context(model: Transformer, job: Asked) -> Iterator[Problem]:
    """Context ranks must hold equal chunks of a sequence, each split by tensor ranks, and where they exchange heads, of
    these."""
    if job.context == 1:
        return
    inner = job.tensor if job.sequence_parallel else 1
    if model.sequence % (job.chunks * inner):
        within = f', and each of these by tensor {inner}' if inner > 1 else ''
        what = f'sequence {model.sequence} does not divide into {job.chunks} chunks for context {job.context}{within}'
        instead = multiple(model.sequence, job.chunks * inner).removeprefix('write ')
        yield Problem(('plan', 'context'), what, f'write another degree, or a sequence that is {instead}')
    if job.by_heads > 1 and model.heads % (job.by_heads * job.tensor):
        what = (
            f'heads {model.heads} cannot be exchanged among context {job.by_heads} × tensor {job.tensor} ranks: '
            f'each needs whole heads of queries'
        )
        of_all = job.by_heads == job.context
        instead = 'write all_gather or ring, or lower degrees' if of_all else 'write lower degrees'
        yield Problem(('plan', 'context_kind' if of_all else 'context_by_heads'), what, instead)


def _degrees(model: Transformer, job: Asked) -> Iterator[Problem]:
    """Tensor ranks must hold whole groups of heads, and equal parts of a sequence."""
    tensor = job.tensor
    yield from _context(model, job)
    if model.qk_norm == 'whole' and (tensor > 1 or job.by_heads > 1):
        of_all = job.by_heads == job.context
        key = 'tensor' if tensor > 1 else 'context_kind' if of_all else 'context_by_heads'
        what = 'not yet: ranks that share heads whose mean square is of all heads (qk_norm: whole)'
        yield Problem(('plan', key), what, 'write 1' if key != 'context_kind' else 'write ring or all_gather')
        return
    if job.sequence_parallel and tensor > 1 and model.sequence % tensor:
        what = f'sequence {model.sequence} does not divide by tensor {tensor}'
        instead = multiple(model.sequence, tensor).removeprefix('write ')
        yield Problem(('plan', 'sequence_parallel'), what, f'write false, or a sequence that is {instead}')
    for name, heads in (('heads', model.heads), ('kv_heads', model.key_value_heads)):
        if heads % tensor:
            # One problem for both: the remedy must divide both counts.
            common = gcd(model.heads, model.key_value_heads)
            what = f'{name} {heads} of the transformer do not divide by tensor {tensor}'
            yield Problem(('plan', 'tensor'), what, f'write one of {divisors(common, tensor)}')
            return
