"""Activations, gates, biases, residuals, reductions, and what changes the shape or order of dims."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional

from executor.kernels.context import Context, Kernel, left, mask_of, position, wide
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


# Gated feed-forwards: features alternate, a gate and what it lets through.

Activation = Callable[[torch.Tensor], torch.Tensor]
Derivative = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def gated_forward(
    activation: Activation, op: OpClass, where: Context, tensors: list[torch.Tensor]
) -> list[torch.Tensor]:
    """x [..., 2 × width] → y [..., width]."""
    gate, up = _halves(tensors[0])
    return [activation(gate) * up]


def gated_dx(
    activation: Activation, derivative: Derivative, op: OpClass, where: Context, tensors: list[torch.Tensor]
) -> list[torch.Tensor]:
    """dy, x → dx."""
    dy, x = tensors
    gate, up = _halves(x)
    return [torch.stack([derivative(dy * up, gate), dy * activation(gate)], -1).flatten(-2)]


def _halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    gate, up = x.unflatten(-1, (-1, 2)).unbind(-1)
    return gate.contiguous(), up


def _gated(operator: str, activation: Activation, derivative: Derivative) -> dict[tuple[str, str], Kernel]:
    return {
        (operator, 'F'): partial(gated_forward, activation),
        (operator, 'I'): partial(gated_dx, activation, derivative),
    }


# Products of two activations, and what changes the shape or order of an activation's dims.


def batch_matmul(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """a, b → a · b for each index of the leading dims; operands with ``transpose_a``, ``transpose_b`` turned first."""
    a, b = tensors
    return [_transposed(op, 'transpose_a', a) @ _transposed(op, 'transpose_b', b)]


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


def _transposed(op: OpClass, key: str, operand: torch.Tensor) -> torch.Tensor:
    return operand.mT if op.attributes.get(key) else operand


def numbers(op: OpClass, key: str) -> list[int]:
    """An attribute that is a text of several."""
    return [int(number) for number in str(op.attributes[key]).split()]


# Sums and means over dims of a value.


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


KERNELS: dict[tuple[str, str], Kernel] = {
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
    **_gated('swiglu', functional.silu, torch.ops.aten.silu_backward),
    **_gated('geglu', functional.gelu, torch.ops.aten.gelu_backward),
    **_gated(
        'geglu_tanh',
        partial(functional.gelu, approximate='tanh'),
        partial(torch.ops.aten.gelu_backward, approximate='tanh'),
    ),
    ('batch_matmul', 'F'): batch_matmul,
    ('batch_matmul', 'I'): batch_matmul,
    ('transpose', 'F'): transpose,
    ('transpose', 'I'): transpose,
    ('reshape', 'F'): reshape,
    ('reshape', 'I'): reshape,
    ('mul', 'F'): mul,
    ('mul', 'I'): mul,
    ('sum', 'F'): reduced,
    ('sum', 'I'): spread,
    ('mean', 'F'): reduced,
    ('mean', 'I'): spread,
}
