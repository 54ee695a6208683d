"""render: an answer on the screen, and as one JSON object."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from simpar.planner.answer import Answer, Ranked
from simpar.schedule import written
from simpar.units import format_size, format_time

FORMAT: Final = 'simpar plan 1'
_ROWS: Final = 12
"""Plans of the ranking that are shown."""


def render(answer: Answer) -> str:
    """The screen."""
    return '\n'.join([*_head(answer), '', *_ranking(answer), *_front(answer), '', *_pruned(answer)]) + '\n'


def _head(answer: Answer) -> Iterator[str]:
    best, choice = answer.best, answer.choice
    if best is None or choice is None:
        yield 'No plan is known to fit.' if answer.complete else 'No plan is known yet.'
    else:
        yield f'Best plan: {_words(choice)}'
        device = format_size(choice.outcome.device)
        yield f'  step {format_time(choice.step)}, peak {format_size(choice.peak)} of {device}'
        if choice is not best:
            share = choice.step / best.step - 1
            alike = f'the simplest of {len(answer.alike)} within {answer.margin:.0%} of the fastest'
            yield f'  It is {alike} ({share:+.1%}).'
        proof = f'no plan of {_count(answer.plans)} can be faster by more than {answer.gap:.2%}'
        yield f'  Proven: {proof} (least open step {format_time(answer.least)}).'
    if not answer.complete:
        yield f'  Interrupted: {_count(answer.open)} plans are still open.'


def _ranking(answer: Answer) -> Iterator[str]:
    if not answer.ranking:
        return
    keys = _differing(answer.ranking)
    head = ['', 'step', 'peak', 'bound', *(key.removeprefix('plan.') for key in keys)]
    rows = [
        [
            f'{place}',
            format_time(one.step),
            format_size(one.peak),
            f'{one.bound / one.step:.1%}',
            *(_value(one.settings[key]) for key in keys),
        ]
        for place, one in enumerate(answer.ranking[:_ROWS], 1)
    ]
    yield f'{len(answer.ranking)} plans were predicted and fit, {answer.infeasible} did not.'
    yield 'bound: what was known before of its least step, as a share of it.'
    yield from _table([head, *rows])


def _front(answer: Answer) -> Iterator[str]:
    if len(answer.front) > 1:
        yield ''
        yield 'Front of step and memory, of predicted plans:'
        for one in answer.front[:_ROWS]:
            yield f'  {format_time(one.step):>10}  {format_size(one.peak):>10}  {_words(one)}'


def _pruned(answer: Answer) -> Iterator[str]:
    yield f'{_count(answer.plans)} plans; cut off without a prediction, by rule:'
    rows = [[_count(one.plans), one.rule, one.example[:90]] for one in answer.pruned]
    yield from (f'  {line}' for line in _table(rows))


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield '  '.join(one.ljust(width) for one, width in zip(row, widths, strict=True)).rstrip()


def _differing(ranking: Sequence[Ranked]) -> list[str]:
    """The keys in which shown plans differ."""
    shown = ranking[:_ROWS]
    return [key for key in shown[0].settings if len({repr(one.settings[key]) for one in shown}) > 1]


def _words(one: Ranked) -> str:
    plan = one.schedule.plan
    values = {'data': plan.data, **{key.removeprefix('plan.'): value for key, value in one.settings.items()}}
    simple = {'data': 1, **{key: getattr(type(plan)(), key) for key in values if key != 'data'}}
    told = [f'{key} {_value(value)}' for key, value in values.items() if value != simple[key]]
    return ', '.join(told) or 'nothing is split'


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _count(number: int) -> str:
    for factor, name in ((1e9, ' billion'), (1e6, ' million')):
        if number >= factor:
            return f'{float(f"{number / factor:.3g}"):g}{name}'
    return f'{number:,}'


def to_dict(answer: Answer) -> dict[str, Any]:
    """The answer as plain values."""
    choice = answer.choice
    return {
        'format': FORMAT,
        'plans': answer.plans,
        'open': answer.open,
        'complete': answer.complete,
        'least': answer.least,
        'gap': answer.gap,
        'margin': answer.margin,
        'nodes': answer.nodes,
        'keys': {key: list(values) for key, values in answer.keys.items()},
        'choice': None if choice is None else _plain(choice),
        'ranking': [_plain(one) for one in answer.ranking],
        'front': [answer.ranking.index(one) for one in answer.front],
        'alike': len(answer.alike),
        'infeasible': answer.infeasible,
        'pruned': [{'rule': one.rule, 'plans': one.plans, 'example': one.example} for one in answer.pruned],
    }


def _plain(one: Ranked) -> dict[str, Any]:
    return {
        'settings': dict(one.settings),
        'data': one.schedule.plan.data,
        'step': one.step,
        'peak': one.peak,
        'bound': one.bound,
        'parts': one.parts,
    }


def saved(one: Ranked) -> dict[str, Any]:
    """The schedule of a plan as a file has it: keys of the plan that are as usual are left out."""
    tree = written(one.schedule)
    usual = written_plan_of(one)
    tree['plan'] = {key: value for key, value in tree['plan'].items() if value != usual[key]}
    tree['workload'] = {key: value for key, value in tree['workload'].items() if value not in ('', [], {}, None)}
    tree['cluster'] = {key: value for key, value in tree['cluster'].items() if value not in ('', [], {}, None)}
    return {key: value for key, value in tree.items() if key not in ('sweep', 'planner')}


def written_plan_of(one: Ranked) -> dict[str, Any]:
    """The plan that splits nothing, as a file has it."""
    from dataclasses import replace

    plan: dict[str, Any] = written(replace(one.schedule, plan=type(one.schedule.plan)()))['plan']
    return plan
