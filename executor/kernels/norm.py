"""LayerNorm over the last dim, as aten does it, and RMSNorm."""

from __future__ import annotations

import torch

from executor.kernels.context import Context
from executor.kernels.precision import wide
from simpar.program import OpClass


def norm_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """x, gain, bias → y, mean, rstd."""
    x, gain, bias = tensors
    return list(torch.native_layer_norm(x, x.shape[-1:], gain, bias, float(op.attributes['epsilon'])))


def norm_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy, x, gain, mean, rstd → dx."""
    dy, x, gain, mean, rstd = tensors
    # aten wants the statistics with a last dim of length 1.
    column = (*x.shape[:-1], 1)
    dx, _, _ = torch.ops.aten.native_layer_norm_backward(
        # Only dx: gradients of the weights are an op of phase W, which may run later.
        dy,
        x,
        x.shape[-1:],
        mean.reshape(column),
        rstd.reshape(column),
        gain,
        None,
        [True, False, False],
    )
    return [dx]


def norm_dw(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy, x, mean, rstd → dgain, dbias."""
    dy, x, mean, rstd = tensors
    column = (*x.shape[:-1], 1)
    normalised = (x - mean.reshape(column)) * rstd.reshape(column)
    return [(dy * normalised).flatten(0, -2).sum(0), dy.flatten(0, -2).sum(0)]


def rms_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """x, gain → y, rstd."""
    x, gain = tensors
    # Squares of 16-bit numbers overflow early.
    rstd = (wide(x).square().mean(-1, keepdim=True) + float(op.attributes['epsilon'])).rsqrt()
    return [x * rstd * gain, rstd]


def rms_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy, x, gain, rstd → dx."""
    dy, x, gain, rstd = map(wide, tensors)
    normalised, scaled = x * rstd, dy * gain
    return [rstd * (scaled - normalised * (scaled * normalised).mean(-1, keepdim=True))]


def rms_dw(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy, x, rstd → dgain."""
    dy, x, rstd = map(wide, tensors)
    return [(dy * x * rstd).flatten(0, -2).sum(0)]


KERNELS = {
    ('norm', 'F'): norm_forward,
    ('norm', 'I'): norm_dx,
    ('norm', 'W'): norm_dw,
    ('rms_norm', 'F'): rms_forward,
    ('rms_norm', 'I'): rms_dx,
    ('rms_norm', 'W'): rms_dw,
}
