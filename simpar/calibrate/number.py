"""A number of a profile: its value, where it is from, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from simpar.calibrate.fit import Fit
from simpar.hardware import Grade

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


@dataclass(frozen=True, slots=True)
class Fitted:
    """A fit, and what it was made of, in words."""

    fit: Fit
    over: str

    def number(self, value: float, kind: str = '', *, negative: bool) -> Number:
        """A coefficient, or what was made of some.

        Arguments: ``negative``: it would have been below zero.
        """
        missed, worst = self.fit.typical, self.fit.worst
        flags = [f'the fit misses {missed:.0%} in the median'] if missed > MOST_RESIDUAL else []
        flags += ['came out negative'] if negative else []
        source = f'relative least squares over {self.over}, which it misses by {missed:.1%} (median) to {worst:.0%}'
        return Number(value=value, kind=kind, source=source, flags=tuple(flags))
