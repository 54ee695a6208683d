"""A cause: what kind of fault, where, and how strong; and the program and costs that it makes of a prediction's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from simpar.cost.costs import Communication, Costs
from simpar.diagnosis.places import Place
from simpar.diagnosis.sites import Ints, Mask, Sites
from simpar.program import Csr, Program, Role

CauseKind = Literal[
    'compute',
    'communication',
    'latency',
    'overlap',
    'compute beside communication',
    'communication beside compute',
    'host',
    'pause',
    'busy',
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A fault at a place.

    Arguments:
        kind: compute or communication that takes longer, by a factor or (latency) by the same time an op; streams that
            do not overlap; compute and communication that slow each other more; a host that issues late; an op that
            begins late, though its host may not; a machine that does something else, too.
        amount: compute, communication, slow-down: how many times as long as predicted. latency, host, pause: seconds
            later, an op. busy: the share by which its ops vary. overlap: 1.
        seconds: what it explains of the own times of one step, over all ranks.
        explains: its share of all that is not as predicted in the own times.
        step: seconds of a step with it.
    """

    kind: CauseKind
    place: Place
    amount: float = 1.0
    seconds: float = 0.0
    explains: float = 0.0
    step: float = 0.0

    def among(self, sites: Sites) -> Mask:
        """Shape [N], the sites that it concerns: those that compute, or that communicate, at its place."""
        if self.kind in ('overlap', 'host', 'pause'):
            return self.place.sites(sites, sites.on(()))
        communicates = self.kind in ('communication', 'latency', 'communication beside compute')
        return self.place.sites(sites, ~sites.computes if communicates else sites.computes)

    def make(self, bench: Bench, sites: Sites) -> Bench:
        """What it makes of a program and its costs."""
        match self.kind:
            case 'compute' | 'communication':
                return longer(bench, sites, self.among(sites), self.amount)
            case 'latency':
                return delayed(bench, sites, self.among(sites), self.amount)
            case 'pause':
                return added(bench, sites, self.among(sites), self.amount)
            case 'host':
                return later(bench, sites, self.among(sites), self.amount)
            case 'overlap':
                return in_turn(bench, self.place.ranks or range(sites.program.world), self.place.streams)
            case 'communication beside compute':
                return slowed_communication(bench, self.amount)
            case 'compute beside communication':
                return slowed_compute(bench, self.amount)
            case 'busy':
                return bench

    def of(self, amount: float) -> Cause:
        """The same at another strength."""
        return replace(self, amount=amount)


# Faults: changes of a program and its costs, as a cause would make them, so that the simulator can judge it.


@dataclass(frozen=True, slots=True, eq=False)
class Bench:
    """What is simulated: a program and its costs."""

    program: Program
    costs: Costs


def longer(bench: Bench, sites: Sites, mask: Mask, factor: float) -> Bench:
    """The ops of the sites in the mask take ``factor`` times as long."""
    bench, touched = apart(bench, sites, mask)
    costs = bench.costs
    compute = costs.compute.copy()
    compute[list(touched)] *= factor
    return replace(bench, costs=replace(costs, compute=compute, communication=_stretched(costs, touched, factor)))


def delayed(bench: Bench, sites: Sites, mask: Mask, seconds: float) -> Bench:
    """The communication of the sites in the mask takes so much longer, whatever its size."""
    bench, touched = apart(bench, sites, mask)
    communication = dict(bench.costs.communication)
    for index in set(touched.tolist()) & communication.keys():
        communication[index] = tuple(replace(one, alpha=max(0.0, one.alpha + seconds)) for one in communication[index])
    return replace(bench, costs=replace(bench.costs, communication=communication))


def added(bench: Bench, sites: Sites, mask: Mask, seconds: float) -> Bench:
    """Each op of the sites in the mask takes so much longer, whether it computes or communicates."""
    bench, touched = apart(delayed(bench, sites, mask & ~sites.computes, seconds), sites, mask & sites.computes)
    compute = bench.costs.compute.copy()
    compute[touched] = np.maximum(compute[touched] + seconds, 0.0)
    return replace(bench, costs=replace(bench.costs, compute=compute))


def later(bench: Bench, sites: Sites, mask: Mask, seconds: float) -> Bench:
    """The host takes so much longer to issue each of the sites in the mask."""
    bench, touched = apart(bench, sites, mask)
    host = bench.costs.host.copy()
    host[list(touched)] = np.maximum(host[list(touched)] + seconds, 0.0)
    return replace(bench, costs=replace(bench.costs, host=host))


def slowed_compute(bench: Bench, factor: float) -> Bench:
    """Compute that runs beside communication takes ``factor`` times as long as it already does there."""
    speed = np.clip(bench.costs.beside_communication / factor, 1e-3, 1.0)
    return replace(bench, costs=replace(bench.costs, beside_communication=speed))


def slowed_communication(bench: Bench, factor: float) -> Bench:
    """Communication that runs beside compute takes ``factor`` times as long as it already does there."""
    speed = np.clip(bench.costs.beside_compute / factor, 1e-3, 1.0)
    return replace(bench, costs=replace(bench.costs, beside_compute=speed))


def in_turn(bench: Bench, ranks: Sequence[int], streams: Sequence[str]) -> Bench:
    """These streams of these ranks run one op at a time, in issue order, as if they were one queue."""
    program = bench.program
    made: dict[int, int] = {}
    roles, role_of_rank = [*program.roles], program.role_of_rank.copy()
    for rank in ranks:
        role = int(program.role_of_rank[rank])
        if role not in made:
            made[role] = len(roles)
            roles.append(_queued(program.roles[role], streams))
        role_of_rank[rank] = made[role]
    return replace(bench, program=program.replace(roles=tuple(roles), role_of_rank=role_of_rank))


def apart(bench: Bench, sites: Sites, mask: Mask) -> tuple[Bench, Ints]:
    """The same, with op classes that the sites in the mask have to themselves; and the numbers of these classes."""
    everywhere = np.bincount(sites.op, minlength=len(sites.program.op_classes))
    inside = np.bincount(sites.op[mask], minlength=len(everywhere))
    # Classes that other sites have too are doubled; those that have none keep their number.
    split = np.flatnonzero((inside > 0) & (inside < everywhere))
    number = np.arange(len(everywhere))
    number[split] = len(everywhere) + np.arange(len(split))
    touched = number[np.flatnonzero(inside)]
    if not len(split):
        return bench, touched
    program, costs = bench.program, bench.costs
    again = np.concatenate((np.arange(len(everywhere)), split))
    changed = program.replace(op_classes=tuple(program.op_classes[index] for index in again.tolist()))
    changed = _renumbered(changed, sites, mask, number)
    return Bench(changed, _doubled(costs, again)), touched


def _renumbered(program: Program, sites: Sites, mask: Mask, number: Ints) -> Program:
    """The program with other numbers for the op classes of the sites in the mask, in roles of their own."""
    roles, role_of_rank = [*program.roles], program.role_of_rank.copy()
    made: dict[tuple[int, bytes], int] = {}
    for rank in np.unique(sites.rank[mask]).tolist():
        mine = mask[sites.first[rank] : sites.first[rank + 1]]
        index = int(program.role_of_rank[rank])
        key = index, mine.tobytes()
        if key not in made:
            made[key] = len(roles)
            role = program.roles[index]
            roles.append(replace(role, op_class=np.where(mine, number[role.op_class], role.op_class).astype(np.uint32)))
        role_of_rank[rank] = made[key]
    return program.replace(roles=tuple(roles), role_of_rank=role_of_rank)


def _doubled(costs: Costs, again: NDArray[np.int64]) -> Costs:
    """Costs of a table of op classes in which row i is what row ``again[i]`` was."""
    return replace(
        costs,
        compute=costs.compute[again],
        host=costs.host[again],
        beside_communication=costs.beside_communication[again],
        beside_compute=costs.beside_compute[again],
        communication={
            row: costs.communication[old] for row, old in enumerate(again.tolist()) if old in costs.communication
        },
    )


def _stretched(costs: Costs, touched: Ints, factor: float) -> dict[int, Sequence[Communication]]:
    communication = dict(costs.communication)
    for index in set(touched.tolist()) & communication.keys():
        communication[index] = tuple(
            replace(one, alpha=one.alpha * factor, transfer=one.transfer * factor) for one in communication[index]
        )
    return communication


def _queued(role: Role, streams: Sequence[str]) -> Role:
    """A role in which each op of some streams needs the one before it there, in issue order."""
    among = np.flatnonzero(np.isin(role.stream, [role.streams.index(name) for name in streams if name in role.streams]))
    if len(among) < 2:
        return role
    need = np.concatenate((role.need.pairs(), np.column_stack((among[1:], among[:-1]))))
    carry = np.concatenate((role.carry.pairs(), [[among[0], among[-1]]]))
    return replace(role, need=_csr(need, len(role)), carry=_csr(carry, len(role)))


def _csr(pairs: NDArray[np.int64], rows: int) -> Csr:
    pairs = np.unique(pairs, axis=0)
    return Csr.of(pairs[:, 0], pairs[:, 1], rows)
