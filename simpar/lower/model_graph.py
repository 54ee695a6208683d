"""The graph of a workload's model, for so many samples: nodes, inputs, shapes, and the stage of each node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simpar.lower.forward import Shape, Source
from simpar.lower.stages import layer_stages, layers_of, stage_of_layer
from simpar.model import INPUT, Embedding, Network, layer_names, network_shapes, reads_of
from simpar.model.dropout import DRAW, KEYS
from simpar.model.library.gpt import TOKENS, gpt_nodes
from simpar.model.library.transformer import Transformer
from simpar.model.node import Node
from simpar.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelGraph:
    """One micro-batch of a model.

    Arguments: ``shapes`` of all values by name; ``stages``, of each node; ``deviation`` of initial weights;
    ``drawn_labels``, how labels are drawn, by their count; ``layers``, how many there are; ``hands_on``: what a layer
    hands on is kept whatever is recomputed.
    """

    nodes: tuple[Node, ...]
    sources: tuple[Source, ...]
    shapes: dict[str, Shape]
    stages: tuple[int, ...]
    deviation: float
    drawn_labels: str
    layers: int
    hands_on: bool

    def in_layer(self, node: Node) -> bool:
        """Whether a node is in one of the layers, not before or behind them."""
        return 0 <= node.layer < self.layers


def model_graph(workload: Workload, batch: int, stages: int, given: Sequence[int]) -> ModelGraph:
    """The graph of a workload's model.

    Arguments: ``batch``, samples of a micro-batch; ``given``, layers of each of the ``stages``; empty: equal counts.
    """
    model = workload.model
    if isinstance(model, Network):
        return _network(workload, model, batch, layer_stages(model, stages, tuple(given)))
    return _transformer(model, batch, stages, stage_of_layer(model.layers, stages, tuple(given)))


def _network(workload: Workload, model: Network, batch: int, stages: tuple[int, ...]) -> ModelGraph:
    shapes = network_shapes(model, batch)
    first = model.layers[0]
    tokens = f'tokens:{first.vocab}' if isinstance(first, Embedding) else ''
    drawn = tokens or ('mnist' if workload.data == 'mnist' else 'normal:1')
    named = zip(layer_names(model), model.layers, reads_of(model), strict=True)
    nodes = tuple(
        Node(name, operator, reads, layer)
        for (name, operator, reads), layer in zip(named, layers_of(model), strict=True)
    )
    return ModelGraph(
        nodes=nodes,
        sources=(Source(INPUT, shapes[INPUT], drawn, bool(tokens)),),
        shapes=shapes,
        stages=stages,
        deviation=model.weight_deviation,
        drawn_labels='classes',
        layers=nodes[-1].layer + 1,
        hands_on=False,
    )


def _transformer(model: Transformer, batch: int, stages: int, of_layer: tuple[int, ...]) -> ModelGraph:
    sources = [Source(TOKENS, (batch, model.sequence), f'tokens:{model.vocab}', integer=True)]
    if model.dropout:
        sources.append(Source(KEYS, (batch,), DRAW, integer=True))
    shapes = {source.name: source.shape for source in sources}
    nodes = tuple(gpt_nodes(model))
    for node in nodes:
        shapes[node.name] = node.operator.result_shape(batch, *(shapes[read] for read in node.reads))
    place = {-1: 0, model.layers: stages - 1, **dict(enumerate(of_layer))}
    return ModelGraph(
        nodes=nodes,
        sources=tuple(sources),
        shapes=shapes,
        stages=tuple(place[node.layer] for node in nodes),
        deviation=model.weight_deviation,
        drawn_labels='tokens',
        layers=model.layers,
        hands_on=True,
    )
