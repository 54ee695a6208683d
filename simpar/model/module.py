"""A torch module as a model: the operators that ``from_module`` made of it, as plain data that runs no code."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Final

from pydantic import AfterValidator, Field

from simpar.errors import Problem
from simpar.model.model import Asked, Graph, Model, Node, Source
from simpar.model.operators.base import Operator
from simpar.model.operators.stream import DRAW, KEYS, Dropout
from simpar.model.operators.torch_call import AtenSpec, Held, ModuleEmbedding, ModuleLinear, TorchCall

FORMAT: Final = 'simpar module 1'
SHORT: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What a graph's text says.

    Arguments:
        batch: samples that its shapes are of.
        layers: how many of its operators' layers there are.
        notes: what was left out of the module.
    """

    name: str
    batch: int
    layers: int
    sources: tuple[Source, ...]
    nodes: tuple[Node, ...]
    shapes: Mapping[str, tuple[int, ...]]
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
    empty_stages: ClassVar[bool] = False

    @property
    def exported(self) -> Exported:
        """What the text says; raises ``ValueError`` where it is not what ``from_module`` writes."""
        return _read(self.graph_text)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Its operators."""
        return self.exported.nodes

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left out of the module."""
        return self.exported.notes

    @property
    def layers(self) -> tuple[Node, ...]:
        """Its operators, which is what its size is estimated from."""
        return self.exported.nodes

    def graph(self, batch: int, *, digits: bool = False) -> Graph:
        """Of so many samples."""
        del digits
        found = self.exported

        def rows(shape: tuple[int, ...]) -> tuple[int, ...]:
            return (shape[0] * batch // found.batch, *shape[1:])

        sources = tuple(Source(one.name, rows(one.shape), one.drawn, one.integer) for one in found.sources)
        return Graph(
            nodes=found.nodes,
            sources=sources,
            shapes={name: rows(shape) for name, shape in found.shapes.items()},
            deviation=0.0,
            drawn_labels='classes',
            layers=found.layers,
            hands_on=False,
        )

    @property
    def counted(self) -> Mapping[str, Sequence[int]]:
        """In operators, and in layers: the parts of the module's lists."""
        nodes = self.nodes
        return {'operators': range(len(nodes)), 'layers': tuple(node.layer for node in nodes)}

    @property
    def counts(self) -> dict[str, int]:
        """How many there are of each; what stands behind the last layer is none."""
        return {'operators': len(self.nodes), 'layers': self.exported.layers}

    def problems(self, asked: Asked) -> Iterator[Problem]:
        """Samples of mnist, classes of what has none."""
        found = self.exported
        if asked.data == 'mnist':
            yield Problem(
                ('workload', 'data'), 'mnist has one image and a class, not the inputs of a module', 'write random'
            )
        last = found.shapes[found.nodes[-1].name]
        if asked.loss == 'cross-entropy' and len(last) < 2:
            what = f'cross-entropy takes classes, but the module returns shape {list(last[1:])} a sample'
            yield Problem(('workload', 'loss'), what, 'write mse, or return logits')


@lru_cache(maxsize=8)
def _read(text: str) -> Exported:
    tree = json.loads(text)
    if not isinstance(tree, dict) or tree.get('format') != FORMAT:
        raise ValueError(f'no {FORMAT}')
    nodes = tuple(_node(one, tree['batch']) for one in tree['nodes'])
    if not nodes:
        raise ValueError('no operators')
    sources = tuple(
        Source(one['name'], tuple(one['shape']), one['drawn'], bool(one['integer'])) for one in tree['sources']
    )
    if any(isinstance(node.operator, Dropout) for node in nodes):
        sources = (*sources, Source(KEYS, (tree['batch'],), DRAW, integer=True))
    shapes = {source.name: source.shape for source in sources}
    shapes |= {one['name']: tuple(one['shape']) for one in tree['nodes']}
    known = {source.name for source in sources}
    for node in nodes:
        if not known.issuperset(node.reads):
            raise ValueError(f'{node.name} reads what is not there')
        known.add(node.name)
    return Exported(name=tree['name'], batch=tree['batch'], layers=tree['layers'], sources=sources, nodes=nodes,
                    shapes=shapes, notes=tuple(tree['notes']))  # fmt: skip


def _node(one: dict[str, Any], samples: int) -> Node:
    return Node(one['name'], _KINDS[one['kind']](one, samples), tuple(one['reads']), one['layer'])


def _call(one: dict[str, Any], samples: int) -> Operator:
    said: dict[str, Any] = {key: _tuples(value) for key, value in one['spec'].items()}
    said |= {key: tuple(_held(of) for of in one['spec'].get(key, ())) for key in ('weights', 'constants')}
    return TorchCall(spec=AtenSpec(**said, shape=tuple(one['shape']), samples=samples))


def _held(of: dict[str, Any]) -> Held:
    return Held(**{key: _tuples(value) for key, value in of.items()})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _linear(one: dict[str, Any], samples: int) -> Operator:
    del samples
    return ModuleLinear(
        outputs=(one['outputs'],),
        inputs=(one['inputs'],),
        bias=bool(one['bias']),
        weight=one['weight'],
        bias_name=one['bias'],
        transposed=one['transposed'],
        what=one['name'],
    )


def _embedding(one: dict[str, Any], samples: int) -> Operator:
    del samples
    return ModuleEmbedding(vocab=one['vocab'], width=one['width'], weight=one['weight'], padding=one['padding'])


def _dropout(one: dict[str, Any], samples: int) -> Operator:
    del samples
    return Dropout(probability=one['probability'], site=one['name'])


_KINDS: Final = {'call': _call, 'linear': _linear, 'embedding': _embedding, 'dropout': _dropout}
