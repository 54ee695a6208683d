"""Zero-bubble orders found by list scheduling: each rank takes what is best when it becomes free.

The published heuristic (Qi et al., 2023, section 3.1) with its choices as rules: as many forwards as memory and the
first gradient allow, then forwards and backwards in turn, weight gradients in the gaps and where memory is full.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import inf
from typing import Final, Literal

from simpar.pipeline.clock import StageTimes

Letter = Literal['F', 'I', 'W']
Letters = tuple[str, ...]
"""Each rank's work as letters F, I, W, micro-batches in order."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What a rank does where it could do several things.

    Arguments:
        gap: a W fills a gap of at least this share of its time.
        level: a W fills a smaller gap too, where the rank would else have idled longer than every other so far.
        turns: forwards and backwards that are both ready take turns; else the backward goes first.
        delay: how much, in times of a forward, warm-up may delay the rank's first gradient.
        ahead: forwards ahead of backwards: 0 as memory allows, 1 as in 1F1B, 2 as in ZB-H2.
    """

    gap: float
    level: bool
    turns: bool
    delay: float
    ahead: int


RULES: Final = tuple(
    Rule(*values) for values in product((0.0, 0.5, 1.0), (False, True), (False, True), (0.0, 1.0, inf), (0, 1, 2))
)


@dataclass(frozen=True, slots=True)
class Setting:
    """What to find an order for: a stage on each rank.

    Arguments: ``limits``, activations that each rank may keep; ``kept``, share of one that lives on from I to W.
    """

    times: StageTimes
    micro_batches: int
    limits: tuple[float, ...]
    kept: float

    @property
    def ranks(self) -> int:
        """Pipeline ranks."""
        return self.times.stages

    def first_gradients(self) -> tuple[float, ...]:
        """When the gradient of the first micro-batch can reach each rank at the earliest."""
        times, reached = self.times, [0.0] * self.ranks
        now = sum(times.forward) + sum(times.communication)
        for rank in reversed(range(self.ranks)):
            reached[rank] = now
            now += times.input[rank] + (times.communication[rank - 1] if rank else 0.0)
        return tuple(reached)


def greedy(setting: Setting, rule: Rule) -> tuple[Letters, float]:
    """Each rank's work, and the seconds of the rank that takes longest."""
    return _Greedy(setting, rule).run()


def shortlist(setting: Setting, rules: Sequence[Rule], most: int) -> list[Letters]:
    """The shortest different orders of some rules, at most so many; of equal ones that of the first rule first."""
    found = dict(greedy(setting, rule) for rule in rules)
    return sorted(found, key=found.__getitem__)[:most]


class _Greedy:
    def __init__(self, setting: Setting, rule: Rule) -> None:
        ranks = setting.ranks
        self._setting, self._rule = setting, rule
        self._first = setting.first_gradients()
        self._seconds = {'F': setting.times.forward, 'I': setting.times.input, 'W': setting.times.weight}
        self._ends: dict[str, list[list[float]]] = {kind: [[] for _ in range(ranks)] for kind in 'FIW'}
        self._rows: list[list[Letter]] = [[] for _ in range(ranks)]
        self._free = [0.0] * ranks
        self._begin = [inf] * ranks
        self._idled = [0.0] * ranks
        self._asleep: set[int] = set()
        # Negative ranks: of ranks that become free together the last decides first, as gradients come from there.
        self._heap = [(0.0, -rank) for rank in range(ranks)]
        heapq.heapify(self._heap)

    def run(self) -> tuple[Letters, float]:
        while self._heap:
            now, minus = heapq.heappop(self._heap)
            # A rank may be in the heap several times; only an entry at or behind its last work counts.
            if now >= self._free[-minus] and len(self._rows[-minus]) < 3 * self._setting.micro_batches:
                self._decide(-minus, now)
        longest = max(free - begin for free, begin in zip(self._free, self._begin, strict=True))
        return tuple(''.join(row) for row in self._rows), longest

    def _decide(self, rank: int, now: float) -> None:
        kind, wake = self._choose(rank, now)
        if kind is not None:
            self._do(rank, kind, now)
            return
        self._asleep.add(rank)
        if wake < inf:
            heapq.heappush(self._heap, (wake, -rank))

    def _choose(self, rank: int, now: float) -> tuple[Letter | None, float]:
        """What to do now, or when to look again; ``inf``: when a neighbour begins something."""
        forward, full = self._forward(rank, now)
        gradient = self._gradient(rank)
        if gradient <= now:
            # There is a gradient, so there was a forward, and the row is not empty.
            turn = self._rule.turns and self._rows[rank][-1] != 'F'
            return ('F' if forward <= now and turn else 'I'), now
        if forward <= now:
            return 'F', now
        wake = min(forward, gradient)
        fills = full or self._fills(rank, wake - now)
        return ('W', now) if fills and self._done(rank, 'W') < self._done(rank, 'I') else (None, wake)

    def _forward(self, rank: int, now: float) -> tuple[float, bool]:
        """When the next F can begin, and whether it waits for memory alone."""
        done, back = self._done(rank, 'F'), self._done(rank, 'I')
        arrives = 0.0 if rank == 0 else self._arrives('F', rank - 1, done, rank - 1)
        if done == self._setting.micro_batches or arrives == inf:
            return inf, False
        # Forwards ahead as of 1F1B; ZB-H2 has twice as many, less one.
        hop = self._setting.ranks - rank
        if self._rule.ahead and done - back >= (hop if self._rule.ahead == 1 else 2 * hop - 1):
            return inf, False
        # Warm-up must not delay the rank's first gradient by more than the rule allows: that delay reaches all ranks
        # before it.
        if done and not back:
            seconds = self._seconds['F'][rank]
            if max(arrives, now) + seconds > self._first[rank] + (self._rule.delay * seconds if seconds else 0.0):
                return inf, False
        # After the next forward; between I and W only a share of an activation is left.
        live = done + 1 - back + self._setting.kept * (back - self._done(rank, 'W'))
        # Only a W frees memory then, which is why it is told that memory alone is full.
        return (inf, arrives <= now) if live > self._setting.limits[rank] else (arrives, False)

    def _gradient(self, rank: int) -> float:
        """When the next I can begin."""
        done = self._done(rank, 'I')
        if done == self._done(rank, 'F'):
            return inf
        if rank + 1 == self._setting.ranks:
            return self._ends['F'][rank][done]
        return self._arrives('I', rank + 1, done, rank)

    def _arrives(self, kind: Letter, rank: int, micro_batch: int, hop: int) -> float:
        ends = self._ends[kind][rank]
        return ends[micro_batch] + self._setting.times.communication[hop] if micro_batch < len(ends) else inf

    def _fills(self, rank: int, gap: float) -> bool:
        if gap >= self._rule.gap * self._seconds['W'][rank]:
            return True
        return self._rule.level and self._idled[rank] + gap > max(self._idled)

    def _done(self, rank: int, kind: Letter) -> int:
        return len(self._ends[kind][rank])

    def _do(self, rank: int, kind: Letter, now: float) -> None:
        # Idling before the first work is the pipeline's filling, which no order avoids.
        if self._rows[rank]:
            self._idled[rank] += now - self._free[rank]
        self._begin[rank] = min(self._begin[rank], now)
        self._rows[rank].append(kind)
        self._free[rank] = now + self._seconds[kind][rank]
        self._ends[kind][rank].append(self._free[rank])
        heapq.heappush(self._heap, (self._free[rank], -rank))
        neighbour = {'F': rank + 1, 'I': rank - 1, 'W': -1}[kind]
        if neighbour in self._asleep:
            self._asleep.discard(neighbour)
            # The neighbour slept without a time to wake: now there is something that it may wait for.
            heapq.heappush(self._heap, (max(self._free[neighbour], now), -neighbour))
