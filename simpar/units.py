"""Quantities: text with a unit becomes an SI float once, at the door; inside, all is seconds, bytes, bytes/s and
FLOP/s.

A lower-case b is a bit, an upper-case B a byte; K M G T are powers of 1000, Ki Mi Gi Ti of 1024.
"""

import re
from decimal import Decimal
from math import isfinite
from typing import Final

GRID: Final = 2.0**40
"""Ticks in a second: every time in a program's trace is a multiple of 1 / GRID."""

_PREFIXES: Final = {'': 1.0, 'K': 1e3, 'k': 1e3, 'M': 1e6, 'G': 1e9, 'T': 1e12, 'P': 1e15}
_BINARY: Final = {'Ki': 2.0**10, 'Mi': 2.0**20, 'Gi': 2.0**30, 'Ti': 2.0**40}


def _sizes() -> dict[str, float]:
    table: dict[str, float] = {}
    for prefix, factor in {**_PREFIXES, **_BINARY}.items():
        table[f'{prefix}B'] = factor
        # Rates of networks are given in bits, and one letter's case is all that tells them apart.
        table[f'{prefix}b'] = table[f'{prefix}bit'] = factor / 8
    return table


_SIZES: Final = _sizes()
UNITS: Final[dict[str, dict[str, float]]] = {
    'time': {'s': 1.0, 'ms': 1e-3, 'us': 1e-6, 'µs': 1e-6, 'ns': 1e-9},
    'size': _SIZES,
    'rate': {
        **{f'{unit}/s': factor for unit, factor in _SIZES.items()},
        **{f'{unit}ps': factor for unit, factor in _SIZES.items() if unit.endswith('bit')},
    },
    'flops': {f'{prefix}FLOP/s': factor for prefix, factor in _PREFIXES.items()},
}
EXAMPLES: Final = {'time': '"50 us"', 'size': '"32 GB"', 'rate': '"200 GB/s"', 'flops': '"256 TFLOP/s"'}
_QUANTITY: Final = re.compile(r'\s*([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?)\s*(\S+)\s*')


def parse(text: object, kind: str) -> float:
    """Read a quantity such as ``"200 GB/s"``.

    Arguments:
        text: as it stands in the file.
        kind: one of time, size, rate, flops.
    Raises ``ValueError`` for a bare number, an unknown unit or anything else, saying what to write.
    """
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    # A bare number is refused: nobody can tell whether 50 is seconds or microseconds.
    if match is None:
        raise ValueError(f'not a quantity of {kind}; write a number and a unit, e.g. {EXAMPLES[kind]}')
    factor = UNITS[kind].get(match[2])
    if factor is None:
        raise ValueError(f'unknown unit {match[2]!r} of {kind}; write e.g. {EXAMPLES[kind]}')
    # ``1e400 s`` is well-formed text and no number.
    if not isfinite(float(match[1]) * factor):
        raise ValueError(f'too large a quantity of {kind}; write e.g. {EXAMPLES[kind]}')
    # In decimals, so that 0.511 ms is the float nearest to 0.000511.
    return float(Decimal(match[1]) * Decimal(repr(factor)))


def quantise(seconds: float) -> float:
    """Round a time to the grid of 2⁻⁴⁰ s, so that sums of times are exact whatever their order."""
    # A power of two, so that multiplying and dividing by it is exact.
    return round(seconds * GRID) / GRID


def _scaled(value: float, steps: tuple[tuple[float, str], ...]) -> str:
    if not value:
        return f'0 {steps[0][1] if steps[0][1] == "s" else steps[-1][1]}'
    for factor, unit in steps:
        if abs(value) >= factor:
            return f'{value / factor:.4g} {unit}'
    factor, unit = steps[-1]
    return f'{value / factor:.4g} {unit}'


def format_time(seconds: float) -> str:
    """Seconds as a person reads them, e.g. ``12.5 ms``."""
    return _scaled(seconds, ((1.0, 's'), (1e-3, 'ms'), (1e-6, 'us'), (1e-9, 'ns')))


def format_duration(seconds: float) -> str:
    """A time to wait as a person says it, to the second, e.g. ``1 min 10 s``; of hours and days, two units."""
    left = max(1, round(seconds))
    for size, unit, part, smaller in ((86400, 'd', 3600, 'h'), (3600, 'h', 60, 'min'), (60, 'min', 1, 's')):
        if left >= size:
            rest = left % size // part
            return f'{left // size} {unit} {rest} {smaller}' if rest else f'{left // size} {unit}'
    return f'{left} s'


def format_size(size: float) -> str:
    """Bytes as a person reads them, e.g. ``1.5 MB``."""
    return _scaled(size, ((1e12, 'TB'), (1e9, 'GB'), (1e6, 'MB'), (1e3, 'KB'), (1.0, 'B')))


def format_count(value: float) -> str:
    """A count as a person reads it, e.g. ``890.4 K``."""
    return _scaled(value, ((1e15, 'P'), (1e12, 'T'), (1e9, 'G'), (1e6, 'M'), (1e3, 'K'), (1.0, ''))).rstrip()


def format_rate(rate: float) -> str:
    """Bytes per second as a person reads them, e.g. ``200 GB/s``."""
    return f'{format_size(rate)}/s'
