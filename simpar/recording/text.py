"""The answer of a replay in words and numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from simpar.recording.answer import Part, Straggling
from simpar.units import format_time

MOST: Final = 12
MOST_OF_IT: Final = 0.5
LITTLE: Final = 1.01
"""Below so many times the time of alike ops nobody straggles."""


def render(found: Straggling) -> str:
    """The answer, a line for each part."""
    return '\n'.join(_lines(found)) + '\n'


def to_dict(found: Straggling) -> dict[str, Any]:
    """The answer for programs; seconds."""
    return asdict(found) | {'slowdown': found.slowdown, 'explained': found.explained}


def _lines(found: Straggling) -> Iterator[str]:
    yield _headline(found)
    yield ''
    yield f'recorded                 {format_time(found.recorded):>9}  mean of {len(found.steps)} steps'
    gaps = found.recorded / found.replayed - 1
    yield f'replayed without gaps    {format_time(found.replayed):>9}  the gaps are {gaps:.1%} (host, loading of data)'
    yield f'all ops of a kind alike  {format_time(found.alike):>9}  mean of compute, median of communication'
    if found.scaled is not None:
        change = found.scaled / found.replayed - 1
        yield f'with --scale             {format_time(found.scaled):>9}  {change:+.1%} of the replayed step'
    for title, parts in (('kind of op', found.families), ('data rank', found.data_ranks), ('stage', found.stages)):
        yield ''
        yield f'Only this {title} as recorded, all else alike:'
        yield from (_line(part, found) for part in parts[:MOST])
        if len(parts) > MOST:
            yield f'  and {len(parts) - MOST} more'


def _headline(found: Straggling) -> str:
    if found.slowdown < LITTLE:
        return (
            f'Nobody straggles: a step takes {found.slowdown:.3f} times what it takes if all ops of a kind are alike.'
        )
    return f'Stragglers make a step {found.slowdown:.2f} times as long. {_culprit(found)}'


def _culprit(found: Straggling) -> str:
    """Whoever costs more than half of it, the narrowest first."""
    if found.explained >= MOST_OF_IT:
        who = (
            ' and '.join(found.worst)
            if len(found.worst) < 3
            else f'{len(found.worst)} workers, {found.worst[0]} first,'
        )
        return f'Were {who} like the others, {found.explained:.0%} of that would be gone.'
    for parts in (found.stages, found.data_ranks, found.families):
        share = [_share(part, found) for part in parts]
        # Where a second one costs as much, the first is no culprit.
        if share[0] >= MOST_OF_IT and all(other < MOST_OF_IT for other in share[1:]):
            return f'{parts[0].name.capitalize()} alone costs {share[0]:.0%} of that.'
    return 'No worker, stage, data rank or kind of op alone costs half of that.'


def _share(part: Part, found: Straggling) -> float:
    return (part.seconds - found.alike) / (found.replayed - found.alike)


def _line(part: Part, found: Straggling) -> str:
    return f'  {part.name:28} {format_time(part.seconds):>9}  {part.seconds / found.alike:.3f} times'
