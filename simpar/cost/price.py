"""price: a program's op classes on a cluster become costs; each effect of the model can be made ideal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import cast

import numpy as np
from numpy.typing import NDArray

from simpar.cost.beside import speeds_beside
from simpar.cost.communicated import Communicated, communicated
from simpar.cost.compute import NO_WORK
from simpar.cost.costs import GRADES, Array, Communication, Costs, Why
from simpar.cost.entries import lasts
from simpar.cost.kept import (
    Local,
    beside_others,
    cluster_collectives,
    computed,
    computed_seconds,
    device_compute,
    issued_alike,
    later_stages,
    locally,
    rank_speeds,
    slots_of_first,
)
from simpar.cost.model import CollectiveModel, ComputeCost, ComputeModel
from simpar.cost.stack import STAGE, StackCompute
from simpar.errors import Infeasible
from simpar.hardware import Cluster
from simpar.program import OpClass, Program
from simpar.units import quantise


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """What makes a step slower than ideal overlap says; each False makes that effect ideal.

    Arguments:
        small_operator: fixed times of kernels and efficiency that falls with size; α and the size curve of collectives.
        launch: seconds of the host.
        slow_down: compute and communication that run at once slow each other.
        link_sharing: collectives that run at once share links.
        framework: kernels and passes that a stack adds, its attention, clocks under load.
        host_waits: the host waits for the device where a stack says so.
        work_queues: streams share work queues where a device has fewer.
        spread: all wait for the slowest of devices that differ.
    """

    small_operator: bool = True
    launch: bool = True
    slow_down: bool = True
    link_sharing: bool = True
    framework: bool = True
    host_waits: bool = True
    work_queues: bool = True
    spread: bool = True


def price(
    program: Program,
    cluster: Cluster,
    effects: Effects = Effects(),
    *,
    compute: ComputeModel | None = None,
    collective: CollectiveModel | None = None,
) -> Costs:
    """Isolated seconds of every op class, what slows what, and which links each collective uses.

    Arguments: ``compute`` and ``collective``, models to use in place of the profile's; times are rounded to the grid.
    Raises ``Infeasible`` where the program has more ranks than the cluster devices, ``ProfileError`` where the profile
    does not say what the program needs.
    """
    return Pricer(program, cluster, compute=compute, collective=collective).costs(effects)


class Pricer:
    """Prices a program on a cluster; models are asked once for each cost key, whichever effects are on.

    Arguments and errors as of `price`.
    """

    def __init__(
        self,
        program: Program,
        cluster: Cluster,
        *,
        compute: ComputeModel | None = None,
        collective: CollectiveModel | None = None,
    ) -> None:
        if program.world > cluster.world:
            raise Infeasible(f'the program has {program.world} ranks, the cluster {cluster.world} devices')
        own = device_compute(cluster.profile) if compute is None else None
        self.bare = own or cast('ComputeModel', compute)
        stack = cluster.stack
        self.stacked = StackCompute(self.bare, cluster.profile, stack) if stack else None
        self.compute: ComputeModel = self.stacked or self.bare
        kept = cluster_collectives(cluster) if collective is None else None
        self.collective = kept or cast('CollectiveModel', collective)
        self._program = program
        self._cluster = cluster
        self._kind, self._ops = _by_launches(program, self.stacked) if self.stacked else program.cost_kinds
        # By the number of the cost key.
        # A stack tells ops apart that cost the same without it.
        self._own = None if stack else own
        self._priced: tuple[Effects, Costs] | None = None
        self._computed: dict[int, ComputeCost] = computed(program, self._own) if self._own else {}
        for kind, op in enumerate(self._ops if self._own is None else ()):
            if op.kind == 'compute':
                self._computed[kind] = self.compute.seconds(op)
        # A model is kept, and so is what it said of a program.
        if self._own and kept:
            self._messages = communicated(program, kept)
        else:
            self._messages = Communicated(program, self.collective, self._kind, self._ops)

    def costs(self, effects: Effects = Effects()) -> Costs:
        """The costs with some effects on."""
        # Of two states that differ in what this cluster has not, the costs are the same.
        effects = replace(effects, **self._absent) if self._absent else effects
        if self._priced is None or self._priced[0] != effects:
            self._priced = effects, self._costs(effects)
        return self._priced[1]

    def _costs(self, effects: Effects) -> Costs:
        # Without a stack this is the same for all links that a cluster may have, and most rows of a sweep have another.
        cluster = self._cluster
        made = (cluster.profile, cluster.slow, cluster.spread, cluster.mode)
        key = (self._own, *made, replace(effects, work_queues=True))
        local = locally(self._program, key, lambda: self._local(effects)) if self._own else self._local(effects)
        communication, links = self._messages.of(effects)
        return Costs(
            **local.columns,
            host_step=self._host_step(effects),
            waits=self._waits(effects),
            work_queues=self._queues if effects.work_queues else 0,
            communication=communication,
            links=links,
            waiting_slows=effects.slow_down and self._cluster.waiting_slows,
            # Without the pricer, which keeps these costs: programs of a sweep would stay until garbage is collected.
            why=Why(self._kind, partial(_why, self._computed, self._messages, len(self._ops))),
            grades=self._grades(local.seconds, communication.made),
        )

    def _local(self, effects: Effects) -> Local:
        """What is no communication."""
        slower = speeds_beside(self._cluster, self._program)
        seconds = self._compute_seconds(effects)
        compute = seconds[self._kind]
        compute.flags.writeable = False
        # The very same arrays wherever these are equal: what follows from them is not worked out again.
        beside = beside_others(self._program, *(slower if effects.slow_down else (1.0, 1.0, 1.0)))
        columns = {
            'compute': compute,
            'host': self._host(effects),
            'beside_communication': beside[0],
            'beside_compute': beside[1],
            'rank_speed': rank_speeds(
                self._program.world, tuple(self._cluster.slow.items()), self._cluster.spread if effects.spread else 0.0
            ),
        }
        return Local(columns, seconds.tolist())

    @cached_property
    def _unstacked(self) -> dict[int, ComputeCost]:
        """Of the device alone, by cost key; most predictions never ask for it."""
        return {kind: self.bare.seconds(op) for kind, op in enumerate(self._ops) if op.kind == 'compute'}

    def _host(self, effects: Effects) -> Array:
        """Seconds that the host takes to issue an op, by op class."""
        stack, plain = self._cluster.stack, self._cluster.profile.host.seconds.value
        if stack is None or not effects.launch:
            return issued_alike(self._program, plain if effects.launch else 0.0)
        forward = stack.host.forward.value if stack.host else plain
        backward = stack.host.backward.value if stack.host else plain
        host = np.array(
            [
                # A view launches no kernel.
                0.0 if op.operator in NO_WORK else quantise(self._issuing(op, forward if op.phase == 'F' else backward))
                for op in self._ops
            ]
        )
        issued = np.asarray(host[self._kind])
        begins = stack.launches.get(STAGE)
        if begins is not None and begins.calls:
            issued[later_stages(self._program)] += quantise(forward * begins.calls)
        return issued

    def _issuing(self, op: OpClass, each: float) -> float:
        """Seconds that the host takes to issue an op. Arguments: ``each``, seconds of a launch by the framework."""
        by_library = self.stacked.tile_seconds(op) if self.stacked else None
        return each * self._launched(op) if by_library is None else by_library

    def _launched(self, op: OpClass) -> int:
        """Kernels that an op launches, and calls that take the host as long."""
        if self.stacked is None or op.kind != 'compute':
            return 1
        launches = self.stacked.launches(op)
        return launches.kernels + launches.calls

    def _host_step(self, effects: Effects) -> float:
        stack = self._cluster.stack
        return quantise(stack.host.step.value) if effects.launch and stack and stack.host else 0.0

    def _waits(self, effects: Effects) -> tuple[str, ...]:
        stack = self._cluster.stack
        return stack.waits.at if effects.launch and effects.host_waits and stack and stack.waits else ()

    @cached_property
    def _absent(self) -> dict[str, bool]:
        """Effects that change nothing here, switched off."""
        present = {'work_queues': self._queues, 'spread': self._cluster.spread}
        return {effect: False for effect, has in present.items() if not has}

    @cached_property
    def _queues(self) -> int:
        """How many work queues a device has; 0 where they are as many as streams, or more."""
        queues = self._cluster.queues
        return queues if queues < max(len(role.streams) for role in self._program.roles) else 0

    def _compute_seconds(self, effects: Effects) -> Array:
        """By cost key."""
        if self._own:
            return computed_seconds(self._program, self._own, not effects.small_operator)
        compute = np.zeros(len(self._ops))
        asked = self._unstacked if self.stacked and not effects.framework else self._computed
        for kind, cost in asked.items():
            # On the engine's grid; see ``simpar.units``.
            compute[kind] = quantise(cost.seconds if effects.small_operator else cost.best)
        return compute

    def _grades(self, compute: list[float], communication: Mapping[int, Sequence[Communication]]) -> dict[str, float]:
        """Seconds of the first rank's isolated work by the grade of the numbers that they rest on."""
        # One rank stands for all: grades are shares to show, not to add up.
        if self._own:
            slots = slots_of_first(self._program)
        else:
            slots = np.bincount(self._kind[self._program.role(0).op_class], minlength=len(compute)).tolist()
        seconds = dict.fromkeys(GRADES, 0.0)
        for kind, count in enumerate(slots):
            computed = self._computed.get(kind)
            if computed is not None:
                seconds[computed.grade] += compute[kind] * count
            else:
                seconds[self._messages.costs[kind][0].grade] += sum(lasts(communication[kind], 0)) * count
        return {grade: total for grade, total in seconds.items() if total > 0}


def _by_launches(program: Program, stacked: StackCompute) -> tuple[NDArray[np.int64], tuple[OpClass, ...]]:
    """As ``cost_kinds``, apart where a stack tells op classes apart by their names."""
    kind, _ = program.cost_kinds
    numbers: dict[tuple[int, int, int, float | None], int] = {}
    ops: list[OpClass] = []
    found = []
    for number, op in zip(kind.tolist(), program.op_classes, strict=True):
        key = (number, id(stacked.launches(op)), stacked.side_by_side(op), stacked.tile_seconds(op))
        if numbers.setdefault(key, len(ops)) == len(ops):
            ops.append(op)
        found.append(numbers[key])
    return np.array(found, dtype=np.int64), tuple(ops)


def _why(computed: Mapping[int, ComputeCost], messages: Communicated, kinds: int) -> list[str]:
    """By cost key, how its seconds come about. Arguments: as a pricer has them; ``kinds``, how many keys there are."""
    why = [computed[kind].why if kind in computed else '' for kind in range(kinds)]
    for kind, costs in messages.costs.items():
        why[kind] = costs[0].why
    return why
