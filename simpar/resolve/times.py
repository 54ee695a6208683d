"""Predicted seconds of every layer for one micro-batch, from the same prices that the simulation uses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from simpar.cost.collective import ClusterCollectives
from simpar.cost.compute import DeviceCompute
from simpar.hardware import Cluster
from simpar.kept import Kept
from simpar.lower import lower
from simpar.pipeline.clock import StageTimes
from simpar.plan import Plan
from simpar.program import Program, Role
from simpar.program.touches import Instance, instance
from simpar.workload import Workload

PHASES = ('F', 'I', 'W')


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """What every layer takes and keeps for a micro-batch.

    Arguments:
        seconds_LP: seconds of F, I and W, shape [layers, 3].
        send: seconds from a layer to the next.
        bytes_LP: bytes of activations kept behind F, I and W, shape [layers, 3].

    Embedding and head are counted with the first and the last layer. Communication over the tensor ranks counts. Sums
    of gradients and updates do not count: they are done once a step.
    """

    seconds_LP: NDArray[np.float64]
    send: float
    bytes_LP: NDArray[np.float64]

    def stages(self, counts: tuple[int, ...]) -> StageTimes:
        """The times of stages of so many layers each."""
        edges = np.cumsum((0, *counts))
        sums = [self.seconds_LP[begin:end].sum(axis=0).tolist() for begin, end in pairwise(edges)]
        forward, inputs, weights = (tuple(values) for values in zip(*sums, strict=True))
        sends = (self.send,) * (len(counts) - 1)
        return StageTimes(forward=forward, input=inputs, weight=weights, communication=sends)

    def kept(self, counts: tuple[int, ...]) -> float:
        """The largest share of its activations that a stage of so many layers keeps from I to W, at most 1."""
        behind = self._behind(counts)
        # Where F leaves nothing behind there is no share: as if W kept all.
        share = np.divide(behind[:, 1], behind[:, 0], out=np.ones(len(behind)), where=behind[:, 0] > 0)
        return float(min(1.0, share.max()))

    def limits(self, counts: tuple[int, ...], activations: int) -> tuple[float, ...]:
        """How many of its own activations each stage may keep, at most so many, in the bytes of those of the first two.

        Schedulers of Zero Bubble have one number of bytes for all ranks (sail-sg/zero-bubble-pipeline-parallelism,
        2023-12 on: times max(f_mem[:2])), so that the last stage, whose logits count, keeps fewer.
        """
        own = self._behind(counts)[:, 0].tolist()
        room = activations * max(own[:2])
        return tuple(max(1.0, room / max(held, *own[:2])) if held else float(activations) for held in own)

    def _behind(self, counts: tuple[int, ...]) -> NDArray[np.float64]:
        """Bytes kept behind F, I and W of stages of so many layers, shape [stages, 3]."""
        edges = np.cumsum((0, *counts))
        return np.array([self.bytes_LP[begin:end].sum(axis=0) for begin, end in pairwise(edges) if begin < end])


def layers_of(workload: Workload) -> int:
    """Layers that stages have equal counts of: blocks of a transformer, dense layers of a network."""
    return [*workload.model.counts.values()][-1]


_times: Final[Kept[tuple[Workload, Plan, Cluster], LayerTimes]] = Kept(4)
"""For plans that differ in the number of micro-batches or in their order, which the time of a layer does not know."""


def layer_times(workload: Workload, plan: Plan, cluster: Cluster) -> LayerTimes:
    """Price the program in which every layer is a stage."""
    layers = layers_of(workload)
    data = plan.data or max(1, cluster.world // (plan.context * plan.tensor * plan.pipeline))
    every = replace(
        plan,
        data=data,
        pipeline=layers,
        stages=(),
        recompute_stages=(),
        rows=(),
        chunks=0,
        sequence_chunks=1,
        # Its backward is split, so that I and W have times of their own.
        order='zb-h1',
        micro_batches=1,
    )
    one = replace(workload, batch=workload.batch // plan.micro_batches)
    return _times.get((one, every, cluster), lambda: _priced(one, every, cluster))


def _priced(workload: Workload, plan: Plan, cluster: Cluster) -> LayerTimes:
    """The same of a plan with a stage for each layer and a single micro-batch."""
    layers = plan.pipeline
    program = lower(workload, plan, layers * plan.data * plan.context * plan.tensor)
    compute, collectives = DeviceCompute(cluster.profile), ClusterCollectives(cluster)
    # The 0 stands for a single layer, which sends nothing.
    seconds, sends = np.zeros((layers, len(PHASES))), [0.0]
    for op in program.op_classes:
        if op.kind == 'compute' and op.phase in PHASES and program.sliced(op):
            seconds[op.stage, PHASES.index(op.part)] += compute.seconds(op).seconds
        elif op.kind == 'collective' and op.phase in PHASES and program.sliced(op):
            cost = collectives.cost(op, program.partitions[op.partition].groups_GP[0].tolist())
            seconds[op.stage, PHASES.index(op.part)] += cost.alpha + cost.transfer
        elif op.kind == 'send' and program.sliced(op):
            cost = collectives.cost(op, (0, program.world // layers))
            sends.append(cost.alpha + cost.transfer)
    behind = np.array([_behind(program, role) for role in program.roles])
    return LayerTimes(seconds * plan.copies, max(sends), behind)


def _behind(program: Program, role: Role) -> list[int]:
    """Bytes of activations that a rank holds behind the last op of F, I and W of its micro-batch."""
    held: dict[Instance, int] = {}
    behind = dict.fromkeys(PHASES, 0)
    for slot in range(len(role)):
        op, copy = program.op(role, slot), int(role.copy[slot])
        for name in op.writes:
            if program.tensor[name].kind == 'activation':
                held[instance(program.tensor[name], 0, copy)] = program.local_bytes(program.tensor[name])
        for name in op.frees:
            held.pop(instance(program.tensor[name], 0, copy), None)
        # Sends count too: what a stage sends may be freed only behind them.
        if op.kind in ('compute', 'send') and op.part in behind:
            behind[op.part] = sum(held.values())
    return list(behind.values())
