"""What to write instead of a size that does not fit."""

from __future__ import annotations


def divisors(number: int, most: int = 8) -> str:
    """The largest divisors of a number, as text."""
    # Up to 4096, for advice on a size of millions must not take seconds.
    found = [divisor for divisor in range(1, min(number, 4096) + 1) if number % divisor == 0]
    return ', '.join(str(divisor) for divisor in found[-most:])


def multiple(number: int, of: int) -> str:
    """The nearest multiple of a number, as advice."""
    return f'write a multiple of {of}, e.g. {max(1, round(number / of)) * of}'
