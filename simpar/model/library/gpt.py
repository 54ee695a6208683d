"""A GPT-kind ``transformer:`` as a graph of operators (Shoeybi et al. 2019; Korthikanti et al. 2022).

Operators that Megatron-LM fuses are one: bias, dropout and residual; all of a group's queries, keys and values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from math import gcd
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from simpar.errors import Problem
from simpar.model import Embedding, Gelu, LayerNorm, Operator
from simpar.model.advice import divisors, multiple
from simpar.model.dropout import DRAW, KEYS
from simpar.model.keys import Deviation, Size
from simpar.model.model import Asked, Graph, Model, Source
from simpar.model.node import Node
from simpar.model.operators.attention import Attention, AttentionScores, AttentionValues, CausalSoftmax, Heads
from simpar.model.operators.linear import Product
from simpar.model.operators.stream import Dropout, Position, Residual

if TYPE_CHECKING:
    from typing_extensions import Self

TOKENS = 'tokens'
FILE = ('workload', 'transformer')
VOCABULARY = 'the vocabulary (embedding and head)'


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer(Model):
    """A GPT: token and position embedding, pre-norm blocks of causal attention and GELU feed-forward, norm, head.

    Arguments:
        ffn: width of the feed-forward; 4 × hidden unless given.
        kv_heads: heads of keys and values (GQA); as many as heads unless given.
        tied: the head uses the token embedding's weight.
        attention: ``flash`` keeps no probabilities, ``unfused`` keeps them.
        dropout: probability of zeros behind the embedding, in the probabilities of attention and behind both halves of
            a layer, before they are added (Megatron-LM).
    """

    layers: Annotated[int, Field(ge=1, le=4096, description='blocks')]
    hidden: Annotated[Size, Field(description='width of the residual stream; a multiple of heads')]
    heads: Annotated[Size, Field(description='attention heads')]
    vocab: Annotated[Size, Field(description='tokens in the vocabulary')]
    sequence: Annotated[Size, Field(description='tokens in a sample')]
    ffn: Annotated[int, Field(ge=0, le=2**22, description='width of the feed-forward; 0: 4 × hidden')] = 0
    kv_heads: Annotated[int, Field(ge=0, le=2**20, description='heads of keys and values (GQA); 0: heads')] = 0
    tied: Annotated[bool, Field(description="the head uses the token embedding's weight")] = False
    attention: Annotated[
        Literal['flash', 'unfused'], Field(description='flash keeps no probabilities; unfused writes and keeps them')
    ] = 'flash'
    dropout: Annotated[
        float, Field(ge=0, lt=1, description='probability of zeros, of attention and behind embedding and half-layers')
    ] = 0.0
    init_std: Deviation = 0.02

    key: ClassVar[str] = 'transformer'
    empty_stages: ClassVar[bool] = True

    @property
    def ffn_width(self) -> int:
        """Width of the feed-forward."""
        return self.ffn or 4 * self.hidden

    @property
    def key_value_heads(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Embedding, position, the operators of all layers, norm and head."""
        return _nodes(self)

    def graph(self, batch: int, *, digits: bool = False) -> Graph:
        """Of tokens and, with dropout, keys that masks are drawn from."""
        sources = [Source(TOKENS, (batch, self.sequence), f'tokens:{self.vocab}', integer=True)]
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
            drawn_labels='tokens',
            layers=self.layers,
            hands_on=True,
        )

    @property
    def counted(self) -> Mapping[str, Sequence[int]]:
        """In layers."""
        return {'layers': tuple(node.layer for node in self.nodes)}

    @property
    def counts(self) -> dict[str, int]:
        """Norm and head stand behind the layers."""
        return {'layers': self.layers}

    def settled(self) -> Self:
        """With its widths and heads."""
        return replace(self, ffn=self.ffn_width, kv_heads=self.key_value_heads)

    def problems(self, asked: Asked) -> Iterator[Problem]:
        """Widths, heads, the loss, the data and degrees."""
        return chain(_sizes(self), _asked(asked), _degrees(self, asked))


# One lowering asks for the nodes many times; few models are in use at once.
@lru_cache(maxsize=8)
def _nodes(model: Transformer) -> tuple[Node, ...]:
    return tuple(gpt_nodes(model))


def _sizes(model: Transformer) -> Iterator[Problem]:
    if model.hidden % model.heads:
        what = f'{model.hidden} does not divide by heads {model.heads}'
        yield Problem((*FILE, 'hidden'), what, multiple(model.hidden, model.heads))
    if model.heads % model.key_value_heads:
        what = f'{model.key_value_heads} does not divide heads {model.heads}'
        yield Problem((*FILE, 'kv_heads'), what, f'write one of {divisors(model.heads)}')


def _asked(asked: Asked) -> Iterator[Problem]:
    if asked.loss != 'cross-entropy':
        yield Problem(('workload', 'loss'), f'a transformer has no {asked.loss}', 'write cross-entropy')
    if asked.data == 'mnist':
        yield Problem(('workload', 'data'), 'mnist is no text for a transformer', 'write random')


def _degrees(model: Transformer, asked: Asked) -> Iterator[Problem]:
    """Tensor ranks must hold whole groups of heads, and equal parts of a sequence."""
    tensor = asked.tensor
    if asked.sequence_parallel and tensor > 1 and model.sequence % tensor:
        what = f'sequence {model.sequence} does not divide by tensor {tensor}'
        instead = multiple(model.sequence, tensor).removeprefix('write ')
        yield Problem(('plan', 'sequence_parallel'), what, f'write false, or a sequence that is {instead}')
    for name, heads in (('heads', model.heads), ('kv_heads', model.key_value_heads)):
        if heads % tensor:
            # One problem for both: the remedy must divide both counts.
            common = gcd(model.heads, model.key_value_heads)
            what = f'{name} {heads} of the transformer do not divide by tensor {tensor}'
            yield Problem(('plan', 'tensor'), what, f'write one of {divisors(common)}')
            return


def gpt_nodes(model: Transformer) -> Iterator[Node]:
    """All operators in order; embedding and position stand before the layers, norm and head behind them."""
    yield Node('embedding', Embedding(vocab=model.vocab, width=model.hidden), (TOKENS,), -1)
    before = 'position'
    yield Node('position', Position(), ('embedding',), -1, 'position.added')
    if model.dropout:
        before = 'position.dropout'
        drop = Dropout(probability=model.dropout, site='position')
        yield Node(before, drop, ('position', KEYS), -1, 'position.dropped')
    for layer in range(model.layers):
        block = _Block(model, layer)
        yield from block.attention(before)
        yield from block.feed_forward(f'layer{layer}.residual1')
        before = f'layer{layer}.residual2'
    yield Node('norm', LayerNorm(), (before,), model.layers)
    head = Product(
        outputs=(model.vocab,),
        inputs=(model.hidden,),
        bias=False,
        weight='embedding.weight' if model.tied else '',
        gathers=True,
        what=VOCABULARY,
    )
    yield Node('head', head, ('norm',), model.layers)


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
        model, groups = self.model, self.model.key_value_heads
        heads = Heads(groups=groups, queries=model.heads // groups, head_dim=model.hidden // model.heads)
        # Group by group its queries, one key and one value: a split by groups keeps what belongs together.
        outputs = (groups, heads.queries + 2, heads.head_dim)
        yield self.node('norm1', LayerNorm(), x)
        qkv = Product(outputs=outputs, inputs=(model.hidden,), gathers=True, what='attention (its groups of heads)')
        yield self.node('qkv', qkv, '.norm1')
        if model.attention == 'unfused':
            yield from self.unfused(heads)
        else:
            yield self.node('attention', Attention(heads=heads, dropout=model.dropout), '.qkv', *self.keys)
        proj = Product(
            outputs=(model.hidden,), inputs=(groups, heads.queries, heads.head_dim), bias=False, split='inputs'
        )
        yield self.node('proj', proj, '.attention')
        yield self.residual('residual1', x, 'proj')

    def unfused(self, heads: Heads) -> Iterator[Node]:
        """Scores, softmax, dropout and the product with the values, each through memory."""
        name = f'layer{self.layer}.attention'
        yield self.node('attention.scores', AttentionScores(heads=heads, values=name), '.qkv')
        yield self.node('attention.softmax', CausalSoftmax(), '.attention.scores')
        kept = '.attention.softmax'
        if self.model.dropout:
            kept = '.attention.dropout'
            drop = Dropout(probability=self.model.dropout, site=name)
            yield self.node('attention.dropout', drop, '.attention.softmax', KEYS, result='attention.dropped')
        yield self.node('attention', AttentionValues(heads=heads), kept, '.qkv')

    def feed_forward(self, x: str) -> Iterator[Node]:
        """x + what the feed-forward makes of it."""
        hidden, width = self.model.hidden, self.model.ffn_width
        yield self.node('norm2', LayerNorm(), x)
        fc1 = Product(outputs=(width,), inputs=(hidden,), what='the feed-forward (its width)')
        yield self.node('fc1', fc1, '.norm2')
        yield self.node('gelu', Gelu(), '.fc1')
        yield self.node('fc2', Product(outputs=(hidden,), inputs=(width,), bias=False, split='inputs'), '.gelu')
        yield self.residual('residual2', x, 'fc2')

    def residual(self, name: str, x: str, product: str) -> Node:
        """x + z and the bias of the product that made z."""
        operator = Residual(bias_of=f'layer{self.layer}.{product}', dropout=self.model.dropout)
        return self.node(name, operator, x, f'.{product}', *self.keys)
