"""Whether the layers of a network fit together: their names, the shapes that they read, the loss, the data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Final

from simpar.document import Key
from simpar.errors import Problem
from simpar.model.model import Asked
from simpar.model.operators.embedding import Embedding
from simpar.model.operators.linear import Dense
from simpar.model.primitive import Shape
from simpar.model.shapes import Shapes, layer_names, shapes_of

if TYPE_CHECKING:
    from simpar.model.graph import Network

MNIST_PIXELS: Final = 28 * 28
MNIST_CLASSES: Final = 10
RESERVED: Final = frozenset({'x', 'target', 'labels', 'loss'})
"""Names that a program gives to tensors and operators of its own."""
MOST_ELEMENTS: Final = 2**56
"""Of one value in a step, so that no count of bytes overflows."""
NETWORK: Final[Key] = ('workload', 'network')


def network_fits(model: Network, asked: Asked) -> Iterator[Problem]:
    """Everything that does not fit, each at the key to change; strategies are tried when they are lowered."""
    # Shapes are found by name: with two layers of one name they would blame the wrong one.
    clashes = list(_names(model))
    yield from clashes
    if not model.is_graph:
        yield from _chain(asked, model)
        return
    if _sample_is_told(model) and not clashes:
        yield from _graph(asked, model)
    elif not clashes:
        yield _untold(model)


def _names(model: Network) -> Iterator[Problem]:
    # The input, target, labels and loss are tensors of every program.
    taken = set(RESERVED)
    for place, name in enumerate(layer_names(model)):
        if name in taken:
            yield Problem(model.file_key(place, 'name'), f'the name {name} is taken', 'write another name')
        taken.add(name)


# chains of dense layers and activations


def _chain(asked: Asked, model: Network) -> Iterator[Problem]:
    dense = [(place, layer) for place, layer in enumerate(model.layers) if isinstance(layer, Dense)]
    if not dense:
        yield Problem(NETWORK, 'has no dense layer', 'add e.g. - dense: {in: 784, out: 10}')
        return
    for (_, before), (place, layer) in pairwise(dense):
        if layer.inputs != before.outputs:
            what = f'{layer.inputs} features, but the dense layer before gives {before.outputs}'
            yield Problem(model.file_key(place, 'in'), what, f'write {before.outputs}')
    if asked.data == 'mnist':
        yield from _mnist(asked, model, dense)


def _mnist(asked: Asked, model: Network, dense: list[tuple[int, Dense]]) -> Iterator[Problem]:
    (start, first), (end, last) = dense[0], dense[-1]
    if first.inputs != MNIST_PIXELS:
        what = f'{first.inputs} features, but an image of mnist has {MNIST_PIXELS}'
        yield Problem(model.file_key(start, 'in'), what, f'write {MNIST_PIXELS}')
    if last.outputs < MNIST_CLASSES:
        what = f'{last.outputs} results, but mnist has {MNIST_CLASSES} classes'
        yield Problem(model.file_key(end, 'out'), what, f'write at least {MNIST_CLASSES}')
    yield from _by_class(asked)


def _by_class(asked: Asked) -> Iterator[Problem]:
    if asked.loss != 'cross-entropy':
        what = f'mnist has classes, which {asked.loss} cannot take'
        yield Problem(('workload', 'loss'), what, 'write cross-entropy')


# graphs of operators


def _sample_is_told(model: Network) -> bool:
    """Tokens have no features that a dense layer could tell."""
    return bool(model.input or (model.dense and not isinstance(model.layers[0], Embedding)))


def _untold(model: Network) -> Problem:
    if isinstance(model.layers[0], Embedding):
        what = 'how many tokens a sample has is not told'
        return Problem(NETWORK, what, 'write layers: [...] and, beside it, e.g. input: [128]')
    what = 'the shape of a sample is not told, by an input or a dense layer'
    return Problem(NETWORK, what, 'write layers: [...] and, beside it, e.g. input: [512]')


def _graph(asked: Asked, model: Network) -> Iterator[Problem]:
    slices = asked.slices
    # Where it does not, that is told elsewhere: shapes are still checked, with the batch as it is.
    divides = asked.batch % slices == 0
    found = shapes_of(model, asked.batch // slices if divides else asked.batch)
    for problem in found.problems:
        place, *keys = problem.key
        yield replace(problem, where=model.file_key(int(place), *map(str, keys)))
    yield from _sizes(model, found, slices if divides else 1)
    last = found.of.get(layer_names(model)[-1])
    if asked.data == 'mnist':
        yield from _digits(asked, model, found, last)
    if last is not None and len(last) != 2 and asked.loss == 'cross-entropy':
        what = f'cross-entropy takes rows of classes, but the last layer gives shape {list(last[1:])} a sample'
        yield Problem(('workload', 'loss'), what, f'end with - reshape: {{shape: [-1, {last[-1]}]}}, or write mse')


def _digits(asked: Asked, model: Network, found: Shapes, last: Shape | None) -> Iterator[Problem]:
    """Images of mnist for a graph: one row of classes for each.

    Arguments: ``last``, shape of the result, where it is known.
    """
    yield from _by_class(asked)
    if isinstance(model.layers[0], Embedding):
        yield Problem(('workload', 'data'), 'mnist has images, and an embedding reads tokens', 'write random')
    elif prod(model.sample) != MNIST_PIXELS:
        what = f'{list(model.sample)} a sample, but an image of mnist has {MNIST_PIXELS} pixels'
        yield Problem((*NETWORK, 'input'), what, 'write [1, 28, 28]')
    if last is not None and len(last) == 2 and (last[0] != found.samples or last[1] < MNIST_CLASSES):
        what = f'mnist has one of {MNIST_CLASSES} classes for each of {found.samples} images, but the network ends '
        what += f'with {last[0]} rows of {last[1]}'
        yield Problem(('workload', 'data'), what, 'end with a row of 10 results for each image, or write random')


def _sizes(model: Network, found: Shapes, slices: int) -> Iterator[Problem]:
    """The first value that has too many elements is told."""
    if prod(found.of['x']) * slices > MOST_ELEMENTS:
        yield Problem((*NETWORK, 'input'), f'{list(model.input)} in a batch are too many', 'write a smaller shape')
        return
    for place, name in enumerate(layer_names(model)):
        if prod(found.of.get(name, ())) * slices > MOST_ELEMENTS:
            what = f'gives {list(found.of[name])}, too many elements'
            yield Problem(model.file_key(place), what, 'choose smaller dims or a smaller batch')
            return
