"""Laps: CPU seconds of contenders that run in turns, so that what else the machine does hits all of them alike."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median, quantiles

Contender = Callable[[], Callable[[], object]]
"""Prepares a run, untimed; what it returns is timed."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of several figures, and the quartiles beside it."""

    median: float
    lower: float
    upper: float

    @staticmethod
    def of(figures: list[float]) -> Spread:
        """Of one figure or more."""
        lower, _, upper = quantiles(figures, n=4, method='inclusive') if len(figures) > 1 else figures * 3
        return Spread(median(figures), lower, upper)

    def times(self, factor: float) -> Spread:
        """The same in another unit."""
        return Spread(self.median * factor, self.lower * factor, self.upper * factor)

    def __str__(self) -> str:
        return f'{short(self.median)} ({short(self.lower)} to {short(self.upper)})'


@dataclass(frozen=True, slots=True)
class Laps:
    """CPU seconds of each contender, round by round."""

    seconds: Mapping[str, list[float]]

    def of(self, name: str) -> Spread:
        """Of one contender."""
        return Spread.of(self.seconds[name])

    def speed(self, name: str, beside: str) -> Spread:
        """The speed of one contender as a multiple of another's, within each round."""
        rounds = zip(self.seconds[beside], self.seconds[name], strict=True)
        return Spread.of([theirs / own for theirs, own in rounds])


def in_turns(contenders: Mapping[str, Contender], rounds: int) -> Laps:
    """Run every contender once a round, each round beginning with another of them."""
    names = list(contenders)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        for place in range(len(names)):
            name = names[(place + turn) % len(names)]
            run = contenders[name]()
            gc.collect()
            begin = time.process_time()
            run()
            seconds[name].append(time.process_time() - begin)
    return Laps(seconds)


def timed(run: Callable[[], object], rounds: int = 1) -> Spread:
    """CPU seconds of one thing alone."""
    return in_turns({'': lambda: run}, rounds).of('')


def short(figure: float) -> str:
    """Three digits, without an exponent."""
    return f'{figure:,.0f}' if figure >= 100 else f'{figure:.3g}'
