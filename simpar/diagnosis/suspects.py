"""Suspects: the causes worth a simulation, found from the own times alone, each with a first guess of its strength."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Final

import numpy as np

from simpar.cost.costs import Costs
from simpar.diagnosis.causes import Cause, CauseKind
from simpar.diagnosis.places import Place, cells_of, communicating, computing, groups
from simpar.diagnosis.sites import Level, Mask, Own, Sites, weighted_median
from simpar.trace import Times

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
FEWEST: Final = 4
SLOTS: Final = 3_000_000
"""How many causes are simulated: so many that all have this many slots, but a few in any case."""
STREAMS: Final = 6
"""Streams of a role beyond which pairs of communication streams are left out."""


def suspects(seen: Level, told: Own, sites: Sites, costs: Costs, step: float) -> list[Cause]:
    """The causes to simulate.

    Arguments:
        seen, told: own times, in the measurement and by the prediction, which was made with ``costs``.
        step: seconds of a measured step.
    """
    longer = [*_longer('compute', seen, told, sites), *_longer('communication', seen, told, sites)]
    longer.sort(key=lambda item: -item[0])
    others = [*_late(seen, told, sites, costs, step), *_pauses(seen, told, sites)]
    others += [] if sites.computes.all() else [*_in_turn(seen, told, sites), *_beside()]
    found = [cause for _, cause in longer]
    # What holds ops back comes first where that is more than what lengthens them.
    late = float(np.abs((seen.delay - told.delay) * sites.share).sum())
    found = [*others, *found] if longer and late > longer[0][0] else [*found, *others]
    return found[: max(FEWEST, SLOTS // len(sites))]


def _longer(kind: CauseKind, seen: Level, told: Own, sites: Sites) -> list[tuple[float, Cause]]:
    """The places whose ops, all by one factor, leave the least unexplained; of communication by one addition, too.

    Each with the seconds that it explains.
    """
    among = sites.computes if kind == 'compute' else ~sites.computes
    cells = cells_of(seen, told, sites, among)
    worst = _worst_ranks(np.abs(seen.run - told.run) * among, sites)
    alike = _alike(seen, told, sites, among)
    gains: dict[bytes, list[tuple[float, Cause]]] = {}
    for place in _places(kind, sites, [(rank,) for rank in worst] + alike):
        mask = place.among(cells)
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


def _places(kind: CauseKind, sites: Sites, single: list[tuple[int, ...]]) -> Iterator[Place]:
    several = groups(sites)[:GROUPS]
    if kind == 'compute':
        return computing(sites, [(), *single, *several])
    # Where a group and one of its ranks have the same sites, what communicates is told by the group.
    return communicating(sites, [(), *several, *single])


def _factor(seen: Times, told: Times, count: Times) -> tuple[float, float]:
    """The factor that brings the told times nearest to those seen, and by how many seconds nearer."""
    factor = weighted_median(np.divide(seen, told, out=np.ones_like(seen), where=told > 0), told)
    return factor, float((np.abs(seen - told) - np.abs(seen - factor * told)).sum())


def _addition(seen: Times, told: Times, count: Times) -> tuple[float, float]:
    """The seconds that, added to each op, bring the told times nearest to those seen, and how much nearer."""
    seconds = weighted_median((seen - told) / count, count)
    return seconds, float((np.abs(seen - told) - np.abs(seen - told - seconds * count)).sum())


def _late(seen: Level, told: Own, sites: Sites, costs: Costs, step: float) -> Iterator[Cause]:
    """Hosts: of all ranks, and of those whose ops start latest."""
    late = seen.delay - told.delay
    ops, issues = np.bincount(sites.rank), np.bincount(sites.rank, costs.host[sites.op])
    worst = [(rank,) for rank in _worst_ranks(late, sites)[:HOSTS] if late[sites.rank == rank].sum() > 0]
    for ranks in [(), *worst] if worst else []:
        # A host never waits for its device. Where it delays a steady step, issuing takes the whole step.
        busiest = max(ranks or range(len(ops)), key=issues.__getitem__)
        amount = float((step - issues[busiest]) / ops[busiest])
        if amount > 0:
            yield Cause(kind='host', place=Place(ranks=ranks), amount=amount)


def _pauses(seen: Level, told: Own, sites: Sites) -> Iterator[Cause]:
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
                place = Place(ranks=(rank,) if on else (), op=sites.program.op_classes[op].name)
                yield Cause(kind='pause', place=place, amount=amount)


def _in_turn(seen: Level, told: Own, sites: Sites) -> Iterator[Cause]:
    """Pairs of streams, and all of them, on all ranks and on those whose ops start latest."""
    late = seen.delay - told.delay
    if late.sum() <= 0:
        return
    computing_on, others = _streams(sites)
    together: list[tuple[str, ...]] = [(computing_on, other) for other in others]
    together += [(computing_on, *others)] if len(others) > 1 else []
    together += [*combinations(others, 2)] if len(others) <= STREAMS else []
    for ranks in [(), *((rank,) for rank in _worst_ranks(late, sites)[:HOSTS])]:
        for streams in together:
            yield Cause(kind='overlap', place=Place(ranks=ranks, streams=streams))


def _beside() -> list[Cause]:
    return [
        Cause(kind='compute beside communication', place=Place(), amount=1.25),
        Cause(kind='communication beside compute', place=Place(), amount=1.25),
    ]


def _streams(sites: Sites) -> tuple[str, list[str]]:
    """The stream with most ops that compute, and the streams that only communicate."""
    count = np.bincount(sites.stream[sites.computes], minlength=len(sites.streams))
    first = int(np.argmax(count))
    return sites.streams[first], [name for name, computes in zip(sites.streams, count, strict=True) if not computes]


def _alike(seen: Level, told: Own, sites: Sites, among: Mask) -> list[tuple[int, ...]]:
    """The ranks that take at least half as much longer as the worst, where these are some and not all."""
    apart = np.bincount(sites.rank, np.where(among, seen.run - told.run, 0.0))
    found = tuple(np.flatnonzero(apart > apart.max() / 2).tolist()) if apart.max() > 0 else ()
    return [found] if 1 < len(found) < len(apart) else []


def _worst_ranks(seconds: Times, sites: Sites) -> list[int]:
    """The ranks with most seconds, the worst first."""
    sums = np.bincount(sites.rank, seconds * sites.share)
    worst: list[int] = np.argsort(-sums, kind='stable')[:RANKS].tolist()
    return worst


# Busy machines: ops that vary from step to step more than those of other ranks, or more than ops do.


VARIES: Final = 0.05
"""Share of its compute by which a rank's ops must vary beyond those of most, to be called busy."""
ALL: Final = 0.15
"""Share by which most ops vary, beyond which the whole machine is called busy."""


def busy(seen: Level, told: Own, sites: Sites) -> list[Cause]:
    """Each rank, and all of them, as far as their ops vary."""
    varies = np.bincount(sites.rank, seen.varies)
    computes = np.maximum(np.bincount(sites.rank, seen.run * sites.computes), 1e-300)
    found = [
        Cause(
            kind='busy',
            place=Place(ranks=(rank,)),
            amount=float(varies[rank] / computes[rank]),
            seconds=float(varies[rank]),
        )
        for rank in np.flatnonzero(varies > VARIES * computes).tolist()
    ]
    if seen.noise > ALL:
        seconds = seen.noise * float(computes.sum())
        found.append(Cause(kind='busy', place=Place(), amount=seen.noise, seconds=seconds))
    return found
