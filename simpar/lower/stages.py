"""Stages: which layers of the model each stage of the pipeline holds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from simpar.errors import Infeasible
from simpar.model import Dense, Network, Weighted, layer_names

BLOCK: Final = re.compile(r'[A-Za-z]+\d+(?=_)')
"""What the names of operators of one block begin with."""


def stage_of_layer(layers: int, stages: int, given: tuple[int, ...]) -> tuple[int, ...]:
    """For each layer, its stage.

    Arguments: ``given``, layers of each stage; empty: equal counts, the first stages one more where they do not divide.
    Raises ``Infeasible`` where the counts are not those of the stages and layers.
    """
    counts = given or tuple(layers // stages + (stage < layers % stages) for stage in range(stages))
    if len(counts) != stages:
        raise Infeasible(
            f'plan.stages lists {len(counts)} stages, but the pipeline has {stages}; list {stages} counts of layers'
        )
    if sum(counts) != layers:
        raise Infeasible(
            f'plan.stages lists {sum(counts)} layers, but the model has {layers}; choose counts whose sum is {layers}'
        )
    return tuple(stage for stage, count in enumerate(counts) for _ in range(count))


def marked_stages(marks: Sequence[int | None], stages: int) -> tuple[int, ...]:
    """For each layer, its stage by marks, each of which holds until the next; empty without marks.

    Raises ``Infeasible`` where marks go back, leave a stage out or go beyond the last.
    """
    if all(mark is None for mark in marks):
        return ()
    found: list[int] = []
    for mark in marks:
        found.append(mark if mark is not None else found[-1] if found else 0)
    if found != sorted(found) or set(found) != set(range(stages)):
        raise Infeasible(f'pipeline_stage marks give {found}, but must rise from 0 to {stages - 1} without a gap')
    return tuple(found)


def layers_of(model: Network) -> tuple[int, ...]:
    """For each operator of a network the layer that it belongs to.

    Operators whose names begin alike, as ``layer3_up`` and ``layer3_gelu``, are one layer; else a layer is a product
    with a weight and what follows it, as people count layers.
    """
    blocks = [found.group() if (found := BLOCK.match(name)) else '' for name in layer_names(model)]
    named = len(set(blocks)) > 1
    layers: list[int] = []
    layer = -1
    for place, operator in enumerate(model.layers):
        begins = (
            blocks[place] not in ('', blocks[place - 1] if place else '') if named else isinstance(operator, Weighted)
        )
        layer += begins or layer < 0
        layers.append(layer)
    return tuple(layers)


def layer_stages(model: Network, stages: int, given: tuple[int, ...]) -> tuple[int, ...]:
    """For each operator of a network its stage: by marks, or by counts.

    Arguments: ``given``, of each stage how many layers it holds, or operators, or dense layers, each with what follows
    it; empty: equal counts of dense layers, or of operators where these are too few. Raises ``Infeasible`` where these
    do not fit.
    """
    marked = marked_stages([layer.pipeline_stage for layer in model.layers], stages)
    if marked:
        return marked
    dense, layers = len(model.dense), layers_of(model)
    if sum(given) == layers[-1] + 1:
        of_layer = stage_of_layer(layers[-1] + 1, stages, given)
        return tuple(of_layer[layer] for layer in layers)
    if sum(given) == len(model.layers) or (not given and dense < stages):
        return stage_of_layer(len(model.layers), stages, given)
    of_dense = iter(stage_of_layer(dense, stages, given))
    found, stage = [], 0
    for layer in model.layers:
        stage = next(of_dense) if isinstance(layer, Dense) else stage
        found.append(stage)
    return tuple(found)
