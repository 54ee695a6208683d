"""Stages: which layers of the model each stage of the pipeline holds."""

from __future__ import annotations

from collections.abc import Sequence

from simpar.errors import Infeasible
from simpar.model import Dense, Network


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


def layer_stages(model: Network, stages: int, given: tuple[int, ...]) -> tuple[int, ...]:
    """For each layer of a network its stage: by marks, or by counts of dense layers, each with what follows it.

    Arguments: ``given``, dense layers of each stage; empty: equal counts. Raises ``Infeasible`` where these do not fit.
    """
    marked = marked_stages([layer.pipeline_stage for layer in model.layers], stages)
    if marked:
        return marked
    of_dense = iter(stage_of_layer(len(model.dense), stages, given))
    found, stage = [], 0
    for layer in model.layers:
        stage = next(of_dense) if isinstance(layer, Dense) else stage
        found.append(stage)
    return tuple(found)
