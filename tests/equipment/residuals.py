"""Residuals: how measured steps are spread about predictions, by class of devices and what bounds a step.

Rows of one model err alike, so each model counts once, its rows an equal part of it each: of clusters the quantile is
taken over their rows so weighed (Dunn, Wasserman, Ramdas 2018, "Distribution-free prediction sets for two-layer
hierarchical models").
"""

import csv
import io
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Final

from simpar.case import Case, case_of
from simpar.document import Tree
from simpar.errors import SimparError
from simpar.interval import ANY, DEVICE, HOST, LEVEL, Spread, spread_for, unsure
from simpar.predict import step_of
from simpar.profiles import load_profile, profile_of_hardware
from simpar.schedule import schedule_of
from simpar.validate.anchor import with_numbers
from simpar.validate.columns import Skipped
from simpar.validate.rows import Row
from simpar.validate.run import Pair, groups, size_of
from simpar.validate.settings import schedule_tree

LEAST: Final = 3
"""Models that a spread must rest on."""
STREAMING: Final = (0.0, *(2 ** (power / 4) for power in range(-8, 25)))
"""Values of ρ that are tried: none, and 1/4 to 64 in quarters of an octave."""
_COLUMNS: Final = ('device', 'bound', 'stacks', 'rows', 'models', 'step', 'streaming', 'pairs', 'gain', 'frameworks')


def spreads_of(pairs: Sequence[Pair]) -> list[Spread]:
    """The spreads of all kinds that have rows of enough models.

    Arguments: ``pairs``, of rows for fitting alone.
    """
    streaming = fitted_streaming(pairs)
    kinds = [(device, bound) for device in sorted({pair.device for pair in pairs}) for bound in (HOST, DEVICE)]
    found = (_spread(kind, [pair for pair in pairs if (pair.device, pair.bound) == kind], streaming) for kind in kinds)
    return [*(one for one in found if one.models >= LEAST), *([every(pairs, streaming)] if pairs else [])]


def every(pairs: Sequence[Pair], streaming: float) -> Spread:
    """The spread of all kinds together, each set, which is of one framework, counted once."""
    rows = Counter(pair.row.of for pair in pairs)
    relative = [size_of(pair) / unsure(streaming, pair.streaming) for pair in pairs]
    step = half_width(relative, [1 / rows[pair.row.of] for pair in pairs], further=False)
    return Spread(
        device=ANY, bound=ANY, stacks=tuple(sorted({pair.stack for pair in pairs})), rows=len(pairs),
        models=len(set(map(_model, pairs))), step=step, streaming=streaming, pairs=0, gain=0.0,
        frameworks=len(rows),
    )  # fmt: skip


def left_out(fitted: Sequence[Pair], scored: Sequence[Pair], of: str) -> tuple[int, int, float, float]:
    """Of the scored rows of a set that is left out whole: how many, how many lie within the interval that
    ``simpar.interval`` would tell without it, and medians of half of its width and of what it tells with it.
    """
    without, known = spreads_of([pair for pair in fitted if pair.row.of != of]), spreads_of(fitted)
    mine = [pair for pair in scored if pair.row.of == of]
    widths, own = ([told.half_width(pair.streaming) for pair in mine if (told := _told(one, pair))]
                   for one in (without, known))  # fmt: skip
    within = sum(size_of(pair) <= width for pair, width in zip(mine, widths, strict=True))
    return len(mine), within, median(widths), median(own)


def _told(known: Sequence[Spread], pair: Pair) -> Spread | None:
    hardware = profile_of_hardware(pair.row.text('hardware'), pair.row.whole('gpu_mem_gb'))
    bins = load_profile(hardware).device.bins if hardware else None
    return spread_for(known, pair.stack, pair.device, pair.bound, bins.value if bins else 1.0)


def fitted_streaming(pairs: Sequence[Pair]) -> float:
    """The ρ under which errors are most likely, if they follow Laplace's law at scales as ``unsure`` says.

    The scale of all errors drops out: at its best value it is their mean size over what they are relative to.
    """
    weights = _weights(pairs)
    total = sum(weights)

    def loss(streaming: float) -> float:
        scales = [unsure(streaming, pair.streaming) for pair in pairs]
        sizes = [weight * size_of(pair) / scale for weight, pair, scale in zip(weights, pairs, scales, strict=True)]
        logs = [weight * math.log(scale) for weight, scale in zip(weights, scales, strict=True)]
        return math.log(sum(sizes) / total) + sum(logs) / total if any(sizes) else 0.0

    return min(STREAMING, key=loss)


def _spread(kind: tuple[str, str], pairs: Sequence[Pair], streaming: float) -> Spread:
    gains = list(_gains(pairs))
    relative = [size_of(pair) / unsure(streaming, pair.streaming) for pair in pairs]
    return Spread(
        device=kind[0], bound=kind[1], stacks=tuple(sorted({pair.stack for pair in pairs})), rows=len(pairs),
        models=len(set(map(_model, pairs))), step=half_width(relative, _weights(pairs)), streaming=streaming,
        pairs=len(gains), gain=half_width(gains), frameworks=len({pair.row.of for pair in pairs}),
    )  # fmt: skip


def _model(pair: Pair) -> tuple[str, ...]:
    """Models of two sets are two, as their steps were measured apart."""
    return (pair.row.of, *pair.row.shape)


def _weights(pairs: Sequence[Pair]) -> list[float]:
    """What each row counts, so that each model counts once."""
    models = Counter(map(_model, pairs))
    return [1 / models[_model(pair)] for pair in pairs]


def _gains(pairs: Sequence[Pair]) -> Iterator[float]:
    """Of two plans of one model, how far the ratio of their steps was from the predicted one."""
    for group in groups(pairs):
        for one, other in combinations(group, 2):
            yield math.log(one.row.seconds / one.seconds) - math.log(other.row.seconds / other.seconds)


def half_width(errors: Sequence[float], weights: Sequence[float] = (), *, further: bool = True) -> float:
    """The size that ``LEVEL`` of further errors stay below: of n + 1 ranks, the first that is enough.

    Arguments: ``weights`` of the errors, equal unless given; a ``further`` one weighs their mean, where it counts.
    """
    if not errors:
        return 0.0
    ranked = sorted(zip(map(abs, errors), weights or [1.0] * len(errors), strict=True))
    total = sum(weight for _, weight in ranked)
    # A little less, as sums of weights are not exact.
    needed = LEVEL * total * (1 + further / len(ranked)) * (1 - 1e-9)
    reached = 0.0
    for size, weight in ranked:
        reached += weight
        if reached >= needed:
            return size
    return ranked[-1][0]


def written(spreads: Sequence[Spread]) -> str:
    """The table of ``hw_profiles/intervals.csv``."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator='\n')
    table.writerow(_COLUMNS)
    for one in spreads:
        table.writerow([one.device, one.bound, ' '.join(one.stacks), one.rows, one.models, f'{one.step:.4f}',
                        f'{one.streaming:.4f}', one.pairs, f'{one.gain:.4f}', one.frameworks])  # fmt: skip
    return text.getvalue()


@dataclass(frozen=True, slots=True)
class Bench:
    """Rows with their programs, priced again and again."""

    rows: tuple[Row, ...]
    cases: tuple[Case, ...]

    def errors(self, numbers: Mapping[str, float]) -> list[float]:
        """log(predicted / measured) of each row with some numbers in place of those in the files."""
        return [
            math.log(step_of(case.program, with_numbers(case.cluster, numbers)) / row.seconds)
            for row, case in zip(self.rows, self.cases, strict=True)
        ]

    def loss(self, numbers: Mapping[str, float]) -> float:
        """Mean size of the errors: no row counts more than its share, however wrong."""
        found = self.errors(numbers)
        return sum(map(abs, found)) / len(found)


def bench_of(rows: Sequence[Row]) -> Bench:
    """The rows that can be predicted."""
    kept = [(row, case) for row in rows if (case := _case(row))]
    return Bench(tuple(row for row, _ in kept), tuple(case for _, case in kept))


def _case(row: Row) -> Case | None:
    try:
        return case_of(schedule_of(Tree(root=schedule_tree(row), origins={(): row.name})))
    except (Skipped, SimparError):
        return None
