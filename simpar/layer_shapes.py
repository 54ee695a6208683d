"""Shapes of what a network's layers give, and what does not fit between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Final

from simpar.errors import Infeasible
from simpar.layers import (
    INPUT,
    Add,
    AnyLayer,
    Conv2d,
    Dense,
    Embedding,
    Flatten,
    Gelu,
    LayerNorm,
    MatMul,
    Mul,
    Multiply,
    Network,
    Reduce,
    Relu,
    Reshape,
    RmsNorm,
    Silu,
    Softmax,
    Transpose,
    layer_names,
    reads_of,
)

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Misfit:
    """What is wrong with a layer.

    Arguments: ``place`` of the layer; ``key`` of it to change, empty: the layer; ``what`` is wrong; ``remedy``.
    """

    place: int
    key: str
    what: str
    remedy: str


@dataclass(slots=True)
class Shapes:
    """Shapes by name, for so many samples, and all misfits; a layer that does not fit has no shape."""

    samples: int
    of: dict[str, Shape] = field(default_factory=dict)
    misfits: list[Misfit] = field(default_factory=list)

    def read(self, place: int, layer: AnyLayer, name: str, reads: tuple[str, ...], known: set[str]) -> None:
        """Add a layer's shape, or what is wrong with it."""
        for missing in (read for read in reads if read not in known):
            shown = ', '.join(sorted(known)[:12])
            self.misfits.append(Misfit(place, 'of', f'{missing} is no layer before this one', f'write one of {shown}'))
        if not all(read in self.of for read in reads):
            return
        try:
            shapes = [self.of[read] for read in reads]
            self.of[name] = _SHAPES[type(layer)](layer, self.samples, *shapes)
        except _WrongError as wrong:
            self.misfits.append(Misfit(place, *wrong.args))


class _WrongError(Exception):
    """Arguments: key, what is wrong, remedy."""


def shapes_of(network: Network, samples: int) -> Shapes:
    """The shape of every layer's result by name, and of the input; and what does not fit.

    Arguments: ``samples``, in dim 0 of the input.
    """
    found = Shapes(samples, {INPUT: (samples, *network.sample)})
    known = {INPUT}
    unread: dict[str, int] = {}
    named = zip(layer_names(network), network.layers, reads_of(network), strict=True)
    for place, (name, layer, reads) in enumerate(named):
        found.read(place, layer, name, reads, known)
        known.add(name)
        unread[name] = place
        for read in reads:
            unread.pop(read, None)
        if isinstance(layer, Embedding) and place:
            found.misfits.append(
                Misfit(place, '', 'an embedding reads the tokens of samples', 'make it the first layer')
            )
    for name, place in list(unread.items())[:-1]:
        what = f'nobody reads what {name} gives'
        found.misfits.append(Misfit(place, '', what, f'leave it out, or write of: {name} in a later layer'))
    return found


def network_shapes(network: Network, samples: int) -> dict[str, Shape]:
    """The shape of every layer's result by name, and of the input.

    Raises ``Infeasible`` with the first thing that does not fit.
    """
    found = shapes_of(network, samples)
    if found.misfits:
        wrong = found.misfits[0]
        raise Infeasible(f'{layer_names(network)[wrong.place]}: {wrong.what}; {wrong.remedy}')
    return found.of


def image_shape(layer: Conv2d, x: Shape) -> Shape:
    """The shape of a convolution's result."""
    height, width = (1 + (length + 2 * layer.padding - layer.kernel) // layer.stride for length in x[2:])
    return (x[0], layer.outputs, height, width)


def _same(layer: AnyLayer, samples: int, x: Shape) -> Shape:
    return x


def _dense(layer: Dense, samples: int, x: Shape) -> Shape:
    if len(x) != 2:
        what = f'reads values of {_shown(x)} a sample, but a dense layer takes rows of features'
        raise _WrongError('', what, f'put - reshape: {{shape: [-1, {x[-1]}]}} before it')
    if layer.inputs != x[1]:
        raise _WrongError('in', f'{layer.inputs} features, but what it reads has {x[1]}', f'write {x[1]}')
    return (x[0], layer.outputs)


def _convolved(layer: Conv2d, samples: int, x: Shape) -> Shape:
    if len(x) != 4:
        what = f'reads values of {_shown(x)} a sample, but a convolution takes images [channels, height, width]'
        raise _WrongError('', what, f'put - reshape: {{shape: [-1, {layer.inputs}, height, width]}} before it')
    if layer.inputs != x[1]:
        raise _WrongError('in', f'{layer.inputs} channels, but what it reads has {x[1]}', f'write {x[1]}')
    most = min(x[2:]) + 2 * layer.padding
    if layer.kernel > most:
        what = f'{layer.kernel} is larger than an image of {x[2]} × {x[3]} with a padding of {layer.padding}'
        raise _WrongError('kernel', what, f'write at most {most}')
    return image_shape(layer, x)


_VERBS: Final[dict[type, str]] = {Add: 'adds', Multiply: 'multiplies'}


def _alike(layer: Add | Multiply, samples: int, one: Shape, other: Shape) -> Shape:
    if one != other:
        what = f'{_VERBS[type(layer)]} values of {_shown(one)} and {_shown(other)} a sample'
        raise _WrongError('of', what, 'name two layers whose results have one shape')
    return one


def _product(layer: MatMul, samples: int, a: Shape, b: Shape) -> Shape:
    if len(a) < 3 or len(a) != len(b) or a[:-2] != b[:-2]:
        what = f'multiplies values of {_shown(a)} and {_shown(b)} a sample'
        raise _WrongError('of', what, 'name two of [batch..., m, k] and [batch..., k, n] with the same leading dims')
    m, k = a[-2:][::-1] if layer.transpose_a else a[-2:]
    inner, n = b[-2:][::-1] if layer.transpose_b else b[-2:]
    if k != inner:
        what = f'multiplies matrices [{m}, {k}] and [{inner}, {n}]'
        raise _WrongError('of', what, 'name two that fit, or write transpose_a or transpose_b: true')
    return (*a[:-2], m, n)


def _reshaped(layer: Reshape, samples: int, x: Shape) -> Shape:
    first, *rest = layer.shape
    if first != -1 or any(length < 1 for length in rest):
        what = f'dim 0 is -1, and the others are told (got {list(layer.shape)})'
        raise _WrongError('shape', what, f'write [-1, {", ".join(str(max(1, length)) for length in rest)}]')
    size = prod(rest)
    if prod(x) % size or ((prod(x) // size) % samples and samples % (prod(x) // size)):
        what = f'{list(x)} for {samples} samples does not become rows of {size} elements that keep samples apart'
        raise _WrongError(
            'shape', what, 'choose dims whose product divides a sample, or is so many samples that they divide a copy'
        )
    return (prod(x) // size, *rest)


def _transposed(layer: Transpose, samples: int, x: Shape) -> Shape:
    permutation = layer.permutation
    if sorted(permutation) != list(range(len(x))) or permutation[0]:
        what = f'{list(permutation)} is no order of {len(x)} dims that begins with 0'
        raise _WrongError('permutation', what, f'write e.g. {[0, *range(len(x) - 1, 0, -1)]}')
    return tuple(x[dim] for dim in permutation)


def _reduced(layer: Reduce, samples: int, x: Shape) -> Shape:
    gone, last = layer.dims, len(x) - 1
    if max(gone) > last:
        what = f'{list(gone)} of a value of {_shown(x)} a sample, whose dims are 1 to {last}'
        raise _WrongError('dims', what, f'write numbers from 1 to {last}')
    if len(set(gone)) < len(gone):
        raise _WrongError('dims', f'{list(gone)} names a dim twice', f'write {sorted(set(gone))}')
    if len(gone) == last and not layer.keep:
        raise _WrongError('dims', f'{list(gone)} leaves a sample no dim', 'write keep: true too, or fewer dims')
    return tuple(1 if dim in gone else length for dim, length in enumerate(x) if layer.keep or dim not in gone)


def _shown(shape: Shape) -> str:
    return 'shape ' + str(list(shape[1:]))


_SHAPES: Final[dict[type, Callable[..., Shape]]] = {
    Dense: _dense,
    Conv2d: _convolved,
    Add: _alike,
    Multiply: _alike,
    MatMul: _product,
    Reshape: _reshaped,
    Transpose: _transposed,
    Reduce: _reduced,
    Embedding: lambda layer, _, x: (*x, layer.width),
    Flatten: lambda layer, _, x: (x[0], prod(x[1:])),
    **dict.fromkeys((Relu, Gelu, Silu, Mul, LayerNorm, RmsNorm, Softmax), _same),
}
"""By kind, the shape of a layer's result, of samples and what it reads; they raise ``_WrongError``."""
