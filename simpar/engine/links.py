"""Links: which flows transfer over them, and the max-min fair speeds at which they do.

Demands are multiples of 2⁻¹⁰, so their sums are exact, and a link's remainder changes once a level: no result depends
on the order of flows, on whether other components are solved along, or on folding.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Generic, Protocol, TypeVar


class Flow(Protocol):
    """What transfers: at speed s it takes the share s · demand of each of its links."""

    @property
    def links(self) -> tuple[tuple[int, float], ...]:
        """Pairs (link, demand)."""
        ...

    @property
    def top(self) -> float:
        """The highest speed that it may have."""
        ...


F = TypeVar('F', bound=Flow)


class Links(Generic[F]):
    """The flows that are now on each link."""

    def __init__(self, count: int) -> None:
        self._flows: list[dict[F, None]] = [{} for _ in range(count)]

    def add(self, flow: F) -> None:
        """Let a flow transfer."""
        for link, _ in flow.links:
            self._flows[link][flow] = None

    def remove(self, flow: F) -> dict[F, None]:
        """End a flow; returns its neighbours, whose speeds may change."""
        neighbours: dict[F, None] = {}
        for link, _ in flow.links:
            flows = self._flows[link]
            del flows[flow]
            if flows:
                neighbours.update(flows)
        return neighbours

    def component(self, seeds: Iterable[F]) -> dict[F, None]:
        """The seeds and the flows that share links with them, directly or through others."""
        found = list(seeds)
        seen: set[int] = set()
        # The list grows while it is walked: a breadth-first search.
        for flow in found:
            for link, _ in flow.links:
                if link not in seen:
                    seen.add(link)
                    found += self._flows[link]
        return dict.fromkeys(found)

    def alone(self, flow: F) -> bool:
        """Whether no other flow is on any link of this one."""
        # Asked of most flows, and a generator takes twice as long.
        for link, _ in flow.links:  # noqa: SIM110
            if len(self._flows[link]) > 1:
                return False
        return True


def fair_speeds(flows: Iterable[F]) -> dict[F, float]:
    """Max-min fair speeds under Σ speed · demand ≤ 1 on each link and speed ≤ top for each flow.

    Arguments: ``flows``, one or more whole components. All speeds rise together until a link saturates or a flow meets
    its top; those flows are fixed, the others rise on (progressive filling; Bertsekas and Gallager, Data Networks,
    section 6.5.2). Does not model what a protocol needs to get there: speeds change at once.
    """
    # Progressive filling; every round fixes one flow at least, so there are at most as many rounds as flows.
    rising = {flow: flow.top for flow in flows}
    left = {link: 1.0 for flow in rising for link, _ in flow.links}
    speeds: dict[F, float] = {}
    while rising:
        shares = {link: left[link] / demand for link, demand in _demands(rising).items()}
        level = min(chain(rising.values(), shares.values()))
        # No tolerance: the level is one of these shares, to the bit.
        fixed = [f for f, top in rising.items() if top <= level or any(shares[link] <= level for link, _ in f.links)]
        for link, demand in _demands(fixed).items():
            left[link] -= level * demand
        for flow in fixed:
            speeds[flow] = level
            del rising[flow]
    return speeds


def _demands(flows: Iterable[F]) -> dict[int, float]:
    total: dict[int, float] = {}
    for flow in flows:
        for link, demand in flow.links:
            total[link] = total.get(link, 0.0) + demand
    return total
