"""What every model is to the rest of simpar: a graph of operators, and how people count and write its parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from simpar.document import Key
from simpar.errors import Problem
from simpar.model.operators.base import Operator, Trained
from simpar.model.ops import NAMED
from simpar.model.primitive import Shape

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, slots=True)
class Source:
    """An input of a graph.

    Arguments:
        name: of the tensor.
        shape: of a micro-batch, unsharded.
        drawn: how its values are drawn.
        integer: it holds indices.
    """

    name: str
    shape: Shape
    drawn: str
    integer: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """One micro-batch of a model.

    Arguments:
        nodes: operators in order.
        shapes: of all values by name.
        deviation: of normal initial weights.
        drawn_labels: how labels are drawn; without a count of classes, all that the result has.
        layers: how many there are.
        hands_on: what a layer hands on is kept whatever is recomputed.
    """

    nodes: tuple[Node, ...]
    sources: tuple[Source, ...]
    shapes: dict[str, Shape]
    deviation: float
    drawn_labels: str
    layers: int
    hands_on: bool

    @property
    def parameters(self) -> int:
        """Numbers that are trained; a tied weight counts once."""
        counts = {}
        for node in self.nodes:
            for one in node.operator.parameters(self.shapes[node.name]):
                # After ``=`` a parameter has a name of its own, which another operator may have, too.
                if not one.trained:
                    continue
                counts[one.role if one.role.startswith(NAMED) else f'{NAMED}{node.name}.{one.role}'] = prod(one.shape)
        return sum(counts.values())

    def in_layer(self, node: Node) -> bool:
        """Whether a node is in one of the layers, not before or behind them."""
        return 0 <= node.layer < self.layers


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What of the rest of a schedule decides whether a model fits.

    Arguments: ``slices``, copies of micro-batches that the ``batch`` is split into; ``tensor``, ``expert`` and
    ``context``, the degrees; ``chunks``, that context splits a sequence into; ``by_heads``: heads are exchanged for
    tokens.
    """

    loss: str
    data: str
    batch: int
    slices: int
    tensor: int
    sequence_parallel: bool
    context: int = 1
    chunks: int = 1
    by_heads: bool = False
    expert: int = 1


class Model(ABC):
    """Operators with names, in order."""

    key: ClassVar[str]
    """Under which files have it."""
    empty_stages: ClassVar[bool] = False
    """A stage may hold none of its layers: it has operators before or behind them."""

    @property
    @abstractmethod
    def nodes(self) -> tuple[Node, ...]:
        """Its operators with their names and what they read."""

    @property
    def operators(self) -> dict[str, Operator]:
        """Its operators by name."""
        return {node.name: node.operator for node in self.nodes}

    @property
    def tells_sample(self) -> bool:
        """Whether it has a key that says the shape of a sample, which its operators do not say."""
        return False

    @property
    def by_batch(self) -> bool:
        """Whether without degrees its operators are split by batch, as MindSpore does."""
        return False

    @property
    def listed(self) -> tuple[Operator, ...]:
        """The operators that a file lists, each with keys of its own."""
        return ()

    def with_listed(self, operators: Sequence[Operator]) -> Self:
        """The same with other operators in the place of those that a file lists."""
        del operators
        return self

    @abstractmethod
    def graph(self, batch: int, *, digits: bool = False) -> Graph:
        """The graph of so many samples; raises ``Infeasible`` where operators do not fit each other.

        Arguments: ``digits``: samples are images of mnist.
        """

    @property
    @abstractmethod
    def counted(self) -> Mapping[str, Sequence[int]]:
        """By what people count in stages, for each node the number of its own: -1 before them, beyond them behind.

        The last is what stages have equal counts of where a file does not say.
        """

    @property
    def counts(self) -> dict[str, int]:
        """How many there are of each."""
        return {name: max(numbers, default=-1) + 1 for name, numbers in self.counted.items()}

    @property
    def trained_layers(self) -> int:
        """How many groups of parameters there are whose names begin alike."""
        # A tied weight is its first operator's: counted there alone.
        own = (node.name for node in self.nodes if isinstance(node.operator, Trained) and node.operator.has_own)
        return len({name.partition('.')[0] for name in own})

    @property
    def notes(self) -> tuple[str, ...]:
        """What of it was left out, as a reader should know."""
        return ()

    def settled(self) -> Self:
        """The same with every size written out."""
        return self

    def in_short(self, tree: Any) -> Any:
        """The shortest way to write its keys.

        Arguments: ``tree``, all of them.
        """
        return tree

    def file_key(self, place: int, key: str = '') -> Key:
        """Where a file has a node, or a key of it."""
        del place, key
        return ('workload', self.key)

    @abstractmethod
    def problems(self, asked: Asked) -> Iterator[Problem]:
        """What of it does not fit itself, the loss, the data or the degrees, each at the key to change."""


@dataclass(frozen=True, slots=True)
class Node:
    """One operator of a graph.

    Arguments:
        name: of the operator in programs, and of its result for those that read it.
        operator: with its axes and ops.
        reads: names of nodes or inputs.
        layer: which of the layers that stages are counted in it belongs to; -1: before them, their count: behind them.
        result: name of the tensor that it makes, if it is another than its own.
    """

    name: str
    operator: Operator
    reads: tuple[str, ...]
    layer: int = 0
    result: str = ''

    @property
    def value(self) -> str:
        """The name of the tensor that it makes."""
        return self.result or self.name
