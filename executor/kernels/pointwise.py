"""Activations, biases, residuals and other ops of memory traffic."""

from __future__ import annotations

import torch
from torch.nn import functional

from executor.kernels.context import Context, position
from executor.kernels.dropout import left, mask_of
from simpar.program import OpClass


def gelu_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """x → y, the exact (erf) form."""
    return [functional.gelu(tensors[0])]


def gelu_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy, x → dx."""
    return [torch.ops.aten.gelu_backward(*tensors)]


def gelu_tanh_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """x → y, the form with tanh."""
    return [functional.gelu(tensors[0], approximate='tanh')]


def gelu_tanh_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy, x → dx."""
    return [torch.ops.aten.gelu_backward(*tensors, approximate='tanh')]


def softcap_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """x → cap · tanh(x / cap)."""
    cap = float(op.attributes['cap'])
    return [(tensors[0] / cap).tanh() * cap]


def softcap_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy, y → dx."""
    dy, y = tensors
    return [dy * (1 - (y / float(op.attributes['cap'])).square())]


def silu_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """x → y."""
    return [functional.silu(tensors[0])]


def silu_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy, x → dx."""
    return [torch.ops.aten.silu_backward(*tensors)]


def relu_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """x → y."""
    return [torch.relu(tensors[0])]


def relu_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy, y → dx."""
    # From y, not x: the forward need keep only its result.
    return [torch.ops.aten.threshold_backward(*tensors, 0)]


def squared_relu_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """x → y."""
    return [torch.relu(tensors[0]).square()]


def squared_relu_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy, x → dx."""
    dy, x = tensors
    return [2 * torch.relu(x) * dy]


def bias_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """x, bias → y."""
    x, bias = tensors
    return [x + bias.flatten()]


def dbias(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy → dbias, flat."""
    return [tensors[0].flatten(0, -2).sum(0)]


def residual_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """x, z[, bias] → y; with dropout x, z[, bias], keys → y, mask."""
    x, z, *more = tensors
    # Residual, bias and dropout are one op, as Megatron fuses them.
    if 'dropout' not in op.attributes:
        y = x + z
        return [y + more[0].flatten() if more else y]
    *bias, keys = more
    mask = mask_of(op, where, keys, z.shape)
    return [x + left(op, z + bias[0].flatten() if bias else z, mask), mask]


def add(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """d1, d2 → d."""
    return [torch.add(*tensors)]


def multiply(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """x, z → x · z; dy and one of them → the gradient of the other."""
    return [torch.mul(*tensors)]


def scale(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """d → d × ``factor``."""
    return [tensors[0] * float(op.attributes['factor'])]


def slice_shard(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """x → the slice along ``dim`` of this rank's position in ``partition``."""
    dim = int(op.attributes['dim'])
    length = tensors[0].shape[dim] // where.size[str(op.attributes['partition'])]
    # A view would keep the full x in memory after it is freed.
    return [tensors[0].narrow(dim, position(op, where) * length, length).clone(memory_format=torch.contiguous_format)]


def take(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """The full input of a step → the rows of this op's micro-batch and copy."""
    copies, full = int(op.attributes['copies']), tensors[0]
    length = full.shape[0] // (int(op.attributes['micro_batches']) * copies)
    # Copies split a micro-batch, so a micro-batch's copies lie side by side.
    first = (where.micro_batch * copies + where.copy) * length
    return [full.narrow(0, first, length).clone(memory_format=torch.contiguous_format)]


def pad(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """slice → x, with zeros wherever along ``dim`` other positions of ``partition`` have theirs."""
    dim, shard = int(op.attributes['dim']), tensors[0]
    length, shape = shard.shape[dim], list(shard.shape)
    shape[dim] *= where.size[str(op.attributes['partition'])]
    full = shard.new_zeros(shape)
    full.narrow(dim, position(op, where) * length, length).copy_(shard)
    return [full]


def cast(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """x → the same in each form that it is read in; held in more than 8 bits, forms are alike."""
    return [tensors[0].clone() for _ in op.writes]


KERNELS = {
    **{('cast', phase): cast for phase in 'FIW'},
    ('gelu', 'F'): gelu_forward,
    ('gelu', 'I'): gelu_dx,
    ('gelu_tanh', 'F'): gelu_tanh_forward,
    ('gelu_tanh', 'I'): gelu_tanh_dx,
    ('softcap', 'F'): softcap_forward,
    ('softcap', 'I'): softcap_dx,
    ('silu', 'F'): silu_forward,
    ('silu', 'I'): silu_dx,
    ('relu', 'F'): relu_forward,
    ('relu', 'I'): relu_dx,
    ('squared_relu', 'F'): squared_relu_forward,
    ('squared_relu', 'I'): squared_relu_dx,
    ('bias', 'F'): bias_forward,
    ('bias', 'W'): dbias,
    ('residual', 'F'): residual_forward,
    ('residual', 'W'): dbias,
    ('add', 'F'): add,
    ('add', 'I'): add,
    ('add', 'W'): add,
    ('multiply', 'F'): multiply,
    ('multiply', 'I'): multiply,
    ('scale', 'F'): scale,
    ('scale', 'I'): scale,
    ('take', 'F'): take,
    ('slice', 'F'): slice_shard,
    ('slice', 'I'): slice_shard,
    ('pad', 'F'): pad,
    ('pad', 'I'): pad,
}
