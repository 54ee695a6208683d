"""Text: the answer of `simpar validate` on a screen, as JSON and as a page of docs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

from simpar.interval import spreads
from simpar.units import format_time
from simpar.validate.residuals import covered
from simpar.validate.run import SetAnswer
from simpar.validate.scores import Pair, Score

WORST: Final = 5


def render(answers: Sequence[SetAnswer]) -> str:
    """One screen a set."""
    return '\n'.join(line for answer in answers for line in _set(answer))


def _set(answer: SetAnswer) -> Iterator[str]:
    scored, fitting = len(answer.pairs), len(answer.fitted)
    yield f'{answer.name}: {scored} rows scored, {fitting} kept for fitting, {answer.cpu:.2f} s CPU a row'
    for reason, count in answer.skipped.items():
        yield f'  skipped {count}: {reason}'
    for name, score in (('prediction', answer.score), ('null model', answer.null)):
        if score:
            yield f'  {name:<12}{_line(score)}'
    if answer.of_fitted:
        yield f'  {"for fitting":<12}{_line(answer.of_fitted)}'
    yield from _choice(answer)
    yield from _covered(answer)
    for pair in worst(answer.pairs):
        yield f'  worst  {_row(pair)}'
    yield ''


def _line(score: Score) -> str:
    return (
        f'mean |error| {_percent(score.mape)} ({score.low:.1%} to {score.high:.1%}), median {score.median:.1%}, '
        f'90th percentile {score.p90:.1%}, bias {score.bias:+.1%}'
    )


def _percent(share: float) -> str:
    return f'{share:.1%}'


def _choice(answer: SetAnswer) -> Iterator[str]:
    found = answer.choice
    if found.groups:
        order = f'; {found.ordered} of {found.apart} pairs in order' if found.apart else ''
        yield f'  plans       {found.groups} groups: the chosen one is {found.regret:.1%} slower than the best{order}'


def _covered(answer: SetAnswer) -> Iterator[str]:
    known, within, width = covered(answer.pairs, spreads())
    if known:
        yield f'  intervals   {within} of {known} within, half-width {width:.1%} in the median'


def worst(pairs: Sequence[Pair]) -> list[Pair]:
    """The rows with the largest errors."""
    return sorted(pairs, key=lambda pair: -abs(pair.error))[:WORST]


def _row(pair: Pair) -> str:
    row = pair.row
    plan = ', '.join(f'{key} {row.text(key)}' for key in ('dp', 'tp', 'pp') if row.whole(key, 1) > 1)
    times = f'{format_time(row.seconds)} measured, {format_time(pair.seconds)} predicted'
    return f'{row.name}  {row.text("model")}, {row.text("n_gpus")} devices, {plan or "one"}: {times}, {pair.error:+.0%}'


def to_dict(answers: Sequence[SetAnswer]) -> dict[str, Any]:
    """The same for machines."""
    return {'sets': [_set_dict(answer) for answer in answers]}


def _set_dict(answer: SetAnswer) -> dict[str, Any]:
    return {
        'name': answer.name,
        'cpu': answer.cpu,
        'skipped': answer.skipped,
        'score': asdict(answer.score) if answer.score else None,
        'null': asdict(answer.null) if answer.null else None,
        'fitted': asdict(answer.of_fitted) if answer.of_fitted else None,
        'choice': asdict(answer.choice),
        'intervals': dict(zip(('rows', 'within', 'half_width'), covered(answer.pairs, spreads()), strict=True)),
        'rows': [
            {'id': pair.row.name, 'measured': pair.row.seconds, 'predicted': pair.seconds, 'null': pair.null,
             'stack': pair.stack, 'device': pair.device, 'bound': pair.bound,
             'streaming': pair.streaming, 'fitting': fitting}
            for pairs, fitting in ((answer.pairs, False), (answer.fitted, True))
            for pair in pairs
        ],
    }  # fmt: skip
