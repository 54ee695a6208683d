"""The statistic of measured steps: one, the same for ``measure`` and ``compare``, and told wherever it is shown."""

from __future__ import annotations

from typing import Any

from simpar.trace import PERCENTILE


def statistic_line(steps: int, origin: str) -> str:
    """What of the measured steps is compared, in words; arguments: how many, and how they came about."""
    if steps == 1 or origin == 'simulated':
        return f'Compared: the last predicted step with {"the only" if steps == 1 else "the last"} {origin} one.'
    return (
        f'Compared: the last predicted step with the {PERCENTILE:.0f}th percentile of {steps} {origin} steps; '
        'ops by their medians.'
    )


def statistic_json(steps: int) -> dict[str, Any]:
    """The same for ``--json``."""
    return {'percentile': PERCENTILE, 'of_steps': steps, 'ops': 'median'}
