"""Words: how plans and numbers of plans are written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from simpar.plan import Plan
from simpar.planner.answer import Own, Ranked
from simpar.units import format_size, format_time

_SHORT: Final = {
    'sequence_parallel': 'sequence parallel', 'micro_batches': 'micro-batches', 'shard_group': 'shard group'
}  # fmt: skip


def words(one: Ranked) -> str:
    """A plan in words: what is not as in a plan that splits nothing."""
    plan = one.schedule.plan
    values = {'plan.data': plan.data, **one.settings}
    simple = {key: 1 if key == 'plan.data' else getattr(Plan(), key.removeprefix('plan.')) for key in values}
    # Of one stage all orders are the same.
    idle = {'plan.order'} if plan.pipeline == 1 and plan.chunks <= 1 else set()
    return told({key: value for key, value in values.items() if value != simple[key] and key not in idle})


def own_in_words(own: Own) -> str:
    """What the file's own plan comes to."""
    outcome = own.outcome
    if own.ranked is None:
        return f"The file's own plan has no program: {outcome.reason}"
    if not own.fits:
        return f"The file's own plan does not fit: {format_size(outcome.peak)} of {format_size(outcome.device)}"
    return f"The file's own plan takes {format_time(own.ranked.step)}, peak {format_size(own.ranked.peak)}"


def told(settings: Mapping[str, Any]) -> str:
    """Keys and values in a row."""
    named = ((key.removeprefix('plan.'), value) for key, value in settings.items())
    return ', '.join(_said(key, value) for key, value in named) or 'nothing is split'


def _said(key: str, value: Any) -> str:
    name = _SHORT.get(key, key)
    if isinstance(value, bool):
        return name if value else f'no {name}'
    return f'{name} {value}'


def value(found: Any) -> str:
    """A value as a cell has it."""
    return str(found).lower() if isinstance(found, bool) else str(found)


def count(number: int) -> str:
    """A number of plans."""
    for factor, name in ((1e9, ' billion'), (1e6, ' million')):
        if number >= factor:
            return f'{float(f"{number / factor:.3g}"):g}{name}'
    return f'{number:,}'


def lines(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows of cells below one another."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield '  '.join(one.ljust(width) for one, width in zip(row, widths, strict=True)).rstrip()
