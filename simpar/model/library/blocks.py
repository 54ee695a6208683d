"""Transformer blocks as layers of a network, so that every operator of theirs may have a strategy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt

from simpar import errors, model

HEADS_FIRST = (0, 2, 1, 3)
"""From [sequences, tokens, heads, features] to [sequences, heads, tokens, features], and back."""


def block_network(
    sequence: int, hidden: int, heads: int, ffn: int, layers: int = 1, *, bias: bool = False, init_std: float = 0.02
) -> model.Network:
    """Pre-norm blocks over rows [sequences × tokens, hidden], their attention unfused, over all tokens of a sequence.

    Arguments:
        sequence: tokens of a sample.
        hidden: width of the residual stream.
        heads: of attention.
        ffn: width of the feed-forward.
        layers: how many blocks.
        bias: whether dense layers have one.
        init_std: standard deviation of the normal initial weights.

    Raises ``Infeasible`` where ``heads`` do not divide ``hidden``. Does not model: embedding, head, the causal mask,
    dropout.
    """
    return _blocks(_Block(sequence, hidden, heads, ffn, bias), layers, init_std)


def llama_network(
    sequence: int, hidden: int, heads: int, ffn: int, layers: int = 1, *, init_std: float = 0.02
) -> model.Network:
    """Blocks as Llama's over rows [sequences × tokens, hidden]: RMSNorm, unfused attention, a feed-forward with a gate.

    Arguments:
        sequence: tokens of a sample.
        hidden: width of the residual stream.
        heads: of attention.
        ffn: width of the gate.
        layers: how many blocks.
        init_std: standard deviation of the normal initial weights.

    Raises ``Infeasible`` where ``heads`` do not divide ``hidden``. Does not model: rotary embedding,
    grouped queries, embedding, head, the causal mask.
    """
    return _blocks(_Llama(sequence, hidden, heads, ffn, bias=False), layers, init_std)


def _blocks(block: _Block, layers: int, init_std: float) -> model.Network:
    if block.hidden % block.heads:
        raise errors.Infeasible(f'{block.heads} heads do not divide a hidden size of {block.hidden}; choose a divisor')
    found: list[model.Operator] = []
    before = model.INPUT
    for layer in range(layers):
        found += block.layers(f'layer{layer}', before)
        before = f'layer{layer}_add2'
    return model.Network(layers=tuple(found), input=(block.hidden,), init_std=init_std)


@dataclass(frozen=True, slots=True)
class _Block:
    """A block's sizes, and its layers."""

    sequence: int
    hidden: int
    heads: int
    ffn: int
    bias: bool

    def layers(self, name: str, x: str) -> Iterator[model.Operator]:
        yield self.norm(of=x, name=f'{name}_norm1')
        yield from self.attention(name, f'{name}_norm1')
        yield model.Add(of=(x, f'{name}_o'), name=f'{name}_add1')
        yield self.norm(of='', name=f'{name}_norm2')
        yield from self.feed_forward(name)
        yield model.Add(of=(f'{name}_add1', f'{name}_down'), name=f'{name}_add2')

    def norm(self, of: str, name: str) -> model.Operator:
        return model.LayerNorm(of=of, name=name)

    def dense(self, inputs: int, outputs: int, name: str, of: str = '') -> model.Dense:
        return model.Dense(inputs=inputs, outputs=outputs, bias=self.bias, of=of, name=name)

    def feed_forward(self, name: str) -> Iterator[model.Operator]:
        yield self.dense(self.hidden, self.ffn, f'{name}_up')
        yield model.Gelu(name=f'{name}_gelu')
        yield self.dense(self.ffn, self.hidden, f'{name}_down')

    def attention(self, name: str, x: str) -> Iterator[model.Operator]:
        width = self.hidden // self.heads

        def projected(which: str) -> Iterator[model.Operator]:
            yield self.dense(self.hidden, self.hidden, f'{name}_{which}', x)
            # −1: dim 0 counts samples, which ranks, micro-batches and copies divide.
            yield model.Reshape(shape=(-1, self.sequence, self.heads, width), name=f'{name}_{which}_reshape')
            yield model.Transpose(permutation=HEADS_FIRST, name=f'{name}_{which}_transpose')

        yield from projected('q')
        yield from projected('k')
        yield model.MatMul(of=(f'{name}_q_transpose', f'{name}_k_transpose'), transpose_b=True, name=f'{name}_scores')
        # An operator of its own, for searches and strategies see what the compiler would split.
        yield model.Mul(factor=1 / sqrt(width), name=f'{name}_scale')
        yield model.Softmax(name=f'{name}_softmax')
        yield from projected('v')
        yield model.MatMul(of=(f'{name}_softmax', f'{name}_v_transpose'), name=f'{name}_values')
        yield model.Transpose(permutation=HEADS_FIRST, name=f'{name}_transpose')
        yield model.Reshape(shape=(-1, self.hidden), name=f'{name}_reshape')
        yield self.dense(self.hidden, self.hidden, f'{name}_o')


class _Llama(_Block):
    """The same with RMSNorm and a gate (Touvron et al. 2023)."""

    __slots__ = ()

    def norm(self, of: str, name: str) -> model.Operator:
        return model.RmsNorm(of=of, name=name)

    def feed_forward(self, name: str) -> Iterator[model.Operator]:
        yield self.dense(self.hidden, self.ffn, f'{name}_gate')
        yield model.Silu(name=f'{name}_silu')
        # The gate and this product read the same norm, which is no longer the layer before.
        yield self.dense(self.hidden, self.ffn, f'{name}_up', f'{name}_norm2')
        yield model.Multiply(of=(f'{name}_silu', f'{name}_up'), name=f'{name}_gated')
        yield self.dense(self.ffn, self.hidden, f'{name}_down')
