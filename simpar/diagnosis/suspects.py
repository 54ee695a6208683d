"""Suspects: the causes worth a simulation, found from the own times alone, each with a first guess of its strength."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Final

import numpy as np

from simpar.cost.costs import Costs
from simpar.diagnosis.cause import Cause, CauseKind
from simpar.diagnosis.level import Level, weighted_median
from simpar.diagnosis.own import Own
from simpar.diagnosis.place import Place, communicating, computing, groups
from simpar.diagnosis.sites import Sites
from simpar.trace import Times

NAMED: Final = 4
"""How many places of compute, and how many of communication, are simulated."""
RANKS: Final = 8
"""How many ranks are looked at one by one: those whose own times differ most."""
HOSTS: Final = 3
"""How many hosts, and on how many ranks lost overlap, are simulated one by one."""
STREAMS: Final = 6
"""Streams of a role beyond which pairs of communication streams are left out."""


def suspects(seen: Level, told: Own, sites: Sites, costs: Costs, step: float) -> list[Cause]:
    """The causes to simulate.

    Arguments:
        seen, told: own times, in the measurement and by the prediction, which was made with ``costs``.
        step: seconds of a measured step.
    """
    found = [*_longer('compute', seen, told, sites), *_longer('communication', seen, told, sites)]
    found += _late(seen, told, sites, costs, step)
    return found if sites.computes.all() else [*found, *_in_turn(seen, told, sites), *_beside()]


def _longer(kind: CauseKind, seen: Level, told: Own, sites: Sites) -> list[Cause]:
    """The places whose ops, all by one factor, leave the least unexplained."""
    among = sites.computes if kind == 'compute' else ~sites.computes
    single = [(rank,) for rank in _worst_ranks(np.abs(seen.run - told.run) * among, sites)]
    # Where a group and one of its ranks have the same sites, what communicates is told by the group.
    several = groups(sites)[: 4 * RANKS]
    ranks = [(), *single, *several] if kind == 'compute' else [(), *several, *single]
    places = computing(sites, ranks) if kind == 'compute' else communicating(sites, ranks)
    gains: dict[bytes, tuple[float, Cause]] = {}
    for place in places:
        mask = place.sites(sites, among)
        key = np.packbits(mask).tobytes()
        # Of places with the same sites the first stands: it is told in the fewest words.
        if key not in gains and mask.any():
            factor, gain = _factor(seen.run[mask], told.run[mask], sites.share[mask])
            gains[key] = gain, Cause(kind=kind, place=place, amount=factor)
    ranked = sorted(gains.values(), key=lambda item: -item[0])
    return [cause for gain, cause in ranked[:NAMED] if gain > 0]


def _factor(seen: Times, told: Times, share: Times) -> tuple[float, float]:
    """The factor that brings the told times nearest to those seen, and by how many seconds nearer."""
    ratio = np.divide(seen, told, out=np.ones_like(seen), where=told > 0)
    factor = weighted_median(ratio, told * share)
    before, after = np.abs(seen - told), np.abs(seen - factor * told)
    return factor, float(((before - after) * share).sum())


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


def _in_turn(seen: Level, told: Own, sites: Sites) -> Iterator[Cause]:
    """Pairs of streams, and all of them, on all ranks and on those whose ops start latest."""
    late = seen.delay - told.delay
    if late.sum() <= 0:
        return
    computing_on, others = _streams(sites)
    together = [(computing_on, other) for other in others]
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


def _worst_ranks(seconds: Times, sites: Sites) -> list[int]:
    """The ranks with most seconds, the worst first."""
    sums = np.bincount(sites.rank, seconds * sites.share)
    return np.argsort(-sums, kind='stable')[:RANKS].tolist()
