"""Networks: layers in order, each with its inputs, and the shapes of their values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from math import prod
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

from pydantic import Field

from simpar.document import Key, OneOf
from simpar.errors import Infeasible, Problem
from simpar.model.keys import Deviation, Width
from simpar.model.model import Asked, Graph, Model, Node, Source
from simpar.model.operators import KINDS, linear, pointwise, shape
from simpar.model.operators.base import MisfitError, Operator, Weighted
from simpar.model.primitive import Shape

if TYPE_CHECKING:
    from typing_extensions import Self


# The names of a network's layers, what each reads, the shapes of all values, and what does not fit.

INPUT: Final = 'x'
"""The name of the network's input."""
BLOCK: Final = re.compile(r'[A-Za-z]+\d+(?=_)')
"""What the names of operators of one block begin with."""


def layer_names(network: Network) -> tuple[str, ...]:
    """The names that programs give to layers: their own, or kind and count."""
    counts: dict[str, int] = {}
    names = []
    for layer in network.layers:
        kind = layer.key
        names.append(layer.name or f'{kind}{counts.get(kind, 0)}')
        counts[kind] = counts.get(kind, 0) + 1
    return tuple(names)


def reads_of(network: Network) -> Iterator[tuple[str, ...]]:
    """For each layer the names of what it reads."""
    before = INPUT
    for name, layer in zip(layer_names(network), network.layers, strict=True):
        yield layer.reads(before)
        before = name


def layers_of(network: Network) -> tuple[int, ...]:
    """For each operator of a network the layer that it belongs to.

    Operators whose names begin alike, as ``layer3_up`` and ``layer3_gelu``, are one layer; else a layer is a product
    with a weight and what follows it, as people count layers.
    """
    blocks = [match.group() if (match := BLOCK.match(name)) else '' for name in layer_names(network)]
    # One beginning for all tells no blocks apart: then products are counted.
    named = len(set(blocks)) > 1
    layers: list[int] = []
    layer = -1
    for place, operator in enumerate(network.layers):
        begins = (
            blocks[place] not in ('', blocks[place - 1] if place else '') if named else isinstance(operator, Weighted)
        )
        layer += begins or layer < 0
        layers.append(layer)
    return tuple(layers)


@dataclass(slots=True)
class Shapes:
    """Shapes by name, for so many samples, and what does not fit; a layer that does not fit has no shape.

    Each problem is at (place of the layer,), or at (place, key of the layer).
    """

    samples: int
    of: dict[str, Shape] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def read(self, place: int, layer: Operator, name: str, reads: tuple[str, ...], names: set[str]) -> None:
        """Add a layer's shape, or what is wrong with it."""
        for missing in (read for read in reads if read not in names):
            choices = ', '.join(sorted(names)[:12])
            self.problems.append(
                Problem((place, 'of'), f'{missing} is no layer before this one', f'write one of {choices}')
            )
        # A layer that does not fit is told once: those that read it have no fault of their own.
        if not all(read in self.of for read in reads):
            return
        try:
            self.of[name] = layer.result_shape(self.samples, *(self.of[read] for read in reads))
        except MisfitError as wrong:
            self.problems.append(Problem((place, *wrong.keys), wrong.what, wrong.instead))


def shapes_of(network: Network, samples: int) -> Shapes:
    """The shape of every layer's result by name, and of the input; and what does not fit.

    Arguments: ``samples``, in dim 0 of the input.
    """
    shapes = Shapes(samples, {INPUT: (samples, *network.sample)})
    names = {INPUT}
    unread: dict[str, int] = {}
    named = zip(layer_names(network), network.layers, reads_of(network), strict=True)
    for place, (name, layer, reads) in enumerate(named):
        shapes.read(place, layer, name, reads, names)
        names.add(name)
        unread[name] = place
        for read in reads:
            unread.pop(read, None)
        if isinstance(layer, linear.Embedding) and place:
            shapes.problems.append(
                Problem((place,), 'an embedding reads the tokens of samples', 'make it the first layer')
            )
    # The last one is what the loss reads.
    for name, place in list(unread.items())[:-1]:
        what = f'nobody reads what {name} gives'
        shapes.problems.append(Problem((place,), what, f'leave it out, or write of: {name} in a later layer'))
    return shapes


def network_shapes(network: Network, samples: int) -> dict[str, Shape]:
    """The shape of every layer's result by name, and of the input.

    Raises ``Infeasible`` with the first thing that does not fit.
    """
    shapes = shapes_of(network, samples)
    for problem in shapes.problems:
        raise Infeasible(str(problem.at(layer_names(network)[int(problem.key[0])], ())))
    return shapes.of


MNIST_PIXELS: Final = 28 * 28
MNIST_CLASSES: Final = 10
RESERVED: Final = frozenset({'x', 'target', 'labels', 'loss'})
"""Names that a program gives to tensors and operators of its own."""
MOST_ELEMENTS: Final = 2**56
"""Of one value in a step, so that no count of bytes overflows."""
NETWORK: Final[Key] = ('workload', 'network')


def _names(model: Network) -> Iterator[Problem]:
    # The input, target, labels and loss are tensors of every program.
    names = set(RESERVED)
    for place, name in enumerate(layer_names(model)):
        if name in names:
            yield Problem(model.file_key(place, 'name'), f'the name {name} is taken', 'write another name')
        names.add(name)


# chains of dense layers and activations


def _chain(job: Asked, model: Network) -> Iterator[Problem]:
    dense = [(place, layer) for place, layer in enumerate(model.layers) if isinstance(layer, linear.Dense)]
    if not dense:
        yield Problem(NETWORK, 'has no dense layer', 'add e.g. - dense: {in: 784, out: 10}')
        return
    for (_, before), (place, layer) in pairwise(dense):
        if layer.inputs != before.outputs:
            what = f'{layer.inputs} features, but the dense layer before gives {before.outputs}'
            yield Problem(model.file_key(place, 'in'), what, f'write {before.outputs}')
    if job.data == 'mnist':
        yield from _mnist(job, model, dense)


def _mnist(job: Asked, model: Network, dense: list[tuple[int, linear.Dense]]) -> Iterator[Problem]:
    (start, first), (end, last) = dense[0], dense[-1]
    if first.inputs != MNIST_PIXELS:
        what = f'{first.inputs} features, but an image of mnist has {MNIST_PIXELS}'
        yield Problem(model.file_key(start, 'in'), what, f'write {MNIST_PIXELS}')
    if last.outputs < MNIST_CLASSES:
        what = f'{last.outputs} results, but mnist has {MNIST_CLASSES} classes'
        yield Problem(model.file_key(end, 'out'), what, f'write at least {MNIST_CLASSES}')
    yield from _by_class(job)


def _by_class(job: Asked) -> Iterator[Problem]:
    if job.loss != 'cross-entropy':
        what = f'mnist has classes, which {job.loss} cannot take'
        yield Problem(('workload', 'loss'), what, 'write cross-entropy')


# graphs of operators


def _untold(model: Network) -> Problem:
    if isinstance(model.layers[0], linear.Embedding):
        what = 'how many tokens a sample has is not told'
        return Problem(NETWORK, what, 'write layers: [...] and, beside it, e.g. input: [128]')
    what = 'the shape of a sample is not told, by an input or a dense layer'
    return Problem(NETWORK, what, 'write layers: [...] and, beside it, e.g. input: [512]')


def _graph(job: Asked, model: Network) -> Iterator[Problem]:
    slices = job.slices
    # Where it does not, that is told elsewhere: shapes are still checked, with the batch as it is.
    divides = job.batch % slices == 0
    shapes = shapes_of(model, job.batch // slices if divides else job.batch)
    for problem in shapes.problems:
        place, *keys = problem.key
        yield replace(problem, where=model.file_key(int(place), *map(str, keys)))
    yield from _sizes(model, shapes, slices if divides else 1)
    last = shapes.of.get(layer_names(model)[-1])
    if job.data == 'mnist':
        yield from _digits(job, model, shapes, last)
    if last is not None and len(last) != 2 and job.loss == 'cross-entropy':
        what = f'cross-entropy takes rows of classes, but the last layer gives shape {list(last[1:])} a sample'
        yield Problem(('workload', 'loss'), what, f'end with - reshape: {{shape: [-1, {last[-1]}]}}, or write mse')


def _digits(job: Asked, model: Network, shapes: Shapes, last: Shape | None) -> Iterator[Problem]:
    """Images of mnist for a graph: one row of classes for each.

    Arguments: ``last``, shape of the result, where it is known.
    """
    yield from _by_class(job)
    if isinstance(model.layers[0], linear.Embedding):
        yield Problem(('workload', 'data'), 'mnist has images, and an embedding reads tokens', 'write random')
    elif prod(model.sample) != MNIST_PIXELS:
        what = f'{list(model.sample)} a sample, but an image of mnist has {MNIST_PIXELS} pixels'
        yield Problem((*NETWORK, 'input'), what, 'write [1, 28, 28]')
    if last is not None and len(last) == 2 and (last[0] != shapes.samples or last[1] < MNIST_CLASSES):
        what = f'mnist has one of {MNIST_CLASSES} classes for each of {shapes.samples} images, but the network ends '
        what += f'with {last[0]} rows of {last[1]}'
        yield Problem(('workload', 'data'), what, 'end with a row of 10 results for each image, or write random')


def _sizes(model: Network, shapes: Shapes, slices: int) -> Iterator[Problem]:
    """The first value that has too many elements is told."""
    if prod(shapes.of['x']) * slices > MOST_ELEMENTS:
        yield Problem((*NETWORK, 'input'), f'{list(model.input)} in a batch are too many', 'write a smaller shape')
        return
    for place, name in enumerate(layer_names(model)):
        if prod(shapes.of.get(name, ())) * slices > MOST_ELEMENTS:
            what = f'gives {list(shapes.of[name])}, too many elements'
            yield Problem(model.file_key(place), what, 'choose smaller dims or a smaller batch')
            return


# Networks: operators in order, as files list them.

Layer = Annotated[Operator, OneOf(**KINDS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Network(Model):
    """Layers, each reading the one before it or those that it names.

    Arguments:
        layers: in order.
        input: shape of a sample, where the first layer does not tell.
        init_std: standard deviation of the normal initial weights; biases start at zero, gains at one.
    """

    layers: Annotated[tuple[Layer, ...], Field(min_length=1, max_length=4096, description='in order')]
    input: Annotated[
        tuple[Width, ...],
        Field(max_length=7, examples=[[512]], description='shape of a sample; empty: what the first dense layer takes'),
    ] = ()
    init_std: Deviation = 0.01

    key: ClassVar[str] = 'network'

    def __post_init__(self) -> None:
        """A ``mul`` of two values is the ``multiply`` that it is a way to write."""
        meant = (layer.meant() if isinstance(layer, pointwise.Mul) else layer for layer in self.layers)
        # The class is frozen; before anyone has seen the value it may still be put in its plain form.
        object.__setattr__(self, 'layers', tuple(meant))

    @property
    def dense(self) -> tuple[linear.Dense, ...]:
        """Its dense layers."""
        return tuple(layer for layer in self.layers if isinstance(layer, linear.Dense))

    @property
    def is_graph(self) -> bool:
        """Whether it has operators that degrees do not split: others than a chain of dense layers and activations."""
        # Degrees know these chains (Megatron); everything else is split by batch or by strategies.
        chained = all(isinstance(layer, linear.Dense | pointwise.Relu | shape.Flatten) for layer in self.layers)
        return bool(self.input) or not chained or any(getattr(layer, 'of', '') for layer in self.layers)

    @property
    def sample(self) -> tuple[int, ...]:
        """Shape of a sample."""
        return self.input or (self.dense[0].inputs,)

    @property
    def tells_sample(self) -> bool:
        """Whether ``input`` says another shape than its first dense layer."""
        return bool(self.input) and not (self.dense and self.input == (self.dense[0].inputs,))

    @property
    def by_batch(self) -> bool:
        """Graphs are."""
        return self.is_graph

    @property
    def listed(self) -> tuple[Operator, ...]:
        """All layers."""
        return self.layers

    def with_listed(self, operators: Sequence[Operator]) -> Self:
        """Other layers."""
        return replace(self, layers=tuple(operators))

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Its layers."""
        named = zip(layer_names(self), self.layers, reads_of(self), layers_of(self), strict=True)
        return tuple(Node(name, operator, reads, layer) for name, operator, reads, layer in named)

    def graph(self, batch: int, *, digits: bool = False) -> Graph:
        """Of one input, tokens or features."""
        shapes, nodes = network_shapes(self, batch), self.nodes
        first = self.layers[0]
        tokens = f'tokens:{first.vocab}' if isinstance(first, linear.Embedding) else ''
        drawn = tokens or ('mnist' if digits else 'normal:1')
        return Graph(
            nodes=nodes,
            sources=(Source(INPUT, shapes[INPUT], drawn, bool(tokens)),),
            shapes=shapes,
            deviation=self.init_std,
            drawn_labels='classes',
            layers=nodes[-1].layer + 1,
            hands_on=False,
        )

    @property
    def counted(self) -> Mapping[str, Sequence[int]]:
        """In layers, operators and dense layers, each with what follows it."""
        # What stands before the first dense layer counts as −1, which is in the first stage.
        dense = accumulate((isinstance(layer, linear.Dense) for layer in self.layers), initial=-1)
        return {'layers': layers_of(self), 'operators': range(len(self.layers)), 'dense layers': tuple(dense)[1:]}

    def settled(self) -> Self:
        """With the shape of a sample, but for a chain, which an input would make a graph that is lowered otherwise."""
        return replace(self, input=self.sample) if self.is_graph else self

    def in_short(self, tree: Any) -> Any:
        """The list of its layers where it has nothing else."""
        return tree['layers'] if self == Network(layers=self.layers) else tree

    def file_key(self, place: int, key: str = '') -> Key:
        """Where a file has a layer, or a key of it."""
        return ('workload', self.key, 'layers', place, self.layers[place].key, *((key,) if key else ()))

    def problems(self, job: Asked) -> Iterator[Problem]:
        """Everything that does not fit, each at the key to change; strategies are tried when they are lowered."""
        # Shapes are found by name: with two layers of one name they would blame the wrong one.
        clashes = list(_names(self))
        yield from clashes
        if not self.is_graph:
            yield from _chain(job, self)
        elif not clashes:
            # Tokens have no features that a dense layer could tell.
            is_told = self.input or (self.dense and not isinstance(self.layers[0], linear.Embedding))
            yield from _graph(job, self) if is_told else [_untold(self)]
