"""Several records of one bench as one: a machine's speed changes over minutes, and each of them knows but its own."""

from collections.abc import Sequence
from typing import Any

import numpy as np

LOWEST = 0.1
"""What counts of low numbers: the same quantile as of a step's repeats, which are spread over the same time."""


def pooled(records: Sequence[Any]) -> Any:
    """The records of benches of equal programs, sizes and seeds; what they say in words is said once.

    Raises ``ValueError`` where they are of different things.
    """
    # A number of which nothing was kept in one bench is that of the others.
    records = [one for one in records if one is not None]
    if not records:
        return None
    first = records[0]
    if isinstance(first, dict):
        if any(one.keys() != first.keys() for one in records):
            raise ValueError(f'records of other keys than {sorted(first)}')
        if {'n', 'median', 'p10'} <= first.keys():
            return _figures(records)
        return {key: _notes(records) if key == 'notes' else pooled([one[key] for one in records]) for key in first}
    if isinstance(first, list):
        return [pooled(rows) for rows in zip(*records, strict=True)]
    # How many trials were undisturbed differs, and tells nothing that a profile is made of.
    if isinstance(first, float):
        return float(np.mean(records))
    if any(one != first for one in records):
        raise ValueError(f'records say {first!r} and other things')
    return first


def _figures(records: Sequence[dict[str, float]]) -> dict[str, float]:
    """Figures of repeats: as many as all together, their spread the widest."""
    found: dict[str, float] = {}
    for key in records[0]:
        values = [one[key] for one in records]
        if key == 'n':
            found[key] = sum(values)
        elif key in ('p10', 'low'):
            found[key] = float(np.quantile(values, LOWEST))
        else:
            found[key] = float(np.median(values) if key == 'median' else max(values))
    return found


def _notes(records: Sequence[dict[str, Any]]) -> list[str]:
    """All notes, each once, in order."""
    return list(dict.fromkeys(note for one in records for note in one['notes']))
