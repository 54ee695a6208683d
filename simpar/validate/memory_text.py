"""Text: the memory of published steps beside its prediction, on a screen and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from simpar.units import format_size
from simpar.validate.memory import LOW, NEAR, MemoryPair, memory_score

WORST: Final = 8


def render_memory(pairs: Sequence[MemoryPair], skipped: Mapping[str, int]) -> str:
    """One screen."""
    return '\n'.join(_lines(pairs, skipped)) + '\n'


def _lines(pairs: Sequence[MemoryPair], skipped: Mapping[str, int]) -> Iterator[str]:
    yield f'memory of the last rank: {len(pairs)} plans on devices scored'
    for reason, count in skipped.items():
        yield f'  skipped {count}: {reason}'
    score = memory_score(pairs)
    if score:
        yield (
            f'  peak         median |error| {score.peak:.2%}, bias {score.bias:+.2%}; '
            f'{score.near:.0%} within {NEAR:.0%}; {score.low:.0%} too low by more than {LOW:.0%}'
        )
        yield f'  end of step  median |error| {score.end:.2%}'
    for pair in sorted(pairs, key=lambda pair: -abs(pair.peak_error))[:WORST]:
        yield f'  worst  {_row(pair)}'


def _row(pair: MemoryPair) -> str:
    row = pair.row
    return (
        f'{row.name}  {row.text("hardware")}, {row.text("n_gpus")} devices, {row.text("model")}: '
        f'{format_size(pair.measured_peak)} measured, {format_size(pair.peak)} predicted, {pair.peak_error:+.1%} '
        f'at {pair.at}; end of step {pair.end_error:+.1%}'
    )


def memory_to_dict(pairs: Sequence[MemoryPair], skipped: Mapping[str, int]) -> dict[str, Any]:
    """The same for machines."""
    score = memory_score(pairs)
    return {
        'skipped': dict(skipped),
        'score': asdict(score) if score else None,
        'plans': [
            {'id': pair.row.name, 'rows': pair.rows, 'measured_peak': pair.measured_peak, 'peak': pair.peak,
             'measured_end': pair.measured_end, 'end': pair.end}
            for pair in pairs
        ],
    }  # fmt: skip
