"""Layers: a model with few of a transformer's layers, on two or three stages, that has every kind of layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from simpar.lower.graph.stages import stage_of_layer
from simpar.workload import Transformer, Workload

EACH: Final = 2
"""Layers of a stage, so that one follows another."""


@dataclass(frozen=True, slots=True)
class Few:
    """A workload of few layers, and where each layer of the full model is found in it.

    Arguments:
        workload: of the few layers; its batch is still the full one.
        stages: layers of each of its stages.
        like: for each layer of the full model, a layer of the few of the same kind.
        edge: how many of the first layers are of another kind than those behind.
    """

    workload: Workload
    stages: tuple[int, ...]
    like: tuple[int, ...]
    edge: int = 0


def few_of(workload: Workload) -> Few | None:
    """The few layers that stand for all; None where the model is no transformer, or its layers are of many kinds."""
    model = workload.model
    if not isinstance(model, Transformer):
        return None
    edge = _edge(model)
    if edge is None or model.layers < EACH + edge:
        return None
    counts = (EACH,) * (3 if edge else 2)
    small = replace(model, layers=sum(counts))
    if edge and model.experts is not None:
        small = replace(small, experts=replace(model.experts, first_dense=EACH))
    # The second to last layer of the few is followed by one of its kind.
    like = tuple(0 if layer < edge else sum(counts) - EACH for layer in range(model.layers))
    return Few(replace(workload, model=small), counts, like, edge)


def _edge(model: Transformer) -> int | None:
    """How many of the first layers differ from all others; None where layers differ in another way."""
    window = model.window
    if isinstance(window, tuple) and len(set(window)) > 1:
        return None
    experts = model.experts
    if experts is None:
        return 0
    return experts.first_dense if experts.every == 1 else None


@lru_cache(maxsize=1024)
def layers_of_stages(layers: int, stages: int, given: tuple[int, ...]) -> list[list[int]]:
    """The layers of each stage, by number, not to be changed. Raises ``Infeasible`` where the counts do not fit."""
    found: list[list[int]] = [[] for _ in range(stages)]
    for layer, stage in enumerate(stage_of_layer(layers, stages, given)):
        found[stage].append(layer)
    return found
