"""Models as graphs of nodes, and those that come of torch modules."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, NamedTuple

from pydantic import AfterValidator, Field

from simpar import document, errors
from simpar.model.operators import base, stream
from simpar.model.operators.torch_call import AtenSpec, Held, ModuleEmbedding, ModuleLinear, TorchCall
from simpar.model.ops import NAMED
from simpar.model.primitive import Shape

if TYPE_CHECKING:
    from typing_extensions import Self


# What every model is to the rest of simpar: a graph of operators, and how people count and write its parts.


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


AHEAD: Final = '+'
"""Before a number, in the name of an input and how it is drawn: the same tokens or labels, so many further on."""


class Further(NamedTuple):
    """Logits of tokens further on, which have a loss of their own.

    Arguments: ``node`` that gives them; ``ahead``, how many labels further; ``weight`` of its mean in the loss.
    """

    node: str
    ahead: int
    weight: float


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
        further: logits beside those of the last node.
        frozen: nodes whose weights nothing trains.
    """

    nodes: tuple[Node, ...]
    sources: tuple[Source, ...]
    shapes: dict[str, Shape]
    deviation: float
    drawn_labels: str
    layers: int
    hands_on: bool
    further: tuple[Further, ...] = ()
    frozen: frozenset[str] = frozenset()

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
    ``context``, the degrees; ``chunks``, that context splits a sequence into; ``by_heads``, ranks that exchange
    heads for tokens.
    """

    loss: str
    data: str
    batch: int
    slices: int
    tensor: int
    sequence_parallel: bool
    context: int = 1
    chunks: int = 1
    by_heads: int = 1
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
    def operators(self) -> dict[str, base.Operator]:
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
    def listed(self) -> tuple[base.Operator, ...]:
        """The operators that a file lists, each with keys of its own."""
        return ()

    def with_listed(self, operators: Sequence[base.Operator]) -> Self:
        """The same with other operators in the place of those that a file lists."""
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
        own = (node.name for node in self.nodes if isinstance(node.operator, base.Trained) and node.operator.has_own)
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

    def file_key(self, place: int, key: str = '') -> document.Key:
        """Where a file has a node, or a key of it."""
        return ('workload', self.key)

    @abstractmethod
    def problems(self, job: Asked) -> Iterator[errors.Problem]:
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
    operator: base.Operator
    reads: tuple[str, ...]
    layer: int = 0
    result: str = ''

    @property
    def value(self) -> str:
        """The name of the tensor that it makes."""
        return self.result or self.name


# A torch module as a model: the operators that ``from_module`` made of it, as plain data that runs no code.

FORMAT: Final = 'simpar module 1'
SHORT: Final = 60


class Exported(NamedTuple):
    """What a module's text says: its graph of ``batch`` samples; ``notes``, what was left out."""

    graph: Graph
    batch: int
    notes: tuple[str, ...]


def _checked(text: str) -> str:
    try:
        _read(text)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        what = f'is not what simpar writes ({type(error).__name__}: {str(error)[:SHORT]})'
        raise ValueError(f'{what}; pass --module package:function') from None
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class FromModule(Model):
    """A torch module, as ``--module`` or ``simpar.from_module`` exports it.

    Arguments: ``graph``, its operators as JSON.
    """

    graph_text: Annotated[
        str,
        Field(alias='graph', max_length=2**28, description='its operators, as `simpar resolve --module` writes them'),
        AfterValidator(_checked),
    ]

    key: ClassVar[str] = 'module'

    @property
    def exported(self) -> Exported:
        """What the text says; raises ``ValueError`` where it is not what ``from_module`` writes."""
        return _read(self.graph_text)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Its operators."""
        return self.exported.graph.nodes

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left out of the module."""
        return self.exported.notes

    @property
    def layers(self) -> tuple[Node, ...]:
        """Its operators, which is what its size is estimated from."""
        return self.nodes

    def graph(self, batch: int, *, digits: bool = False) -> Graph:
        """Of so many samples."""
        graph, samples, _ = self.exported
        shapes = {name: (shape[0] * batch // samples, *shape[1:]) for name, shape in graph.shapes.items()}
        sources = tuple(replace(one, shape=shapes[one.name]) for one in graph.sources)
        return replace(graph, sources=sources, shapes=shapes)

    @property
    def counted(self) -> Mapping[str, Sequence[int]]:
        """In operators, and in layers: the parts of the module's lists."""
        nodes = self.nodes
        return {'operators': range(len(nodes)), 'layers': tuple(node.layer for node in nodes)}

    @property
    def counts(self) -> dict[str, int]:
        """How many there are of each; what stands behind the last layer is none."""
        return {'operators': len(self.nodes), 'layers': self.exported.graph.layers}

    def problems(self, job: Asked) -> Iterator[errors.Problem]:
        """Samples of mnist, classes of what has none."""
        export = self.exported.graph
        if job.data == 'mnist':
            yield errors.Problem(
                ('workload', 'data'), 'mnist has one image and a class, not the inputs of a module', 'write random'
            )
        last = export.shapes[export.nodes[-1].name]
        if job.loss == 'cross-entropy' and len(last) < 2:
            what = f'cross-entropy takes classes, but the module returns shape {list(last[1:])} a sample'
            yield errors.Problem(('workload', 'loss'), what, 'write mse, or return logits')


@lru_cache(maxsize=8)
def _read(text: str) -> Exported:
    tree = json.loads(text)
    if not isinstance(tree, dict) or tree.get('format') != FORMAT:
        raise ValueError(f'no {FORMAT}')
    if not all(isinstance(one['name'], str) for one in (*tree['nodes'], *tree['sources'])):
        raise ValueError('a name is no text')
    nodes = tuple(_node(one, tree['batch']) for one in tree['nodes'])
    if not nodes:
        raise ValueError('no operators')
    sources = tuple(
        Source(one['name'], tuple(one['shape']), one['drawn'], bool(one['integer'])) for one in tree['sources']
    )
    if any(isinstance(node.operator, stream.Dropout) for node in nodes):
        sources = (*sources, Source(stream.KEYS, (tree['batch'],), stream.DRAW, integer=True))
    shapes = {source.name: source.shape for source in sources}
    shapes |= {one['name']: tuple(one['shape']) for one in tree['nodes']}
    names = {source.name for source in sources}
    for node in nodes:
        if not names.issuperset(node.reads):
            raise ValueError(f'{node.name} reads what is not there')
        names.add(node.name)
    graph = Graph(nodes=nodes, sources=sources, shapes=shapes, deviation=0.0, drawn_labels='classes',
                  layers=tree['layers'], hands_on=False)  # fmt: skip
    return Exported(graph, tree['batch'], tuple(tree['notes']))


def _node(one: dict[str, Any], samples: int) -> Node:
    return Node(one['name'], _KINDS[one['kind']](one, samples), tuple(one['reads']), one['layer'])


def _call(one: dict[str, Any], samples: int) -> base.Operator:
    said: dict[str, Any] = {key: _tuples(value) for key, value in one['spec'].items()}
    said |= {key: tuple(_held(of) for of in one['spec'].get(key, ())) for key in ('weights', 'constants')}
    return TorchCall(spec=AtenSpec(**said, shape=tuple(one['shape']), samples=samples))


def _held(of: dict[str, Any]) -> Held:
    return Held(**{key: _tuples(value) for key, value in of.items()})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _linear(one: dict[str, Any], samples: int) -> base.Operator:
    return ModuleLinear(
        outputs=(one['outputs'],),
        inputs=(one['inputs'],),
        bias=bool(one['bias']),
        weight=one['weight'],
        bias_name=one['bias'],
        transposed=one['transposed'],
        what=one['name'],
    )


def _embedding(one: dict[str, Any], samples: int) -> base.Operator:
    return ModuleEmbedding(vocab=one['vocab'], width=one['width'], weight=one['weight'], padding=one['padding'])


def _dropout(one: dict[str, Any], samples: int) -> base.Operator:
    return stream.Dropout(probability=one['probability'], site=one['name'])


_KINDS: Final = {'call': _call, 'linear': _linear, 'embedding': _embedding, 'dropout': _dropout}
