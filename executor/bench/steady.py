"""Repeats until the spread is narrow, or until it is clear that the machine is too busy for that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from executor.bench.messages import Messages

NARROW: Final = 0.05
"""By how much the 10th percentiles of every other repeat of a message may differ."""
WIDE: Final = 0.1
"""Share of all messages that may differ by more."""
DRIFT: Final = 0.01
"""By how much all of them together may differ, weighted by their seconds."""
PATIENCE: Final = 4
"""Up to how many times the rounds that are planned are run."""
STEPS: Final = 4
WARM_UP: Final = 1
"""Steps of a run that count, and those before them."""


def repeat(messages: Messages, rounds: int, said: Callable[[], None]) -> list[str]:
    """Measure for so many rounds or more; returns what a reader must know: that the machine was too busy, or nothing.

    Arguments: ``said``, called after each of the planned rounds.
    """
    for turn in range(PATIENCE * rounds):
        messages.round(STEPS, WARM_UP)
        if turn < rounds:
            said()
        if turn + 1 >= rounds and narrow(messages):
            return []
    wide, all_of_them = len(messages.unsteady(NARROW)), sum(map(len, messages.found))
    return [
        (
            f'the machine is too busy: {wide} of {all_of_them} messages still differ by more than {NARROW:.0%} between '
            f'repeats after {PATIENCE * rounds} rounds; calibrate again when nothing else runs'
        )
    ]


def narrow(messages: Messages) -> bool:
    """Whether hardly any message differs between repeats, and all together still less."""
    few = len(messages.unsteady(NARROW)) <= WIDE * sum(map(len, messages.found))
    return few and messages.drift() <= DRIFT
