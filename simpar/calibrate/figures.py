"""Figures of a profile from a record: peaks, fixed times, latency, bandwidth and slow-down, with what is wrong."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from simpar.calibrate.fit import relative_fit
from simpar.calibrate.host import host
from simpar.calibrate.network import network
from simpar.calibrate.number import MOST_RESIDUAL, Fitted, Number, inverse
from simpar.calibrate.record import AttentionRow, Record, Stretch
from simpar.calibrate.table import MOST_SPREAD, Line, Table, counted, low

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
    found = _matmul(tables['matmul'].lines, peak_key)
    peak = found[peak_key].value
    if peak_key == VECTOR:
        for dtype, part in NARROW.items():
            source = f'not measured: {part:g} of fp32'
            found[f'device.vector.{dtype}'] = Number(value=peak * part, kind='flops', source=source, guessed=True)
    else:
        source = f'not measured: {UNITS:g} of the matrix units in {record.dtype}'
        found[VECTOR] = Number(value=peak * UNITS, kind='flops', source=source, guessed=True)
    found |= _memory(record, _streaming(tables['operator'].lines))
    found |= _attention(record, tables['attention'].lines if 'attention' in tables else (), peak)
    found |= network(record)
    found |= _slow_down(record.overlap)
    return found | host(record)


def peak_of(record: Record) -> str:
    """The key of the rate of products: that of vector units in fp32, else that of matrix units."""
    return VECTOR if record.dtype == 'fp32' else f'device.matrix.{record.dtype}'


def _flops(line: Line) -> float:
    m, n, k = (float(size) for size in line.key)
    return 2.0 * m * n * k


def _matmul(lines: Sequence[Line], peak_key: str) -> dict[str, Number]:
    """The peak and the four constants of ``simpar.cost.roofline.matmul``: kernel + 2 / F · (mn + area) · (k + depth).

    The peak is the best rate that was seen, or the limit F of endless products where that is near.
    It is linear in 1, mnk, k and mn, of which the first takes kernel and 2 / F · area · depth.
    """
    m, n, k = (np.array([float(line.key[place]) for line in lines]) for place in range(3))
    fit = relative_fit(np.column_stack([np.ones(len(lines)), m * n * k, k, m * n]), [line.seconds for line in lines])
    fixed, work, by_k, by_mn = fit.values
    best = max(_flops(line) / line.seconds for line in lines)
    # A work term that was left out of the fit would make the limit infinite.
    work = work or 2.0 / best
    # An extrapolated limit is believed only near rates that were seen.
    limit = min(2.0 / work, NEAR * best)
    peak = max(best, limit)
    area, depth = by_k / work, by_mn / work
    # Multiplied out, the formula's product of area and depth is constant and lies in the fixed term.
    kernel = fixed - work * area * depth
    made = Fitted(fit, f'{len(lines)} matrix products')
    quickest = Number(value=best, kind='flops', source='the quickest of the matrix products')
    return {
        peak_key: quickest if best == peak else made.number(peak, 'flops', negative=False),
        'device.kernel.matrix': made.number(max(kernel, 0.0), 'time', negative=kernel < -TINY or 0 in fit.negative),
        'device.matmul.share': made.number(limit / peak, negative=1 in fit.negative),
        'device.matmul.half_area': made.number(max(area, TINY), negative=2 in fit.negative),
        'device.matmul.half_depth': made.number(max(depth, TINY), negative=3 in fit.negative),
    }


def _streaming(lines: Sequence[Line]) -> Sequence[Line]:
    # A bench of few operators may have none that streams.
    return [line for line in lines if line.key[0] in STREAMING] or lines


def _memory(record: Record, lines: Sequence[Line]) -> dict[str, Number]:
    """kernel + bytes / rate, of operators that hardly compute."""
    moved, seconds = np.array([float(line.key[2]) for line in lines]), np.array([line.seconds for line in lines])
    fit = relative_fit(np.column_stack([np.ones(len(lines)), moved]), seconds)
    best = float(np.max(moved / seconds))
    made = Fitted(fit, f'{len(lines)} operators that hardly compute')
    # A device has memory of its own; the ranks of a processor share it.
    size = record.memory / (record.per_host if record.device == 'cpu' else 1)
    shared = f'the memory of the machine over {record.per_host} ranks'
    whole = (shared if record.device == 'cpu' else 'as the device tells') if size else 'a guess'
    return {
        'device.kernel.memory': made.number(fit.values[0], 'time', negative=0 in fit.negative),
        'device.memory.size': Number(value=size or 8e9, kind='size', source=whole, guessed=not size),
        'device.memory.bandwidth': Number(value=best, kind='rate', source='the quickest operator that hardly computes'),
        'device.memory.share': made.number(min(inverse(fit.values[1], best) / best, 1.0), negative=1 in fit.negative),
    }


def _attention(record: Record, lines: Sequence[Line], peak: float) -> dict[str, Number]:
    """Rate of the forward, and the backward's seconds over the forward's."""
    found: dict[tuple[int, ...], dict[str, list[AttentionRow]]] = {}
    for row in record.tables.attention:
        size = (row.queries, row.head_dim, row.sequence, row.pairs)
        found.setdefault(size, {}).setdefault(row.phase, []).append(row)
    # Only sizes that were measured in both phases; those of a program's steps count as often as they are in it.
    both = [times for times in found.values() if len(times) == 2]
    ratios = [_mean_of(times['I']) / _mean_of(times['F']) for times in both]
    weights = [sum(row.weight for row in times['F']) for times in both]
    if not lines or not ratios:
        guesses = {'device.attention.share': 0.4, 'device.attention.backward': 2.5}
        return {key: Number(value=value, source='a guess', guessed=True) for key, value in guesses.items()}
    # Two products of sequence² × head_dim a head, halved by the causal mask.
    flops = [2.0 * float(line.key[3]) * float(line.key[2]) ** 2 * float(line.key[1]) for line in lines]
    fit = relative_fit(np.column_stack([np.ones(len(lines)), flops]), [line.seconds for line in lines])
    rate = inverse(fit.values[1], peak)
    quarter, median, three_quarters = (_quantile(ratios, weights, part) for part in (0.25, 0.5, 0.75))
    spread = (three_quarters - quarter) / median
    return {
        'device.attention.share': Fitted(fit, f'{len(lines)} sizes of attention').number(
            min(rate / peak, 1.0), negative=1 in fit.negative
        ),
        'device.attention.backward': Number(
            value=median,
            source=f'median over {len(ratios)} sizes of attention',
            flags=(f'differs between sizes by {spread:.0%}',) if spread > MOST_SPREAD else (),
        ),
    }


def _mean_of(rows: Sequence[AttentionRow]) -> float:
    """Seconds of an op, over rows that weigh as they say."""
    return sum(row.weight * low(counted(row)) for row in rows) / sum(row.weight for row in rows)


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
    found: dict[str, list[Stretch]] = {'matrix': [], 'memory': [], 'collective': []}
    for one in overlap:
        found[one.what].append(one)
    return {f'slow_down.{what}': _speed(what, stretches) for what, stretches in found.items()}


def _speed(what: str, stretches: Sequence[Stretch]) -> Number:
    """One over the factor: of kernels, told by CPU times, the median; of collectives, told by the clock, a low one."""
    known = [(one.beside, one.factor) for one in stretches if one.factor is not None]
    if not known:
        return Number(value=GUESS, source='not measured: a guess', guessed=True)
    factors = [low(factor) if what == 'collective' else factor.median for _, factor in known]
    # A geometric mean: factors are ratios.
    speed = math.exp(-sum(map(math.log, factors)) / len(factors))
    flags = [f'beside {other} varies by {factor.cv:.0%}' for other, factor in known if factor.cv > MOST_SPREAD]
    if speed > 1 + MOST_RESIDUAL:
        flags.append(f'seemed {speed:.2f} times as quick beside others; set to 1')
    how = 'the 10th percentile' if what == 'collective' else 'the median'
    source = f'{how} of all runs beside {" and ".join(other for other, _ in known)}'
    return Number(value=min(speed, 1.0), source=source, flags=tuple(flags))
