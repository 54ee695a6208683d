"""Figures of a profile from a record: peaks, fixed times, latency, bandwidth and slow-down, with what is wrong."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simpar.calibrate import record as records
from simpar.calibrate.record import AttentionRow, CollectiveRow, LaunchRow, Line, Record, Stretch, Table
from simpar.cost.formula import share, steps
from simpar.hardware import Grade
from simpar.hardware.net import parse_net

MOST_RESIDUAL: Final = 0.05
"""A median relative error of a fit above which its coefficients are estimates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number of the profile.

    Arguments:
        value: the number in SI units.
        kind: the kind of quantity as in ``simpar.units``, or empty.
        source: how it was found.
        flags: what is wrong with it, in words.
        guessed: not measured at all.
    """

    value: float
    source: str
    kind: str = ''
    flags: tuple[str, ...] = ()
    guessed: bool = False

    @property
    def grade(self) -> Grade:
        """``estimate`` where something is wrong with it."""
        return 'estimate' if self.flags or self.guessed else 'measured'


def inverse(value: float, otherwise: float) -> float:
    """One over a coefficient; ``otherwise`` where it is zero."""
    return 1.0 / value if value > 0 else otherwise


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """Coefficients, the relative errors of what they say, and which of them came out negative and were set to zero.

    Arguments: ``over``, what it was made of, in words.
    """

    values: tuple[float, ...]
    residuals: NDArray[np.float64]
    negative: tuple[int, ...]
    over: str = ''

    @property
    def typical(self) -> float:
        """The median size of the relative errors."""
        return float(np.median(np.abs(self.residuals)))

    @property
    def worst(self) -> float:
        """The largest size of the relative errors."""
        return float(np.max(np.abs(self.residuals)))

    def number(self, value: float, kind: str = '', *, negative: bool) -> Number:
        """A coefficient, or what was made of some.

        Arguments: ``negative``: it would have been below zero.
        """
        missed, worst = self.typical, self.worst
        flags = [f'the fit misses {missed:.0%} in the median'] if missed > MOST_RESIDUAL else []
        flags += ['came out negative'] if negative else []
        source = f'relative least squares over {self.over}, which it misses by {missed:.1%} (median) to {worst:.0%}'
        return Number(value=value, kind=kind, source=source, flags=tuple(flags))


def relative_fit(terms: ArrayLike, seconds: ArrayLike, over: str = '') -> Fit:
    """Coefficients x ≥ 0 that make Σ ((terms · x − seconds) / seconds)² small.

    Arguments:
        terms: shape [rows, coefficients].
        seconds: shape [rows], positive.
        over: what they are, in words.
    Of the negative coefficients of a free fit the one with the largest part in the sum is left out, until there are
    none (an active set without second thoughts: not always the very least sum, always non-negative).
    """
    y = np.asarray(seconds, dtype=np.float64)
    # Divided by the seconds, all rows aim at 1, and residuals are relative errors.
    scaled = np.asarray(terms, dtype=np.float64) / y[:, None]
    size = np.linalg.norm(scaled, axis=0)
    # Columns are scaled to one length, as FLOPs and constants differ by many orders; an empty column stays empty.
    size[size == 0] = 1.0
    scaled = scaled / size
    columns = list(range(scaled.shape[1]))
    values = np.zeros(len(columns))
    negative: list[int] = []
    while columns:
        coefficients = np.linalg.lstsq(scaled[:, columns], np.ones(len(y)), rcond=None)[0]
        # After scaling, the most negative coefficient has the largest part in the sum.
        lowest = int(np.argmin(coefficients))
        if coefficients[lowest] >= 0:
            values[columns] = coefficients
            break
        negative.append(columns.pop(lowest))
    return Fit(tuple((values / size).tolist()), scaled @ values - 1.0, tuple(sorted(negative)), over)


# Figures of a device that a record has beside its kernels: what the host takes to issue, and the clock under load.

NO_HOST: Final = 'a thread for each stream calls its kernels itself: there is no host beside the device'
CALLS: Final = 'small products, one behind the other, while the device waits for the host'


def host(record: Record) -> dict[str, Number]:
    """Seconds to issue an op in every mode that was measured, and the clock that a device keeps."""
    if not record.launches:
        return {'host.issue.eager': Number(value=0.0, kind='time', source=NO_HOST)}
    numbers = {}
    for mode in dict.fromkeys(row.mode for row in record.launches):
        rows = [row for row in record.launches if row.mode == mode]
        numbers[f'host.issue.{mode}'] = _seconds(rows, 'op', f'{CALLS}; {mode}')
    eager = [row for row in record.launches if row.mode == 'eager']
    for key, phase in (('stack.forward', 'F'), ('stack.backward', 'I')):
        numbers[key] = _seconds([row for row in eager if row.phase == phase], 'op', f'{CALLS}; phase {phase}')
    numbers['stack.step'] = _seconds(eager, 'step', 'what steps of few products take beyond them')
    if row := record.sustained:
        share = min(1.0, row.early.median / row.late.median)
        source = f'products of {row.size} cubed, the last of {row.seconds:g} s of nothing else against the first'
        numbers['device.sustained'] = Number(value=share, source=source)
    if record.copies:
        # What copies to the host and back reach, and what each takes however small.
        seconds = [one.seconds.median for one in record.copies]
        over = f'{len(record.copies)} copies to the host and back'
        fit = relative_fit([[1.0, one.bytes] for one in record.copies], seconds, over)
        rate = inverse(fit.values[1], max(one.bytes / one.seconds.median for one in record.copies))
        numbers['host_link.bandwidth'] = fit.number(rate, 'rate', negative=1 in fit.negative)
        numbers['host_link.latency'] = fit.number(fit.values[0], 'time', negative=0 in fit.negative)
    return numbers


def _seconds(rows: Sequence[LaunchRow], what: str, source: str) -> Number:
    """The mean over phases of what is usual."""
    figures = [getattr(row, what) for row in rows]
    wide = max((one.cv for one in figures), default=0.0)
    flags = (f'varies by {wide:.0%}',) if wide > records.MOST_SPREAD else ()
    value = sum(one.median for one in figures) / max(len(figures), 1)
    return Number(value=value, kind='time', source=source, flags=flags, guessed=not figures)


# Figures of the links from a record: inside a host and across hosts, each with its latency and bandwidth.

CROWDED: Final = 0.95
"""Share of one stream's rate that several at once must carry; below it the link is not all that they share."""


def network(record: Record) -> dict[str, Number]:
    """Latency and bandwidth of every link, and the start of a collective."""
    inside = [row for row in record.tables.collective if row.nodes == 1]
    across = [row for row in record.tables.collective if row.nodes > 1]
    if not inside or not across:
        return _link(record, inside or across)
    near = _link(record, inside)
    far = _link(record, across)
    # One library has one start: that inside of a host, where less is mixed with it.
    return near | {f'across.{key.removeprefix("links.")}': far[key] for key in far if key.startswith('links.')}


def per(record: Record) -> str:
    """What has a card of its own towards other hosts: each device, or each node, which is a host."""
    alone, together = ([row for row in record.crossing if (row.groups == 1) is one] for one in (True, False))
    if not alone or not together:
        return 'device'
    # All at once, groups take as long as one where each device has a card, and as many times as long as there are of
    # them where they share one: the bound is half way between, as ratios are. Low quantiles would miss one another.
    bound = math.sqrt(together[0].groups)
    return 'node' if together[0].seconds.median > bound * alone[0].seconds.median else 'device'


def _link(record: Record, rows: Sequence[CollectiveRow]) -> dict[str, Number]:
    """start + steps · latency + bytes over a channel / bandwidth, of all collectives that go around a ring."""
    # Other algorithms have other numbers of steps; mixed, the fit would hide the latency.
    # Which one a device's own library takes, it does not tell.
    own = record.library == 'gloo'
    rings = [row for row in rows if row.algorithm == 'ring' or (not own and row.algorithm == 'exchange')] or rows
    passed = [share('ring', row.operator, row.ranks) * row.bytes for row in rings]
    terms = [(1.0, steps('ring', row.operator, row.ranks), size) for row, size in zip(rings, passed, strict=True)]
    take = records.of_messages(record)
    seconds = np.array([take(records.counted(row)) for row in rings])
    fit = relative_fit(terms, seconds, f'{len(rings)} collectives')
    start, latency, a_byte = fit.values
    bandwidth = inverse(a_byte, float(np.max(np.array(passed) / seconds)))
    alone = fit.number(bandwidth, 'rate', negative=2 in fit.negative)
    return {
        'links.bandwidth': _at_once(record, _paced(record, alone), rows),
        'links.latency': fit.number(latency, 'time', negative=1 in fit.negative),
        'library.start': fit.number(start, 'time', negative=0 in fit.negative),
    }


def _paced(record: Record, alone: Number) -> Number:
    """The rate of a paced link as it was asked for, where it was found again."""
    try:
        net = parse_net(record.net)
    # A record may say anything of its network.
    except ValueError:
        return alone
    if net.kind != 'paced' or abs(alone.value / net.rate - 1) > MOST_RESIDUAL:
        return alone
    return replace(alone, value=net.rate, source=f'as --net says; {alone.source}')


def _at_once(record: Record, alone: Number, rows: Sequence[CollectiveRow]) -> Number:
    """What a link carries: of one stream, or of several at once where these carry more.

    Arguments: ``rows``, the messages on this link: several streams were those of all ranks, on the widest link.
    """
    if max(row.ranks for row in rows) < record.ranks:
        return alone
    carried = [
        (row.streams * share('ring', 'all_reduce', row.ranks) * row.bytes / records.low(row.seconds), row)
        for row in record.streams
    ]
    if not carried:
        return alone
    most, row = max(carried, key=lambda pair: pair[0])
    least, crowd = min(carried, key=lambda pair: pair[0])
    flags = alone.flags
    if least < CROWDED * alone.value:
        flags += (f'{crowd.streams} streams at once carry {least / alone.value:.0%} of what one does',)
    # A shaped link carries what several streams fill it with: one of them waits for its peers now and then.
    if record.net.startswith('paced') or (most <= alone.value and record.net == 'none'):
        return replace(alone, flags=flags)
    source = f'what {row.streams} streams carry at once; one alone: {alone.source}'
    return replace(alone, value=most, source=source, flags=flags)


# Figures of a profile from a record: peaks, fixed times, latency, bandwidth and slow-down, with what is wrong.

STREAMING: Final = frozenset({'residual', 'add', 'relu', 'bias', 'scale'})
"""Operators that hardly compute: their seconds are those of memory."""
TINY: Final = 1e-9
"""Stands for zero where a profile asks for more."""
GUESS: Final = 0.8
"""Speed beside something else, where it was not measured."""
NEAR: Final = 1.25
"""A fitted limit of the rate of products counts up to so many times the best that was seen."""
NOTHING: Final = 'emulated compute takes nothing from messages'
VECTOR: Final = 'device.vector.fp32'
UNITS: Final = 1 / 16
"""Rate of vector units, of that of matrix units, where it is not measured."""
NARROW: Final = {'fp64': 0.5, 'bf16': 0.25, 'fp16': 0.25}
"""Rates of data types that are not measured, of that of fp32."""


def numbers_of(record: Record, tables: Mapping[str, Table]) -> dict[str, Number]:
    """Every number of the profile by its dotted key.

    Does not measure: other data types than fp32, the host, which CPU threads do not have.
    """
    if record.compute == 'emulated':
        return network(record) | {'slow_down.collective': Number(value=1.0, source=NOTHING)}
    peak_key = peak_of(record)
    numbers = _matmul(tables['matmul'].lines, peak_key)
    peak = numbers[peak_key].value
    if peak_key == VECTOR:
        for dtype, part in NARROW.items():
            source = f'not measured: {part:g} of fp32'
            numbers[f'device.vector.{dtype}'] = Number(value=peak * part, kind='flops', source=source, guessed=True)
    else:
        source = f'not measured: {UNITS:g} of the matrix units in {record.dtype}'
        numbers[VECTOR] = Number(value=peak * UNITS, kind='flops', source=source, guessed=True)
    operators = tables['operator'].lines
    # A bench of few operators may have none that streams.
    numbers |= _memory(record, [line for line in operators if line.key[0] in STREAMING] or operators)
    numbers |= _attention(record, tables['attention'].lines if 'attention' in tables else (), peak)
    numbers |= network(record)
    numbers |= _slow_down(record.overlap)
    return numbers | host(record)


def peak_of(record: Record) -> str:
    """The key of the rate of products: that of vector units in fp32, else that of matrix units."""
    return VECTOR if record.dtype == 'fp32' else f'device.matrix.{record.dtype}'


def _matmul(lines: Sequence[Line], peak_key: str) -> dict[str, Number]:
    """Peak and four constants of ``simpar.cost.compute.by_products``: kernel + 2 / F · (mn + area) · (k + depth).

    The peak is the best rate that was seen, or the limit F of endless products where that is near.
    It is linear in 1, mnk, k and mn, of which the first takes kernel and 2 / F · area · depth.
    """
    m, n, k = (np.array([float(line.key[place]) for line in lines]) for place in range(3))
    terms = np.column_stack([np.ones(len(lines)), m * n * k, k, m * n])
    seconds = np.array([line.seconds for line in lines])
    fit = relative_fit(terms, seconds, f'{len(lines)} matrix products')
    fixed, work, by_k, by_mn = fit.values
    best = float(np.max(2.0 * m * n * k / seconds))
    # A work term that was left out of the fit would make the limit infinite.
    work = work or 2.0 / best
    # An extrapolated limit is believed only near rates that were seen.
    limit = min(2.0 / work, NEAR * best)
    peak = max(best, limit)
    area, depth = by_k / work, by_mn / work
    # Multiplied out, the formula's product of area and depth is constant and lies in the fixed term.
    kernel = fixed - work * area * depth
    quickest = Number(value=best, kind='flops', source='the quickest of the matrix products')
    return {
        peak_key: quickest if best == peak else fit.number(peak, 'flops', negative=False),
        'device.kernel.matrix': fit.number(max(kernel, 0.0), 'time', negative=kernel < -TINY or 0 in fit.negative),
        'device.matmul.share': fit.number(limit / peak, negative=1 in fit.negative),
        'device.matmul.half_area': fit.number(max(area, TINY), negative=2 in fit.negative),
        'device.matmul.half_depth': fit.number(max(depth, TINY), negative=3 in fit.negative),
    }


def _memory(record: Record, lines: Sequence[Line]) -> dict[str, Number]:
    """kernel + bytes / rate, of operators that hardly compute."""
    moved, seconds = np.array([float(line.key[2]) for line in lines]), np.array([line.seconds for line in lines])
    over = f'{len(lines)} operators that hardly compute'
    fit = relative_fit(np.column_stack([np.ones(len(lines)), moved]), seconds, over)
    best = float(np.max(moved / seconds))
    # A device has memory of its own; the ranks of a processor share it.
    size = record.memory / (record.per_host if record.device == 'cpu' else 1)
    shared = f'the memory of the machine over {record.per_host} ranks'
    whole = (shared if record.device == 'cpu' else 'as the device tells') if size else 'a guess'
    return {
        'device.kernel.memory': fit.number(fit.values[0], 'time', negative=0 in fit.negative),
        'device.memory.size': Number(value=size or 8e9, kind='size', source=whole, guessed=not size),
        'device.memory.bandwidth': Number(value=best, kind='rate', source='the quickest operator that hardly computes'),
        'device.memory.share': fit.number(min(inverse(fit.values[1], best) / best, 1.0), negative=1 in fit.negative),
    }


def _attention(record: Record, lines: Sequence[Line], peak: float) -> dict[str, Number]:
    """Rate of the forward, and the backward's seconds over the forward's."""
    by_size: dict[tuple[int, ...], dict[str, list[AttentionRow]]] = {}
    for row in record.tables.attention:
        size = (row.queries, row.head_dim, row.sequence, row.pairs)
        by_size.setdefault(size, {}).setdefault(row.phase, []).append(row)
    # Only sizes that were measured in both phases; those of a program's steps count as often as they are in it.
    both = [times for times in by_size.values() if len(times) == 2]
    ratios = [_mean_of(times['I']) / _mean_of(times['F']) for times in both]
    weights = [sum(row.weight for row in times['F']) for times in both]
    if not lines or not ratios:
        guesses = {'device.attention.share': 0.4, 'device.attention.backward': 2.5}
        return {key: Number(value=value, source='a guess', guessed=True) for key, value in guesses.items()}
    # Two products of sequence² × head_dim a head, halved by the causal mask.
    flops = [2.0 * float(line.key[3]) * float(line.key[2]) ** 2 * float(line.key[1]) for line in lines]
    over, seconds = f'{len(lines)} sizes of attention', [line.seconds for line in lines]
    fit = relative_fit(np.column_stack([np.ones(len(lines)), flops]), seconds, over)
    rate = inverse(fit.values[1], peak)
    quarter, median, three_quarters = (_quantile(ratios, weights, part) for part in (0.25, 0.5, 0.75))
    spread = (three_quarters - quarter) / median
    return {
        'device.attention.share': fit.number(min(rate / peak, 1.0), negative=1 in fit.negative),
        'device.attention.backward': Number(
            value=median,
            source=f'median over {len(ratios)} sizes of attention',
            flags=(f'differs between sizes by {spread:.0%}',) if spread > records.MOST_SPREAD else (),
        ),
    }


def _mean_of(rows: Sequence[AttentionRow]) -> float:
    """Seconds of an op, over rows that weigh as they say."""
    return sum(row.weight * records.low(records.counted(row)) for row in rows) / sum(row.weight for row in rows)


def _quantile(values: Sequence[float], weights: Sequence[int], part: float) -> float:
    """The first value up to which so large a part of the weight lies; between two values their mean."""
    order = sorted(zip(values, weights, strict=True))
    target, below = part * sum(weights), 0
    for place, (value, weight) in enumerate(order):
        below += weight
        if below >= target:
            return (value + order[place + 1][0]) / 2 if below == target and place + 1 < len(order) else value
    return order[-1][0]


def _slow_down(overlap: Iterable[Stretch]) -> dict[str, Number]:
    """Speeds beside one another, of 1."""
    by_kind: dict[str, list[Stretch]] = {'matrix': [], 'memory': [], 'collective': []}
    for one in overlap:
        by_kind[one.what].append(one)
    return {f'slow_down.{what}': _speed(what, stretches) for what, stretches in by_kind.items()}


def _speed(what: str, stretches: Sequence[Stretch]) -> Number:
    """One over the factor: of kernels, told by CPU times, the median; of collectives, told by the clock, a low one."""
    pairs = [(one.beside, one.factor) for one in stretches if one.factor is not None]
    if not pairs:
        return Number(value=GUESS, source='not measured: a guess', guessed=True)
    factors = [records.low(factor) if what == 'collective' else factor.median for _, factor in pairs]
    # A geometric mean: factors are ratios.
    speed = math.exp(-sum(map(math.log, factors)) / len(factors))
    flags = [f'beside {other} varies by {factor.cv:.0%}' for other, factor in pairs if factor.cv > records.MOST_SPREAD]
    if speed > 1 + MOST_RESIDUAL:
        flags.append(f'seemed {speed:.2f} times as quick beside others; set to 1')
    how = 'the 10th percentile' if what == 'collective' else 'the median'
    source = f'{how} of all runs beside {" and ".join(other for other, _ in pairs)}'
    return Number(value=min(speed, 1.0), source=source, flags=tuple(flags))
