"""Causes of a difference between two steps, and what else may lie behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, zip_longest
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from simpar.cost.costs import Costs
from simpar.diagnosis import places
from simpar.program import Csr, Program, Role
from simpar.trace import Times

# A cause: what kind of fault, where, and how strong; and the program and costs that it makes of a prediction's.

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
    place: places.Place
    amount: float = 1.0
    seconds: float = 0.0
    explains: float = 0.0
    step: float = 0.0

    def among(self, sites: places.Sites) -> places.Mask:
        """Shape [N], the sites that it concerns: those that compute, or that communicate, at its place."""
        if self.kind in ('overlap', 'host', 'pause'):
            return self.place.sites(sites, sites.on(()))
        communicates = self.kind in ('communication', 'latency', 'communication beside compute')
        return self.place.sites(sites, ~sites.computes if communicates else sites.computes)

    def make(self, bench: Bench, sites: places.Sites) -> Bench:
        """What it makes of a program and its costs."""
        match self.kind:
            case 'compute' | 'communication':
                return changed(bench, sites, self.among(sites), factor=self.amount)
            case 'latency' | 'pause':
                return changed(bench, sites, self.among(sites), seconds=self.amount)
            case 'host':
                return changed(bench, sites, self.among(sites), host=self.amount)
            case 'overlap':
                return in_turn(bench, self.place.ranks or range(sites.program.world), self.place.streams)
            case 'communication beside compute':
                own = bench.costs.beside_compute
                speed = np.where(own > 1, own, np.clip(own / self.amount, 1e-3, 1.0))
                return replace(bench, costs=replace(bench.costs, beside_compute=speed))
            case 'compute beside communication':
                slowed = bench.costs.with_speeds(lambda speed: np.clip(speed / self.amount, 1e-3, 1.0))
                return replace(bench, costs=slowed)
            case 'busy':
                return bench


# Faults: changes of a program and its costs, as a cause would make them, so that the simulator can judge it.


@dataclass(frozen=True, slots=True, eq=False)
class Bench:
    """What is simulated: a program and its costs."""

    program: Program
    costs: Costs


def changed(
    bench: Bench,
    sites: places.Sites,
    mask: places.Mask,
    *,
    factor: float = 1.0,
    seconds: float = 0.0,
    host: float = 0.0,
) -> Bench:
    """The ops of the sites in the mask take ``factor`` times as long, and so many seconds more, whatever their size.

    Arguments: ``host``, seconds that its host takes longer to issue each of them.
    """
    bench, touched = apart(bench, sites, mask)
    compute, issued = bench.costs.compute.copy(), bench.costs.host.copy()
    own = touched[[bench.program.op_classes[index].kind == 'compute' for index in touched.tolist()]]
    compute[own] = np.maximum(compute[own] * factor + seconds, 0.0)
    issued[touched] = np.maximum(issued[touched] + host, 0.0)
    communication = dict(bench.costs.communication)
    for index in set(touched.tolist()) & communication.keys():
        communication[index] = tuple(
            replace(one, alpha=max(0.0, one.alpha * factor + seconds), transfer=one.transfer * factor)
            for one in communication[index]
        )
    return replace(bench, costs=replace(bench.costs, compute=compute, host=issued, communication=communication))


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


def apart(bench: Bench, sites: places.Sites, mask: places.Mask) -> tuple[Bench, places.Ints]:
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
    program = bench.program
    again = np.concatenate((np.arange(len(everywhere)), split))
    changed = program.replace(op_classes=tuple(program.op_classes[index] for index in again.tolist()))
    changed = _renumbered(changed, sites, mask, number)
    return Bench(changed, bench.costs.of_classes(again)), touched


def _renumbered(program: Program, sites: places.Sites, mask: places.Mask, number: places.Ints) -> Program:
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


# Suspects: the causes worth a simulation, found from the own times alone, each with a first guess of its strength.

NAMED: Final = 4
"""How many places of compute, and how many of communication, are simulated."""
LATENCIES: Final = 2
"""How many places of longer latency are simulated."""
RANKS: Final = 8
"""How many ranks are looked at one by one: those whose own times differ most."""
PAUSES: Final = 2
"""How many ops that begin late are simulated, on all ranks and on one."""
HOSTS: Final = 3
"""How many hosts, and on how many ranks lost overlap, are simulated one by one."""
GROUPS: Final = 32
"""How many groups of ranks are looked at."""
FEWEST: Final = len(get_args(CauseKind)) - 1
"""One of each kind but busy, which needs no simulation."""
SLOTS: Final = 3_000_000
"""How many causes are simulated: so many that all have this many slots, but the fewest in any case."""
STREAMS: Final = 6
"""Streams of a role beyond which pairs of communication streams are left out."""


def suspects(seen: places.Level, told: places.Own, sites: places.Sites, costs: Costs, step: float) -> list[Cause]:
    """The causes to simulate.

    Arguments:
        seen, told: own times, in the measurement and by the prediction, which was made with ``costs``.
        step: seconds of a measured step.
    """
    found = [*_longer('compute', seen, told, sites), *_longer('communication', seen, told, sites)]
    found += [*_late(seen, told, sites, costs, step), *_pauses(seen, told, sites)]
    found += [] if sites.computes.all() else [*_in_turn(seen, told, sites), *_beside()]
    found.sort(key=lambda item: -item[0])
    # In turns of kinds: where few can be simulated, ten late hosts must not keep a slow link from being tried.
    kinds: dict[CauseKind, list[Cause]] = {}
    for _, cause in found:
        kinds.setdefault(cause.kind, []).append(cause)
    turns = [cause for turn in zip_longest(*kinds.values()) for cause in turn if cause]
    return turns[: max(FEWEST, SLOTS // len(sites))]


def _longer(kind: CauseKind, seen: places.Level, told: places.Own, sites: places.Sites) -> list[tuple[float, Cause]]:
    """The places whose ops, all by one factor, leave the least unexplained; of communication by one addition, too.

    Each with the seconds that it explains.
    """
    among = sites.computes if kind == 'compute' else ~sites.computes
    cells = places.cells_of(seen, told, sites, among)
    worst = _worst_ranks(np.abs(seen.run - told.run) * among, sites)
    alike = _alike(seen, told, sites, among)
    gains: dict[bytes, list[tuple[float, Cause]]] = {}
    ranks: tuple[int, ...] = ()
    on = places.Place().on(cells)
    several, single = places.groups(sites)[:GROUPS], [(rank,) for rank in worst] + alike
    # Where a group and one of its ranks have the same sites, what communicates is told by the group.
    sets = [(), *single, *several] if kind == 'compute' else [(), *several, *single]
    for place in places.crossed(sites, kind == 'compute', sets):
        # All places on some ranks follow one another.
        if place.ranks != ranks:
            ranks, on = place.ranks, place.on(cells)
        mask = on & place.named(cells)
        key = np.packbits(mask).tobytes()
        # Of places with the same sites the first stands: it is told in the fewest words.
        if key not in gains and mask.any():
            times = cells.seen[mask], cells.told[mask], cells.count[mask]
            amounts: list[tuple[CauseKind, tuple[float, float]]] = [(kind, _factor(*times))]
            amounts += [('latency', _addition(*times))] if kind == 'communication' else []
            gains[key] = [(gain, Cause(kind=each, place=place, amount=amount)) for each, (amount, gain) in amounts]
    ranked = sorted((one for each in gains.values() for one in each), key=lambda item: -item[0])
    found = [one for one in ranked if one[0] > 0]
    latencies = [one for one in found if one[1].kind == 'latency']
    return [one for one in found if one[1].kind == kind][:NAMED] + latencies[:LATENCIES]


def _factor(seen: Times, told: Times, count: Times) -> tuple[float, float]:
    """The factor that brings the told times nearest to those seen, and by how many seconds nearer."""
    factor = places.weighted_median(np.divide(seen, told, out=np.ones_like(seen), where=told > 0), told)
    return factor, float((np.abs(seen - told) - np.abs(seen - factor * told)).sum())


def _addition(seen: Times, told: Times, count: Times) -> tuple[float, float]:
    """The seconds that, added to each op, bring the told times nearest to those seen, and how much nearer."""
    seconds = places.weighted_median((seen - told) / count, count)
    return seconds, float((np.abs(seen - told) - np.abs(seen - told - seconds * count)).sum())


Suspects = Iterator[tuple[float, Cause]]
"""Causes, each with the seconds that it explains of what ops are late, or longer."""


def _late(seen: places.Level, told: places.Own, sites: places.Sites, costs: Costs, step: float) -> Suspects:
    """Hosts: of all ranks, and of those whose ops start latest."""
    late = seen.delay - told.delay
    ops, issues = np.bincount(sites.rank), np.bincount(sites.rank, costs.host[sites.op])
    worst = [(rank,) for rank in _worst_ranks(late, sites)[:HOSTS] if late[sites.rank == rank].sum() > 0]
    for ranks in [(), *worst] if worst else []:
        # A host never waits for its device. Where it delays a steady step, issuing takes the whole step.
        busiest = max(ranks or range(len(ops)), key=issues.__getitem__)
        amount = float((step - issues[busiest]) / ops[busiest])
        if amount > 0:
            on = sites.on(ranks)
            share = sites.share[on]
            _, gain = _addition(seen.delay[on] * share, told.delay[on] * share, share)
            yield gain, Cause(kind='host', place=places.Place(ranks=ranks), amount=amount)


def _pauses(seen: places.Level, told: places.Own, sites: places.Sites) -> Suspects:
    """Single ops that begin late, on all ranks and on one: those that lose most."""
    late = (seen.delay - told.delay) * sites.share
    count = len(sites.program.op_classes)
    for key, on in ((sites.op, False), (sites.rank * count + sites.op, True)):
        sums = np.bincount(key, late)
        for one in np.argsort(-sums, kind='stable')[:PAUSES].tolist():
            mask = key == one
            rank, op = divmod(one, count) if on else (0, one)
            amount = float(np.median((seen.delay - told.delay)[mask]))
            if amount > 0:
                place = places.Place(ranks=(rank,) if on else (), op=sites.program.op_classes[op].name)
                yield float(sums[one]), Cause(kind='pause', place=place, amount=amount)


def _in_turn(seen: places.Level, told: places.Own, sites: places.Sites) -> Suspects:
    """Pairs of streams, and all of them, on all ranks and on those whose ops start latest."""
    late = seen.delay - told.delay
    if late.sum() <= 0:
        return
    computing_on, others = _streams(sites)
    together: list[tuple[str, ...]] = [(computing_on, other) for other in others]
    together += [(computing_on, *others)] if len(others) > 1 else []
    together += [*combinations(others, 2)] if len(others) <= STREAMS else []
    for ranks in [(), *((rank,) for rank in _worst_ranks(late, sites)[:HOSTS])]:
        held = float(np.maximum(late * sites.share, 0.0)[sites.on(ranks)].sum())
        for streams in together:
            yield held, Cause(kind='overlap', place=places.Place(ranks=ranks, streams=streams))


def _beside() -> Suspects:
    # By how much they explain, only a simulation says.
    yield 0.0, Cause(kind='compute beside communication', place=places.Place(), amount=1.25)
    yield 0.0, Cause(kind='communication beside compute', place=places.Place(), amount=1.25)


def _streams(sites: places.Sites) -> tuple[str, list[str]]:
    """The stream with most ops that compute, and the streams that only communicate."""
    count = np.bincount(sites.stream[sites.computes], minlength=len(sites.streams))
    first = int(np.argmax(count))
    return sites.streams[first], [name for name, computes in zip(sites.streams, count, strict=True) if not computes]


def _alike(seen: places.Level, told: places.Own, sites: places.Sites, among: places.Mask) -> list[tuple[int, ...]]:
    """The ranks that take at least half as much longer as the worst, where these are some and not all."""
    apart = np.bincount(sites.rank, np.where(among, seen.run - told.run, 0.0))
    found = tuple(np.flatnonzero(apart > apart.max() / 2).tolist()) if apart.max() > 0 else ()
    return [found] if 1 < len(found) < len(apart) else []


def _worst_ranks(seconds: Times, sites: places.Sites) -> list[int]:
    """The ranks with most seconds, the worst first."""
    sums = np.bincount(sites.rank, seconds * sites.share)
    worst: list[int] = np.argsort(-sums, kind='stable')[:RANKS].tolist()
    return worst


# Busy machines: ops that vary from step to step more than those of other ranks, or more than ops do.


VARIES: Final = 0.05
"""Share of its compute by which a rank's ops must vary beyond those of most, to be called busy."""
ALL: Final = 0.15
"""Share by which most ops vary, beyond which the whole machine is called busy."""


def busy(seen: places.Level, told: places.Own, sites: places.Sites) -> list[Cause]:
    """Each rank, and all of them, as far as their ops vary."""
    varies = np.bincount(sites.rank, seen.varies)
    computes = np.maximum(np.bincount(sites.rank, seen.run * sites.computes), 1e-300)
    found = [
        Cause(
            kind='busy',
            place=places.Place(ranks=(rank,)),
            amount=float(varies[rank] / computes[rank]),
            seconds=float(varies[rank]),
        )
        for rank in np.flatnonzero(varies > VARIES * computes).tolist()
    ]
    if seen.noise > ALL:
        seconds = seen.noise * float(computes.sum())
        found.append(Cause(kind='busy', place=places.Place(), amount=seen.noise, seconds=seconds))
    return found
