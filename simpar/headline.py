"""Headline: the answer in a sentence, for screens, tables and pictures."""

from __future__ import annotations

from simpar.units import format_count, format_size, format_time


def headline(plan: tuple[str, float], baseline: tuple[str, float] | None = None) -> str:
    """The answer in a sentence; arguments: name and seconds of a step, of the plan and of its baseline.

    Faster and slower are by one definition, longer step / shorter step − 1: from 161.5 to 202.7 µs is 25.5 % slower,
    and back is 25.5 % faster.
    """
    text = f'{plan[0]}: {format_time(plan[1])} a step'
    if baseline is None:
        return text
    change = max(plan[1], baseline[1]) / min(plan[1], baseline[1]) - 1
    # Less would be shown as 0.0 % faster.
    how = 'as fast as' if change < 0.0005 else f'{change * 100:.1f} % {_word(plan[1], baseline[1])} than'
    return f'{text}, {how} {baseline[0]} ({format_time(baseline[1])})'


def change_in_words(old: float, new: float) -> str:
    """How a step changed, by the same definition."""
    change = max(old, new) / min(old, new) - 1
    return 'as long' if change < 0.0005 else f'{change * 100:.1f} % {_word(new, old)}'


def gain_in_words(gain: float) -> str:
    """A gain, seconds of the baseline / seconds of the step − 1, by the same definition: −0.203 is 25.5 % slower."""
    return change_in_words(1 + gain, 1)


def headline_of_rates(plan: tuple[str, float], baseline: tuple[str, float], unit: str) -> str:
    """The same where steps are of different batches, so that rates are compared; arguments: names and rates."""
    change = max(plan[1], baseline[1]) / min(plan[1], baseline[1]) - 1
    how = 'as fast as' if change < 0.0005 else f'{change * 100:.1f} % {_word(baseline[1], plan[1])} than'
    return f'{plan[0]}: {format_count(plan[1])} {unit} a second, {how} {baseline[0]} ({format_count(baseline[1])})'


def too_large(name: str, held: float, size: float) -> str:
    """The first words where a plan does not fit; arguments: bytes that its fullest rank holds, and of its device."""
    return f'{name} does not fit: {format_size(held)} needed of {format_size(size)} a device'


def _word(step: float, baseline: float) -> str:
    return 'faster' if step < baseline else 'slower'
