"""Headline: the answer in a sentence, for screens, tables and pictures."""

import re
from collections.abc import Collection
from typing import Final

from simpar.units import format_count, format_size, format_time

NO_FRAMEWORK: Final = 'if the framework cost nothing (measured steps are 10 to 36 % longer)'
"""How a step is told of devices alone; the range is that of docs/accuracy.md, of published steps."""
TIMES: Final = 3.0
"""Whoever takes so many times as long is told by that: 5223 % slower says nothing."""


def headline(plan: tuple[str, float], baseline: tuple[str, float] | None = None, *, exact: bool = True) -> str:
    """The answer in a sentence; arguments: name and seconds of a step, of the plan and of its baseline.

    Unless it is to be exact, times have three digits and shares from 10 % on none behind the point.
    Faster and slower are by one definition, longer step / shorter step − 1: from 161.5 to 202.7 µs is 25.5 % slower,
    and back is 25.5 % faster.
    """
    time_text = format_time if exact else short_time
    text = f'{plan[0]}: {time_text(plan[1])} a step'
    if baseline is None:
        return text
    how = than(plan[1], baseline[1])
    # A step is hardly ever known better than to some percent.
    how = how if exact else re.sub(r'(\d\d+)\.(\d) %', lambda match: f'{float(match[0][:-2]):.0f} %', how)
    return f'{text}, {how} {baseline[0]} ({time_text(baseline[1])})'


def short(value: float) -> float:
    """A value in the three digits that it is worth."""
    return float(f'{value:.3g}')


def short_time(seconds: float) -> str:
    """A time in these digits."""
    return format_time(short(seconds))


def run_by(titles: Collection[str], libraries: Collection[str]) -> str:
    """Whose steps some are, as a clause; empty where they are of several frameworks, or of the executor on CPUs.

    Arguments: ``titles`` of the frameworks; an empty one is of devices alone. Unlike ones are told by the names of plan
    and baseline, which then say what differs. ``libraries``, names of the collective libraries.
    """
    if len(set(titles)) != 1:
        return ''
    (title,) = set(titles)
    if title:
        return f'as {title} runs it'
    # The processes of the executor on CPUs are all that there is.
    return '' if any(library.lower() == 'gloo' for library in libraries) else NO_FRAMEWORK


def change_in_words(old: float, new: float) -> str:
    """How a step changed, by the same definition."""
    change = _change(new, old)
    return change[0] if change else 'as long'


def gain_in_words(gain: float) -> str:
    """A gain, seconds of the baseline / seconds of the step − 1, by the same definition: −0.203 is 25.5 % slower."""
    return change_in_words(1 + gain, 1)


def than(step: float, baseline: float) -> str:
    """How a step compares to another, with the word that the other's name follows; arguments: their seconds."""
    return ' '.join(_change(step, baseline) or ('as fast', 'as'))


def headline_of_rates(plan: tuple[str, float], baseline: tuple[str, float], unit: str) -> str:
    """The same where steps are of different batches, so that rates are compared; arguments: names and rates."""
    how = than(baseline[1], plan[1])
    return f'{plan[0]}: {format_count(plan[1])} {unit} a second, {how} {baseline[0]} ({format_count(baseline[1])})'


def too_large(name: str, held: float, size: float) -> str:
    """The first words where a plan does not fit; arguments: bytes that its fullest rank holds, and of its device."""
    return f'{name} does not fit: {format_size(held)} needed of {format_size(size)} a device'


def maybe_too_large(name: str, held: float, size: float, margin: float) -> str:
    """The first words where a plan may not fit; ``margin``, by which the bytes may be too many, else as of above."""
    text = f'{name} may not fit: {format_size(held)} counted of {format_size(size)} a device'
    if margin < 1:
        return f'{text}, and runs held up to {margin * 100:.0f} % less than what is counted, or fragment less'
    return f'{text}, and nobody has compared what is counted with a run of this framework'


def _change(step: float, baseline: float) -> tuple[str, str] | None:
    """How a step compares, and the word before the other's name; None where it would be shown as 0.0 %."""
    longer, faster = max(step, baseline) / min(step, baseline), step < baseline
    if longer - 1 < 0.0005:
        return None
    if longer >= TIMES:
        return f'{longer:.1f} times as {"fast" if faster else "slow"}', 'as'
    return f'{(longer - 1) * 100:.1f} % {"faster" if faster else "slower"}', 'than'
