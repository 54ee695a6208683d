"""Headline: the answer in a sentence, for screens, tables and pictures."""

from __future__ import annotations

from simpar.units import format_time


def headline(plan: tuple[str, float], baseline: tuple[str, float] | None = None) -> str:
    """The answer in a sentence; arguments: name and seconds of a step, of the plan and of its baseline."""
    text = f'{plan[0]}: {format_time(plan[1])} a step'
    if baseline is None:
        return text
    gain = baseline[1] / plan[1] - 1
    # Less would be shown as 0.0 % faster.
    how = 'as fast as' if abs(gain) < 0.0005 else f'{abs(gain) * 100:.1f} % {"faster" if gain > 0 else "slower"} than'
    return f'{text}, {how} {baseline[0]} ({format_time(baseline[1])})'
