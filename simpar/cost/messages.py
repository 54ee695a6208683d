"""Messages: what collectives cost, on the engine's grid, with their links as numbers; effects may be off."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from operator import lt
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simpar.cost.costs import Communication
from simpar.cost.links import NOTHING, Demands, demand
from simpar.cost.model import CollectiveCost
from simpar.units import quantise

if TYPE_CHECKING:
    from simpar.cost.price import Effects


class Messages:
    """Makes messages of costs, equal ones once; numbers their links."""

    def __init__(self, effects: Effects) -> None:
        self._effects = effects
        self._made: dict[Hashable, Communication] = {}
        self._shares: dict[int, Demands] = {}
        self._numbers: dict[tuple[str, ...], tuple[tuple[int, ...], bool]] = {}
        self.links: dict[str, int] = {}

    def message(self, cost: CollectiveCost) -> Communication:
        """A collective's cost in one group."""
        links = cost.links if self._effects.link_sharing else NOTHING
        # Equal links are mostly the same object, and are told by it: they may be many.
        key = (cost.alpha, cost.transfer, cost.best, id(links))
        if key not in self._made:
            self._made[key] = self._make(cost, links)
        return self._made[key]

    def _make(self, cost: CollectiveCost, links: Sequence[tuple[str, float]]) -> Communication:
        over = Demands.of(links)
        alpha, transfer, parts = isolated(self._effects, cost, over.parts)
        # Of costs as they are, links are told once; only these live as long as this does.
        same = links is cost.links and self._effects.small_operator
        shares = self._shares.get(id(links)) if same and parts else None
        if shares is None:
            shares = self._shared(over, parts) if parts else NOTHING
            if same and parts:
                self._shares[id(links)] = shares
        return Communication(alpha=alpha, transfer=transfer, links=shares)

    def _shared(self, over: Demands, parts: tuple[float, ...]) -> Demands:
        """Pairs (number of the link, demand), by number."""
        numbers, rise = self._numbers_of(over.channels)
        made = Demands.on(numbers, parts, over.widths)
        # Sorted, so that equal costs are equal whatever order their links were found in.
        return made if rise else Demands.of(sorted(made))

    def _numbers_of(self, names: tuple[str, ...]) -> tuple[tuple[int, ...], bool]:
        """The numbers of links, and whether each is above the one before; the same links are numbered once."""
        found = self._numbers.get(names)
        if found is None:
            numbers = tuple([self.links.setdefault(name, len(self.links)) for name in names])
            found = self._numbers[names] = numbers, all(map(lt, numbers, numbers[1:]))
        return found


class Numbers:
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


def isolated(
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
