"""Covering arrays: rows of levels by factor, so that every pair of levels is in some row, and most triples."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations, product

CANDIDATES = 10


@dataclass(frozen=True)
class Features:
    """Factors with their levels, and what of their pairs is of a kind of its own.

    Arguments:
        tree: makes the tree of a schedule file of a row and its number; ``size``: how much a row computes.
        alone: pairs by why they ask for nothing. Each is in one row, and in no other, so that it takes no other pair's
            place. ``excuses`` is how a refusal of such a pair begins, by its second feature.
        unbuilt: the same of pairs that simpar refuses by name, by how the refusal begins.
        never: pairs that no schedule can write.
        light: a row that computes four times as much has to bring twice the triples.
    """

    factors: dict[str, tuple]
    tree: Callable
    size: Callable
    rows: int
    seed: int
    alone: dict = field(default_factory=dict)
    excuses: dict = field(default_factory=dict)
    unbuilt: dict = field(default_factory=dict)
    never: tuple = ()
    light: bool = False

    @property
    def single(self):
        """Pairs that are in one row each."""
        return (*self.alone, *self.unbuilt)


def rows_of(features, count=None):
    """The first of the rows."""
    return tuple(_Array(features).rows(count or features.rows))


class _Array:
    """Takes of some random rows the one that brings most pairs, and then most triples, that no row had.

    Levels are numbers here, counted through all factors; a row has one of each factor.
    """

    def __init__(self, features):
        self.features = features
        self.draw = random.Random(features.seed)
        self.levels = [(name, level) for name, levels in features.factors.items() for level in levels]
        number = {level: place for place, level in enumerate(self.levels)}
        self.choices = [[number[name, level] for level in levels] for name, levels in features.factors.items()]
        self.alone = [tuple(sorted(number[level] for level in pair)) for pair in features.single]
        self.never = [tuple(sorted(number[level] for level in pair)) for pair in features.never]
        self.barred = {level: set() for level in number.values()}
        for one, other in (*self.alone, *self.never):
            self.barred[one].add(other)
            self.barred[other].add(one)
        self.weight = {able[0]: 1 + sum(len(self.barred[level]) for level in able) for able in self.choices}
        pairs = (pair for one, other in combinations(self.choices, 2) for pair in product(one, other))
        # A dict, as its order is the same in every run.
        self.missing = dict.fromkeys(pair for pair in pairs if pair not in {*self.alone, *self.never})
        self.triples = set()

    def rows(self, count):
        found = [self._row(pair) for pair in self.alone]
        for row in found:
            self._seen(row)
        while len(found) < count:
            start = self.draw.choice(list(self.missing)) if self.missing else ()
            found.append(max((self._row(start) for _ in range(CANDIDATES)), key=self._brings))
            self._seen(found[-1])
        return [dict(self.levels[level] for level in row) for row in found]

    def _row(self, start):
        """A random row with these levels and no other pair that asks for nothing or cannot be."""
        while True:
            held = self._drawn(start)
            if held is not None:
                return sorted(held)

    def _drawn(self, start):
        """One level of each factor, those that rule out much rather early; none where a factor has no level left."""
        held, barred = set(start), set().union(*(self.barred[level] for level in start)) - set(start)
        for able in sorted(self.choices, key=lambda able: self.draw.random() / self.weight[able[0]]):
            if not held.isdisjoint(able):
                continue
            free = [level for level in able if level not in barred]
            if not free:
                return None
            level = self.draw.choice(free)
            held.add(level)
            barred |= self.barred[level]
        return held

    def _brings(self, row):
        pairs = sum(pair in self.missing for pair in combinations(row, 2))
        triples = sum(triple not in self.triples for triple in combinations(row, 3))
        if self.features.light:
            triples /= self.features.size(dict(self.levels[level] for level in row)) ** 0.5
        return pairs, triples

    def _seen(self, row):
        for pair in combinations(row, 2):
            self.missing.pop(pair, None)
        self.triples.update(combinations(row, 3))


def covered(rows, features, count):
    """Share of the combinations of so many levels of different factors that some row has, and how many can be."""
    found = {one for row in rows for one in combinations(row.items(), count)}
    banned = [set(pair) for pair in features.never] + [set(pair) for pair in features.single] * (count > 2)
    whole = 0
    for names in combinations(features.factors, count):
        able = product(*(product([name], features.factors[name]) for name in names))
        whole += sum(not any(pair.issubset(one) for pair in banned) for one in able)
    return sum(not any(pair.issubset(one) for pair in banned) for one in found) / whole, whole
