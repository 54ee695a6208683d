"""The names of a network's layers, what each reads, the shapes of all values, and what does not fit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from simpar.errors import Infeasible, Problem
from simpar.model.operators.base import MisfitError, Operator, Weighted
from simpar.model.operators.embedding import Embedding
from simpar.model.primitive import Shape

if TYPE_CHECKING:
    from simpar.model.graph import Network

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
    blocks = [found.group() if (found := BLOCK.match(name)) else '' for name in layer_names(network)]
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

    def read(self, place: int, layer: Operator, name: str, reads: tuple[str, ...], known: set[str]) -> None:
        """Add a layer's shape, or what is wrong with it."""
        for missing in (read for read in reads if read not in known):
            shown = ', '.join(sorted(known)[:12])
            self.problems.append(
                Problem((place, 'of'), f'{missing} is no layer before this one', f'write one of {shown}')
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
            found.problems.append(
                Problem((place,), 'an embedding reads the tokens of samples', 'make it the first layer')
            )
    # The last one is what the loss reads.
    for name, place in list(unread.items())[:-1]:
        what = f'nobody reads what {name} gives'
        found.problems.append(Problem((place,), what, f'leave it out, or write of: {name} in a later layer'))
    return found


def network_shapes(network: Network, samples: int) -> dict[str, Shape]:
    """The shape of every layer's result by name, and of the input.

    Raises ``Infeasible`` with the first thing that does not fit.
    """
    found = shapes_of(network, samples)
    for problem in found.problems:
        raise Infeasible(str(problem.at(layer_names(network)[int(problem.key[0])], ())))
    return found.of
