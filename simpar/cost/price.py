"""price: a program's op classes on a cluster become costs; each effect of the model can be made ideal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from simpar.cost.collective import ClusterCollectives
from simpar.cost.compute import MATRIX, NO_WORK
from simpar.cost.costs import GRADES, Array, ByKey, Communication, Costs, Why
from simpar.cost.entries import Alike, Block, Entries, LinkNames, lasts
from simpar.cost.kept import (
    Local,
    cluster_collectives,
    communicating,
    computed,
    computed_seconds,
    device_compute,
    locally,
    reasons,
    slots_of_first,
)
from simpar.cost.messages import Messages, Numbers, isolated
from simpar.cost.model import CollectiveCost, CollectiveModel, ComputeCost, ComputeModel
from simpar.cost.stack import StackCompute
from simpar.errors import Infeasible
from simpar.hardware import Cluster
from simpar.program import OpClass, Program
from simpar.units import quantise

MANY: Final = 512
"""From how many ranks on groups are priced by their shapes, in arrays: below, a few objects are quicker."""
Priced = dict[int, Sequence[Communication]]
"""By the number of a cost key."""


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
        own = device_compute(cluster.profile) if compute is None else None
        self.bare = own or cast('ComputeModel', compute)
        stack = cluster.stack
        self.stacked = StackCompute(self.bare, cluster.profile, stack) if stack else None
        self.compute: ComputeModel = self.stacked or self.bare
        self.collective = collective or cluster_collectives(cluster)
        self._program = program
        self._cluster = cluster
        self._ranks: dict[str, list[list[int]]] = {}
        self._kind, self._ops = _by_launches(program, self.stacked) if self.stacked else program.cost_kinds
        # By the number of the cost key.
        # A stack tells ops apart that cost the same without it.
        self._own = None if stack else own
        self._computed: dict[int, ComputeCost] = computed(program, self._own) if self._own else {}
        self._communicated: dict[int, tuple[CollectiveCost, ...]] = {}
        self._by_shape: dict[int, tuple[Alike, ...]] = {}
        self._lie: dict[tuple[str, str, int], tuple[NDArray[np.int32], list[NDArray[np.int64]]]] = {}
        many = program.world >= MANY and isinstance(self.collective, ClusterCollectives)
        for kind, op in enumerate(self._ops):
            if op.kind == 'compute':
                if self._own is None:
                    self._computed[kind] = self.compute.seconds(op)
            elif many and isinstance(self.collective, ClusterCollectives) and self.collective.shapes_tell:
                alike = self._by_shape[kind] = self.collective.by_shape(op, *self._lying(self.collective, op))
                # Groups in order: the first one is among those that stand first.
                self._communicated[kind] = (alike[0].cost,)
            else:
                self._communicated[kind] = tuple(self.collective.cost(op, ranks) for ranks in self._meeting(op))
        self._messages: dict[tuple[bool, bool], tuple[Priced, Sequence[str]]] = {}

    def costs(self, effects: Effects = Effects()) -> Costs:
        """The costs with some effects on."""
        # Without a stack this is the same for all links that a cluster may have, and most rows of a sweep have another.
        key = (self._own, self._cluster.profile, self._cluster.slow, effects)
        local = locally(self._program, key, lambda: self._local(effects)) if self._own else self._local(effects)
        communication, links = self._communication(effects)
        return Costs(
            **local.columns,
            host_step=self._host_step(effects),
            waits=self._waits(effects),
            communication=ByKey(self._communicating, communication),
            links=links,
            waiting_slows=effects.slow_down and self._waiting,
            why=Why(self._kind, self._why),
            grades=self._grades(local.seconds, communication),
        )

    def _local(self, effects: Effects) -> Local:
        """What is no communication."""
        ops, slow_down, slows = self._ops, self._cluster.profile.slow_down, effects.slow_down
        matrix, memory, collective = slow_down.matrix.value, slow_down.memory.value, slow_down.collective.value
        computes = np.array([op.kind == 'compute' for op in ops])
        beside = [matrix if op.operator in MATRIX else memory for op in ops]
        seconds = self._compute_seconds(effects)
        columns = {
            'compute': seconds[self._kind],
            'host': self._host(effects)[self._kind],
            'beside_communication': np.where(computes & slows, beside, 1.0)[self._kind],
            'beside_compute': np.where(computes | (not slows), 1.0, collective)[self._kind],
            'rank_speed': self._speeds(),
        }
        for column in columns.values():
            column.flags.writeable = False
        return Local(columns, seconds.tolist())

    def _speeds(self) -> Array:
        """Of all ranks."""
        speeds = np.ones(self._program.world)
        for rank, speed in self._cluster.slow.items():
            if rank < len(speeds):
                speeds[rank] = speed
        return speeds

    @cached_property
    def _unstacked(self) -> dict[int, ComputeCost]:
        """Of the device alone, by cost key; most predictions never ask for it."""
        return {kind: self.bare.seconds(op) for kind, op in enumerate(self._ops) if op.kind == 'compute'}

    @cached_property
    def _communicating(self) -> dict[int, int]:
        """The op classes that communicate, each with the number of its cost key."""
        if self._own:
            return communicating(self._program)
        index = np.flatnonzero(np.array([op.kind != 'compute' for op in self._ops], dtype=bool)[self._kind])
        return dict(zip(index.tolist(), self._kind[index].tolist(), strict=True))

    def _lying(self, collective: ClusterCollectives, op: OpClass) -> tuple[NDArray[np.int32], list[NDArray[np.int64]]]:
        """The groups of an op, and which of them lie alike; ops of one partition share them."""
        key = (op.partition, op.kind, op.peer)
        if key not in self._lie:
            groups = self._groups(op)
            self._lie[key] = groups, collective.lying_alike(groups)
        return self._lie[key]

    def _groups(self, op: OpClass) -> NDArray[np.int32]:
        """As ``_meeting``, in one array."""
        groups = self._program.partitions[op.partition].groups_GP
        if op.kind == 'collective':
            return groups
        peers = np.roll(groups, -op.peer, axis=1)
        sides = (groups, peers) if op.kind == 'send' else (peers, groups)
        return np.stack(sides, axis=-1).reshape(-1, 2)

    def _meeting(self, op: OpClass) -> Iterator[Sequence[int]]:
        """The ranks of each group; of a send or receive, the sender and the receiver of each pair."""
        if op.partition not in self._ranks:
            self._ranks[op.partition] = self._program.partitions[op.partition].groups_GP.tolist()
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
        if self._own:
            return computed_seconds(self._program, self._own, not effects.small_operator)
        compute = np.zeros(len(self._ops))
        asked = self._unstacked if self.stacked and not effects.framework else self._computed
        for kind, cost in asked.items():
            # On the engine's grid; see ``simpar.units``.
            compute[kind] = quantise(cost.seconds if effects.small_operator else cost.best)
        return compute

    def _communication(self, effects: Effects) -> tuple[Priced, Sequence[str]]:
        """By cost key, and the names of the links; what no effect changes is the same object."""
        key = (effects.small_operator, effects.link_sharing)
        if key not in self._messages:
            if self._by_shape:
                self._messages[key] = self._in_blocks(effects)
                return self._messages[key]
            messages = Messages(effects)
            made: Priced = {kind: tuple(map(messages.message, costs)) for kind, costs in self._communicated.items()}
            self._messages[key] = (made, tuple(messages.links))
        return self._messages[key]

    def _in_blocks(self, effects: Effects) -> tuple[Priced, Sequence[str]]:
        """The same, by shapes of groups."""
        numbers = Numbers(len(self._cluster.topology.links) * self._cluster.world)
        made: Priced = {}
        for kind, alike in self._by_shape.items():
            blocks = []
            for one in alike:
                alpha, transfer, parts = isolated(effects, one.cost, one.parts if effects.link_sharing else ())
                links = numbers.of(one.channels) if parts else one.channels[:, :0]
                blocks.append(Block(one.rows, alpha, transfer, links, parts, one.widths if parts else ()))
            made[kind] = Entries(tuple(blocks))
        collective = self.collective
        name = collective.name if isinstance(collective, ClusterCollectives) else str
        return made, LinkNames(numbers.channels, name)

    @cached_property
    def _why(self) -> list[str]:
        """By cost key."""
        if self._own:
            why = reasons(self._program, self._own).copy()
        else:
            why = [self._computed[kind].why if kind in self._computed else '' for kind in range(len(self._ops))]
        for kind, costs in self._communicated.items():
            why[kind] = costs[0].why
        return why

    def _grades(self, compute: list[float], communication: Mapping[int, Sequence[Communication]]) -> dict[str, float]:
        """Seconds of the first rank's isolated work by the grade of the numbers that they rest on."""
        # One rank stands for all: grades are shares to show, not to add up.
        if self._own:
            slots = slots_of_first(self._program)
        else:
            slots = np.bincount(self._kind[self._program.role(0).op_class], minlength=len(compute)).tolist()
        seconds = dict.fromkeys(GRADES, 0.0)
        for kind, count in enumerate(slots):
            if kind in self._computed:
                seconds[self._computed[kind].grade] += compute[kind] * count
            else:
                seconds[self._communicated[kind][0].grade] += sum(lasts(communication[kind], 0)) * count
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
