"""Networks: operators in order, each with its name and what it reads; the shapes of all values, and what misfits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Final

from pydantic import Field

from simpar.document import OneOf
from simpar.errors import Infeasible
from simpar.model.keys import Deviation, Width
from simpar.model.operators import KINDS
from simpar.model.operators.base import MisfitError, Operator
from simpar.model.operators.embedding import Embedding
from simpar.model.operators.linear import Dense
from simpar.model.operators.pointwise import Mul, Relu
from simpar.model.operators.shape import Flatten
from simpar.model.primitive import Shape

INPUT: Final = 'x'
"""The name of the network's input."""
Layer = Annotated[Operator, OneOf(**KINDS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Layers, each reading the one before it or those that it names.

    Arguments: ``input``, shape of a sample, where the first layer does not tell; ``weight_deviation``, standard
    deviation of the normal initial weights; biases start at zero, gains at one.
    """

    layers: Annotated[tuple[Layer, ...], Field(min_length=1, max_length=4096, description='in order')]
    input: Annotated[
        tuple[Width, ...],
        Field(max_length=7, examples=[[512]], description='shape of a sample; empty: what the first dense layer takes'),
    ] = ()
    weight_deviation: Deviation = 0.01

    def __post_init__(self) -> None:
        """A ``mul`` of two values is the ``multiply`` that it is a way to write."""
        meant = (layer.meant() if isinstance(layer, Mul) else layer for layer in self.layers)
        object.__setattr__(self, 'layers', tuple(meant))

    @property
    def dense(self) -> tuple[Dense, ...]:
        """Its dense layers."""
        return tuple(layer for layer in self.layers if isinstance(layer, Dense))

    @property
    def is_graph(self) -> bool:
        """Whether it has operators that degrees do not cut: others than a chain of dense layers and activations."""
        chained = all(isinstance(layer, Dense | Relu | Flatten) for layer in self.layers)
        return bool(self.input) or not chained or any(getattr(layer, 'of', '') for layer in self.layers)

    @property
    def sample(self) -> tuple[int, ...]:
        """Shape of a sample."""
        return self.input or (self.dense[0].inputs,)


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

    def read(self, place: int, layer: Operator, name: str, reads: tuple[str, ...], known: set[str]) -> None:
        """Add a layer's shape, or what is wrong with it."""
        for missing in (read for read in reads if read not in known):
            shown = ', '.join(sorted(known)[:12])
            self.misfits.append(Misfit(place, 'of', f'{missing} is no layer before this one', f'write one of {shown}'))
        if not all(read in self.of for read in reads):
            return
        try:
            self.of[name] = layer.result_shape(self.samples, *(self.of[read] for read in reads))
        except MisfitError as wrong:
            self.misfits.append(Misfit(place, wrong.key, wrong.what, wrong.remedy))


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
