"""Networks: operators in order, as files list them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from simpar.document import Key, OneOf
from simpar.errors import Problem
from simpar.model.keys import Deviation, Width
from simpar.model.model import Asked, Graph, Model, Node, Source
from simpar.model.operators import KINDS
from simpar.model.operators.base import Operator
from simpar.model.operators.embedding import Embedding
from simpar.model.operators.linear import Dense
from simpar.model.operators.pointwise import Mul, Relu
from simpar.model.operators.shape import Flatten
from simpar.model.shapes import INPUT, layer_names, layers_of, network_fits, network_shapes, reads_of

if TYPE_CHECKING:
    from typing_extensions import Self

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
        meant = (layer.meant() if isinstance(layer, Mul) else layer for layer in self.layers)
        # The class is frozen; before anyone has seen the value it may still be put in its plain form.
        object.__setattr__(self, 'layers', tuple(meant))

    @property
    def dense(self) -> tuple[Dense, ...]:
        """Its dense layers."""
        return tuple(layer for layer in self.layers if isinstance(layer, Dense))

    @property
    def is_graph(self) -> bool:
        """Whether it has operators that degrees do not split: others than a chain of dense layers and activations."""
        # Degrees know these chains (Megatron); everything else is split by batch or by strategies.
        chained = all(isinstance(layer, Dense | Relu | Flatten) for layer in self.layers)
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
        tokens = f'tokens:{first.vocab}' if isinstance(first, Embedding) else ''
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
        dense = accumulate((isinstance(layer, Dense) for layer in self.layers), initial=-1)
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

    def problems(self, asked: Asked) -> Iterator[Problem]:
        """Names, shapes, the loss and the data."""
        return network_fits(self, asked)
