"""Layers on the tape of strategies: what each kind emits where its inputs lie as its rule wants them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Final

from simpar.layout import TensorLayout
from simpar.lower.strategy import emit
from simpar.lower.strategy.move import Mover
from simpar.lower.strategy.place import Placed
from simpar.lower.strategy.tape import Laid, LaidTape
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


@dataclass(frozen=True, slots=True)
class At:
    """A layer at its place.

    Arguments: ``deviation`` of initial weights; ``layer``, of the kind that its emitter is for; ``reads``, as it is
    ``placed``; ``y``, its result to be, with what is still to be summed.
    """

    tape: LaidTape
    mover: Mover
    deviation: float
    layer: Any
    reads: list[Laid]
    y: Laid
    placed: Placed

    @property
    def x(self) -> Laid:
        """What it reads first."""
        return self.reads[0]

    @property
    def pending(self) -> Laid:
        """Its result under the name of what is still to be summed, if anything is."""
        return replace(self.y, name=f'{self.y.name}.partial') if self.y.layout.partial else self.y

    def weight(self, shape: tuple[int, ...], layout: TensorLayout) -> Laid:
        """Register its weight."""
        return self.tape.laid_parameter(f'{self.y.name}.weight', shape, layout, f'normal:{self.deviation}')

    def summed(self, y: Laid) -> Laid:
        """The operator's own sum, if there is one."""
        return self.mover.summed(y, self.placed.output, self.y.name)


def add_layer(at: At) -> Laid:
    """Emit a layer; its result."""
    return _EMITTERS[type(at.layer)](at)


def _dense(at: At) -> Laid:
    layer, name = at.layer, at.y.name
    rows, columns = at.placed.inputs[1].dims
    parameters = [at.weight((layer.outputs, layer.inputs), TensorLayout(at.tape.world, (columns, rows)))]
    if layer.bias:
        bias = TensorLayout(at.tape.world, at.placed.output.dims[1:])
        parameters.append(at.tape.laid_parameter(f'{name}.bias', (layer.outputs,), bias, 'zeros'))
    if not at.y.layout.partial:
        return emit.matmul(at.tape, at.x, parameters, at.y)
    y = at.summed(emit.matmul(at.tape, at.x, parameters[:1], at.pending))
    return emit.bias(at.tape, name, y, parameters[1]) if layer.bias else y


def _conv2d(at: At) -> Laid:
    layer, name = at.layer, at.y.name
    shape = (layer.outputs, layer.inputs, layer.kernel, layer.kernel)
    parameters = [at.weight(shape, at.placed.inputs[1])]
    if layer.bias:
        whole = TensorLayout(at.tape.world, ((),))
        parameters.append(at.tape.laid_parameter(f'{name}.bias', (layer.outputs,), whole, 'zeros'))
    told: emit.Attributes = {'stride': layer.stride, 'padding': layer.padding}
    return emit.conv2d(at.tape, at.x, parameters, at.y, told, {**told, 'shape': _local(at.x)})


def _matmul(at: At) -> Laid:
    a, b = emit.Factor(at.x, at.layer.transpose_a), emit.Factor(at.reads[1], at.layer.transpose_b)
    return at.summed(emit.batch_matmul(at.tape, a, b, at.pending))


def _embedding(at: At) -> Laid:
    weight = at.weight((at.layer.vocab, at.layer.width), at.placed.inputs[0])
    return at.summed(emit.embedding(at.tape, at.x, weight, at.pending))


def _reduce(at: At) -> Laid:
    dims, shape = sorted(at.layer.dims), at.x.shape
    told: emit.Attributes = {'dims': _text(dims)}
    if at.layer.mean:
        told['count'] = prod(shape[dim] for dim in dims)
    kind = 'mean' if at.layer.mean else 'sum'
    return at.summed(emit.reduction(at.tape, kind, at.x, at.pending, told, {**told, 'shape': _local(at.x)}))


Both = tuple[emit.Attributes | None, emit.Attributes | None]
"""What the kernels of an operator must know, forward and backward."""


def _unary(kind: emit.Unary, told: Callable[[At], Both] = lambda _: (None, None)) -> Callable[[At], Laid]:
    return lambda at: emit.unary(at.tape, kind, at.x, at.y, *told(at))


def _factor(at: At) -> Both:
    return {'factor': at.layer.factor}, {'factor': at.layer.factor}


def _permutation(at: At) -> Both:
    order = at.layer.permutation
    back = sorted(range(len(order)), key=order.__getitem__)
    return {'permutation': _text(order)}, {'permutation': _text(back)}


def _shapes(at: At) -> Both:
    return {'shape': _local(at.y)}, {'shape': _local(at.x)}


def _local(value: Laid) -> str:
    return _text([-1, *value.layout.slice_shape(value.shape)[1:]])


def _text(numbers: list[int] | tuple[int, ...]) -> str:
    return ' '.join(map(str, numbers))


_EMITTERS: Final[dict[type, Callable[[At], Laid]]] = {
    Dense: _dense,
    Conv2d: _conv2d,
    MatMul: _matmul,
    Embedding: _embedding,
    LayerNorm: lambda at: emit.layer_norm(at.tape, at.x, at.y),
    RmsNorm: lambda at: emit.rms_norm(at.tape, at.x, at.y),
    Add: lambda at: emit.add(at.tape, at.reads[0], at.reads[1], at.y),
    Multiply: lambda at: emit.multiply(at.tape, at.reads[0], at.reads[1], at.y),
    Relu: _unary(emit.RELU),
    Gelu: _unary(emit.GELU),
    Silu: _unary(emit.SILU),
    Softmax: _unary(emit.SOFTMAX, lambda _: ({'causal': False}, None)),
    Mul: _unary(emit.MUL, _factor),
    Transpose: _unary(emit.TRANSPOSE, _permutation),
    Reduce: _reduce,
    Reshape: _unary(emit.RESHAPE, _shapes),
    Flatten: _unary(emit.RESHAPE, _shapes),
}
