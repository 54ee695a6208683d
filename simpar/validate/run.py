"""Run: predict the rows of sets; how far off, and whether plans are chosen and ordered as measured.

Beside the null model, one constant utilisation for each device and the textbook's bubble: what a model has to beat.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from math import log, sinh
from statistics import median
from time import process_time
from typing import Final, NamedTuple

import numpy as np

from simpar import case, document, interval, predict
from simpar.errors import ProfileError, SimparError
from simpar.schedule import schedule_of
from simpar.size import LIMIT, Limit
from simpar.validate.columns import Skipped, stack_name
from simpar.validate.rows import Row, is_for_fitting
from simpar.validate.settings import assumed, schedule_tree

Tell = Callable[[int, int], None]


class Predicted(NamedTuple):
    """Seconds of a step, and its kind, as ``simpar.interval`` tells spreads apart."""

    seconds: float
    stack: str
    device: str
    bound: str
    streaming: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a row: what was ``predicted``, or why it was ``skipped``; ``cpu`` seconds that it took."""

    row: Row
    predicted: Predicted | None = None
    skipped: str = ''
    cpu: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAnswer:
    """What is told of a set.

    Arguments: ``fitted``, rows that numbers may be fitted on; ``pairs``, all others, which are scored; ``skipped``,
    reasons and how many rows each has; ``assumed``, the same of what predicted rows do not say; ``cpu``, seconds of a
    row in the median.
    """

    name: str
    fitted: tuple[Pair, ...]
    pairs: tuple[Pair, ...]
    skipped: dict[str, int]
    assumed: dict[str, int]
    cpu: float

    @property
    def scores(self) -> dict[str, Score | None]:
        """Of the prediction, of the null model on the same rows, and of the prediction on the rows for fitting."""
        null = score(self.pairs, null=True)
        return {'prediction': score(self.pairs), 'null model': null, 'for fitting': score(self.fitted)}


def outcome(row: Row, limit: Limit = LIMIT) -> Outcome:
    """Predict one row, unless that would take more than the limit."""
    began = process_time()
    try:
        prediction = predicted(row, limit)
    except Skipped as why:
        return Outcome(row=row, skipped=str(why))
    # A profile or a stack that is wrong is wrong for every row.
    except ProfileError:
        raise
    except SimparError as error:
        return Outcome(row=row, skipped=str(error).splitlines()[0][:200])
    return Outcome(row=row, predicted=prediction, cpu=process_time() - began)


def predicted(row: Row, limit: Limit = LIMIT) -> Predicted:
    """The step of a row."""
    schedule = schedule_of(document.Tree(root=schedule_tree(row), origins={(): row.name}))
    made = case.case_of(schedule, limit=limit)
    step, costs = predict.step_and_costs(made.program, made.cluster)
    device = interval.device_class(made.cluster.profile.device.name)
    bound = interval.bound_by(made.program, costs, step)
    return Predicted(step, stack_name(row), device, bound, interval.streaming_share(made.program, costs, step, bound))


def outcomes(rows: Sequence[Row], jobs: int = 1, tell: Tell | None = None, limit: Limit = LIMIT) -> list[Outcome]:
    """Predict rows, in so many processes."""
    all_outcomes, one = [], partial(outcome, limit=limit)
    with ProcessPoolExecutor(jobs) if jobs > 1 else nullcontext() as pool:
        for done in pool.map(one, rows, chunksize=4) if pool else map(one, rows):
            all_outcomes.append(done)
            if tell:
                tell(len(all_outcomes), len(rows))
    return all_outcomes


def answers(all_outcomes: Sequence[Outcome]) -> list[SetAnswer]:
    """Sets in the order of their names."""
    names = sorted({one.row.of for one in all_outcomes})
    return [_answer(name, [one for one in all_outcomes if one.row.of == name]) for name in names]


def _answer(name: str, all_outcomes: Sequence[Outcome]) -> SetAnswer:
    used = [(one, one.predicted) for one in all_outcomes if one.predicted]
    skipped = _counts((one.skipped, one.row.same) for one in all_outcomes if one.skipped)
    silent = _counts((what, one.row.same) for one, _ in used for what in assumed(one.row))
    for_fitting = [one.row for one, _ in used if is_for_fitting(one.row)]
    # A set of which no row is for fitting has no null model but that of its own rows: the stronger opponent.
    rates = null_rates(for_fitting or [one.row for one, _ in used])
    pairs = [Pair(one.row, made.seconds, null_seconds(one.row, rates), *made[1:]) for one, made in used]
    times = sorted(one.cpu for one, _ in used)
    return SetAnswer(
        name=name,
        fitted=tuple(pair for pair in pairs if is_for_fitting(pair.row)),
        pairs=tuple(pair for pair in pairs if not is_for_fitting(pair.row)),
        skipped=skipped,
        assumed=silent,
        cpu=times[len(times) // 2] if times else 0.0,
    )


def _counts(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    """How many rows each of some words holds of, the most first."""
    counts: Counter[str] = Counter()
    for words, rows in pairs:
        counts[words] += rows
    return dict(counts.most_common())


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
    by_key: dict[tuple[object, ...], list[Pair]] = {}
    for pair in pairs:
        row = pair.row
        key = (row.text('hardware'), *row.shape, row.text('n_gpus'), row.text('seq'), row.text('global_batch'))
        by_key.setdefault(key, []).append(pair)
    return (group for group in by_key.values() if len(group) > 1)


def null_work(row: Row) -> float:
    """The null model, one constant utilisation for each device: a number in proportion to the seconds of a step.

    FLOPs of products and of attention over all layers and the head, once more forward where layers are recomputed, for
    each device, and (pipeline − 1) / (chunks × micro-batches) more for the bubble.
    """
    batch, sequence, layers, hidden = (row.whole(key) for key in ('global_batch', 'seq', 'n_layers', 'hidden'))
    ffn = float(row.whole('ffn', 4 * hidden) * (3 if 'glu' in row.text('mlp') else 2))
    if row.whole('n_experts') > 1:
        # Of experts those count that a token goes to.
        ffn = ffn * row.whole('topk', 1) * row.whole('moe_ffn', row.whole('ffn', 1)) / max(1, row.whole('ffn', 1))
    heads = row.whole('heads', 1)
    groups = row.whole('kv_heads', heads) / heads
    weights = layers * hidden * (hidden * (2 + 2 * groups) + ffn) + hidden * row.whole('vocab', 50257)
    flops = 2.0 * batch * sequence * (weights + layers * hidden * sequence)
    passes = 4 if row.text('recompute').startswith('full') else 3
    pipeline, data = row.whole('pp', 1), max(1, row.whole('dp', 1))
    micro_batches = max(1.0, batch / data / max(1, row.whole('micro_batch', 1)))
    bubble = (pipeline - 1) / (max(1, row.whole('vpp_chunks', 1)) * micro_batches)
    return flops * passes / max(1, row.whole('n_gpus')) * (1 + bubble)


def null_rates(rows: Sequence[Row]) -> dict[str, float]:
    """For each hardware the seconds of a unit of work, the median over rows; '' for all of them together."""
    by: dict[str, list[float]] = {'': []}
    for row in rows:
        for key in ('', row.text('hardware')):
            by.setdefault(key, []).append(row.seconds / null_work(row))
    return {key: median(seconds) for key, seconds in by.items() if seconds}


def null_seconds(row: Row, rates: dict[str, float]) -> float:
    """Seconds of a step by the null model; 0 where nothing was fitted."""
    return null_work(row) * rates.get(row.text('hardware'), rates.get('', 0.0))


def size_of(pair: Pair) -> float:
    """How far apart both times are: the size of log(measured / predicted)."""
    return abs(log(pair.row.seconds / pair.seconds))


def covered(pairs: Sequence[Pair], spreads: Sequence[interval.Spread]) -> tuple[int, int, float]:
    """Of pairs that have an interval: how many, how many of them lie within, and the median half of their width."""
    with_spread = [
        (pair, spread) for pair in pairs if (spread := interval.spread_among(spreads, pair.device, pair.bound))
    ]
    widths = [spread.half_width(pair.streaming) for pair, spread in with_spread]
    within = sum(size_of(pair) <= width for (pair, _), width in zip(with_spread, widths, strict=True))
    return len(widths), within, sorted(map(sinh, widths))[len(widths) // 2] if widths else 0.0
