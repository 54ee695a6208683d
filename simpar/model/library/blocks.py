"""Transformer blocks as layers of a network, so that every operator of theirs may have a strategy."""

from collections.abc import Iterator
from math import sqrt

from simpar import errors, model

HEADS_FIRST = (0, 2, 1, 3)
"""From [sequences, tokens, heads, features] to [sequences, heads, tokens, features], and back."""


def block_network(
    sequence: int, hidden: int, heads: int, ffn: int, layers: int = 1, *, bias: bool = False, init_std: float = 0.02,
    llama: bool = False,
) -> model.Network:  # fmt: skip
    """Pre-norm blocks over rows [sequences × tokens, hidden], their attention unfused, over all tokens of a sequence.

    Arguments:
        sequence: tokens of a sample.
        hidden: width of the residual stream.
        heads: of attention.
        ffn: width of the feed-forward.
        layers: how many blocks.
        bias: whether dense layers have one.
        init_std: standard deviation of the normal initial weights.
        llama: with RMSNorm and a gate (Touvron et al. 2023), in place of LayerNorm and GeLU.

    Raises ``Infeasible`` where ``heads`` do not divide ``hidden``. Does not model: embedding, head, the causal mask,
    dropout, rotary embedding, grouped queries.
    """
    if hidden % heads:
        raise errors.Infeasible(f'{heads} heads do not divide a hidden size of {hidden}; choose a divisor')
    width, norm = hidden // heads, model.RmsNorm if llama else model.LayerNorm

    def dense(inputs: int, outputs: int, name: str, of: str = '') -> model.Dense:
        return model.Dense(inputs=inputs, outputs=outputs, bias=bias, of=of, name=name)

    def projected(name: str) -> Iterator[model.Operator]:
        yield dense(hidden, hidden, name, f'{name.partition("_")[0]}_norm1')
        # −1: dim 0 counts samples, which ranks, micro-batches and copies divide.
        yield model.Reshape(shape=(-1, sequence, heads, width), name=f'{name}_reshape')
        yield model.Transpose(permutation=HEADS_FIRST, name=f'{name}_transpose')

    def block(name: str, x: str) -> Iterator[model.Operator]:
        yield norm(of=x, name=f'{name}_norm1')
        yield from projected(f'{name}_q')
        yield from projected(f'{name}_k')
        yield model.MatMul(of=(f'{name}_q_transpose', f'{name}_k_transpose'), transpose_b=True, name=f'{name}_scores')
        # An operator of its own, for searches and strategies see what the compiler would split.
        yield model.Mul(factor=1 / sqrt(width), name=f'{name}_scale')
        yield model.Softmax(name=f'{name}_softmax')
        yield from projected(f'{name}_v')
        yield model.MatMul(of=(f'{name}_softmax', f'{name}_v_transpose'), name=f'{name}_values')
        yield model.Transpose(permutation=HEADS_FIRST, name=f'{name}_transpose')
        yield model.Reshape(shape=(-1, hidden), name=f'{name}_reshape')
        yield dense(hidden, hidden, f'{name}_o')
        yield model.Add(of=(x, f'{name}_o'), name=f'{name}_add1')
        yield norm(name=f'{name}_norm2')
        if llama:
            yield dense(hidden, ffn, f'{name}_gate')
            yield model.Silu(name=f'{name}_silu')
        # With a gate it reads the same norm as that, which is no longer the layer before.
        yield dense(hidden, ffn, f'{name}_up', f'{name}_norm2' if llama else '')
        if llama:
            yield model.Multiply(of=(f'{name}_silu', f'{name}_up'), name=f'{name}_gated')
        else:
            yield model.Gelu(name=f'{name}_gelu')
        yield dense(ffn, hidden, f'{name}_down')
        yield model.Add(of=(f'{name}_add1', f'{name}_down'), name=f'{name}_add2')

    before = (model.INPUT, *(f'layer{layer}_add2' for layer in range(layers)))
    operators = tuple(one for layer in range(layers) for one in block(f'layer{layer}', before[layer]))
    return model.Network(layers=operators, input=(hidden,), init_std=init_std)
