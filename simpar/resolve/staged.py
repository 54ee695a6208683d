"""Stages: layers where predicted times balance, and the order of a zero-bubble pipeline found from these times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simpar.errors import Infeasible
from simpar.hardware import Cluster
from simpar.lower.graph.stages import stage_of_layer
from simpar.pipeline.automatic import automatic_order
from simpar.pipeline.orders import AUTOMATIC, named_order
from simpar.pipeline.table import rows_of
from simpar.plan import Plan
from simpar.resolve.balance import balanced
from simpar.resolve.times import LayerTimes, layer_times, layers_of
from simpar.resolve.trial import tried
from simpar.workload import Workload


def staged(workload: Workload, plan: Plan, cluster: Cluster) -> Plan:
    """The plan with its stages and its order; where stages are open, the fastest of those that were simulated.

    Raises ``Infeasible`` where degrees and ranks do not fit.
    """
    times = layer_times(workload, plan, cluster)
    if not isinstance(plan.stages, str):
        return _ordered(workload, plan, times, plan.stages)
    trials = [
        tried(workload, _ordered(workload, plan, times, counts), cluster)
        # The balanced counts are often the equal ones: each is simulated once, and the first wins among equals.
        for counts in dict.fromkeys(_splits(workload, plan, times))
    ]
    return min(trials, key=lambda trial: trial.rank).plan


def _ordered(workload: Workload, plan: Plan, times: LayerTimes, counts: tuple[int, ...]) -> Plan:
    """The plan with these stages, and its order found where it is automatic."""
    if plan.order not in AUTOMATIC:
        return replace(plan, stages=counts)
    stages = stage_of_layer(layers_of(workload), plan.pipeline, counts)
    counts = tuple(stages.count(stage) for stage in range(plan.pipeline))
    limits = times.limits(counts, AUTOMATIC[plan.order] * plan.pipeline)
    order = automatic_order(plan.micro_batches, times.stages(counts), limits, times.kept(counts))
    return replace(plan, stages=counts, rows=rows_of(order))


def _splits(workload: Workload, plan: Plan, times: LayerTimes) -> Iterator[tuple[int, ...]]:
    """Equal counts, the balanced split, and the splits that move one layer away from the first or the last stage."""
    layers = layers_of(workload)
    name = '1f1b' if plan.order in AUTOMATIC else plan.order
    stages = named_order(name, plan.pipeline, plan.micro_batches, plan.chunks, plan.sequence_chunks).stages
    if layers < stages:
        raise Infeasible(f'{stages} stages for {layers} layers; choose a pipeline of at most {layers} stages')
    equal = stage_of_layer(layers, stages, ())
    yield tuple(equal.count(stage) for stage in range(stages))
    seconds = times.seconds_LP.sum(axis=1).tolist()
    best = balanced(seconds, stages)
    yield best
    for end in (0, stages - 1):
        if best[end] > 1:
            moved = list(best)
            moved[end] -= 1
            sums = [sum(seconds[sum(best[:stage]) : sum(best[: stage + 1])]) for stage in range(stages)]
            # To the stage with the least to do; layers between the two shift by one.
            inner = min((stage for stage in range(stages) if stage != end), key=sums.__getitem__)
            moved[inner] += 1
            yield tuple(moved)
