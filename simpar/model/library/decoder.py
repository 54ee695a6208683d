"""The operators of a ``transformer:`` in order (Shoeybi et al. 2019; Korthikanti et al. 2022).

Operators that Megatron-LM fuses are one: bias, dropout and residual; all of a group's queries, keys and values; a gate
and what it lets through.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from simpar.model.library.experts import mixture_nodes
from simpar.model.library.latent import OF_HEADS, latent_parts
from simpar.model.model import Node
from simpar.model.operators.attention import Alibi, Attention, AttentionScores, AttentionValues, CausalSoftmax, Heads
from simpar.model.operators.base import Operator
from simpar.model.operators.embedding import Embedding
from simpar.model.operators.gated import GATED
from simpar.model.operators.linear import Product
from simpar.model.operators.norm import GainNorm, LayerNorm, RmsNorm
from simpar.model.operators.pointwise import Gelu, GeluTanh, Mul, Relu, Silu, Softcap, SquaredRelu
from simpar.model.operators.qk_norm import QkNorm
from simpar.model.operators.rotary import Rotary
from simpar.model.operators.stream import KEYS, Dropout, Position, Residual

if TYPE_CHECKING:
    from simpar.model.library.gpt import Transformer

TOKENS: Final = 'tokens'
VOCABULARY: Final = 'the vocabulary (embedding and head)'
PLAIN: Final[tuple[type[Operator], ...]] = (Gelu, GeluTanh, Relu, SquaredRelu, Silu)
ACTIVATIONS: Final[Mapping[str, type[Operator]]] = {kind.key: kind for kind in (*PLAIN, *GATED)}


def decoder_nodes(model: Transformer) -> Iterator[Node]:
    """All operators; embedding and position stand before the layers, norm and head behind them."""
    before = 'embedding'
    for node in _before_layers(model):
        yield node
        before = node.name
    for layer in range(model.layers):
        block = _Block(model, layer)
        yield from block.attention(before)
        yield from block.feed_forward(before if model.parallel else f'layer{layer}.residual1')
        before = f'layer{layer}.residual2'
    yield Node('norm', _norm(model), (before,), model.layers)
    head = Product(
        outputs=(model.padded_vocab,),
        inputs=(model.hidden,),
        bias='head' in model.bias,
        weight='embedding.weight' if model.tied else '',
        gathers=True,
        what=VOCABULARY,
    )
    yield Node('head', head, ('norm',), model.layers)
    before = 'head'
    if model.logit_scale != 1:
        yield Node('head.scaled', Mul(factor=model.logit_scale), (before,), model.layers)
        before = 'head.scaled'
    if model.logit_softcap:
        yield Node('logits', Softcap(cap=model.logit_softcap), (before,), model.layers)


def _before_layers(model: Transformer) -> Iterator[Node]:
    """Embedding, its factor and norm, position, dropout."""
    before = 'embedding'
    yield Node(before, Embedding(vocab=model.padded_vocab, width=model.hidden), (TOKENS,), -1)
    if model.embedding_scale != 1:
        yield Node('embedding.scaled', Mul(factor=model.embedding_scale), (before,), -1)
        before = 'embedding.scaled'
    if model.embedding_norm:
        yield Node('embedding.norm', _norm(model), (before,), -1)
        before = 'embedding.norm'
    if model.position == 'learned':
        yield Node('position', Position(rows=model.positions, documents=model.packed), (before,), -1, 'position.added')
        before = 'position'
    if model.dropout:
        # Masks are drawn for a place in the model: the name of what is dropped.
        site = 'position' if model.position == 'learned' else 'embedding'
        drop = Dropout(probability=model.dropout, site=site)
        yield Node(f'{site}.dropout', drop, (before, KEYS), -1, f'{site}.dropped')


def _norm(model: Transformer) -> Operator:
    kind = RmsNorm if model.norm == 'rms_norm' else LayerNorm if model.norm_bias else GainNorm
    return kind(epsilon=model.norm_epsilon)


@dataclass(frozen=True, slots=True)
class _Block:
    """One layer."""

    model: Transformer
    layer: int

    def node(self, name: str, operator: Operator, *reads: str, result: str = '') -> Node:
        """A node whose name and reads stand in this layer, if they are not those of others."""
        own = f'layer{self.layer}.'
        # A dot in front stands for this layer.
        told = tuple(read.replace('.', own, 1) if read.startswith('.') else read for read in reads)
        return Node(f'{own}{name}', operator, told, self.layer, f'{own}{result}' if result else '')

    @property
    def keys(self) -> tuple[str, ...]:
        """The input that dropout draws from, if there is any."""
        return (KEYS,) if self.model.dropout else ()

    def attention(self, x: str) -> Iterator[Node]:
        """x + what attention makes of it."""
        model, heads = self.model, self.model.heads_of(self.layer)
        if model.pre_norms:
            yield self.node('norm1', _norm(model), x)
        before, source = '.qkv', '.norm1' if model.pre_norms else x
        if model.kv_lora_rank:
            yield from (self.node(name, operator, *reads) for name, operator, reads in latent_parts(model, heads))
        else:
            yield from self.together(heads, source)
        if model.qk_norm:
            yield self.node(
                'qk_norm', QkNorm(heads=heads, epsilon=model.norm_epsilon, whole=model.qk_norm == 'whole'), before
            )
            before = '.qk_norm'
        if (rotation := model.rotation_of(self.layer)) and not model.kv_lora_rank:
            yield self.node('rotary', Rotary(heads=heads, rotation=rotation), before)
            before = '.rotary'
        if model.attention == 'unfused':
            yield from self.unfused(heads, before)
        else:
            yield self.node('attention', Attention(heads=heads, dropout=model.dropout), before, *self.keys)
        inputs = (heads.groups, heads.queries, heads.values)
        yield from self.half('proj', inputs, '.attention', x, '1', biased='proj' in model.bias)

    def together(self, heads: Heads, source: str) -> Iterator[Node]:
        """Queries, keys and values as one product."""
        # Group by group its queries, one key and one value: a split by groups keeps what belongs together.
        outputs = (heads.groups, heads.queries + 2, heads.head_dim)
        bias = 'qkv' in self.model.bias
        qkv = Product(outputs=outputs, inputs=(self.model.hidden,), bias=bias, gathers=True, what=OF_HEADS)
        yield self.node('qkv', qkv, source)

    def unfused(self, heads: Heads, qkv: str) -> Iterator[Node]:
        """Scores, softmax, dropout and the product with the values, each through memory."""
        name = f'layer{self.layer}.attention'
        yield self.node('attention.scores', AttentionScores(heads=heads, values=name), qkv)
        kept = '.attention.scores'
        if heads.softcap:
            yield self.node('attention.capped', Softcap(cap=heads.softcap), kept)
            kept = '.attention.capped'
        if heads.alibi:
            yield self.node('attention.biased', Alibi(heads=heads.count), kept)
            kept = '.attention.biased'
        yield self.node('attention.softmax', CausalSoftmax(window=heads.window, documents=heads.documents), kept)
        kept = '.attention.softmax'
        if self.model.dropout:
            drop = Dropout(probability=self.model.dropout, site=name)
            yield self.node('attention.dropout', drop, kept, KEYS, result='attention.dropped')
            kept = '.attention.dropout'
        yield self.node('attention', AttentionValues(heads=heads), kept, qkv)

    def feed_forward(self, x: str) -> Iterator[Node]:
        """What the feed-forward, or a mixture of experts, makes of x, added to the residual stream."""
        model, experts = self.model, self.model.experts_of(self.layer)
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
        fc1 = Product(outputs=outputs, inputs=(hidden,), bias=biased, what='the feed-forward (its width)')
        yield self.node('fc1', fc1, read)
        yield self.node(model.activation, ACTIVATIONS[model.activation](), '.fc1')
        yield from self.half('fc2', (width,), f'.{model.activation}', stream, '2', biased=biased)

    def half(
        self, name: str, inputs: tuple[int, ...], read: str, x: str, number: str, *, biased: bool
    ) -> Iterator[Node]:
        """The last product of one half of a layer, a norm behind it if there is one, and their sum with x."""
        model = self.model
        # The residual adds the bias, unless a norm or a factor stands between.
        own = biased and (model.post_norms or model.residual_scale != 1)
        product = Product(outputs=(model.hidden,), inputs=inputs, bias=own, split='inputs')
        yield self.node(name, product, read)
        bias_of = f'layer{self.layer}.{name}' if biased and not own else ''
        yield from self.added(name, x, number, bias_of)

    def added(self, name: str, x: str, number: str, bias_of: str = '') -> Iterator[Node]:
        """A norm behind one half of a layer if there is one, and their sum with x."""
        model, branch = self.model, f'.{name}'
        if model.post_norms:
            yield self.node(f'post_norm{number}', _norm(model), branch)
            branch = f'.post_norm{number}'
        if model.residual_scale != 1:
            yield self.node(f'scaled{number}', Mul(factor=model.residual_scale), branch)
            branch = f'.scaled{number}'
        yield self.node(f'residual{number}', Residual(bias_of=bias_of, dropout=model.dropout), x, branch, *self.keys)
