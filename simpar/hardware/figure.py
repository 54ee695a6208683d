"""Figures: numbers of a profile, each with its source and grade."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field

from simpar.document import Bytes, Flops, Rate, Seconds

Grade = Literal['measured', 'vendor', 'literature', 'estimate']
Text = Annotated[str, Field(min_length=1, max_length=1000)]
GRADES: Final[tuple[Grade, ...]] = ('measured', 'vendor', 'literature', 'estimate')
"""How a number is known, best first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number with its source in words and its grade; the value in SI units."""

    value: float
    source: Text
    grade: Grade


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopsFigure(Figure):
    """Floating-point operations a second."""

    value: Flops


@dataclass(frozen=True, slots=True, kw_only=True)
class RateFigure(Figure):
    """Bytes a second."""

    value: Rate


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeFigure(Figure):
    """Bytes."""

    value: Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeFigure(Figure):
    """Seconds."""

    value: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareFigure(Figure):
    """A part of a whole, more than 0 and at most 1."""

    value: Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberFigure(Figure):
    """A positive number without a unit."""

    value: Annotated[float, Field(gt=0)]


def worst(figures: Iterable[Figure | Grade]) -> Grade:
    """The grade of what rests on all of these."""
    grades = [figure.grade if isinstance(figure, Figure) else figure for figure in figures]
    # What rests on no figure at all, as a view that costs nothing, is exact.
    return max(grades, key=GRADES.index, default='measured')
