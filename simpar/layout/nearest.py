"""The valid strategies that are nearest to one that cannot be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice, product
from math import log2, prod
from typing import Protocol

Strategy = tuple[tuple[int, ...], ...]
OFFERED = 3
TRIED = 4096


class Named(Protocol):
    """What of an operator is needed here."""

    @property
    def inputs(self) -> tuple[tuple[str, ...], ...]:
        """Names of the dims of each input."""

    @property
    def order(self) -> tuple[str, ...]:
        """All names."""

    @property
    def fixed(self) -> Mapping[str, str]:
        """Names that cannot be sharded."""

    @property
    def lengths(self) -> dict[str, int]:
        """The length of each name."""

    def strategy(self, counts: Mapping[str, int]) -> Strategy:
        """The strategy that splits each name into so many slices."""


def nearest(operator: Named, strategy: Strategy, world: int) -> list[Strategy]:
    """At most three valid strategies, those first that change the counts by the least factors.

    Arguments: ``strategy``, the wrong one.
    """
    given = _given(operator, strategy)
    names = [name for name in operator.order if name not in operator.fixed]
    choices = [_divisors(operator.lengths[name], world, given.get(name, {1})) for name in names]
    found = [
        (_distance(operator, counts, given), operator.strategy(counts))
        # Choices begin with the nearest, so that the first TRIED products hold near ones however many dims there are.
        for counts in (dict(zip(names, numbers, strict=True)) for numbers in islice(product(*choices), TRIED))
        if world % prod(counts.values()) == 0
    ]
    # Ties are broken by the strategy itself: the same problem on every machine.
    return list(dict.fromkeys(one for _, one in sorted(found)))[:OFFERED]


def _given(operator: Named, strategy: Strategy) -> dict[str, set[int]]:
    """The counts that the strategy has for each name, where its inputs may disagree."""
    given: dict[str, set[int]] = {}
    for names, counts in zip(operator.inputs, strategy, strict=False):
        for name, count in zip(names, counts, strict=False):
            # Inputs that disagree on a name are just what may be wrong, so all counts are remembered; 0 has no
            # logarithm.
            given.setdefault(name, set()).add(max(count, 1))
    return given


def _divisors(length: int, world: int, wanted: set[int]) -> list[int]:
    """Counts of shards that divide both, the nearest first, a few of them."""
    divisors = [count for count in range(1, min(length, world) + 1) if length % count == 0 and world % count == 0]
    # Distances are ratios: from 4, the counts 2 and 8 are equally near.
    return sorted(divisors, key=lambda count: min(abs(log2(count / want)) for want in wanted))[:6]


def _distance(operator: Named, counts: Mapping[str, int], given: Mapping[str, set[int]]) -> float:
    return sum(_distances(operator, counts, given))


def _distances(operator: Named, counts: Mapping[str, int], given: Mapping[str, set[int]]) -> Iterator[float]:
    for name in operator.order:
        for want in given.get(name, {1}):
            yield abs(log2(counts.get(name, 1) / want))
