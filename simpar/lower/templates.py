"""Templates of F, I and W of the layers of networks."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, Final

from simpar.layout import TensorLayout
from simpar.model import (
    Add,
    Conv2d,
    Dense,
    Embedding,
    Flatten,
    Gelu,
    LayerNorm,
    MatMul,
    Mul,
    Multiply,
    Reduce,
    Relu,
    Reshape,
    RmsNorm,
    Silu,
    Softmax,
    Transpose,
)
from simpar.model.ops import Kept, Local, Ops, Parameter, Work
from simpar.model.products import product_ops
from simpar.program.op import Attribute

EPSILON = 1e-5
Told = dict[str, Attribute]
_NORMS: Final = {
    'norm': (('gain', 'bias'), ('mean', 'rstd'), (8, 12, 4)),
    'rms_norm': (('gain',), ('rstd',), (5, 9, 3)),
}
"""Parameters, what is kept, and operations an element of F, I and W."""
_INITIAL = {'gain': 'ones', 'bias': 'zeros'}


def unary(
    local: Local,
    operator: str,
    *,
    saves: tuple[str, ...] = (),
    flops: tuple[float, float] = (0.0, 0.0),
    forward: Told | None = None,
    backward: Told | None = None,
) -> Ops:
    """An operator of one value; ``saves``, what its backward reads; ``flops`` an element, forward and backward."""
    elements = local.elements('y')
    return Ops(
        F=Work(operator=operator, reads=('x',), writes=('y',), flops=flops[0] * elements, attributes=forward or {}),
        I={'x': Work(operator=operator, reads=('dy', *saves), flops=flops[1] * elements, attributes=backward or {})},
        saves_result='y' in saves,
    )


def norm(local: Local, operator: str) -> Ops:
    """A normalisation of the last dim, which is full."""
    names, kept, flops = _NORMS[operator]
    told: Told = {'epsilon': EPSILON}
    full = TensorLayout(local.world, ((),))
    column = TensorLayout(local.world, (*local.layout('x').dims[:-1], ()))
    forward, inputs, weights = (count * local.elements('x') for count in flops)
    return Ops(
        F=Work(operator=operator, reads=('x', *names), writes=('y', *kept), flops=forward, attributes=told),
        I={'x': Work(operator=operator, reads=('dy', 'x', 'gain', *kept), flops=inputs, attributes=told)},
        W=Work(operator=operator, reads=('dy', 'x', *kept), flops=weights, attributes=told),
        parameters=tuple(
            Parameter(role=name, shape=local.shape('x')[-1:], layout=full, initial=_INITIAL[name]) for name in names
        ),
        kept=tuple(Kept(role=name, shape=(*local.shape('x')[:-1], 1), layout=column) for name in kept),
    )


def embedding(layer: Embedding, local: Local) -> Ops:
    """Rows of a weight; where it is split by rows, zeros for the tokens of others."""
    layout = local.inputs[0]
    partition = local.partition(layout, 0)
    told: Told = {'partition': partition} if partition else {}
    moved = 2.0 * local.size('y') + local.size('tokens')
    weight = Parameter(
        role='weight', shape=(layer.vocab, layer.width), layout=layout, initial=f'normal:{local.deviation}'
    )
    return Ops(
        F=Work(operator='embedding', reads=('tokens', 'weight'), writes=('y',), moved=moved, attributes=told),
        W=Work(operator='embedding', reads=('tokens', 'dy'), moved=1.5 * moved, flops=local.elements('y'),
               attributes=told),
        parameters=(weight,),
    )  # fmt: skip


def conv2d(layer: Conv2d, local: Local) -> Ops:
    """A convolution with a full weight; its dims are those of the product of windows that it is."""
    full = TensorLayout(local.world, ((),))
    shape = (layer.outputs, layer.inputs, layer.kernel, layer.kernel)
    parameters = [Parameter(role='weight', shape=shape, layout=local.inputs[1], initial=f'normal:{local.deviation}')]
    if layer.bias:
        parameters.append(Parameter(role='bias', shape=(layer.outputs,), layout=full, initial='zeros'))
    told: Told = {'stride': layer.stride, 'padding': layer.padding}
    n, k = shape[0], prod(shape[1:])
    m = local.elements('y') // n
    flops = 2.0 * m * n * k
    return Ops(
        F=Work(operator='conv2d', reads=('x', *(p.role for p in parameters)), writes=('y',), flops=flops,
               dims={'m': m, 'n': n, 'k': k}, attributes=told),
        I={'x': Work(operator='conv2d', reads=('dy', 'weight'), flops=flops, dims={'m': m, 'n': k, 'k': n},
                     attributes={**told, 'shape': _local(local, 'x')})},
        W=Work(operator='conv2d', reads=('dy', 'x'), flops=flops, dims={'m': n, 'n': k, 'k': m},
               attributes={**told, 'kernel': layer.kernel}),
        parameters=tuple(parameters),
    )  # fmt: skip


def reduction(layer: Reduce, local: Local) -> Ops:
    """A sum or mean over dims; the gradient is the same everywhere along them."""
    dims, shape = sorted(layer.dims), local.shape('x')
    told: Told = {'dims': _text(dims)}
    if layer.mean:
        told['count'] = prod(shape[dim] for dim in dims)
    kind = 'mean' if layer.mean else 'sum'
    return Ops(
        F=Work(operator=kind, reads=('x',), writes=('y',), flops=local.elements('x'), attributes=told),
        I={'x': Work(operator=kind, reads=('dy',), flops=local.elements('y'),
                     attributes={**told, 'shape': _local(local, 'x')})},
    )  # fmt: skip


def batch_matmul(layer: MatMul, local: Local) -> Ops:
    """a · b for each index of the leading dims; the gradient of one is a product with the other."""
    a, b, dy = ('a', layer.transpose_a), ('b', layer.transpose_b), ('dy', False)

    def turned(factor: tuple[str, bool]) -> tuple[str, bool]:
        return factor[0], not factor[1]

    k = local.slice_shape('a')[-2 if layer.transpose_a else -1]
    flops = local.elements('y') * 2.0 * k
    left = (b, turned(dy)) if layer.transpose_a else (dy, turned(b))
    right = (turned(dy), a) if layer.transpose_b else (turned(a), dy)

    def product(one: tuple[str, bool], other: tuple[str, bool], result: str, suffix: str) -> Work:
        rows = local.slice_shape('y' if one[0] == 'dy' else one[0])
        n = local.slice_shape(result)[-1]
        told: Told = {'transpose_a': one[1], 'transpose_b': other[1]}
        dims = {'m': local.elements(result) // n, 'n': n, 'k': rows[-2 if one[1] else -1]}
        writes = ('y',) if result == 'y' else ()
        return Work(operator='batch_matmul', reads=(one[0], other[0]), writes=writes, flops=flops, dims=dims,
                    attributes=told, suffix=suffix)  # fmt: skip

    return Ops(
        F=product(a, b, 'y', ''),
        I={'a': product(*left, 'a', '.left'), 'b': product(*right, 'b', '.right')},
    )


def multiply(local: Local) -> Ops:
    """x · z, element by element; the gradient of one is a product with the other."""
    elements = local.elements('y')
    return Ops(
        F=Work(operator='multiply', reads=('x', 'z'), writes=('y',), flops=elements),
        I={
            'x': Work(operator='multiply', reads=('dy', 'z'), flops=elements, suffix='.left'),
            'z': Work(operator='multiply', reads=('dy', 'x'), flops=elements, suffix='.right'),
        },
    )


def add(local: Local) -> Ops:
    """x + z; the gradient goes to both."""
    work = Work(operator='residual', reads=('x', 'z'), writes=('y',), flops=local.elements('y'))
    return Ops(F=work, I={'x': None, 'z': None})


def _transpose(layer: Transpose, local: Local) -> Ops:
    order = layer.permutation
    back = sorted(range(len(order)), key=order.__getitem__)
    told: tuple[Told, Told] = ({'permutation': _text(order)}, {'permutation': _text(back)})
    return unary(local, 'transpose', forward=told[0], backward=told[1])


def _reshape(local: Local) -> Ops:
    return unary(local, 'reshape', forward={'shape': _local(local, 'y')}, backward={'shape': _local(local, 'x')})


def _mul(layer: Mul, local: Local) -> Ops:
    told: Told = {'factor': layer.factor}
    return unary(local, 'mul', flops=(1, 1), forward=told, backward=told)


def _local(local: Local, role: str) -> str:
    return _text((-1, *local.slice_shape(role)[1:]))


def _text(numbers: list[int] | tuple[int, ...]) -> str:
    return ' '.join(map(str, numbers))


TEMPLATES: Final[dict[type, Callable[[Any, Local], Ops]]] = {
    Dense: lambda layer, local: product_ops(local, (layer.outputs,), (layer.inputs,), bias=layer.bias),
    Conv2d: conv2d,
    MatMul: batch_matmul,
    Embedding: embedding,
    LayerNorm: lambda _, local: norm(local, 'norm'),
    RmsNorm: lambda _, local: norm(local, 'rms_norm'),
    Add: lambda _, local: add(local),
    Multiply: lambda _, local: multiply(local),
    Relu: lambda _, local: unary(local, 'relu', saves=('y',), flops=(1, 1)),
    Gelu: lambda _, local: unary(local, 'gelu', saves=('x',), flops=(10, 10)),
    Silu: lambda _, local: unary(local, 'silu', saves=('x',), flops=(5, 8)),
    Softmax: lambda _, local: unary(local, 'softmax', saves=('y',), flops=(5, 4), forward={'causal': False}),
    Mul: _mul,
    Transpose: _transpose,
    Reduce: reduction,
    Reshape: lambda _, local: _reshape(local),
    Flatten: lambda _, local: _reshape(local),
}
ROLES: Final[dict[type, tuple[str, ...]]] = {
    MatMul: ('a', 'b'),
    Embedding: ('tokens',),
    Add: ('x', 'z'),
    Multiply: ('x', 'z'),
}
