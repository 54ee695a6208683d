"""price: a program's op classes on a cluster become costs; each effect of the model can be made ideal."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from simpar.cost.collective import ClusterCollectives
from simpar.cost.compute import MATRIX, DeviceCompute
from simpar.cost.costs import GRADES, Array, Communication, Costs
from simpar.cost.links import demand
from simpar.cost.model import CollectiveCost, CollectiveModel, ComputeCost, ComputeModel
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
    """

    small_operator: bool = True
    launch: bool = True
    slow_down: bool = True
    link_sharing: bool = True


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
    if program.world > cluster.world:
        raise Infeasible(f'the program has {program.world} ranks, the cluster {cluster.world} devices')
    pricing = _Pricing(
        program, effects, compute or DeviceCompute(cluster.profile), collective or ClusterCollectives(cluster)
    )
    return pricing.costs(cluster)


class _Pricing:
    """Prices each distinct cost key once; mutable, for one call of `price`."""

    def __init__(self, program: Program, effects: Effects, compute: ComputeModel, collective: CollectiveModel) -> None:
        self.program = program
        self.effects = effects
        self.compute_model = compute
        self.collective_model = collective
        self.links: dict[str, int] = {}
        self.computed: dict[Hashable, tuple[float, ComputeCost]] = {}
        self.communicated: dict[Hashable, tuple[tuple[Communication, ...], CollectiveCost]] = {}
        self.seconds_of_grade = dict.fromkeys(GRADES, 0.0)
        self.ranks = {name: partition.groups_GP.tolist() for name, partition in program.partitions.items()}

    def costs(self, cluster: Cluster) -> Costs:
        ops = self.program.op_classes
        slots = np.bincount(self.program.role(0).op_class, minlength=len(ops)).tolist()
        compute = np.zeros(len(ops))
        communication: dict[int, tuple[Communication, ...]] = {}
        why: dict[int, str] = {}
        for index, op in enumerate(ops):
            if op.kind == 'compute':
                compute[index], cost = self.compute(op)
                self.seconds_of_grade[cost.grade] += float(compute[index]) * slots[index]
                why[index] = cost.why
            else:
                communication[index], sent = self.communication(op)
                first = communication[index][0]
                self.seconds_of_grade[sent.grade] += (first.alpha + first.transfer) * slots[index]
                why[index] = sent.why
        return self.assemble(cluster, compute, communication, why)

    def assemble(
        self,
        cluster: Cluster,
        compute: Array,
        communication: dict[int, tuple[Communication, ...]],
        why: dict[int, str],
    ) -> Costs:
        ops, slow_down, slows = self.program.op_classes, cluster.profile.slow_down, self.effects.slow_down
        matrix, memory, collective = slow_down.matrix.value, slow_down.memory.value, slow_down.collective.value
        computes = [op.kind == 'compute' for op in ops]
        beside = [matrix if op.operator in MATRIX else memory for op in ops]
        host = quantise(cluster.profile.host.seconds.value) if self.effects.launch else 0.0
        return Costs(
            compute=compute,
            host=np.full(len(ops), host),
            beside_communication=np.where(np.array(computes) & slows, beside, 1.0),
            beside_compute=np.where(np.array(computes) | (not slows), 1.0, collective),
            communication=communication,
            links=tuple(self.links),
            rank_speed=np.array([cluster.slow.get(rank, 1.0) for rank in range(self.program.world)]),
            waiting_slows=slows and slow_down.waiting,
            why=why,
            grades={grade: seconds for grade, seconds in self.seconds_of_grade.items() if seconds > 0},
        )

    def compute(self, op: OpClass) -> tuple[float, ComputeCost]:
        key = op.cost_key
        if key not in self.computed:
            cost = self.compute_model.seconds(op)
            seconds = cost.seconds if self.effects.small_operator else cost.best
            self.computed[key] = (quantise(seconds), cost)
        return self.computed[key]

    def communication(self, op: OpClass) -> tuple[tuple[Communication, ...], CollectiveCost]:
        key = op.cost_key
        if key not in self.communicated:
            costs = [self.collective_model.cost(op, ranks) for ranks in self.meeting(op)]
            self.communicated[key] = (tuple(self.one(cost) for cost in costs), costs[0])
        return self.communicated[key]

    def meeting(self, op: OpClass) -> Iterator[Sequence[int]]:
        """The ranks of each group; of a send or receive, the sender and the receiver of each pair."""
        for ranks in self.ranks[op.partition]:
            if op.kind == 'collective':
                yield ranks
                continue
            for position, rank in enumerate(ranks):
                peer = ranks[(position + op.peer) % len(ranks)]
                yield (rank, peer) if op.kind == 'send' else (peer, rank)

    def one(self, cost: CollectiveCost) -> Communication:
        if self.effects.small_operator:
            alpha, transfer, links = quantise(cost.alpha), quantise(cost.transfer), cost.links
        else:
            alpha, transfer, links = 0.0, quantise(cost.best), cost.links
            links = tuple((name, demand(part * cost.transfer, cost.best)) for name, part in links if cost.best > 0)
        if not self.effects.link_sharing or not transfer > 0:
            links = ()
        shares = sorted((self.links.setdefault(name, len(self.links)), part) for name, part in links)
        return Communication(alpha=alpha, transfer=transfer, links=tuple(shares))
