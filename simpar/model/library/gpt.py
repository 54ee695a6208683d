"""A GPT-kind ``transformer:`` as a graph of operators (Shoeybi et al. 2019; Korthikanti et al. 2022).

Operators that Megatron-LM fuses are one: bias, dropout and residual; all of a group's queries, keys and values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simpar.model import Embedding, Gelu, LayerNorm, Operator
from simpar.model.dropout import KEYS
from simpar.model.library.transformer import Transformer
from simpar.model.node import Node
from simpar.model.operators.attention import Attention, AttentionScores, AttentionValues, CausalSoftmax, Heads
from simpar.model.operators.linear import Product
from simpar.model.operators.stream import Dropout, Position, Residual

TOKENS = 'tokens'
VOCABULARY = 'the vocabulary (embedding and head)'


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
