"""Least sum of tables over few variables each, by eliminating one variable after the other (min-sum)."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

Table = NDArray[np.float64]
Part = tuple[Table, tuple[int, ...]]
"""A table and the axes of a sum that its dims are."""
# 2²⁷ numbers of 8 bytes are 1 GiB; a table beyond that would exhaust an ordinary machine before the search ends.
LARGEST_TABLE = 1 << 27


@dataclass(frozen=True, slots=True, eq=False)
class Factor:
    """A table over some variables, one dim each."""

    scope: tuple[int, ...]
    table: Table


@dataclass(frozen=True, slots=True, eq=False)
class Bucket:
    """What eliminating a variable left behind: the sum of its factors, with the variable as the first dim."""

    variable: int
    scope: tuple[int, ...]
    table: Table

    def row(self, choices: Sequence[int]) -> Table:
        """The variable's costs, with what is chosen for the others."""
        place: tuple[int | slice, ...] = (slice(None), *(choices[other] for other in self.scope))
        row: Table = self.table[place]
        return row


@dataclass(frozen=True, slots=True)
class _Partial:
    """Choices made so far, a chain from the last."""

    choice: int
    before: _Partial | None


class Elimination:
    """The least sum of factors, and assignments in the order of their sums.

    Arguments: ``sizes``, number of choices by variable; every variable is in some factor. Variables go in the order of
    the smallest table that is left behind. Raises MemoryError where that table would still be too large.
    """

    def __init__(self, sizes: Sequence[int], factors: Sequence[Factor]) -> None:
        self.sizes = tuple(sizes)
        self.buckets: list[Bucket] = []
        self._summed: dict[object, tuple[list[Part], Table, Table]] = {}
        self.least = 0.0
        self._eliminate(list(factors))

    def _eliminate(self, factors: list[Factor]) -> None:
        alive = dict(enumerate(factors))
        at: list[set[int]] = [set() for _ in self.sizes]
        for key, factor in alive.items():
            for variable in factor.scope:
                at[variable].add(key)
        queue = [(self._left(variable, alive, at), variable) for variable in range(len(self.sizes))]
        heapq.heapify(queue)
        done: set[int] = set()
        while queue:
            size, variable = heapq.heappop(queue)
            # A variable may stand in the queue several times; only its first current entry counts.
            if variable in done:
                continue
            now = self._left(variable, alive, at)
            # Eliminating neighbours has made its table larger since it was queued: it waits again under its real
            # size.
            if now > size:
                heapq.heappush(queue, (now, variable))
                continue
            done.add(variable)
            # Sorted, so that the order of a set decides nothing.
            message = self._remove(variable, [alive.pop(key) for key in sorted(at[variable])])
            removed = set(at[variable])
            for other in message.scope:
                at[other] -= removed
            # The last variable of a connected part leaves a number, which no other choice changes.
            if not message.scope:
                self.least += float(message.table)
                continue
            key = len(factors) + len(done)
            alive[key] = message
            for other in message.scope:
                at[other].add(key)
                heapq.heappush(queue, (self._left(other, alive, at), other))

    def _left(self, variable: int, alive: dict[int, Factor], at: list[set[int]]) -> int:
        """Size of the table over a variable and its neighbours."""
        around = {other for key in at[variable] for other in alive[key].scope}
        return prod(self.sizes[other] for other in around)

    def _remove(self, variable: int, factors: list[Factor]) -> Factor:
        """Sums a variable's factors and takes the least over it; the same tables (layers alike) are summed once."""
        scope = tuple(sorted({other for factor in factors for other in factor.scope} - {variable}))
        order = (variable, *scope)
        place = {other: axis for axis, other in enumerate(order)}
        parts = [(factor.table, tuple(place[other] for other in factor.scope)) for factor in factors]
        # Identity stands for content, for tables are never changed. It orders parts within a run only.
        parts.sort(key=lambda part: (part[1], id(part[0])))
        key = (len(order), *((id(table), axes) for table, axes in parts))
        if key not in self._summed:
            total = _sum([self.sizes[other] for other in order], parts)
            # The parts are kept too: an id stays taken only as long as its table lives.
            self._summed[key] = (parts, total, total.min(axis=0))
        _, total, least = self._summed[key]
        self.buckets.append(Bucket(variable, scope, total))
        return Factor(scope, least)

    def best(self) -> list[int]:
        """Choices whose sum is least; of equals, the first."""
        choices = [0] * len(self.sizes)
        # What was eliminated last depends on nothing else, so choices are made backwards.
        for bucket in reversed(self.buckets):
            row = bucket.row(choices)
            choices[bucket.variable] = int(row.argmin())
        return choices

    def solutions(self, steps: int) -> Iterator[tuple[float, list[int]]]:
        """Sums and choices in ascending order, best first; ends after that many steps of the search.

        Buckets say exactly what the rest costs at least, so nothing is looked at that is worse than what is returned.
        """
        order = self.buckets[::-1]
        # Of equal sums the deepest goes first, so that one solution is finished before others begin. The third number
        # is unique: choices themselves are never compared.
        heap: list[tuple[float, int, int, int, _Partial | None]] = [(self.least, 0, 0, 0, None)]
        for step in range(1, steps + 1):
            if not heap:
                return
            bound, depth, _, rank, partial = heapq.heappop(heap)
            depth = -depth
            if depth == len(order):
                yield bound, self._choices(partial, order)
                continue
            known = self._choices(partial, order[:depth])
            bucket = order[depth]
            row = bucket.row(known)
            ranks = np.argsort(row, kind='stable')
            # Only this row tells ranks apart: what is below is a least sum that the bound already has.
            base = bound - float(row[ranks[rank]] - row[ranks[0]])
            heapq.heappush(heap, (bound, -(depth + 1), 2 * step, 0, _Partial(int(ranks[rank]), partial)))
            if rank + 1 < len(ranks):
                worse = base + float(row[ranks[rank + 1]] - row[ranks[0]])
                heapq.heappush(heap, (worse, -depth, 2 * step + 1, rank + 1, partial))

    def _choices(self, partial: _Partial | None, order: Sequence[Bucket]) -> list[int]:
        choices = [0] * len(self.sizes)
        for bucket in reversed(order):
            if partial is None:
                break
            choices[bucket.variable] = partial.choice
            partial = partial.before
        return choices


def _sum(sizes: Sequence[int], parts: Sequence[Part]) -> Table:
    """The sum of tables, each over some of the axes."""
    if prod(sizes) > LARGEST_TABLE:
        raise MemoryError(f'a table of {list(sizes)} choices')
    total: Table = np.zeros(sizes)
    for table, axes in parts:
        shape = [1] * len(sizes)
        for axis, size in zip(axes, table.shape, strict=True):
            shape[axis] = size
        total += table.transpose(np.argsort(axes)).reshape(shape)
    return total
