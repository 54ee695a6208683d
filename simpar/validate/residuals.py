"""Residuals: how measured steps are spread about predictions, by stack, class of devices and what bounds a step."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Final

from simpar.interval import DEVICE, HOST, LEVEL, Spread, lineage, spread_among
from simpar.validate.scores import Pair, groups

LEAST: Final = 3
"""Models that a spread must rest on: rows of one model err alike."""
_COLUMNS: Final = ('stack', 'device', 'bound', 'rows', 'models', 'step', 'pairs', 'gain')


def spreads_of(pairs: Sequence[Pair]) -> list[Spread]:
    """The spreads of all stacks that have rows of enough models, their own or those of stacks that extend them.

    Arguments: ``pairs``, of rows for fitting alone.
    """
    stacks = sorted({name for pair in pairs for name in lineage(pair.stack)})
    devices = sorted({pair.device for pair in pairs})
    kinds = ((stack, device, bound) for stack in stacks for device in devices for bound in (HOST, DEVICE))
    found = (_spread(*kind, [pair for pair in pairs if _is_of(pair, *kind)]) for kind in kinds)
    return [one for one in found if one.models >= LEAST]


def _is_of(pair: Pair, stack: str, device: str, bound: str) -> bool:
    return (pair.device, pair.bound) == (device, bound) and stack in lineage(pair.stack)


def _spread(stack: str, device: str, bound: str, pairs: Sequence[Pair]) -> Spread:
    gains = list(_gains(pairs))
    return Spread(
        stack=stack, device=device, bound=bound, rows=len(pairs), models=len({pair.row.shape for pair in pairs}),
        step=half_width([math.log(pair.row.seconds / pair.seconds) for pair in pairs]),
        pairs=len(gains), gain=half_width(gains),
    )  # fmt: skip


def _gains(pairs: Sequence[Pair]) -> Iterator[float]:
    """Of two plans of one model, how far the ratio of their steps was from the predicted one."""
    for group in groups(pairs):
        for one, other in combinations(group, 2):
            yield math.log(one.row.seconds / one.seconds) - math.log(other.row.seconds / other.seconds)


def half_width(errors: Sequence[float]) -> float:
    """The size that ``LEVEL`` of further errors stay below: of n + 1 equally likely ranks, the first that is enough."""
    if not errors:
        return 0.0
    sizes = sorted(map(abs, errors))
    return sizes[min(len(sizes), math.ceil((len(sizes) + 1) * LEVEL)) - 1]


def covered(pairs: Sequence[Pair], known: Sequence[Spread]) -> tuple[int, int, float]:
    """Of pairs that have an interval: how many, how many of them lie within, and the median half of their width."""
    widths = []
    within = 0
    for pair in pairs:
        spread = spread_among(known, pair.stack, pair.device, pair.bound)
        if spread:
            widths.append(math.sinh(spread.step))
            within += abs(math.log(pair.row.seconds / pair.seconds)) <= spread.step
    return len(widths), within, sorted(widths)[len(widths) // 2] if widths else 0.0


def written(spreads: Sequence[Spread]) -> str:
    """The table of ``hw_profiles/intervals.csv``."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator='\n')
    table.writerow(_COLUMNS)
    for one in spreads:
        table.writerow([one.stack, one.device, one.bound, one.rows, one.models, f'{one.step:.4f}', one.pairs,
                        f'{one.gain:.4f}'])  # fmt: skip
    return text.getvalue()
