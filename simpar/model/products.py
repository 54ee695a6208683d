"""The ops of a product of rows with a weight of shape [outputs..., inputs...]."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from simpar.layout import TensorLayout
from simpar.layout.axis import size_of
from simpar.layout.operators import Operator
from simpar.model.ops import Local, Ops, Parameter, Work

Shape = tuple[int, ...]


def product_axes(name: str, x: Shape, outputs: Shape, inputs: Shape) -> Operator:
    """x [..., k] · weight [k, n] → [..., n]; the first output dim and the first input dim of a weight can be split."""
    rows = (*(f'b{index}' for index in range(len(x) - 2)), 'm')
    order = (*rows, 'k', 'n')
    result = (*x[:-1], prod(outputs))
    # A split must not run through a head: only the first dim of each side is dealt out.
    units = {'n': outputs[0], 'k': inputs[0]}
    return Operator(name, ((*rows, 'k'), ('k', 'n')), (*rows, 'n'), (x, (prod(inputs), prod(outputs))), result, order,
                    {}, units)  # fmt: skip


def product_ops(local: Local, parameters: Sequence[Parameter], outputs: int = 1) -> Ops:
    """2·m·n·k floating-point operations in each phase.

    Arguments: ``parameters``, the weight and, if there is one, the bias, added where nothing is left to be summed;
    ``outputs``, how many of the weight's dims are outputs.
    """
    weight, *biases = parameters
    in_axes, out_axes = local.inputs[1].dims
    of_outputs = (out_axes, *((),) * (outputs - 1))
    of_inputs = (in_axes, *((),) * (len(weight.shape) - outputs - 1))
    layout, of_bias = (TensorLayout(local.world, dims) for dims in ((*of_outputs, *of_inputs), of_outputs))
    # Added before the sum, a bias would count once for every rank.
    added = [] if local.layout('y').partial else biases
    placed = (weight.on(layout), *(bias.on(of_bias) for bias in added))
    n, k = prod(weight.shape[:outputs]) // size_of(out_axes), prod(weight.shape[outputs:]) // size_of(in_axes)
    m = local.elements('x') // k
    flops, told = 2.0 * m * n * k, {'outputs': outputs}
    return Ops(
        F=Work(operator='matmul', reads=('x', *(one.role for one in placed)), writes=('y',), flops=flops,
               dims={'m': m, 'n': n, 'k': k}, attributes=told),
        I={'x': Work(operator='matmul', reads=('dy', weight.role), flops=flops,
                     dims={'m': m, 'n': k, 'k': n}, attributes=told)},
        W=Work(operator='matmul', reads=('dy', 'x'), flops=flops, dims={'m': n, 'n': k, 'k': m}, attributes=told),
        parameters=placed,
    )  # fmt: skip
