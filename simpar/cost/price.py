"""price: a program's op classes on a cluster become costs; each effect of the model can be made ideal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from simpar import errors, hardware
from simpar.cost import costs as costing
from simpar.cost.collective import Alike, ClusterCollectives, demand
from simpar.cost.compute import MATRIX, NO_WORK, STAGE, DeviceCompute, StackCompute, dispatches
from simpar.cost.formula import PAIRWISE
from simpar.hardware.topology import Kernels
from simpar.model.operators.attention import CONTEXT_ATTENTION
from simpar.program import COPY, OpClass, Program, computes
from simpar.session import Session
from simpar.units import quantise

BLOM: Final = 0.375
"""Blom's constant: what makes the quantile of a rank near its expectation, for samples of any size."""
T = TypeVar('T')
Messages = Sequence[costing.Communication]
"""Of an op class, one for each group."""


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


def _messages_of(program: Program, collective: costing.CollectiveModel) -> Communicated:
    """What a model of collectives makes of a program's messages, without a stack."""
    return Communicated(program, collective, program.cost_kinds[1])


def price(
    program: Program,
    cluster: hardware.Cluster,
    effects: Effects = Effects(),
    *,
    models: Session | None = None,
    compute: costing.ComputeModel | None = None,
    collective: costing.CollectiveModel | None = None,
) -> costing.Costs:
    """Isolated seconds of every op class, what slows what, and which links each collective uses.

    Arguments: ``models``, a session that keeps those of devices and links for other programs; ``compute`` and
    ``collective``, models to use in place of the profile's; times are rounded to the grid.
    Raises ``Infeasible`` where the program has more ranks than the cluster devices, ``ProfileError`` where the profile
    does not say what the program needs.
    """
    return Pricer(program, cluster, models=models, compute=compute, collective=collective).costs(effects)


class Pricer:
    """Prices a program on a cluster; models are asked once for each cost key, whichever effects are on.

    Arguments and errors as of `price`.
    """

    def __init__(
        self,
        program: Program,
        cluster: hardware.Cluster,
        *,
        models: Session | None = None,
        compute: costing.ComputeModel | None = None,
        collective: costing.CollectiveModel | None = None,
    ) -> None:
        if program.world > cluster.world:
            raise errors.Infeasible(f'the program has {program.world} ranks, the cluster {cluster.world} devices')
        models, stack = models or Session(), cluster.stack
        self.bare = compute or models.once(DeviceCompute, profile=cluster.profile)
        self.stacked = StackCompute(self.bare, cluster.profile, stack) if stack else None
        self.compute: costing.ComputeModel = self.stacked or self.bare
        self.collective = collective or models.once(ClusterCollectives, cluster=cluster)
        self._program = program
        self._cluster = cluster
        self._priced: tuple[Effects, costing.Costs] | None = None
        # By op class the number of its cost key, and an op class of each; a stack tells ops apart that cost the same
        # without it.
        if self.stacked:
            self._kind, self._ops = _by_launches(program, self.stacked)
            shared, routed = _query_heads_shared(program), _routed(program)
            sent = [self.stacked.sent(op, shared, routed) for op in self._ops]
            self._messages = Communicated(program, self.collective, sent, self.stacked.copied)
        else:
            self._kind, self._ops = program.cost_kinds
            self._messages = models.once(_messages_of, program=program, collective=self.collective)
        self._computed = self._seconds_of(self.compute)

    def costs(self, effects: Effects = Effects()) -> costing.Costs:
        """The costs with some effects on."""
        # Of two states that differ in what this cluster has not, the costs are the same.
        effects = replace(effects, **self._absent) if self._absent else effects
        if self._priced is None or self._priced[0] != effects:
            self._priced = effects, self._costs(effects)
        return self._priced[1]

    def _costs(self, effects: Effects) -> costing.Costs:
        cluster, program, stack = self._cluster, self._program, self._cluster.stack
        seconds = self._compute_seconds(effects)
        taxes = self._taxes if effects.slow_down else {Tax(1.0, 1.0, False): list[int]()}
        slowed = cluster.profile.slow_down.collective.value if effects.slow_down else 1.0
        kind, (usual, *others) = self._kind, taxes
        messages, links = self._messages.of(effects)
        return costing.Costs(
            compute=_still(seconds[self._kind]),
            host=_still(self._host(effects)),
            beside_communication=_still(usual.beside(self._ops)[self._kind]),
            beside_compute=_still(np.array([_beside_compute(op, slowed) for op in self._ops])[self._kind]),
            rank_speed=rank_speeds(program.world, cluster, cluster.spread if effects.spread else 0.0),
            host_step=quantise(stack.host.step.value) if effects.launch and stack and stack.host else 0.0,
            waits=stack.waits.at if effects.launch and effects.host_waits and stack and stack.waits else (),
            work_queues=self._queues if effects.work_queues else 0,
            communication=_by_class(kind, messages),
            links=links,
            waiting_slows=usual.waits,
            kinds=tuple(
                [costing.Taking(np.isin(kind, taxes[one]), one.beside(self._ops)[kind], one.waits) for one in others]
            ),
            why=self._why,
            grades=self._grades(seconds.tolist(), messages),
        )

    def _seconds_of(self, model: costing.ComputeModel) -> dict[int, costing.ComputeCost]:
        """What a model says of each cost key that computes."""
        return {kind: model.seconds(op) for kind, op in enumerate(self._ops) if op.kind == 'compute'}

    @cached_property
    def _unstacked(self) -> dict[int, costing.ComputeCost]:
        """Of the device alone; most predictions never ask for it."""
        return self._seconds_of(self.bare)

    def _host(self, effects: Effects) -> costing.Array:
        """Seconds that the host takes to issue an op, by op class."""
        stack, plain = self._cluster.stack, self._cluster.profile.host.seconds.value
        if not effects.launch:
            return np.zeros(len(self._kind))
        times = stack.host if stack else None
        forward, backward = (times.forward.value, times.backward.value) if times else (plain, plain)
        host = [quantise(self._issuing(op, forward if op.phase == 'F' else backward)) for op in self._ops]
        issued = np.array(host)[self._kind]
        begins = stack.launches.get(STAGE) if stack else None
        if begins is not None and begins.calls:
            issued[_later_stages(self._program)] += quantise(forward * begins.calls)
        return issued

    def _issuing(self, op: OpClass, each: float) -> float:
        """Seconds that the host takes to issue an op. Arguments: ``each``, seconds of a launch by the framework."""
        # A view launches no kernel.
        if op.operator in NO_WORK or self.stacked is None:
            return 0.0 if op.operator in NO_WORK else each
        launches, graphs = self.stacked.launches(op), self.stacked.stack.graphs
        if graphs and self.stacked.captured(op):
            return graphs.each.value * launches.kernels
        by_library = self.stacked.tile_seconds(op)
        # Calls take the host as long as launches.
        ranks = self._program.partitions[op.partition].size if launches.ranks and op.partition else 0
        own = launches.kernels + launches.calls + launches.ranks * ranks
        return each * own if by_library is None else by_library

    @cached_property
    def _absent(self) -> dict[str, bool]:
        """Effects that change nothing here, switched off."""
        present = {'work_queues': self._queues, 'spread': self._cluster.spread}
        return {effect: False for effect, has in present.items() if not has}

    @cached_property
    def _taxes(self) -> dict[Tax, list[int]]:
        return taxes_of(self._cluster, self._program, self._ops)

    @cached_property
    def _queues(self) -> int:
        """How many work queues a device has; 0 where they are as many as streams, or more."""
        queues = self._cluster.queues
        return queues if queues < max(len(role.streams) for role in self._program.roles) else 0

    def _compute_seconds(self, effects: Effects) -> costing.Array:
        """By cost key."""
        compute = np.zeros(len(self._ops))
        costs = self._unstacked if self.stacked and not effects.framework else self._computed
        for kind, cost in costs.items():
            # On the engine's grid; see ``simpar.units``.
            compute[kind] = quantise(cost.seconds if effects.small_operator else cost.best)
        return compute

    @cached_property
    def _why(self) -> dict[int, str]:
        """How the seconds of op classes came about."""
        of_messages = {kind: costs[0].why for kind, costs in self._messages.costs.items()}
        return _by_class(self._kind, {kind: cost.why for kind, cost in self._computed.items()} | of_messages)

    def _grades(self, compute: list[float], communication: Mapping[int, Messages]) -> dict[str, float]:
        """Seconds of the first rank's isolated work by the grade of the numbers that they rest on."""
        # One rank stands for all: grades are shares to show, not to add up.
        slots = np.bincount(self._kind[self._program.role(0).op_class], minlength=len(compute)).tolist()
        seconds = dict.fromkeys(hardware.GRADES, 0.0)
        for kind, count in enumerate(slots):
            computed = self._computed.get(kind)
            if computed is not None:
                seconds[computed.grade] += compute[kind] * count
            else:
                seconds[self._messages.costs[kind][0].grade] += sum(costing.lasts(communication[kind], 0)) * count
        return {grade: total for grade, total in seconds.items() if total > 0}


def _by_launches(program: Program, stacked: StackCompute) -> tuple[NDArray[np.int64], tuple[OpClass, ...]]:
    """As ``cost_kinds``, apart where a stack tells op classes apart by their names."""
    kind, _ = program.cost_kinds
    numbers: dict[tuple[int, int, int, float | None, bool, str | bool], int] = {}
    ops: list[OpClass] = []
    indices = []
    for number, op in zip(kind.tolist(), program.op_classes, strict=True):
        is_sent = stacked.stack.dispatch is not None and op.operator == PAIRWISE and op.name
        traits = (stacked.side_by_side(op), stacked.tile_seconds(op), stacked.captured(op), is_sent)
        key = (number, id(stacked.launches(op)), *traits)
        if numbers.setdefault(key, len(ops)) == len(ops):
            ops.append(op)
        indices.append(numbers[key])
    return np.array(indices, dtype=np.int64), tuple(ops)


def _query_heads_shared(program: Program) -> float:
    """Query heads for each key head in attention of a sequence that ranks share; 0 where none do."""
    ratios = [op.dims['heads'] / op.dims['kv_heads'] for op in program.op_classes if op.operator == CONTEXT_ATTENTION]
    return max(ratios, default=0.0)


def _routed(program: Program) -> dict[str, int]:
    """To how many experts a token goes, and to how many groups of them at most where it is limited."""
    for op in program.op_classes:
        if op.operator == 'route':
            routing = {'once': int(op.attributes['top_k'])}
            groups = int(op.attributes.get('groups', 1))
            return (
                {**routing, 'groups': groups, 'group_top_k': int(op.attributes['group_top_k'])}
                if groups > 1
                else routing
            )
    return {}


def _later_stages(program: Program) -> NDArray[np.int64]:
    """The op classes that begin the forward of a stage, of each but the first."""
    by_stage: dict[int, int] = {}
    for role in program.roles:
        classes, at = np.unique(role.op_class, return_index=True)
        for index in classes[np.argsort(at)].tolist():
            op = program.op_classes[index]
            if op.stage and op.kind == 'compute' and op.part == 'F':
                by_stage.setdefault(op.stage, index)
    return np.array([*by_stage.values()], dtype=np.int64)


def rank_speeds(world: int, cluster: hardware.Cluster, spread: float = 0.0) -> costing.Array:
    """Of all ranks. Arguments: ``spread`` of devices, as of ``Cluster``, whose slow devices are told by number."""
    speeds = np.full(world, 1.0 / slowest(world, spread))
    for device, speed in cluster.slow.items():
        speeds[cluster.devices_of(np.arange(world)) == device] *= speed
    return _still(speeds)


def _by_class(kind: NDArray[np.int64], made: Mapping[int, T]) -> dict[int, T]:
    """What op classes have, where all of one cost key have the very same. Arguments: ``kind``, of each its key."""
    return {index: made[key] for index, key in enumerate(kind.tolist()) if key in made}


def _still(values: costing.Array) -> costing.Array:
    """The same, which nobody may change."""
    values.flags.writeable = False
    return values


def slowest(count: int, spread: float) -> float:
    """How many times as long as the mean device the slowest of so many is expected to take.

    Arguments:
        count: devices.
        spread: standard deviation of what devices take for the same work, as a share of its mean.

    The largest of n normal numbers is expected at the quantile (n − 3/8) / (n + 1/4), to 5 %: G. Blom, Statistical
    Estimates and Transformed Beta-Variables, 1958. All ranks are taken to wait for it. So where some of them hardly
    wait for one another it is too slow. Does not model devices that are slow for a while, nor broken ones.

    Example:
        >>> round(slowest(1024, 0.015), 3)
        1.049
    """
    return 1.0 + spread * NormalDist().inv_cdf((count - BLOM) / (count + 1.0 - 2.0 * BLOM))


class Communicated:
    """The messages of a program, of which a model is asked once for each cost key, whichever effects are on.

    Arguments: ``ops``, an op class of each key; ``copied``, seconds in which a framework copies what an op sends.
    Attribute ``costs``: by cost key, of every group.
    """

    def __init__(
        self,
        program: Program,
        collective: costing.CollectiveModel,
        ops: Sequence[OpClass],
        copied: Callable[[OpClass], float] | None = None,
    ) -> None:
        self._program = program
        self._collective = collective
        self._by_shape: dict[int, tuple[Alike, ...]] = {}
        self._lie: dict[tuple[str, str, int], tuple[NDArray[np.int32], list[NDArray[np.int64]]]] = {}
        self._made: dict[tuple[bool, ...], tuple[dict[int, Messages], Sequence[str]]] = {}
        self._copied = {number: seconds for number, op in enumerate(ops) if copied and (seconds := copied(op))}
        self.costs: dict[int, tuple[costing.CollectiveCost, ...]] = {}
        for number, op in enumerate(ops):
            if op.kind == 'compute':
                continue
            if isinstance(collective, ClusterCollectives) and collective.shapes_tell:
                alike = self._by_shape[number] = collective.by_shape(op, *self._lying(collective, op))
                # Groups in order: the first one is among those that stand first.
                self.costs[number] = (alike[0].cost,)
            else:
                self.costs[number] = tuple([collective.cost(op, ranks) for ranks in self._groups(op).tolist()])

    def of(self, effects: Effects) -> tuple[dict[int, Messages], Sequence[str]]:
        """By cost key the messages with some effects on, and the names of the links; unchanged ones are the same."""
        key = (effects.small_operator, effects.link_sharing, effects.framework and bool(self._copied))
        if key not in self._made:
            by_shape = self._collective if self._by_shape else None
            self._made[key] = (
                self._in_blocks(effects, by_shape)
                if isinstance(by_shape, ClusterCollectives)
                else self._in_groups(effects)
            )
        return self._made[key]

    def _in_groups(self, effects: Effects) -> tuple[dict[int, Messages], Sequence[str]]:
        """By cost key, a message of each group; links have numbers by first use."""
        numbers: dict[str, int] = {}

        def message(kind: int, cost: costing.CollectiveCost) -> costing.Communication:
            links = cost.links if effects.link_sharing else ()
            alpha, transfer, parts = _isolated(effects, cost, tuple([part for _, part in links]))
            alpha += self._copies(kind, effects)
            own = [numbers.setdefault(name, len(numbers)) for name, _ in links] if parts else []
            # Sorted, so that equal costs are equal whatever order their links were found in.
            return costing.Communication(alpha, transfer, tuple(sorted(zip(own, parts, strict=True))))

        made: dict[int, Messages] = {
            kind: tuple([message(kind, cost) for cost in costs]) for kind, costs in self.costs.items()
        }
        return made, tuple(numbers)

    def _in_blocks(self, effects: Effects, collective: ClusterCollectives) -> tuple[dict[int, Messages], Sequence[str]]:
        """By cost key, by shapes of groups."""
        numbers = _Numbers(len(collective.topology.links) * collective.cluster.world)
        made: dict[int, Messages] = {}
        for kind, alike in self._by_shape.items():
            blocks = []
            for one in alike:
                alpha, transfer, parts = _isolated(effects, one.cost, one.parts if effects.link_sharing else ())
                alpha += self._copies(kind, effects)
                links = numbers.of(one.channels) if parts else one.channels[:, :0]
                blocks.append(costing.Block(one.rows, alpha, transfer, links, parts, one.widths if parts else ()))
            made[kind] = costing.Entries(tuple(blocks))
        return made, tuple(map(collective.name, numbers.channels.tolist()))

    def _copies(self, kind: int, effects: Effects) -> float:
        """Seconds of a message in which no link is used, as its rank copies."""
        return quantise(self._copied.get(kind, 0.0)) if effects.framework else 0.0

    def _lying(self, collective: ClusterCollectives, op: OpClass) -> tuple[NDArray[np.int32], list[NDArray[np.int64]]]:
        """The groups of an op, and which of them lie alike; ops of one partition share them."""
        key = (op.partition, op.kind, op.peer)
        if key not in self._lie:
            groups = self._groups(op)
            self._lie[key] = groups, collective.lying_alike(groups)
        return self._lie[key]

    def _groups(self, op: OpClass) -> NDArray[np.int32]:
        """The ranks of each group; of a send or receive, the sender and the receiver of each pair."""
        groups = self._program.partitions[op.partition].groups_GP
        if op.kind == 'collective':
            return groups
        peers = np.roll(groups, -op.peer, axis=1)
        sides = (groups, peers) if op.kind == 'send' else (peers, groups)
        return np.stack(sides, axis=-1).reshape(-1, 2)


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
    effects: Effects, cost: costing.CollectiveCost, parts: tuple[float, ...]
) -> tuple[float, float, tuple[float, ...]]:
    """Latency, transfer and demands of links, on the engine's grid. Arguments: ``parts``, demands as priced."""
    if effects.small_operator:
        alpha, transfer = quantise(cost.alpha), quantise(cost.transfer)
    else:
        alpha, transfer = 0.0, quantise(cost.best)
        # The bytes stay, the time shrinks: the demand on a link rises accordingly.
        parts = tuple([demand(part * cost.transfer, cost.best) for part in parts if cost.best > 0])
    return alpha, transfer, parts if transfer > 0 else ()


def _beside_compute(op: OpClass, slowed: float) -> float:
    """The speed of an op beside compute; engines that copy to the host and back take some hundredth of the memory."""
    return costing.FREE if op.operator == COPY else 1.0 if op.kind == 'compute' else slowed


class Tax(NamedTuple):
    """Speeds of products and of other kernels beside a communication, and whether it slows them while it waits."""

    matrix: float
    memory: float
    waits: bool

    def beside(self, ops: Sequence[OpClass]) -> costing.Array:
        """The speed of each op."""

        def speed(op: OpClass) -> float:
            return (self.matrix if op.operator in MATRIX else self.memory) if computes(op) else 1.0

        return np.array(list(map(speed, ops)))


def taxes_of(cluster: hardware.Cluster, program: Program, ops: Sequence[OpClass]) -> dict[Tax, list[int]]:
    """What communication takes of its devices, and the numbers of the ops of each kind: that of most first."""
    waits = cluster.waiting_slows('messages'), cluster.waiting_slows('collectives')
    usual = [_usual(cluster, one) for one in waits]
    kernels, taxes = cluster.kernels, dict[Tax, list[int]]()
    for number, op in enumerate(ops):
        if not computes(op):
            tax = _tax(cluster, program, op, usual[op.kind == 'collective'], kernels)
            taxes.setdefault(tax, []).append(number)
    first = [one for one in usual if one in taxes or not taxes]
    taxes = {**{one: [] for one in first[:1]}, **taxes}
    while len(taxes) > costing.MOST_KINDS:
        # Further ones are taken together, for what the worst of them takes.
        (one, own), (other, others) = taxes.popitem(), taxes.popitem()
        both = Tax(min(one.matrix, other.matrix), min(one.memory, other.memory), one.waits or other.waits)
        taxes[both] = own + others
    return taxes


def speeds_beside(cluster: hardware.Cluster, program: Program) -> tuple[float, float, float]:
    """The highest of matrix kernels and of others beside a communication, and that of a collective beside compute."""
    taxes = taxes_of(cluster, program, program.op_classes)
    collective = cluster.profile.slow_down.collective.value
    return max(one.matrix for one in taxes), max(one.memory for one in taxes), collective


def _usual(cluster: hardware.Cluster, waits: bool) -> Tax:
    slow_down, usage = cluster.profile.slow_down, cluster.taken
    memory = 1 - usage.bandwidth.value if usage and usage.bandwidth else slow_down.memory.value
    return Tax(slow_down.matrix.value, memory, waits)


def _tax(cluster: hardware.Cluster, program: Program, op: OpClass, usual: Tax, kernels: Mapping[str, Kernels]) -> Tax:
    """What a communication takes, by its kind. Arguments: ``usual``, where nothing is known of it.

    Copies of engines and what the switch adds go once through a device's memory and once out of it, or the other way.
    """
    ranks, device = program.partitions[op.partition].size, cluster.profile.device
    has = cluster.profile.expansion
    if has and has.vector_cores:
        return usual._replace(memory=min(usual.memory, 1 - _cores(cluster, program, op) / has.vector_cores.value))
    dispatched = cluster.stack is not None and dispatches(cluster.stack, op)
    kernel = kernels.get('dispatch' if dispatched else op.operator)
    if kernel is None or device.multiprocessors is None or ranks == 1:
        return usual
    if kernel.matrix is not None:
        return Tax(kernel.matrix, usual.memory, kernel.waits)
    shape = cluster.topology.shape(cluster.devices_of(program.partitions[op.partition].groups_GP[0]).tolist())
    # The switch serves a node.
    if shape.nodes > 1 and kernel.blocks:
        return usual
    left = 1 - 2 * cluster.topology.links[shape.outermost].rate / device.memory.bandwidth.value
    return Tax(kernel.speed(ranks, device.multiprocessors.value), max(usual.memory, left), kernel.waits)


def cores_taken(cluster: hardware.Cluster, program: Program) -> int:
    """Vector cores that the program's collectives take at most."""
    return max((_cores(cluster, program, op) for op in program.op_classes), default=0)


def _cores(cluster: hardware.Cluster, program: Program, op: OpClass) -> int:
    """Vector cores that a collective takes; one is always left."""
    has, usage = cluster.profile.expansion, cluster.taken
    if has is None or has.vector_cores is None or usage is None or op.kind != 'collective':
        return 0
    return min(usage.cores_of(op.operator, program.partitions[op.partition].size), int(has.vector_cores.value) - 1)


def mode_notes(cluster: hardware.Cluster, program: Program) -> Iterator[str]:
    """What a mode of the library other than the profile's default makes of the answer."""
    has, taxes = cluster.profile.expansion, taxes_of(cluster, program, program.op_classes)
    vector = _span([one.memory for one in taxes])
    if has is None and cluster.mode:
        yield (
            f'{cluster.profile.library.name} goes by {cluster.mode}: products run at '
            f'{_span([one.matrix for one in taxes])} beside collectives, others at {vector}; '
            'in a node its kernels over symmetric memory go first where they are quicker'
        )
    if has is None or cluster.mode == has.default:
        return
    cores = cores_taken(cluster, program)
    takes = f'take up to {cores} of {has.vector_cores.value:g} vector cores' if cores and has.vector_cores else ''
    yield (
        f'{cluster.profile.library.name} expands collectives by {cluster.mode}, not {has.default}: they '
        f'{takes or "take no vector core"}, and kernels that are no products run at {vector} beside them; '
        f'by themselves they last as with {has.default}'
    )


def _span(speeds: Sequence[float]) -> str:
    """The lowest and the highest, or the only one."""
    return ' to '.join(dict.fromkeys(f'{speed:.2f}' for speed in (min(speeds), max(speeds))))
