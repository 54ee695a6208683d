"""Products of two activations, and what changes the shape or order of an activation's dims."""

from __future__ import annotations

import torch

from executor.kernels.context import Context
from simpar.program import OpClass


def batch_matmul(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """a, b → a · b for each index of the leading dims; operands with ``transpose_a``, ``transpose_b`` turned first."""
    a, b = tensors
    return [_turned(op, 'transpose_a', a) @ _turned(op, 'transpose_b', b)]


def transpose(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """x → y, whose dims are those of x that ``permutation`` lists."""
    # Messages and flat buffers need contiguous memory.
    return [tensors[0].permute(numbers(op, 'permutation')).contiguous()]


def reshape(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """x → the same elements in this rank's ``shape``; a view."""
    return [tensors[0].reshape(numbers(op, 'shape'))]


def mul(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """x → ``factor`` × x."""
    return [tensors[0] * float(op.attributes['factor'])]


def _turned(op: OpClass, key: str, operand: torch.Tensor) -> torch.Tensor:
    return operand.mT if op.attributes.get(key) else operand


def numbers(op: OpClass, key: str) -> list[int]:
    """An attribute that is a text of several."""
    return [int(number) for number in str(op.attributes[key]).split()]


KERNELS = {
    ('batch_matmul', 'F'): batch_matmul,
    ('batch_matmul', 'I'): batch_matmul,
    ('transpose', 'F'): transpose,
    ('transpose', 'I'): transpose,
    ('reshape', 'F'): reshape,
    ('reshape', 'I'): reshape,
    ('mul', 'F'): mul,
    ('mul', 'I'): mul,
}
