"""Stages: which layers of the model each stage of the pipeline holds."""

from __future__ import annotations

from collections.abc import Sequence

from simpar.errors import Infeasible
from simpar.model.model import Model


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


def stages_of(model: Model, stages: int, given: Sequence[int]) -> tuple[int, ...]:
    """For each operator of a model its stage: by marks, or by counts.

    Arguments: ``given``, of each stage how many layers it holds, or what else people count in the model; empty: equal
    counts. What stands before the first is in the first stage, what stands behind the last in the last. Raises
    ``Infeasible`` where these do not fit.
    """
    marked = marked_stages([node.operator.pipeline_stage for node in model.nodes], stages)
    if marked:
        return marked
    unit = unit_of(model, stages, given)
    count = model.counts[unit]
    # Operators before the first unit have the number −1, those behind the last have its count.
    place = {-1: 0, count: stages - 1, **dict(enumerate(stage_of_layer(count, stages, tuple(given))))}
    return tuple(place[number] for number in model.counted[unit])


def unit_of(model: Model, stages: int, given: Sequence[int]) -> str:
    """What stages are counted in: what there are as many of as ``given``, else what there are enough of."""
    counts = model.counts
    fit = [name for name, count in counts.items() if sum(given) == count]
    # From the last: stages of a network count dense layers where there are enough of them.
    enough = [name for name in reversed(counts) if counts[name] >= stages]
    return next(iter(fit if given else enough), next(reversed(counts)))
