"""Noise: how far two plans must be apart to be told apart, by measured pairs where there are any."""

from __future__ import annotations

from dataclasses import replace
from math import expm1
from typing import Final

from simpar.case import case_of
from simpar.errors import SimparError
from simpar.planner.answer import Answer
from simpar.schedule import Schedule

USUAL: Final = 0.03
"""Where nobody measured pairs of plans."""


def with_noise(answer: Answer, asked: float | None) -> Answer:
    """The answer with the noise of its best plan.

    Arguments: ``asked``, the share that the file asks for; None: as measured, else ``USUAL``.
    """
    if asked is not None:
        return replace(answer, margin=asked, noise='as the file asks')
    if answer.best is None:
        return answer
    found = measured(answer.best.schedule)
    return replace(answer, margin=found[0], noise=found[1]) if found else answer


def measured(schedule: Schedule) -> tuple[float, str] | None:
    """The share by which gains on such a stack and device were off, and what it rests on; None where nobody says."""
    # Spreads are of stacks: without one there is nothing to look up, and nothing to predict.
    if not schedule.cluster.has_stack:
        return None
    try:
        spread = case_of(schedule).predict(tell=False).spread
    except SimparError:
        return None
    if spread is None or not spread.pairs:
        return None
    words = f'80 % of {spread.pairs} measured pairs on {spread.device}, bound by the {spread.bound}, were off by less'
    return expm1(spread.gain), words
