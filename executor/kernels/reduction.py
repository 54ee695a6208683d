"""Sums and means over dims of a value."""

from __future__ import annotations

import torch

from executor.kernels.context import Context
from executor.kernels.precision import wide
from executor.kernels.shape import numbers
from simpar.program import OpClass


def reduced(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """x → its sum over ``dims``, divided by ``count``, the full length of these, where there is one."""
    # ``count`` is the unsharded length: each rank sums its shard, and the sum over ranks is then the mean.
    return [wide(tensors[0]).sum(numbers(op, 'dims')) / int(op.attributes.get('count', 1))]


def spread(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy → dx of ``shape``, the same everywhere along ``dims``, in memory of its own."""
    (dy,), shape, dims = tensors, numbers(op, 'shape'), numbers(op, 'dims')
    column = dy.reshape([1 if dim in dims else length for dim, length in enumerate(shape)])
    # Not a view: ops that work in place follow.
    return [(column / int(op.attributes.get('count', 1))).expand(shape).contiguous()]


KERNELS = {
    ('sum', 'F'): reduced,
    ('sum', 'I'): spread,
    ('mean', 'F'): reduced,
    ('mean', 'I'): spread,
}
