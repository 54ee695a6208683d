"""Transformer blocks as layers of a network, so that every operator of theirs may have a strategy."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

from simpar.errors import Infeasible
from simpar.layers import (
    INPUT,
    Add,
    AnyLayer,
    Dense,
    Gelu,
    LayerNorm,
    MatMul,
    Mul,
    Network,
    Reshape,
    Softmax,
    Transpose,
)

HEADS_FIRST = (0, 2, 1, 3)
"""From [sequences, tokens, heads, features] to [sequences, heads, tokens, features], and back."""


def block_network(
    sequence: int,
    hidden: int,
    heads: int,
    ffn: int,
    layers: int = 1,
    *,
    bias: bool = False,
    weight_deviation: float = 0.02,
) -> Network:
    """Pre-norm blocks over rows [sequences × tokens, hidden], their attention unfused, over all tokens of a sequence.

    Arguments: ``sequence``, tokens; ``ffn``, width of the feed-forward; ``bias``, of the dense layers. Raises
    ``Infeasible`` where ``heads`` do not divide ``hidden``. Does not model: embedding, head, the causal mask, dropout.
    """
    if hidden % heads:
        raise Infeasible(f'{heads} heads do not divide a hidden size of {hidden}; choose a divisor')
    found: list[AnyLayer] = []
    before = INPUT
    for layer in range(layers):
        found += _block(f'layer{layer}', before, sequence, hidden, heads, ffn, bias)
        before = f'layer{layer}_add2'
    return Network(layers=tuple(found), input=(hidden,), weight_deviation=weight_deviation)


def _block(name: str, x: str, sequence: int, hidden: int, heads: int, ffn: int, bias: bool) -> Iterator[AnyLayer]:
    yield LayerNorm(of=x, name=f'{name}_norm1')
    yield from _attention(name, f'{name}_norm1', sequence, hidden, heads, bias)
    yield Add(of=(x, f'{name}_o'), name=f'{name}_add1')
    yield LayerNorm(name=f'{name}_norm2')
    yield Dense(inputs=hidden, outputs=ffn, bias=bias, name=f'{name}_up')
    yield Gelu(name=f'{name}_gelu')
    yield Dense(inputs=ffn, outputs=hidden, bias=bias, name=f'{name}_down')
    yield Add(of=(f'{name}_add1', f'{name}_down'), name=f'{name}_add2')


def _attention(name: str, x: str, sequence: int, hidden: int, heads: int, bias: bool) -> Iterator[AnyLayer]:
    width = hidden // heads

    def projected(which: str) -> Iterator[AnyLayer]:
        yield Dense(inputs=hidden, outputs=hidden, bias=bias, of=x, name=f'{name}_{which}')
        yield Reshape(shape=(-1, sequence, heads, width), name=f'{name}_{which}_reshape')
        yield Transpose(permutation=HEADS_FIRST, name=f'{name}_{which}_transpose')

    yield from projected('q')
    yield from projected('k')
    yield MatMul(of=(f'{name}_q_transpose', f'{name}_k_transpose'), transpose_b=True, name=f'{name}_scores')
    yield Mul(factor=1 / sqrt(width), name=f'{name}_scale')
    yield Softmax(name=f'{name}_softmax')
    yield from projected('v')
    yield MatMul(of=(f'{name}_softmax', f'{name}_v_transpose'), name=f'{name}_values')
    yield Transpose(permutation=HEADS_FIRST, name=f'{name}_transpose')
    yield Reshape(shape=(-1, hidden), name=f'{name}_reshape')
    yield Dense(inputs=hidden, outputs=hidden, bias=bias, name=f'{name}_o')
