"""Predicted seconds of every layer for one micro-batch, from the same prices that the simulation uses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from simpar.cost.collective import ClusterCollectives
from simpar.cost.compute import DeviceCompute
from simpar.hardware import Cluster
from simpar.lower import lower
from simpar.pipeline.clock import StageTimes
from simpar.plan import Plan
from simpar.workload import Dense, Network, Workload

PHASES = ('F', 'I', 'W')


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Seconds of every layer: ``seconds_LP``, shape [layers, 3], of F, I and W; ``send``, from a layer to the next.

    Embedding and head are counted with the first and the last layer. Communication over the tensor ranks counts, sums
    of gradients and updates do not: they are done once a step.
    """

    seconds_LP: NDArray[np.float64]
    send: float

    def stages(self, counts: tuple[int, ...]) -> StageTimes:
        """The times of stages of so many layers each."""
        edges = np.cumsum((0, *counts))
        sums = [self.seconds_LP[begin:end].sum(axis=0).tolist() for begin, end in pairwise(edges)]
        forward, inputs, weights = (tuple(values) for values in zip(*sums, strict=True))
        sends = (self.send,) * (len(counts) - 1)
        return StageTimes(forward=forward, input=inputs, weight=weights, communication=sends)


def layers_of(workload: Workload) -> int:
    """Layers that stages are counted in: blocks of a transformer, dense layers of a network."""
    model = workload.model
    if isinstance(model, Network):
        return sum(isinstance(layer, Dense) for layer in model.layers)
    return model.layers


def layer_times(workload: Workload, plan: Plan, cluster: Cluster) -> LayerTimes:
    """Price the program in which every layer is a stage."""
    layers = layers_of(workload)
    data = plan.data or max(1, cluster.world // (plan.tensor * plan.pipeline))
    every = replace(plan, data=data, pipeline=layers, stages=(), rows=(), chunks=0, order='gpipe')
    program = lower(workload, every, layers * data * plan.tensor)
    compute, collectives = DeviceCompute(cluster.profile), ClusterCollectives(cluster)
    seconds, sends = np.zeros((layers, len(PHASES))), [0.0]
    for op in program.op_classes:
        if op.kind == 'compute' and op.phase in PHASES and program.sliced(op):
            seconds[op.stage, PHASES.index(op.phase)] += compute.seconds(op).seconds
        elif op.kind == 'collective' and op.phase in PHASES and program.sliced(op):
            cost = collectives.cost(op, range(plan.tensor))
            seconds[op.stage, PHASES.index(op.phase)] += cost.alpha + cost.transfer
        elif op.kind == 'send' and program.sliced(op):
            cost = collectives.cost(op, (0, data * plan.tensor))
            sends.append(cost.alpha + cost.transfer)
    return LayerTimes(seconds * plan.copies, max(sends))
