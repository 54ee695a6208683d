"""The ops of a product of rows with a weight of shape [outputs..., inputs...]."""

from __future__ import annotations

from math import prod

from simpar.layout import TensorLayout
from simpar.layout.axis import size_of
from simpar.layout.operator import Operator
from simpar.model.ops import Local, Ops, Parameter, Work

Shape = tuple[int, ...]


def product_axes(name: str, x: Shape, outputs: Shape, inputs: Shape) -> Operator:
    """x [..., k] · weight [k, n] → [..., n]; the first output dim and the first input dim of a weight can be split."""
    rows = (*(f'b{index}' for index in range(len(x) - 2)), 'm')
    order = (*rows, 'k', 'n')
    result = (*x[:-1], prod(outputs))
    units = {'n': outputs[0], 'k': inputs[0]}
    return Operator(name, ((*rows, 'k'), ('k', 'n')), (*rows, 'n'), (x, (prod(inputs), prod(outputs))), result, order,
                    {}, units)  # fmt: skip


def product_ops(local: Local, outputs: Shape, inputs: Shape, *, bias: bool, weight: str = 'weight') -> Ops:
    """2·m·n·k floating-point operations in each phase.

    Arguments: ``bias``, added where nothing is left to be summed; ``weight``, its role.
    """
    in_axes, out_axes = local.inputs[1].dims
    layout = TensorLayout(local.world, (out_axes, *((),) * (len(outputs) - 1), in_axes, *((),) * (len(inputs) - 1)))
    parameters = [Parameter(role=weight, shape=(*outputs, *inputs), layout=layout, initial=f'normal:{local.deviation}')]
    if bias and not local.layout('y').partial:
        of_bias = TensorLayout(local.world, (out_axes, *((),) * (len(outputs) - 1)))
        parameters.append(Parameter(role='bias', shape=outputs, layout=of_bias, initial='zeros'))
    n, k = prod(outputs) // size_of(out_axes), prod(inputs) // size_of(in_axes)
    m = local.elements('x') // k
    flops, told = 2.0 * m * n * k, {'outputs': len(outputs)}
    roles = tuple(parameter.role for parameter in parameters)
    return Ops(
        F=Work(operator='matmul', reads=('x', *roles), writes=('y',), flops=flops,
               dims={'m': m, 'n': n, 'k': k}, attributes=told),
        I={'x': Work(operator='matmul', reads=('dy', weight), flops=flops,
                     dims={'m': m, 'n': k, 'k': n}, attributes=told)},
        W=Work(operator='matmul', reads=('dy', 'x'), flops=flops, dims={'m': n, 'n': k, 'k': m}, attributes=told),
        parameters=tuple(parameters),
    )  # fmt: skip
