"""price: a program's op classes on a cluster become costs; each effect of the model can be made ideal."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simpar.cost.compute import MATRIX, NO_WORK
from simpar.cost.costs import GRADES, Array, Communication, Costs
from simpar.cost.kept import cluster_collectives, device_compute
from simpar.cost.links import demand
from simpar.cost.model import CollectiveCost, CollectiveModel, ComputeCost, ComputeModel
from simpar.cost.stack import StackCompute
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
    """

    small_operator: bool = True
    launch: bool = True
    slow_down: bool = True
    link_sharing: bool = True
    framework: bool = True
    host_waits: bool = True


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
        self.bare = compute or device_compute(cluster.profile)
        stack = cluster.stack
        self.stacked = StackCompute(self.bare, cluster.profile, stack) if stack else None
        self.compute: ComputeModel = self.stacked or self.bare
        self.collective = collective or cluster_collectives(cluster)
        self._program = program
        self._cluster = cluster
        self._ranks = {name: partition.groups_GP.tolist() for name, partition in program.partitions.items()}
        self._kind, self._ops = _by_launches(program, self.stacked) if self.stacked else program.cost_kinds
        # By the number of the cost key.
        self._computed: dict[int, ComputeCost] = {}
        self._unstacked: dict[int, ComputeCost] = {}
        self._communicated: dict[int, tuple[CollectiveCost, ...]] = {}
        for kind, op in enumerate(self._ops):
            if op.kind == 'compute':
                self._computed[kind] = self.compute.seconds(op)
                if self.stacked:
                    self._unstacked[kind] = self.bare.seconds(op)
            else:
                self._communicated[kind] = tuple(self.collective.cost(op, ranks) for ranks in self._meeting(op))
        self._messages: dict[tuple[bool, bool], tuple[dict[int, tuple[Communication, ...]], tuple[str, ...]]] = {}

    def costs(self, effects: Effects = Effects()) -> Costs:
        """The costs with some effects on."""
        ops, slow_down, slows = self._ops, self._cluster.profile.slow_down, effects.slow_down
        matrix, memory, collective = slow_down.matrix.value, slow_down.memory.value, slow_down.collective.value
        computes = np.array([op.kind == 'compute' for op in ops])
        beside = [matrix if op.operator in MATRIX else memory for op in ops]
        compute = self._compute_seconds(effects)
        communication, links = self._communication(effects)
        return Costs(
            compute=compute[self._kind],
            host=self._host(effects)[self._kind],
            host_step=self._host_step(effects),
            waits=self._waits(effects),
            beside_communication=np.where(computes & slows, beside, 1.0)[self._kind],
            beside_compute=np.where(computes | (not slows), 1.0, collective)[self._kind],
            # Op classes of one key share the tuple itself: later passes tell by identity what they have done.
            communication={index: communication[kind] for index, kind in self._each if kind in communication},
            links=links,
            rank_speed=np.array([self._cluster.slow.get(rank, 1.0) for rank in range(self._program.world)]),
            waiting_slows=slows and self._waiting,
            why=self._why,
            grades=self._grades(compute, communication),
        )

    @cached_property
    def _each(self) -> list[tuple[int, int]]:
        """All op classes, each with the number of its cost key."""
        return list(enumerate(self._kind.tolist()))

    def _meeting(self, op: OpClass) -> Iterator[Sequence[int]]:
        """The ranks of each group; of a send or receive, the sender and the receiver of each pair."""
        for ranks in self._ranks[op.partition]:
            if op.kind == 'collective':
                yield ranks
                continue
            for position, rank in enumerate(ranks):
                peer = ranks[(position + op.peer) % len(ranks)]
                yield (rank, peer) if op.kind == 'send' else (peer, rank)

    @property
    def _waiting(self) -> bool:
        stack = self._cluster.stack
        told = stack.waiting if stack else None
        return self._cluster.profile.slow_down.waiting if told is None else told

    def _host(self, effects: Effects) -> Array:
        """Seconds that the host takes to issue an op, by cost key."""
        if not effects.launch:
            return np.zeros(len(self._ops))
        stack, plain = self._cluster.stack, self._cluster.profile.host.seconds.value
        forward = stack.host.forward.value if stack and stack.host else plain
        backward = stack.host.backward.value if stack and stack.host else plain
        return np.array(
            [
                # A view launches no kernel.
                0.0
                if op.operator in NO_WORK
                else quantise((forward if op.phase == 'F' else backward) * self._launched(op))
                for op in self._ops
            ]
        )

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

    def _compute_seconds(self, effects: Effects) -> Array:
        """By cost key."""
        compute = np.zeros(len(self._ops))
        computed = self._unstacked if self.stacked and not effects.framework else self._computed
        for kind, cost in computed.items():
            # On the engine's grid; see ``simpar.units``.
            compute[kind] = quantise(cost.seconds if effects.small_operator else cost.best)
        return compute

    def _communication(self, effects: Effects) -> tuple[dict[int, tuple[Communication, ...]], tuple[str, ...]]:
        """By cost key, and the names of the links; what no effect changes is the same object."""
        key = (effects.small_operator, effects.link_sharing)
        if key not in self._messages:
            messages = _Messages(effects)
            made = {kind: tuple(map(messages.message, costs)) for kind, costs in self._communicated.items()}
            self._messages[key] = (made, tuple(messages.links))
        return self._messages[key]

    @cached_property
    def _why(self) -> dict[int, str]:
        why = {kind: costs[0].why for kind, costs in self._communicated.items()}
        why |= {kind: cost.why for kind, cost in self._computed.items()}
        return {index: why[kind] for index, kind in self._each}

    def _grades(self, compute: Array, communication: Mapping[int, tuple[Communication, ...]]) -> dict[str, float]:
        """Seconds of the first rank's isolated work by the grade of the numbers that they rest on."""
        # One rank stands for all: grades are shares to show, not to add up.
        slots = np.bincount(self._kind[self._program.role(0).op_class], minlength=len(compute)).tolist()
        seconds = dict.fromkeys(GRADES, 0.0)
        for kind, count in enumerate(slots):
            if kind in self._computed:
                seconds[self._computed[kind].grade] += float(compute[kind]) * count
            else:
                first = communication[kind][0]
                seconds[self._communicated[kind][0].grade] += (first.alpha + first.transfer) * count
        return {grade: total for grade, total in seconds.items() if total > 0}


def _by_launches(program: Program, stacked: StackCompute) -> tuple[NDArray[np.int64], tuple[OpClass, ...]]:
    """As ``cost_kinds``, apart where a stack tells op classes apart by their names."""
    kind, _ = program.cost_kinds
    numbers: dict[tuple[int, int], int] = {}
    ops: list[OpClass] = []
    found = []
    for number, op in zip(kind.tolist(), program.op_classes, strict=True):
        key = (number, id(stacked.launches(op)))
        if numbers.setdefault(key, len(ops)) == len(ops):
            ops.append(op)
        found.append(numbers[key])
    return np.array(found, dtype=np.int64), tuple(ops)


class _Messages:
    """Makes messages of costs, equal ones once; numbers their links."""

    def __init__(self, effects: Effects) -> None:
        self._effects = effects
        self._made: dict[Hashable, Communication] = {}
        self.links: dict[str, int] = {}

    def message(self, cost: CollectiveCost) -> Communication:
        """A collective's cost in one group."""
        links = cost.links if self._effects.link_sharing else ()
        key = (cost.alpha, cost.transfer, cost.best, links)
        if key not in self._made:
            self._made[key] = self._make(cost, links)
        return self._made[key]

    def _make(self, cost: CollectiveCost, links: tuple[tuple[str, float], ...]) -> Communication:
        if self._effects.small_operator:
            alpha, transfer = quantise(cost.alpha), quantise(cost.transfer)
        else:
            alpha, transfer = 0.0, quantise(cost.best)
            # The bytes stay, the time shrinks: the demand on a link rises accordingly.
            links = tuple((name, demand(part * cost.transfer, cost.best)) for name, part in links if cost.best > 0)
        if not transfer > 0:
            links = ()
        # Sorted, so that equal costs are equal whatever order their links were found in.
        shares = sorted((self.links.setdefault(name, len(self.links)), part) for name, part in links)
        return Communication(alpha=alpha, transfer=transfer, links=tuple(shares))
