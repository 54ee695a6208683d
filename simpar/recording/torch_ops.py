"""Which of a model's ops a recorded op of torch is: by its name, and by the shapes of what it reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from simpar.kineto.read import Interval

Shapes = Sequence[Sequence[int]]
Key = tuple[str | int, ...]
BYTES: Final[Mapping[str, int]] = {
    'float': 4, 'double': 8, 'c10::BFloat16': 2, 'c10::Half': 2, 'long int': 8, 'int': 4, 'Float': 4, 'BFloat16': 2,
    'Half': 2, 'Double': 8, 'Long': 8, 'Int': 4, 'Float8_e4m3fn': 1, 'Byte': 1, 'Char': 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TorchOp:
    """A recorded op.

    Arguments: ``key``: ``matmul`` with m, n, k; ``attention`` with queries, head_dim, sequence, pairs and phase;
    ``collective`` with operator, ranks and bytes; a name of ``FAMILIES``; or ``UPDATE``.
    """

    key: Key
    seconds: float


FAMILIES: Final[Mapping[str, tuple[frozenset[str], str]]] = {
    # A name of torch: the operators that it may be, and the phases that one call does.
    'aten::native_layer_norm': (frozenset({'norm'}), 'F'),
    'aten::native_layer_norm_backward': (frozenset({'norm'}), 'IW'),
    'aten::_fused_rms_norm': (frozenset({'rms_norm'}), 'F'),
    'aten::_fused_rms_norm_backward': (frozenset({'rms_norm'}), 'IW'),
    'aten::gelu': (frozenset({'gelu', 'gelu_tanh'}), 'F'),
    'aten::gelu_backward': (frozenset({'gelu', 'gelu_tanh'}), 'I'),
    'aten::silu': (frozenset({'silu', 'swiglu'}), 'F'),
    'aten::silu_backward': (frozenset({'silu', 'swiglu'}), 'I'),
    'aten::add': (frozenset({'residual'}), 'F'),
    'aten::relu': (frozenset({'relu'}), 'F'),
    'aten::threshold_backward': (frozenset({'relu'}), 'I'),
    'aten::embedding': (frozenset({'embedding', 'position'}), 'F'),
    'aten::embedding_dense_backward': (frozenset({'embedding', 'position'}), 'W'),
    'aten::_log_softmax': (frozenset({'cross_entropy'}), 'F'),
    'aten::nll_loss_backward': (frozenset({'cross_entropy'}), 'I'),
}
"""Ops that are told by their name alone."""
UPDATE: Final = 'update'
"""A step of an optimizer."""
_STEP = re.compile(r'Optimizer\.step#')
_ATTENTION = re.compile(r'aten::_(?:scaled_dot_product|flash|efficient)_.*attention.*?(_backward)?$')
_GLOO = re.compile(r'gloo:(\w+)')
_OPERATORS: Final[Mapping[str, str]] = {
    'all_reduce': 'all_reduce', 'allreduce': 'all_reduce', 'all_gather': 'all_gather', 'allgather': 'all_gather',
    '_allgather_base': 'all_gather', 'allgather_into_tensor_coalesced': 'all_gather',
    'reduce_scatter': 'reduce_scatter', '_reduce_scatter_base': 'reduce_scatter', 'all_to_all': 'all_to_all',
    'all_to_allv': 'all_to_all', 'all_to_all_base': 'all_to_all',
}  # fmt: skip


def key_of(each: Interval, world: int) -> Key | None:
    """What an interval of a thread is; None where nothing priced.

    Arguments: ``world``, ranks of the job, where a collective does not say its own.
    """
    shapes = _shapes(each)
    product = _PRODUCTS.get(each.name)
    if product:
        return product(shapes)
    if each.name in FAMILIES:
        return (each.name,)
    if _STEP.match(each.name):
        return (UPDATE,)
    if found := _ATTENTION.match(each.name):
        return _attention(shapes, 'I' if found[1] else 'F')
    if found := _GLOO.match(each.name):
        return _gloo(found[1], each, shapes, world)
    return None


def kernel_key(kernel: Interval, world: int) -> Key | None:
    """What a communication kernel is, by what NCCL's recorder tells of it."""
    operator = _OPERATORS.get(str(kernel.args.get('Collective name', '')))
    size = BYTES.get(str(kernel.args.get('dtype', '')), 0)
    most = max(_count(kernel, 'In msg nelems'), _count(kernel, 'Out msg nelems'))
    ranks = _count(kernel, 'Group size') or world
    return ('collective', operator, ranks, most * size) if operator and most * size and ranks > 1 else None


def _count(kernel: Interval, name: str) -> int:
    try:
        return int(kernel.args.get(name, 0))
    except (TypeError, ValueError):
        return 0


def _shapes(each: Interval) -> Shapes:
    found = each.args.get('Input Dims')
    if not isinstance(found, list):
        return ()
    return [one if isinstance(one, list) and all(isinstance(n, int) for n in one) else [] for one in found]


def _product(first: int) -> Callable[[Shapes], Key | None]:
    """A product of the ``first`` operand and the one behind it; leading dims of a batch count as rows."""

    def key(shapes: Shapes) -> Key | None:
        if len(shapes) < first + 2 or min(map(len, shapes[first : first + 2])) < 2:
            return None
        left, right = shapes[first], shapes[first + 1]
        return ('matmul', prod(left[:-1]), right[-1], left[-1])

    return key


_PRODUCTS: Final[Mapping[str, Callable[[Shapes], Key | None]]] = {
    'aten::mm': _product(0), 'aten::addmm': _product(1), 'aten::bmm': _product(0), 'aten::baddbmm': _product(1),
}  # fmt: skip


def _attention(shapes: Shapes, phase: str) -> Key | None:
    """Of [batch, heads, sequence, head_dim]; a backward reads the gradient first."""
    place = 1 if phase == 'I' else 0
    if len(shapes) < place + 2 or len(shapes[place]) != 4 or len(shapes[place + 1]) != 4:
        return None
    (batch, heads, sequence, width), keys = shapes[place], shapes[place + 1]
    return ('attention', heads // max(1, keys[1]), width, sequence, batch * heads, phase)


def _gloo(name: str, each: Interval, shapes: Shapes, world: int) -> Key | None:
    operator = _OPERATORS.get(name)
    types: Any = each.args.get('Input type')
    size = BYTES.get(str(types[0]), 0) if isinstance(types, list) and types else 0
    moved = sum(prod(shape) for shape in shapes) * size
    # Gathers say what a rank gives; sizes are of the full vector.
    full = moved * world if operator == 'all_gather' else moved
    return ('collective', operator, world, full) if operator and full and world > 1 else None
