"""Gated feed-forwards: features alternate, a gate and what it lets through."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional

from executor.kernels.context import Context, Kernel
from simpar.program import OpClass

Activation = Callable[[torch.Tensor], torch.Tensor]
Derivative = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def forward(activation: Activation, op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """x [..., 2 × width] → y [..., width]."""
    gate, up = _halves(tensors[0])
    return [activation(gate) * up]


def dx(
    activation: Activation, derivative: Derivative, op: OpClass, where: Context, tensors: list[torch.Tensor]
) -> list[torch.Tensor]:
    """dy, x → dx."""
    dy, x = tensors
    gate, up = _halves(x)
    return [torch.stack([derivative(dy * up, gate), dy * activation(gate)], -1).flatten(-2)]


def _halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    gate, up = x.unflatten(-1, (-1, 2)).unbind(-1)
    return gate.contiguous(), up


def _kernels(operator: str, activation: Activation, derivative: Derivative) -> dict[tuple[str, str], Kernel]:
    return {(operator, 'F'): partial(forward, activation), (operator, 'I'): partial(dx, activation, derivative)}


KERNELS: dict[tuple[str, str], Kernel] = {
    **_kernels('swiglu', functional.silu, torch.ops.aten.silu_backward),
    **_kernels('geglu', functional.gelu, torch.ops.aten.gelu_backward),
    **_kernels(
        'geglu_tanh',
        partial(functional.gelu, approximate='tanh'),
        partial(torch.ops.aten.gelu_backward, approximate='tanh'),
    ),
}
