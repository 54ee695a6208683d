"""Operators on the tape of strategies: the ops of F, I and W on slices, by the operators' own rules.

Work counts: a matrix product is 2·m·n·k floating-point operations; others move what they read and write.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from simpar.layout import TensorLayout
from simpar.lower.rules import EPSILON
from simpar.lower.strategy.tape import Laid, LaidTape
from simpar.program.op import Attribute, Phase

Attributes = dict[str, Attribute]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unary:
    """An operator of one value.

    Arguments: ``saves``: its backward reads its ``input``, its ``output``, or neither; ``flops`` an element, forward
    and backward.
    """

    operator: str
    saves: str = ''
    flops: tuple[float, float] = (0.0, 0.0)


RELU = Unary(operator='relu', saves='output', flops=(1, 1))
GELU = Unary(operator='gelu', saves='input', flops=(10, 10))
SILU = Unary(operator='silu', saves='input', flops=(5, 8))
SOFTMAX = Unary(operator='softmax', saves='output', flops=(5, 4))
MUL = Unary(operator='mul', flops=(1, 1))
TRANSPOSE = Unary(operator='transpose')
RESHAPE = Unary(operator='reshape')


def unary(
    tape: LaidTape,
    kind: Unary,
    x: Laid,
    y: Laid,
    forward: Attributes | None = None,
    backward: Attributes | None = None,
) -> Laid:
    """Emit an operator of one value; named after its result.

    Arguments: attributes of its ``forward`` and ``backward``.
    """
    tape.lay(y)
    if kind.saves == 'output':
        tape.saved.add(y.name)
    elements = tape.held(y.name)
    tape.work(y.name, kind.operator, 'F', [x.name], [y.name], flops=kind.flops[0] * elements, attributes=forward)

    def back(dy: Laid) -> None:
        if x.needs_gradient:
            dx = tape.new_gradient(x, y.name)
            saved = {'input': [x.name], 'output': [y.name]}.get(kind.saves, [])
            tape.work(y.name, kind.operator, 'I', [dy.name, *saved], [dx.name], flops=kind.flops[1] * elements,
                      attributes=backward)  # fmt: skip
            tape.give(x, dx)

    tape.backward_of(y, back)
    return y


def add(tape: LaidTape, x: Laid, z: Laid, y: Laid) -> Laid:
    """y = x + z, all in one layout; the gradient goes to both."""
    tape.lay(y)
    tape.work(y.name, 'residual', 'F', [x.name, z.name], [y.name], flops=tape.held(y.name))

    def back(dy: Laid) -> None:
        tape.give(x, dy)
        tape.give(z, dy)

    tape.backward_of(y, back)
    return y


def multiply(tape: LaidTape, x: Laid, z: Laid, y: Laid) -> Laid:
    """y = x · z, element by element, all in one layout; the gradient of one is a product with the other."""
    tape.lay(y)
    elements = tape.held(y.name)
    tape.work(y.name, 'multiply', 'F', [x.name, z.name], [y.name], flops=elements)

    def back(dy: Laid) -> None:
        for side, factor, other in (('left', x, z), ('right', z, x)):
            if factor.needs_gradient:
                name = f'{y.name}.{side}'
                gradient = tape.new_gradient(factor, name)
                tape.work(name, 'multiply', 'I', [dy.name, other.name], [gradient.name], flops=elements)
                tape.give(factor, gradient)

    tape.backward_of(y, back)
    return y


@dataclass(frozen=True, slots=True, kw_only=True)
class _Norm:
    """A normalisation of the last dim, which is whole.

    Arguments: ``parameters`` with what they begin as, the gain first; ``kept``, numbers of a row that its backward
    reads; ``flops`` an element, of F, I and W.
    """

    operator: str
    parameters: dict[str, str]
    kept: tuple[str, ...]
    flops: tuple[int, int, int]


_LAYER_NORM = _Norm(
    operator='norm', parameters={'gain': 'ones', 'bias': 'zeros'}, kept=('mean', 'rstd'), flops=(8, 12, 4)
)
_RMS_NORM = _Norm(operator='rms_norm', parameters={'gain': 'ones'}, kept=('rstd',), flops=(5, 9, 3))


def layer_norm(tape: LaidTape, x: Laid, y: Laid) -> Laid:
    """LayerNorm over the last dim, which is whole."""
    return _norm(tape, _LAYER_NORM, x, y)


def rms_norm(tape: LaidTape, x: Laid, y: Laid) -> Laid:
    """RMSNorm over the last dim, which is whole."""
    return _norm(tape, _RMS_NORM, x, y)


def _norm(tape: LaidTape, kind: _Norm, x: Laid, y: Laid) -> Laid:
    attributes: Attributes = {'epsilon': EPSILON}
    whole = TensorLayout(tape.world, ((),))
    parameters = [
        tape.laid_parameter(f'{y.name}.{part}', y.shape[-1:], whole, initial).name
        for part, initial in kind.parameters.items()
    ]
    tape.lay(y)
    column = TensorLayout(tape.world, (*y.layout.dims[:-1], ()))
    kept = [tape.lay(Laid(f'{y.name}.{part}', (*y.shape[:-1], 1), column)).name for part in kind.kept]
    forward, inputs, weights = (flops * tape.held(y.name) for flops in kind.flops)
    tape.work(y.name, kind.operator, 'F', [x.name, *parameters], [y.name, *kept], flops=forward,
              attributes=attributes)  # fmt: skip

    def back(dy: Laid) -> None:
        if x.needs_gradient:
            dx = tape.new_gradient(x, y.name)
            tape.work(y.name, kind.operator, 'I', [dy.name, x.name, parameters[0], *kept], [dx.name], flops=inputs,
                      attributes=attributes)  # fmt: skip
            tape.give(x, dx)
        tape.work(y.name, kind.operator, 'W', [dy.name, x.name, *kept], flops=weights, attributes=attributes,
                  accumulates=[f'd:{parameter}' for parameter in parameters])  # fmt: skip

    tape.backward_of(y, back)
    return y


def embedding(tape: LaidTape, tokens: Laid, weight: Laid, y: Laid) -> Laid:
    """Rows of a weight; where it is cut by rows, zeros for the tokens of others."""
    name = y.name.removesuffix('.partial')
    rows = weight.layout.dims[0]
    partition: Attributes = {'partition': tape.partition(rows)} if rows else {}
    tape.lay(y)
    moved = 2.0 * tape.held_bytes(y.name) + tape.held_bytes(tokens.name)
    tape.work(name, 'embedding', 'F', [tokens.name, weight.name], [y.name], moved=moved, attributes=partition)

    def back(dy: Laid) -> None:
        tape.work(name, 'embedding', 'W', [tokens.name, dy.name], accumulates=[f'd:{weight.name}'], moved=1.5 * moved,
                  flops=tape.held(y.name), attributes=partition)  # fmt: skip

    tape.backward_of(y, back)
    return y


def matmul(tape: LaidTape, x: Laid, parameters: list[Laid], y: Laid) -> Laid:
    """x · weightᵀ, and a bias where there are two parameters."""
    name = y.name.removesuffix('.partial')
    tape.lay(y)
    weight = parameters[0]
    n, k = weight.layout.slice_shape(weight.shape)
    m = tape.held(x.name) // k
    flops, one = 2.0 * m * n * k, {'outputs': 1}
    tape.work(name, 'matmul', 'F', [x.name, *(p.name for p in parameters)], [y.name], flops=flops,
              dims={'m': m, 'n': n, 'k': k}, attributes={**one})  # fmt: skip

    def back(dy: Laid) -> None:
        if x.needs_gradient:
            dx = tape.new_gradient(x, name)
            tape.work(name, 'matmul', 'I', [dy.name, weight.name], [dx.name], flops=flops,
                      dims={'m': m, 'n': k, 'k': n}, attributes={**one})  # fmt: skip
            tape.give(x, dx)
        gradients = [f'd:{parameter.name}' for parameter in parameters]
        tape.work(name, 'matmul', 'W', [dy.name, x.name], accumulates=gradients, flops=flops,
                  dims={'m': n, 'n': k, 'k': m}, attributes={**one})  # fmt: skip

    tape.backward_of(y, back)
    return y


def conv2d(tape: LaidTape, x: Laid, parameters: list[Laid], y: Laid, forward: Attributes, backward: Attributes) -> Laid:
    """A convolution of images with a whole weight, and a bias where there are two parameters.

    Its dims are those of the product that it is: of windows, one for each place of its result, and the weight.
    """
    name, weight = y.name, parameters[0]
    tape.lay(y)
    n, k = weight.shape[0], prod(weight.shape[1:])
    m = tape.held(y.name) // n
    flops = 2.0 * m * n * k
    tape.work(name, 'conv2d', 'F', [x.name, *(p.name for p in parameters)], [y.name], flops=flops,
              dims={'m': m, 'n': n, 'k': k}, attributes=forward)  # fmt: skip

    def back(dy: Laid) -> None:
        if x.needs_gradient:
            dx = tape.new_gradient(x, name)
            tape.work(name, 'conv2d', 'I', [dy.name, weight.name], [dx.name], flops=flops,
                      dims={'m': m, 'n': k, 'k': n}, attributes=backward)  # fmt: skip
            tape.give(x, dx)
        tape.work(name, 'conv2d', 'W', [dy.name, x.name], accumulates=[f'd:{p.name}' for p in parameters],
                  flops=flops, dims={'m': n, 'n': k, 'k': m},
                  attributes={**forward, 'kernel': weight.shape[-1]})  # fmt: skip

    tape.backward_of(y, back)
    return y


def bias(tape: LaidTape, name: str, y: Laid, shift: Laid) -> Laid:
    """y + bias, behind the sum of a product."""
    z = tape.lay(Laid(f'{name}.biased', y.shape, y.layout))
    elements = tape.held(z.name)
    tape.work(f'{name}.bias', 'bias', 'F', [y.name, shift.name], [z.name], flops=elements)

    def back(dz: Laid) -> None:
        tape.give(y, dz)
        tape.work(f'{name}.bias', 'bias', 'W', [dz.name], accumulates=[f'd:{shift.name}'], flops=elements)

    tape.backward_of(z, back)
    return z


def reduction(tape: LaidTape, operator: str, x: Laid, y: Laid, forward: Attributes, backward: Attributes) -> Laid:
    """A sum or mean over dims; the gradient is the same everywhere along them."""
    name = y.name.removesuffix('.partial')
    tape.lay(y)
    tape.work(name, operator, 'F', [x.name], [y.name], flops=tape.held(x.name), attributes=forward)

    def back(dy: Laid) -> None:
        if x.needs_gradient:
            dx = tape.new_gradient(x, name)
            tape.work(name, operator, 'I', [dy.name], [dx.name], flops=tape.held(dy.name), attributes=backward)
            tape.give(x, dx)

    tape.backward_of(y, back)
    return y


@dataclass(frozen=True, slots=True)
class Factor:
    """An operand of a product of values, its last two dims swapped or not."""

    value: Laid
    swapped: bool = False


def batch_matmul(tape: LaidTape, a: Factor, b: Factor, y: Laid) -> Laid:
    """a · b for each index of the leading dims, of values both; the backward of one is a product of the other."""
    name = y.name.removesuffix('.partial')
    tape.lay(y)
    product = _Product(tape, tape.held(y.name) * 2.0 * _contracted(a))
    product.emit(name, 'F', a, b, y)

    def back(dy: Laid) -> None:
        grown = Factor(dy)
        left = (b, _turned(grown)) if a.swapped else (grown, _turned(b))
        right = (_turned(grown), a) if b.swapped else (_turned(a), grown)
        for side, factor, operands in (('left', a, left), ('right', b, right)):
            if factor.value.needs_gradient:
                gradient = tape.new_gradient(factor.value, f'{name}.{side}')
                product.emit(f'{name}.{side}', 'I', *operands, gradient)
                tape.give(factor.value, gradient)

    tape.backward_of(y, back)
    return y


def _turned(factor: Factor) -> Factor:
    return Factor(factor.value, not factor.swapped)


def _contracted(a: Factor) -> int:
    """Elements of a rank's slice of the dim that is summed over."""
    return a.value.layout.slice_shape(a.value.shape)[-2 if a.swapped else -1]


@dataclass(frozen=True, slots=True)
class _Product:
    tape: LaidTape
    flops: float

    def emit(self, name: str, phase: Phase, a: Factor, b: Factor, y: Laid) -> None:
        k = _contracted(a)
        n = y.layout.slice_shape(y.shape)[-1]
        m = self.tape.held(y.name) // n
        self.tape.work(name, 'batch_matmul', phase, [a.value.name, b.value.name], [y.name], flops=self.flops,
                       dims={'m': m, 'n': n, 'k': k},
                       attributes={'transpose_a': a.swapped, 'transpose_b': b.swapped})  # fmt: skip
