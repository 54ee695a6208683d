"""Operators on the tape: how each may be cut over the tensor ranks, and the local work of F, I and W.

Work counts: a matrix product is 2·m·n·k floating-point operations; an elementwise operator moves what it reads and
writes.
"""

from __future__ import annotations

from math import prod

from simpar.lower.dropout import Dropout, undrop
from simpar.lower.mesh import TENSOR
from simpar.lower.tape import Tape
from simpar.lower.value import Value
from simpar.program.op import Attribute

EPSILON = 1e-5


def matmul(
    tape: Tape,
    name: str,
    x: Value,
    outputs: tuple[int, ...],
    inputs: tuple[int, ...],
    *,
    deviation: float,
    bias: bool = True,
    cut: str = 'whole',
    weight: str = '',
) -> Value:
    """y = x · weightᵀ + bias, the weight of shape [outputs..., inputs...].

    Arguments: ``cut``: ``column`` cuts the first output dim and gives a cut y; ``row`` cuts the first input dim and
    gives a partial y, whose bias is left to the operator behind the sum; ``whole`` cuts nothing; ``local`` neither,
    and takes x as it lies, e.g. cut along the sequence.
    """
    weight_cut = {'column': 0, 'row': len(outputs)}.get(cut)
    w = tape.parameter(weight or f'{name}.weight', (*outputs, *inputs), f'normal:{deviation}', weight_cut)
    parameters = [w]
    if bias and cut != 'row':
        parameters.append(tape.parameter(f'{name}.bias', outputs, 'zeros', weight_cut))
    last = len(x.shape) - 1
    source = x
    x = tape.scattered(x, last) if cut == 'row' else x if cut == 'local' else tape.whole(x)
    y = tape.activation(
        Value(
            name=f'{name}.partial' if cut == 'row' else name,
            shape=(*x.shape[:-1], prod(outputs)),
            cut={'column': last, 'local': x.cut}.get(cut),
            partial=cut == 'row',
        )
    )
    m, n, k = _product(tape, x, y)
    tape.compute(name, 'matmul', 'F', [x, *parameters], [y], flops=2.0 * m * n * k, dims={'m': m, 'n': n, 'k': k},
                 attributes={'outputs': len(outputs)})  # fmt: skip

    def backward() -> None:
        dy = tape.gradient(y)
        if dy is None:
            return
        saved = x
        if x.gathered:
            saved = Value(f'{source.name}.again', x.shape, gathered=True)
            tape.collective('all_gather', 'W', source, saved, dim=source.cut or 0)
        if x.needs_gradient:
            dx = tape.activation(x.like(f'd:{x.name}@{name}', partial=cut == 'column' or dy.partial))
            tape.compute(name, 'matmul', 'I', [dy, w], [dx], flops=2.0 * m * n * k, dims={'m': m, 'n': k, 'k': n},
                         attributes={'outputs': len(outputs)})  # fmt: skip
            tape.contribute(x, dx)
        gradients = tape.weight_gradients(parameters, dy, sequence_cut=x.cut == 1 < last)
        tape.compute(name, 'matmul', 'W', [dy, saved], [], flops=2.0 * m * n * k, dims={'m': n, 'n': k, 'k': m},
                     accumulates=gradients, attributes={'outputs': len(outputs)})  # fmt: skip

    tape.on_backward(backward)
    return y


def _product(tape: Tape, x: Value, y: Value) -> tuple[int, int, int]:
    """m, n, k of the local product of one copy."""
    k = x.shape[-1] // (tape.mesh.tensor if x.cut == len(x.shape) - 1 else 1)
    n = y.shape[-1] // (tape.mesh.tensor if y.cut == len(y.shape) - 1 else 1)
    return tape.elements(x) // k, n, k


def elementwise(tape: Tape, name: str, operator: str, x: Value, *, flops: float, saves: str) -> Value:
    """relu or gelu; ``saves`` says what the backward reads: ``input`` or ``output``."""
    y = tape.activation(x.like(name))
    if saves == 'output':
        tape.saved.add(y.name)
    tape.compute(name, operator, 'F', [x], [y], flops=flops * tape.elements(x))

    def backward() -> None:
        dy = tape.gradient(y)
        if dy is not None and x.needs_gradient:
            dx = tape.activation(dy.like(f'd:{x.name}@{name}'))
            saved = x if saves == 'input' else y
            tape.compute(name, operator, 'I', [dy, saved], [dx], flops=flops * tape.elements(x))
            tape.contribute(x, dx)

    tape.on_backward(backward)
    return y


def relu(tape: Tape, name: str, x: Value) -> Value:
    """max(x, 0)."""
    return elementwise(tape, name, 'relu', x, flops=1, saves='output')


def gelu(tape: Tape, name: str, x: Value) -> Value:
    """x · Φ(x); about ten operations an element."""
    return elementwise(tape, name, 'gelu', x, flops=10, saves='input')


def bias(tape: Tape, name: str, x: Value, shape: tuple[int, ...]) -> Value:
    """x + bias, behind the sum of a row-cut matmul."""
    b = tape.parameter(f'{name}.bias', shape, 'zeros')
    y = tape.activation(x.like(f'{name}.biased'))
    tape.compute(f'{name}.bias', 'bias', 'F', [x, b], [y], flops=tape.elements(x))

    def backward() -> None:
        dy = tape.gradient(y)
        if dy is not None:
            tape.contribute(x, dy)
            _bias_gradient(tape, f'{name}.bias', 'bias', b, dy)

    tape.on_backward(backward)
    return y


def residual(
    tape: Tape,
    name: str,
    x: Value,
    z: Value,
    *,
    bias_of: str = '',
    width: int = 0,
    dropout: Dropout | None = None,
) -> Value:
    """x + z (+ bias of the row-cut matmul that made z); with dropout, x + what is left of z and its bias."""
    parameters = [tape.parameter(f'{bias_of}.bias', (width,), 'zeros')] if bias_of else []
    y = tape.activation(x.like(name))
    reads, writes, attributes = [x, z, *parameters], [y], {}
    if dropout is not None:
        reads.append(dropout.keys)
        writes.append(mask := dropout.mask(tape, name, x))
        attributes = dropout.attributes(name, x.cut)
    flops = tape.elements(x) * (1 + len(parameters) + 2 * (dropout is not None))
    tape.compute(name, 'residual', 'F', reads, writes, flops=flops, attributes=attributes)

    def backward() -> None:
        dy = tape.gradient(y)
        if dy is None:
            return
        tape.contribute(x, dy)
        dz = dy if dropout is None else undrop(tape, name, 'residual', z, dy, mask, dropout)
        tape.contribute(z, dz)
        for parameter in parameters:
            _bias_gradient(tape, name, 'residual', parameter, dz)

    tape.on_backward(backward)
    return y


def _bias_gradient(tape: Tape, name: str, operator: str, parameter: Value, dy: Value) -> None:
    gradients = tape.weight_gradients([parameter], dy, sequence_cut=dy.cut == 1 < len(dy.shape) - 1)
    tape.compute(name, operator, 'W', [dy], [], flops=tape.elements(dy), accumulates=gradients)


def norm(tape: Tape, name: str, x: Value) -> Value:
    """LayerNorm over the last dim, which may not be cut."""
    width = x.shape[-1]
    attributes: dict[str, Attribute] = {'epsilon': EPSILON}
    gain = tape.parameter(f'{name}.gain', (width,), 'ones')
    shift = tape.parameter(f'{name}.bias', (width,), 'zeros')
    y = tape.activation(x.like(name))
    mean, rstd = (tape.activation(Value(f'{name}.{part}', (*x.shape[:-1], 1), cut=x.cut)) for part in ('mean', 'rstd'))
    tape.compute(name, 'norm', 'F', [x, gain, shift], [y, mean, rstd], flops=8 * tape.elements(x),
                 attributes=attributes)  # fmt: skip

    def backward() -> None:
        dy = tape.gradient(y)
        if dy is None:
            return
        dx = tape.activation(dy.like(f'd:{x.name}@{name}'))
        tape.compute(name, 'norm', 'I', [dy, x, gain, mean, rstd], [dx], flops=12 * tape.elements(x),
                     attributes=attributes)  # fmt: skip
        tape.contribute(x, dx)
        gradients = tape.weight_gradients([gain, shift], dy, sequence_cut=x.cut is not None)
        tape.compute(name, 'norm', 'W', [dy, x, mean, rstd], [], flops=4 * tape.elements(x), accumulates=gradients,
                     attributes=attributes)  # fmt: skip

    tape.on_backward(backward)
    return y


def embedding(tape: Tape, name: str, tokens: Value, vocab: int, width: int, *, deviation: float, cut: bool) -> Value:
    """Rows of the weight; cut by rows it gives a partial sum."""
    w = tape.parameter(f'{name}.weight', (vocab, width), f'normal:{deviation}', 0 if cut else None)
    y = tape.activation(Value(f'{name}.partial' if cut else name, (*tokens.shape, width), partial=cut))
    partition: dict[str, Attribute] = {'partition': TENSOR} if cut else {}
    moved = 2.0 * tape.size(y) + tape.size(tokens)
    tape.compute(name, 'embedding', 'F', [tokens, w], [y], moved=moved, attributes=partition)

    def backward() -> None:
        dy = tape.gradient(y)
        if dy is not None:
            gradients = tape.weight_gradients([w], dy)
            tape.compute(name, 'embedding', 'W', [tokens, dy], [], flops=tape.elements(y), moved=1.5 * moved,
                         accumulates=gradients, attributes=partition)  # fmt: skip

    tape.on_backward(backward)
    return y


def position(tape: Tape, name: str, x: Value, *, deviation: float) -> Value:
    """x + weight[position], the rows of this rank's part of the sequence."""
    w = tape.parameter(f'{name}.weight', x.shape[1:], f'normal:{deviation}')
    y = tape.activation(x.like(f'{name}.added'))
    partition: dict[str, Attribute] = {'partition': TENSOR} if x.cut == 1 else {}
    tape.compute(name, 'position', 'F', [x, w], [y], flops=tape.elements(x), attributes=partition)

    def backward() -> None:
        dy = tape.gradient(y)
        if dy is not None:
            tape.contribute(x, dy)
            gradients = tape.weight_gradients([w], dy, sequence_cut=x.cut == 1)
            tape.compute(
                name, 'position', 'W', [dy], [], flops=tape.elements(x), accumulates=gradients, attributes=partition
            )

    tape.on_backward(backward)
    return y
