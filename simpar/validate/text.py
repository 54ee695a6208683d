"""Text: the answer of `simpar validate` on a screen, as JSON and as a picture; matplotlib is imported when drawn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from simpar.interval import spreads
from simpar.plot.frame import new_figure
from simpar.units import format_size, format_time
from simpar.validate.memory import LOW, NEAR, MemoryPair, memory_score
from simpar.validate.run import Pair, Score, SetAnswer, choice, covered

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WORST: Final = 5


def render(answers: Sequence[SetAnswer]) -> str:
    """One screen a set."""
    return '\n'.join(line for answer in answers for line in _set(answer))


def _set(answer: SetAnswer) -> Iterator[str]:
    scored, fitting = len(answer.pairs), len(answer.fitted)
    yield f'{answer.name}: {scored} rows scored, {fitting} kept for fitting, {answer.cpu:.2f} s CPU a row'
    for reason, count in answer.skipped.items():
        yield f'  skipped {count}: {reason}'
    for what, count in answer.assumed.items():
        yield f'  assumed {count}: {what}'
    for name, score in answer.scores.items():
        if score:
            yield f'  {name:<12}{_line(score)}'
    plan_score = choice(answer.pairs)
    if plan_score.groups:
        order = f'; {plan_score.ordered} of {plan_score.apart} pairs in order' if plan_score.apart else ''
        groups, regret = plan_score.groups, plan_score.regret
        yield f'  plans       {groups} groups: the chosen one is {regret:.1%} slower than the best{order}'
    total, within, width = covered(answer.pairs, spreads())
    if total:
        yield f'  intervals   {within} of {total} within, half-width {width:.1%} in the median'
    for pair in worst(answer.pairs):
        yield f'  worst  {_row(pair)}'
    yield ''


def _line(score: Score) -> str:
    return (
        f'mean |error| {score.mape:.1%} ({score.low:.1%} to {score.high:.1%}), median {score.median:.1%}, '
        f'90th percentile {score.p90:.1%}, bias {score.bias:+.1%}'
    )


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
        'assumed': answer.assumed,
        **{key: asdict(one) if one else None
           for key, one in zip(('score', 'null', 'fitted'), answer.scores.values(), strict=True)},
        'choice': asdict(choice(answer.pairs)),
        'intervals': dict(zip(('rows', 'within', 'half_width'), covered(answer.pairs, spreads()), strict=True)),
        'rows': [
            {'id': pair.row.name, 'measured': pair.row.seconds, 'predicted': pair.seconds, 'null': pair.null,
             'stack': pair.stack, 'device': pair.device, 'bound': pair.bound,
             'streaming': pair.streaming, 'fitting': fitting}
            for pairs, fitting in ((answer.pairs, False), (answer.fitted, True))
            for pair in pairs
        ],
    }  # fmt: skip


WORST_PLANS: Final = 8


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
            f'  peak         median |error| {score.peak:.2%}, bias {score.bias:+.2%}, worst {score.worst:.1%}; '
            f'{score.near:.0%} within {NEAR:.0%}; {score.low:.0%} too low by more than {LOW:.0%}'
        )
        yield f'  end of step  median |error| {score.end:.2%}'
    for pair in sorted(pairs, key=lambda pair: -abs(pair.peak_error))[:WORST_PLANS]:
        yield f'  worst  {_plan(pair)}'


def _plan(pair: MemoryPair) -> str:
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


COLUMNS: Final = 3
_HEIGHT: Final = 4.2
_BAND: Final = 0.1


def scatter(answers: Sequence[SetAnswer]) -> Figure:
    """A panel for each set: on the line a prediction is right, in the band within 10 %."""
    rows = -(-len(answers) // COLUMNS)
    figure = new_figure(_HEIGHT * rows)
    grid = figure.subplots(rows, min(COLUMNS, len(answers)), squeeze=False)
    figure.subplots_adjust(left=0.07, right=0.985, top=1 - 0.4 / (_HEIGHT * rows), bottom=0.55 / (_HEIGHT * rows),
                           hspace=0.35, wspace=0.25)  # fmt: skip
    axes = [one for line in grid for one in line]
    for panel, answer in zip(axes, answers, strict=False):
        _panel(panel, answer)
    for panel in axes[len(answers) :]:
        panel.set_visible(False)
    return figure


def _panel(panel: Axes, answer: SetAnswer) -> None:
    times = [time for pair in (*answer.pairs, *answer.fitted) for time in (pair.row.seconds, pair.seconds)]
    ends = (min(times, default=0.1) * 0.8, max(times, default=1.0) * 1.25)
    panel.fill_between(ends, [(1 - _BAND) * end for end in ends], [(1 + _BAND) * end for end in ends], color='0.9',
                       label=f'within {_BAND:.0%}')  # fmt: skip
    panel.plot(ends, ends, color='0.4', linewidth=0.8)
    for pairs, colour, name in ((answer.fitted, '#999999', 'kept for fitting'), (answer.pairs, '#0072B2', 'scored')):
        panel.scatter(
            [pair.row.seconds for pair in pairs], [pair.seconds for pair in pairs], s=9, color=colour, label=name
        )
    panel.set(xscale='log', yscale='log', xlim=ends, ylim=ends)
    score = answer.scores['prediction']
    suffix = f': mean error {score.mape:.0%} of {score.rows}' if score else ''
    panel.set_title(f'{answer.name}{suffix}', fontsize=9)
    panel.set_xlabel('measured step', fontsize=8)
    panel.set_ylabel('predicted step', fontsize=8)
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_formatter('{x:g} s')
    panel.tick_params(labelsize=7)
    panel.legend(fontsize=7, frameon=False, loc='upper left')
