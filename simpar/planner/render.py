"""render: an answer on one screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from simpar import report
from simpar.headline import change_in_words, than
from simpar.planner.answer import Answer, Own, Ranked
from simpar.planner.robust import Robustness
from simpar.planner.robust import words as trials_of
from simpar.planner.words import count, lines, own_in_words, value, words
from simpar.predict import Prediction
from simpar.schedule.framework import run_as
from simpar.units import format_size, format_time

_ROWS: Final = 8
"""Kinds of plans of the ranking, plans of the front, and rules that are shown."""
_ROUNDING: Final = 1e-9
_RULES: Final = {
    'devices': 'the degrees do not divide the devices',
    'same plan': 'the same as another plan',
    'stages': 'more stages than layers',
    'time': 'slower than the best for sure',
}


def render(answer: Answer, why: Prediction | None = None, robustness: Robustness | None = None) -> str:
    """The screen. Arguments: ``why`` the rival loses, and ``robustness``, where they are known."""
    parts = [_head(answer), _ranking(answer), _why(why), _robust(robustness), _front(answer), _pruned(answer)]
    found = ['\n'.join(part) for part in parts]
    return '\n\n'.join(part for part in found if part) + '\n'


def _head(answer: Answer) -> Iterator[str]:
    best, choice = answer.best, answer.choice
    if best is None or choice is None:
        yield 'No plan is known to fit.' if answer.complete else 'No plan is known yet.'
    else:
        yield f'Best plan: {words(choice)}'
        device = format_size(choice.outcome.device)
        yield f'  step {format_time(choice.step)}, peak {format_size(choice.peak)} of {device}'
        if answer.own:
            yield f'  {_gain(answer.own, choice)}'
        yield f'  {_class(answer, best, choice)}'
        yield f'  {proven(answer)}'
        if framework := run_as([choice.schedule.cluster]):
            yield f'  {framework}'
    if not answer.complete:
        yield f'  Interrupted: {count(answer.open)} plans are still open.'


def _gain(own: Own, choice: Ranked) -> str:
    """What the choice gains over the plan of the file."""
    if own.ranked is None or not own.fits:
        return f'{own_in_words(own)}.'
    if own.ranked.schedule.plan == choice.schedule.plan:
        return "This is the file's own plan: no plan that is known is faster by more than noise."
    asked = '' if own.allowed else ', which the planner section rules out'
    found = than(choice.step, own.ranked.step)
    return f"{found[0].upper()}{found[1:]} the file's own plan{asked}: {words(own.ranked)}. {own_in_words(own)}."


def _class(answer: Answer, best: Ranked, choice: Ranked) -> str:
    """What is within noise, and why this one of it."""
    noise = f'Noise is {answer.margin:.1%}: {answer.noise}.'
    if len(answer.alike) == 1:
        return f'No other plan is within noise of it. {noise}'
    behind = f'{choice.step / best.step - 1:.1%} behind the fastest' if choice.step > best.step else 'and the fastest'
    return f'It is the simplest of {len(answer.alike)} plans within noise, {behind}. {noise}'


def proven(answer: Answer) -> str:
    """The gap in words."""
    if answer.refuted > _ROUNDING:
        wrong = f'a plan was predicted {answer.refuted:.1%} below its bound'
        return f'Not proven: {wrong}, so bounds do not hold here. Please report this schedule.'
    if answer.gap == 0:
        return f'Proven: none of {count(answer.plans)} plans is faster than {format_time(answer.least)}.'
    share = f'no plan of {count(answer.plans)} can be faster than the fastest by more than {answer.gap:.2%}'
    return f'Proven: {share} (least open step {format_time(answer.least)}).'


def _ranking(answer: Answer) -> Iterator[str]:
    if not answer.ranking:
        return
    fit = f'{len(answer.ranking)} plans were predicted and fit, {answer.infeasible} did not'
    yield f'{fit}. *: the choice; bound: what was known before of its least step.'
    yield from lines(ranking_cells(answer))


def ranking_cells(answer: Answer) -> list[list[str]]:
    """Heads, and the first kinds of plans: those with equal figures are one row."""
    kinds = answer.kinds[:_ROWS]
    shown = [kind[0] for kind in kinds]
    keys = _differing(shown)
    heads = ['', 'step', 'behind', 'peak', 'bound', *(key.removeprefix('plan.') for key in keys), '']
    rows = [
        [
            f'{place}{"*" if answer.choice in kind else ""}',
            format_time(one.step),
            f'{one.step / shown[0].step - 1:.1%}',
            format_size(one.peak),
            f'{one.bound / one.step:.0%}',
            *(value(one.settings[key]) for key in keys),
            f'and {len(kind) - 1} with equal figures' if len(kind) > 1 else '',
        ]
        for place, (one, kind) in enumerate(zip(shown, kinds, strict=True), 1)
    ]
    return [heads, *rows]


def _differing(shown: Sequence[Ranked]) -> list[str]:
    """The keys in which shown plans differ."""
    return [key for key in shown[0].settings if len({repr(one.settings[key]) for one in shown}) > 1]


def _why(why: Prediction | None) -> Iterator[str]:
    """The table of the gain over the rival; rows that save nothing are left out."""
    if why is None or why.baseline is None:
        return
    how = change_in_words(why.step, why.baseline.step)
    how += ', and less simple' if why.baseline.step < why.step else ''
    yield f'The runner-up has {why.baseline.name}: {how}, against {why.name}. Why:'
    rows = report.why(why, why.baseline)
    cells = [[str(cell) for cell in column.cells] for column in rows.columns[:2]]
    yield from (f'  {line}' for line in lines([row for row in zip(*cells, strict=True) if row[1] != '0']))


def _robust(found: Robustness | None) -> Iterator[str]:
    if found is None or len(found.plans) < 2:
        return
    yield f'If something is worse, the choice beside the {len(found.plans) - 1} next:'
    yield from (f'  {line}' for line in lines(robust_cells(found)))


def robust_cells(found: Robustness) -> list[list[str]]:
    """Heads, and a row for everything that is made worse."""
    return [['', 'step', 'longer', 'the choice is'], *trials_of(found, [words(one) for one in found.plans])]


def _front(answer: Answer) -> Iterator[str]:
    if len(answer.front) > 1:
        yield 'Front of step and memory, of predicted plans:'
        for one in answer.front[:_ROWS]:
            yield f'  {format_time(one.step):>10}  {format_size(one.peak):>10}  {words(one)}'


def _pruned(answer: Answer) -> Iterator[str]:
    if not answer.pruned:
        return
    yield f'{count(answer.plans)} plans; cut off without a prediction, by rule:'
    rows = [[count(one.plans), one.rule, _RULES.get(one.rule, one.example)] for one in answer.pruned[:_ROWS]]
    left = answer.pruned[_ROWS:]
    if left:
        rows.append([count(sum(one.plans for one in left)), f'{len(left)} more', 'see --json'])
    yield from (f'  {line}' for line in lines(rows))
