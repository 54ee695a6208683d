"""Activations, gates, biases, residuals, reductions, and what changes the shape or order of dims."""

from collections.abc import Callable
from functools import partial
from typing import Final

import torch
from torch.nn import functional

from executor.kernels import context as shared
from executor.kernels.context import Context, Kernel, Tensor, Tensors, of_phases, plain, position, rows, wide
from simpar.program import OpClass


def softcap_forward(op: OpClass, where: Context, x: Tensor) -> Tensors:
    """x → cap · tanh(x / cap)."""
    cap = float(op.attributes['cap'])
    return [(x / cap).tanh() * cap]


def softcap_dx(op: OpClass, where: Context, dy: Tensor, y: Tensor) -> Tensors:
    """dy, y → dx."""
    return [dy * (1 - (y / float(op.attributes['cap'])).square())]


def residual_forward(op: OpClass, where: Context, x: Tensor, z: Tensor, *more: Tensor) -> Tensors:
    """x, z[, bias] → y; with dropout x, z[, bias], keys → y, mask."""
    # Residual, bias and dropout are one op, as Megatron fuses them.
    if 'dropout' not in op.attributes:
        y = x + z
        return [y + more[0].flatten() if more else y]
    *bias, keys = more
    mask = shared.mask_of(op, where, keys, z.shape)
    return [x + shared.left(op, z + bias[0].flatten() if bias else z, mask), mask]


def slice_shard(op: OpClass, where: Context, x: Tensor) -> Tensors:
    """x → the slice along ``dim`` of this rank's position in ``partition``."""
    dim = int(op.attributes['dim'])
    length = x.shape[dim] // where.size[str(op.attributes['partition'])]
    # A view would keep the full x in memory after it is freed.
    return [x.narrow(dim, position(op, where) * length, length).clone(memory_format=torch.contiguous_format)]


def take(op: OpClass, where: Context, full: Tensor) -> Tensors:
    """The full input of a step → the rows of this op's micro-batch and copy."""
    copies = int(op.attributes['copies'])
    length = full.shape[0] // (int(op.attributes['micro_batches']) * copies)
    # Copies split a micro-batch, so a micro-batch's copies lie side by side.
    first = (where.micro_batch * copies + where.copy) * length
    return [full.narrow(0, first, length).clone(memory_format=torch.contiguous_format)]


def pad(op: OpClass, where: Context, shard: Tensor) -> Tensors:
    """slice → x, with zeros wherever along ``dim`` other positions of ``partition`` have theirs."""
    dim, shape = int(op.attributes['dim']), list(shard.shape)
    length = shape[dim]
    shape[dim] *= where.size[str(op.attributes['partition'])]
    full = shard.new_zeros(shape)
    full.narrow(dim, position(op, where) * length, length).copy_(shard)
    return [full]


def cast(op: OpClass, where: Context, x: Tensor) -> Tensors:
    """x → the same in each form that it is read in; held in more than 8 bits, forms are alike."""
    return [x.clone() for _ in op.writes]


# Gated feed-forwards: features alternate, a gate and what it lets through.

Function = Callable[..., Tensor]


def _gated(operator: str, activation: Function, derivative: Function) -> dict[tuple[str, str], Function]:
    """x [..., 2 × width] → y [..., width]; dy, x → dx."""

    def halves(x: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = x.unflatten(-1, (-1, 2)).unbind(-1)
        return gate.contiguous(), up

    def forward(x: Tensor) -> Tensor:
        gate, up = halves(x)
        return activation(gate) * up

    def backward(dy: Tensor, x: Tensor) -> Tensor:
        gate, up = halves(x)
        return torch.stack([derivative(dy * up, gate), dy * activation(gate)], -1).flatten(-2)

    return rows(operator, F=forward, I=backward)


# Products of two activations, and what changes the shape or order of an activation's dims.


def batch_matmul(op: OpClass, where: Context, a: Tensor, b: Tensor) -> Tensors:
    """a, b → a · b for each index of the leading dims; operands with ``transpose_a``, ``transpose_b`` turned first."""
    return [_transposed(op, 'transpose_a', a) @ _transposed(op, 'transpose_b', b)]


def transpose(op: OpClass, where: Context, x: Tensor) -> Tensors:
    """x → y, whose dims are those of x that ``permutation`` lists."""
    # Messages and flat buffers need contiguous memory.
    return [x.permute(numbers(op, 'permutation')).contiguous()]


def half(op: OpClass, where: Context, dy: Tensor) -> Tensors:
    """dy → the features of the half that ``half`` numbers, in memory of their own."""
    return [dy.chunk(2, -1)[int(op.attributes['half'])].contiguous()]


def reshape(op: OpClass, where: Context, x: Tensor) -> Tensors:
    """x → the same elements in this rank's ``shape``; a view."""
    return [x.reshape(numbers(op, 'shape'))]


def mul(op: OpClass, where: Context, x: Tensor) -> Tensors:
    """x → ``factor`` × x."""
    return [x * float(op.attributes['factor'])]


def _transposed(op: OpClass, key: str, operand: Tensor) -> Tensor:
    return operand.mT if op.attributes.get(key) else operand


def numbers(op: OpClass, key: str) -> list[int]:
    """An attribute that is a text of several."""
    return [int(number) for number in str(op.attributes[key]).split()]


# Sums and means over dims of a value.


def reduced(op: OpClass, where: Context, x: Tensor) -> Tensors:
    """x → its sum over ``dims``, divided by ``count``, the full length of these, where there is one."""
    # ``count`` is the unsharded length: each rank sums its shard, and the sum over ranks is then the mean.
    return [wide(x).sum(numbers(op, 'dims')) / int(op.attributes.get('count', 1))]


def spread(op: OpClass, where: Context, dy: Tensor) -> Tensors:
    """dy → dx of ``shape``, the same everywhere along ``dims``, in memory of its own."""
    shape, dims = numbers(op, 'shape'), numbers(op, 'dims')
    column = dy.reshape([1 if dim in dims else length for dim, length in enumerate(shape)])
    # Not a view: ops that work in place follow.
    return [(column / int(op.attributes.get('count', 1))).expand(shape).contiguous()]


gelu_tanh, gelu_tanh_dx = (
    partial(function, approximate='tanh') for function in (functional.gelu, torch.ops.aten.gelu_backward)
)
PLAIN: Final[dict[tuple[str, str], Function]] = {
    # x → y; dy, x → dx. The derivative of relu reads y, not x: the forward need keep only its result.
    **rows('gelu', F=functional.gelu, I=torch.ops.aten.gelu_backward),
    **rows('gelu_tanh', F=gelu_tanh, I=gelu_tanh_dx),
    **rows('silu', F=functional.silu, I=torch.ops.aten.silu_backward),
    **rows('relu', F=torch.relu, I=lambda dy, y: torch.ops.aten.threshold_backward(dy, y, 0)),
    **rows('squared_relu', F=lambda x: torch.relu(x).square(), I=lambda dy, x: 2 * torch.relu(x) * dy),
    # x, bias → y; dy → dbias, flat.
    **rows('bias', F=lambda x, bias: x + bias.flatten(), W=lambda dy: dy.flatten(0, -2).sum(0)),
    ('residual', 'W'): lambda dy: dy.flatten(0, -2).sum(0),
    ('concat', 'F'): lambda x, z: torch.cat([x, z], -1),
    # d1, d2 → d; x, z → x · z; dy and one of them → the gradient of the other.
    **of_phases('add', 'FIW', torch.add),
    **of_phases('multiply', 'FI', torch.mul),
    **_gated('swiglu', functional.silu, torch.ops.aten.silu_backward),
    **_gated('geglu', functional.gelu, torch.ops.aten.gelu_backward),
    **_gated('geglu_tanh', gelu_tanh, gelu_tanh_dx),
}
"""(operator, phase) → a function of tensors alone, that gives one."""
KERNELS: Final[dict[tuple[str, str], Kernel]] = {
    **{key: plain(function) for key, function in PLAIN.items()},
    **of_phases('cast', 'FIW', cast),
    **rows('softcap', F=softcap_forward, I=softcap_dx),
    ('residual', 'F'): residual_forward,
    **of_phases('scale', 'FI', mul),
    ('take', 'F'): take,
    **of_phases('slice', 'FI', slice_shard),
    **of_phases('pad', 'FI', pad),
    **of_phases('batch_matmul', 'FI', batch_matmul),
    **of_phases('transpose', 'FI', transpose),
    **of_phases('reshape', 'FI', reshape),
    ('concat', 'I'): half,
    **of_phases('mul', 'FI', mul),
    **{(operator, 'F'): reduced for operator in ('sum', 'mean')},
    **{(operator, 'I'): spread for operator in ('sum', 'mean')},
}
