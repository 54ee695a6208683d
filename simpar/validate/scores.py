"""Scores: how far predictions are from measurements, and whether they choose and order plans as measurements do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np

from simpar.validate.rows import Row

APART: Final = 0.05
"""Of two plans, how far measurements are apart whose order counts."""
DRAWS: Final = 2000


@dataclass(frozen=True, slots=True)
class Pair:
    """A row, its predicted seconds and those of the null model; the kind of its step, as ``simpar.interval`` tells."""

    row: Row
    seconds: float
    null: float
    stack: str = ''
    device: str = ''
    bound: str = ''
    streaming: float = 0.0

    @property
    def error(self) -> float:
        """predicted / measured − 1."""
        return self.seconds / self.row.seconds - 1

    @property
    def null_error(self) -> float:
        """The same of the null model."""
        return self.null / self.row.seconds - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Of errors: how many, mean size and its 95 % interval, median and 90th percentile of sizes, the median error."""

    rows: int
    mape: float
    low: float
    high: float
    median: float
    bias: float
    p90: float


def score(pairs: Sequence[Pair], *, null: bool = False) -> Score | None:
    """The score of some pairs, or of the null model on them; None without pairs.

    The interval is a bootstrap over models, as rows of one model err alike; drawn with a fixed seed.
    """
    if not pairs:
        return None
    errors = np.array([pair.null_error if null else pair.error for pair in pairs])
    sizes = np.abs(errors)
    low, high = _interval(sizes, [pair.row.shape for pair in pairs])
    return Score(
        rows=len(pairs),
        mape=float(sizes.mean()),
        low=low,
        high=high,
        median=float(np.median(sizes)),
        bias=float(np.median(errors)),
        p90=float(np.quantile(sizes, 0.9)),
    )


def _interval(sizes: np.ndarray, shapes: Sequence[tuple[str, ...]]) -> tuple[float, float]:
    names = sorted(set(shapes))
    place = {name: number for number, name in enumerate(names)}
    of = np.array([place[shape] for shape in shapes])
    sums, counts = np.bincount(of, sizes), np.bincount(of)
    drawn = np.random.default_rng(0).integers(len(names), size=(DRAWS, len(names)))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Of plans of one model on equal devices with an equal batch.

    Arguments: ``groups`` of at least two; ``regret``, how much slower the plan that is predicted fastest was measured
    than the fastest one, the mean; ``ordered`` of ``apart`` pairs that were measured apart, those in the right order.
    """

    groups: int
    regret: float
    ordered: int
    apart: int


def choice(pairs: Sequence[Pair]) -> Choice:
    """How well predictions choose among plans."""
    alike = list(groups(pairs))
    regrets, ordered, apart = [], 0, 0
    for group in alike:
        picked = min(group, key=lambda pair: pair.seconds)
        regrets.append(picked.row.seconds / min(pair.row.seconds for pair in group) - 1)
        for one, other in combinations(group, 2):
            if max(one.row.seconds / other.row.seconds, other.row.seconds / one.row.seconds) > 1 + APART:
                apart += 1
                ordered += (one.row.seconds < other.row.seconds) == (one.seconds < other.seconds)
    regret = float(np.mean(regrets)) if regrets else 0.0
    return Choice(groups=len(alike), regret=regret, ordered=ordered, apart=apart)


def groups(pairs: Sequence[Pair]) -> Iterator[list[Pair]]:
    """Pairs of one model on equal devices with equal sequence and batch, at least two."""
    found: dict[tuple[object, ...], list[Pair]] = {}
    for pair in pairs:
        row = pair.row
        key = (row.text('hardware'), *row.shape, row.text('n_gpus'), row.text('seq'), row.text('global_batch'))
        found.setdefault(key, []).append(pair)
    return (group for group in found.values() if len(group) > 1)
