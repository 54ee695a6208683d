"""price: a program's op classes on a cluster become costs; each effect of the model can be made ideal."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from simpar.cost.collective import ClusterCollectives
from simpar.cost.compute import MATRIX, NO_WORK
from simpar.cost.costs import GRADES, Array, Communication, Costs, Why
from simpar.cost.entries import Alike, Block, Entries, LinkNames, lasts
from simpar.cost.kept import cluster_collectives, communicating, computed, computed_seconds, device_compute
from simpar.cost.links import demand
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
_NAME: Final = itemgetter(0)


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
        self._unstacked: dict[int, ComputeCost] = {}
        self._communicated: dict[int, tuple[CollectiveCost, ...]] = {}
        self._by_shape: dict[int, tuple[Alike, ...]] = {}
        self._lie: dict[tuple[str, str, int], tuple[NDArray[np.int32], list[NDArray[np.int64]]]] = {}
        many = program.world >= MANY and isinstance(self.collective, ClusterCollectives)
        for kind, op in enumerate(self._ops):
            if op.kind == 'compute':
                if self._own is None:
                    self._computed[kind] = self.compute.seconds(op)
                if self.stacked:
                    self._unstacked[kind] = self.bare.seconds(op)
            elif many and isinstance(self.collective, ClusterCollectives) and self.collective.shapes_tell:
                alike = self._by_shape[kind] = self.collective.by_shape(op, *self._lying(self.collective, op))
                # Groups in order: the first one is among those that stand first.
                self._communicated[kind] = (alike[0].cost,)
            else:
                self._communicated[kind] = tuple(self.collective.cost(op, ranks) for ranks in self._meeting(op))
        self._messages: dict[tuple[bool, bool], tuple[Priced, Sequence[str]]] = {}

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
            communication={index: communication[kind] for index, kind in self._communicating},
            links=links,
            rank_speed=self._speeds(),
            waiting_slows=slows and self._waiting,
            why=Why(self._kind, self._why),
            grades=self._grades(compute, communication),
        )

    def _speeds(self) -> Array:
        """Of all ranks."""
        speeds = np.ones(self._program.world)
        for rank, speed in self._cluster.slow.items():
            if rank < len(speeds):
                speeds[rank] = speed
        return speeds

    @cached_property
    def _communicating(self) -> list[tuple[int, int]]:
        """The op classes that communicate, each with the number of its cost key."""
        if self._own:
            return communicating(self._program)
        index = np.flatnonzero(np.array([op.kind != 'compute' for op in self._ops], dtype=bool)[self._kind])
        return list(zip(index.tolist(), self._kind[index].tolist(), strict=True))

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
            messages = _Messages(effects)
            made: Priced = {kind: tuple(map(messages.message, costs)) for kind, costs in self._communicated.items()}
            self._messages[key] = (made, tuple(messages.links))
        return self._messages[key]

    def _in_blocks(self, effects: Effects) -> tuple[Priced, Sequence[str]]:
        """The same, by shapes of groups."""
        numbers = _Numbers(len(self._cluster.topology.links) * self._cluster.world)
        made: Priced = {}
        for kind, alike in self._by_shape.items():
            blocks = []
            for one in alike:
                alpha, transfer, parts = _isolated(effects, one.cost, one.parts if effects.link_sharing else ())
                links = numbers.of(one.channels) if parts else one.channels[:, :0]
                blocks.append(Block(one.rows, alpha, transfer, links, parts, one.widths if parts else ()))
            made[kind] = Entries(tuple(blocks))
        collective = self.collective
        name = collective.name if isinstance(collective, ClusterCollectives) else str
        return made, LinkNames(numbers.channels, name)

    @cached_property
    def _why(self) -> list[str]:
        """By cost key."""
        why = {kind: costs[0].why for kind, costs in self._communicated.items()}
        why |= {kind: cost.why for kind, cost in self._computed.items()}
        return [why[kind] for kind in range(len(self._ops))]

    def _grades(self, compute: Array, communication: Mapping[int, Sequence[Communication]]) -> dict[str, float]:
        """Seconds of the first rank's isolated work by the grade of the numbers that they rest on."""
        # One rank stands for all: grades are shares to show, not to add up.
        slots = np.bincount(self._kind[self._program.role(0).op_class], minlength=len(compute)).tolist()
        seconds = dict.fromkeys(GRADES, 0.0)
        for kind, count in enumerate(slots):
            if kind in self._computed:
                seconds[self._computed[kind].grade] += float(compute[kind]) * count
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


class _Messages:
    """Makes messages of costs, equal ones once; numbers their links."""

    def __init__(self, effects: Effects) -> None:
        self._effects = effects
        self._made: dict[Hashable, Communication] = {}
        self._shares: dict[int, tuple[tuple[int, float], ...]] = {}
        self._numbers: dict[tuple[str, ...], tuple[int, ...]] = {}
        self.links: dict[str, int] = {}

    def message(self, cost: CollectiveCost) -> Communication:
        """A collective's cost in one group."""
        links = cost.links if self._effects.link_sharing else ()
        # Equal links are mostly the same object, and are told by it: they may be many.
        key = (cost.alpha, cost.transfer, cost.best, id(links))
        if key not in self._made:
            self._made[key] = self._make(cost, links)
        return self._made[key]

    def _make(self, cost: CollectiveCost, links: tuple[tuple[str, float], ...]) -> Communication:
        alpha, transfer, parts = _isolated(self._effects, cost, tuple([part for _, part in links]))
        # Of costs as they are, links are told once; only these live as long as this does.
        same = links is cost.links and self._effects.small_operator
        shares = self._shares.get(id(links)) if same and parts else None
        if shares is None:
            # Sorted, so that equal costs are equal whatever order their links were found in.
            shares = tuple(sorted(zip(self._numbers_of(links), parts, strict=True))) if parts else ()
            if same and parts:
                self._shares[id(links)] = shares
        return Communication(alpha=alpha, transfer=transfer, links=shares)

    def _numbers_of(self, links: tuple[tuple[str, float], ...]) -> tuple[int, ...]:
        """The numbers of links; messages over the same links are numbered once."""
        names = tuple(map(_NAME, links))
        found = self._numbers.get(names)
        if found is None:
            found = self._numbers[names] = tuple([self.links.setdefault(name, len(self.links)) for name in names])
        return found


class _Numbers:
    """Numbers the channels that are used, by first use; ``channels``, how many there may be."""

    def __init__(self, channels: int) -> None:
        self._number = np.full(channels, -1)
        self._found: list[NDArray[np.int64]] = [np.empty(0, dtype=np.int64)]
        self._count = 0

    def of(self, channels: NDArray[np.int64]) -> NDArray[np.int64]:
        """Their numbers, in an array of the same shape."""
        new = channels[self._number[channels] < 0]
        if len(new):
            # Of equal places the last one assigned stays: backwards, that is the first.
            self._number[new[::-1]] = np.arange(len(new))[::-1]
            first = new[self._number[new] == np.arange(len(new))]
            self._number[first] = np.arange(self._count, self._count + len(first))
            self._found.append(first)
            self._count += len(first)
        return self._number[channels]

    @property
    def channels(self) -> NDArray[np.int64]:
        """The channel of each number."""
        return np.concatenate(self._found)


def _isolated(
    effects: Effects, cost: CollectiveCost, parts: tuple[float, ...]
) -> tuple[float, float, tuple[float, ...]]:
    """Latency, transfer and demands of links, on the engine's grid. Arguments: ``parts``, demands as priced."""
    if effects.small_operator:
        alpha, transfer = quantise(cost.alpha), quantise(cost.transfer)
    else:
        alpha, transfer = 0.0, quantise(cost.best)
        # The bytes stay, the time shrinks: the demand on a link rises accordingly.
        parts = tuple([demand(part * cost.transfer, cost.best) for part in parts if cost.best > 0])
    return alpha, transfer, parts if transfer > 0 else ()
