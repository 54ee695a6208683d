"""The table of aten operators that a module may call: the axis rule, what the backward reads, and what bounds each."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from simpar.torch_module import rules
from simpar.torch_module.rules import Rule

Saves = Literal['nothing', 'others', 'all']
"""Of what it reads: the gradient of an input needs nothing, the other inputs, or all of them."""
Price = Literal['streaming', 'view', 'product', 'attention', 'convolution']


class Row(NamedTuple):
    """What is known of an operator.

    Arguments: ``flops`` of an element of the result, forward; the backward of an input takes as many.
    """

    rule: Rule
    saves: Saves = 'all'
    price: Price = 'streaming'
    flops: int = 1


_LINEAR: Final = ('add', 'sub', 'rsub', 'neg')
_PRODUCTS: Final = ('mul',)
_UNARY: Final = {
    'relu': 1, 'gelu': 10, 'silu': 5, 'tanh': 5, 'sigmoid': 4, 'exp': 2, 'log': 2, 'log1p': 2, 'expm1': 2, 'sqrt': 2,
    'rsqrt': 2, 'reciprocal': 1, 'abs': 1, 'square': 1, 'pow': 2, 'sin': 4, 'cos': 4, 'erf': 8, 'softplus': 6,
    'leaky_relu': 1, 'elu': 4, 'selu': 4, 'celu': 4, 'hardtanh': 1, 'relu6': 1, 'hardswish': 3, 'hardsigmoid': 2,
    'mish': 8, 'log_sigmoid': 5, 'clamp': 1, 'clamp_min': 1, 'clamp_max': 1, 'sign': 1, 'floor': 1, 'ceil': 1,
    'round': 1, 'div': 1, 'maximum': 1, 'minimum': 1, 'atan2': 6, 'lerp': 3, 'addcmul': 2, 'addcdiv': 2, 'where': 1,
    'masked_fill': 1, 'eq': 1, 'ne': 1, 'lt': 1, 'le': 1, 'gt': 1, 'ge': 1, 'logical_not': 1, 'logical_and': 1,
    'logical_or': 1, 'bitwise_not': 1, 'bitwise_and': 1, 'bitwise_or': 1, '__and__': 1, '__or__': 1, '_to_copy': 1,
    'isnan': 1, 'isinf': 1, 'nan_to_num': 1, 'remainder': 1, 'prelu': 1,
}  # fmt: skip
"""Elementwise operators, with operations an element."""

TABLE: Final[dict[str, Row]] = {
    **{name: Row(rules.elementwise, 'nothing') for name in _LINEAR},
    **{name: Row(rules.elementwise, 'others') for name in _PRODUCTS},
    **{name: Row(rules.elementwise, flops=count) for name, count in _UNARY.items()},
    **{name: Row(rules.fill, 'all', flops=0) for name in ('zeros_like', 'ones_like', 'full_like')},
    **{name: Row(rules.permuted, 'nothing', flops=0) for name in ('transpose', 'permute', 't')},
    **{
        name: Row(rules.reshaped, 'nothing', 'view', flops=0)
        for name in ('view', 'reshape', '_unsafe_view', 'flatten', 'unflatten', 'squeeze', 'unsqueeze')
    },
    'expand': Row(rules.expanded, 'nothing', 'view', flops=0),
    'repeat': Row(rules.repeated, 'nothing', flops=0),
    **{name: Row(rules.reduced, 'nothing') for name in ('sum', 'mean')},
    **{name: Row(rules.reduced, flops=2) for name in ('amax', 'amin', 'var', 'std', 'logsumexp', 'prod')},
    **{name: Row(rules.along('dim'), flops=5) for name in ('softmax', '_softmax', 'log_softmax', '_log_softmax')},
    'cumsum': Row(rules.along('dim'), 'nothing'),
    **{name: Row(rules.along('dim', 'dims', 'split_dim'), 'nothing', flops=0) for name in ('slice', 'narrow', 'flip')},
    'roll': Row(rules.along('dims'), 'nothing', flops=0),
    'cat': Row(rules.along('dim'), 'nothing', flops=0),
    'glu': Row(rules.along('dim'), flops=5),
    'select': Row(rules.selected, 'nothing', flops=0),
    'stack': Row(rules.stacked, 'nothing', flops=0),
    **{name: Row(rules.padded, 'nothing', flops=0) for name in ('constant_pad_nd', 'pad')},
    **{name: Row(rules.normalised, flops=8) for name in ('layer_norm', 'rms_norm')},
    **{name: Row(rules.multiplied, 'others', 'product') for name in ('matmul', 'mm', 'bmm', 'baddbmm', 'addmm')},
    'linear': Row(rules.projected, 'others', 'product'),
    'einsum': Row(rules.einsum, 'others', 'product'),
    'scaled_dot_product_attention': Row(rules.attention, 'all', 'attention'),
    **{
        name: Row(rules.image, 'others', 'convolution')
        for name in ('conv1d', 'conv2d', 'conv3d', 'convolution', 'conv_transpose1d', 'conv_transpose2d')
    },
    **{name: Row(rules.image, flops=8) for name in ('group_norm', 'instance_norm')},
    **{
        name: Row(rules.pooled, flops=2)
        for name in ('max_pool1d', 'max_pool2d', 'avg_pool1d', 'avg_pool2d', 'adaptive_avg_pool1d',
                     'adaptive_avg_pool2d', '_adaptive_avg_pool2d', 'upsample_nearest2d', 'upsample_bilinear2d')
    },
    'batch_norm': Row(rules.by_channel, flops=2),
    'embedding': Row(rules.looked_up, 'all', flops=0),
    'gather': Row(rules.gathered, flops=0),
    'index': Row(rules.indexed, 'nothing', flops=0),
}  # fmt: skip
"""By the name of the operator, without its overload."""

TOLD: Final[dict[Rule, str]] = {
    rules.elementwise: 'all dims, broadcast from the last',
    rules.fill: 'all dims',
    rules.permuted: 'all dims, in another order',
    rules.reshaped: 'of dims that become one, the first',
    rules.expanded: 'all dims but those that become longer',
    rules.repeated: 'all dims but those that become longer',
    rules.reduced: 'all dims but those that go',
    rules.selected: 'all dims but the one that goes',
    rules.stacked: 'all dims but the new one',
    rules.padded: 'all dims but those that become longer',
    rules.normalised: 'all dims but those that are normalised',
    rules.multiplied: 'rows, columns and leading dims, not what is summed over',
    rules.projected: 'rows and columns, not what is summed over',
    rules.einsum: 'every letter of the result',
    rules.attention: 'samples and heads',
    rules.image: 'samples',
    rules.pooled: 'samples and channels',
    rules.by_channel: 'all dims',
    rules.looked_up: 'places and features; the table by its features',
    rules.indexed: 'samples',
    rules.gathered: 'all dims but the one that is gathered along',
}
"""What may be sharded, in words; others: all dims but those that the call names."""


def aten_table() -> list[str]:
    """The lines of the table in the docs: operators of one rule in one row."""
    alike: dict[tuple[str, str, str], list[str]] = {}
    for name, row in TABLE.items():
        told = TOLD.get(row.rule, 'all dims but the one that it works along')
        bound = {'streaming': 'bytes moved', 'view': 'nothing: a view', 'product': 'matrix units',
                 'attention': 'its own table', 'convolution': 'matrix units'}[row.price]  # fmt: skip
        alike.setdefault((told, row.saves, bound), []).append(f'`{name}`')
    head = [
        '| aten operators | what may be sharded | the backward keeps of its inputs | bound by |',
        '|---|---|---|---|',
    ]
    return [*head, *(f'| {", ".join(names)} | {" | ".join(told)} |' for told, names in alike.items())]
