"""Render: an answer on one screen, as one JSON object, as a picture, and its plan as a file of the user's."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from simpar import document, errors, plans, profiles, report, throughput
from simpar.headline import change_in_words, short, short_time, than
from simpar.planner.answer import Answer, Own, Ranked, Robustness, Size, own_in_words, words
from simpar.planner.space import BOUNDED, KEYS
from simpar.plot.frame import EXPOSED, FORWARD, HIDDEN, new_figure, time_unit, title
from simpar.predict import Prediction
from simpar.schedule import Schedule, load_schedule, written
from simpar.schedule.contents import is_named, run_as
from simpar.units import format_count, format_duration, format_size, format_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from simpar.planner.plan import Sizes


FORMAT: Final = 'simpar plan 1'


def to_dict(answer: Answer, why: Prediction | None = None, robustness: Robustness | None = None) -> dict[str, Any]:
    """The answer as plain values; ``why`` and ``robustness`` where they are known."""
    choice = answer.choice
    return {
        'format': FORMAT,
        **{key: getattr(answer, key) for key in ('plans', 'open', 'never_bounded', 'complete', 'least', 'gap')},
        'refuted': max(0.0, answer.refuted),
        **{key: getattr(answer, key) for key in ('margin', 'noise', 'nodes')},
        'keys': {key: list(values) for key, values in answer.keys.items()},
        'own': _plain_own(answer.own),
        'choice': None if choice is None else _plain(choice),
        'ranking': [_plain(one) for one in answer.ranking],
        'front': [answer.ranking.index(one) for one in answer.front],
        'alike': len(answer.alike),
        'infeasible': answer.infeasible,
        'pruned': [asdict(one) for one in answer.pruned],
        'why': _plain_why(why),
        'robust': _plain_robust(robustness),
    }


def _plain_own(own: Own | None) -> dict[str, Any] | None:
    """The plan of the file; ``plan`` is None where it has no program."""
    if own is None:
        return None
    plan = _plain(own.ranked) if own.ranked else None
    return {'fits': own.fits, 'allowed': own.allowed, 'reason': own.outcome.reason, 'plan': plan}


def _plain_why(why: Prediction | None) -> dict[str, Any] | None:
    if why is None or why.baseline is None:
        return None
    rows = [{'effect': row.effect, 'saves': row.seconds} for row in why.explanation]
    return {'runner_up': why.baseline.name, 'step': why.baseline.step, 'against': why.name, 'explanation': rows}


def _plain_robust(robustness: Robustness | None) -> dict[str, Any] | None:
    if robustness is None:
        return None
    trials = [
        {
            'name': trial.name,
            'steps': [step if isfinite(step) else None for step in trial.steps],
            'fastest': trial.best,
            'holds': robustness.holds(trial),
        }
        for trial in robustness.trials
    ]
    return {'plans': [_plain(one) for one in robustness.plans], 'trials': trials}


def _plain(one: Ranked) -> dict[str, Any]:
    return {
        'settings': dict(one.settings),
        'data': one.schedule.plan.data,
        **{key: getattr(one, key) for key in ('step', 'peak', 'bound', 'parts')},
    }


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
    texts = ['\n'.join(part) for part in parts]
    return '\n\n'.join(part for part in texts if part) + '\n'


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
        yield f'  Not searched to the end: {_count(answer.open)} plans are still open, more seconds lessen the gap.'


def _gain(own: Own, choice: Ranked) -> str:
    """What the choice gains over the plan of the file."""
    if own.ranked is None or not own.fits:
        return f'{own_in_words(own)}.'
    if own.ranked.schedule.plan == choice.schedule.plan:
        return "This is the file's own plan: no plan that is known is faster by more than noise."
    note = '' if own.allowed else ', which the planner section rules out'
    sentence = than(choice.step, own.ranked.step)
    return f"{sentence[0].upper()}{sentence[1:]} the file's own plan{note}: {words(own.ranked)}. {own_in_words(own)}."


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
    bounded = _count(answer.plans - answer.never_bounded)
    if answer.gap == 0:
        text = f'Proven: none of {bounded} plans is faster than {format_time(answer.least)}.'
    elif answer.least == 0:
        text = f'Nothing is proven yet of {bounded} plans: some of them have no bound.'
    else:
        share = f'no plan of {bounded} can be faster than the fastest by more than {answer.gap:.2%}'
        text = f'Proven: {share} (least open step {format_time(answer.least)}).'
    if not answer.never_bounded:
        return text
    keys = [key for key in BOUNDED if len(answer.keys.get(f'plan.{key}', ())) > 1]
    what = ', '.join(f'plan.{key} other than {BOUNDED[key][0]}' for key in keys)
    share = f'{answer.never_bounded / answer.plans:.1%} of all plans'
    return f'{text} {_count(answer.never_bounded)} others, {share}, were never bounded ({what}).'


def _ranking(answer: Answer) -> Iterator[str]:
    if not answer.ranking:
        return
    fit = f'{len(answer.ranking)} plans were predicted and fit, {answer.infeasible} did not'
    yield f'{fit}. *: the choice; bound: what was known before of its least step.'
    yield from _lines(ranking_cells(answer))


def ranking_cells(answer: Answer) -> list[list[str]]:
    """Heads, and the first kinds of plans: those with equal figures are one row."""
    kinds = answer.kinds[:_ROWS]
    plans = [kind[0] for kind in kinds]
    # The keys in which shown plans differ.
    keys = [key for key in plans[0].settings if len({repr(one.settings[key]) for one in plans}) > 1]
    heads = ['', 'step', 'behind', 'peak', 'bound', *(key.removeprefix('plan.') for key in keys), '']
    rows = [
        [
            f'{place}{"*" if answer.choice in kind else ""}',
            format_time(one.step),
            f'{one.step / plans[0].step - 1:.1%}',
            format_size(one.peak),
            f'{one.bound / one.step:.0%}',
            *(_value(one.settings[key]) for key in keys),
            f'and {len(kind) - 1} with equal figures' if len(kind) > 1 else '',
        ]
        for place, (one, kind) in enumerate(zip(plans, kinds, strict=True), 1)
    ]
    return [heads, *rows]


def _why(why: Prediction | None) -> Iterator[str]:
    """The table of the gain over the rival; rows that save nothing are left out."""
    if why is None or why.baseline is None:
        return
    how = change_in_words(why.step, why.baseline.step)
    how += ', and less simple' if why.baseline.step < why.step else ''
    yield f'The runner-up has {why.baseline.name}: {how}, against {why.name}. Why:'
    rows = report.why(why, why.baseline)
    cells = [[str(cell) for cell in column.cells] for column in rows.columns[:2]]
    yield from (f'  {line}' for line in _lines([row for row in zip(*cells, strict=True) if row[1] != '0']))


def _robust(robustness: Robustness | None) -> Iterator[str]:
    if robustness is None or len(robustness.plans) < 2:
        return
    yield f'If something is worse, the choice beside the {len(robustness.plans) - 1} next:'
    yield from (f'  {line}' for line in _lines(robust_cells(robustness)))


def robust_cells(robustness: Robustness) -> list[list[str]]:
    """Heads, and a row for everything that is made worse."""
    return [['', 'step', 'longer', 'the choice is'], *_trials(robustness, [words(one) for one in robustness.plans])]


def _trials(robustness: Robustness, named: Sequence[str]) -> Iterator[list[str]]:
    """A row of cells for each trial. Argument: ``named``, what the plans are called."""
    first = robustness.trials[0].steps[0]
    for trial in robustness.trials:
        own = trial.steps[0]
        if own == float('inf'):
            yield [trial.name, 'does not fit', '', f'beaten by {named[trial.best]}']
            continue
        slower = f'{own / first - 1:+.1%}' if trial is not robustness.trials[0] else ''
        behind = f'{robustness.behind(trial):.1%}'
        if trial.best == 0:
            verdict = 'the fastest'
        elif robustness.holds(trial):
            verdict = f'within noise of the fastest ({behind} behind)'
        else:
            verdict = f'{behind} behind {named[trial.best]}'
        yield [trial.name, format_time(own), slower, verdict]


def _front(answer: Answer) -> Iterator[str]:
    if len(answer.front) > 1:
        yield 'Front of step and memory, of predicted plans:'
        for one in answer.front[:_ROWS]:
            yield f'  {format_time(one.step):>10}  {format_size(one.peak):>10}  {words(one)}'


def _pruned(answer: Answer) -> Iterator[str]:
    if not answer.pruned:
        return
    yield f'{_count(answer.plans)} plans; cut off without a prediction, by rule:'
    rows = [[_count(one.plans), one.rule, _RULES.get(one.rule, one.example)] for one in answer.pruned[:_ROWS]]
    left = answer.pruned[_ROWS:]
    if left:
        rows.append([_count(sum(one.plans for one in left)), f'{len(left)} more', 'see --json'])
    yield from (f'  {line}' for line in _lines(rows))


def _value(content: Any) -> str:
    """A value as a cell has it."""
    return str(content).lower() if isinstance(content, bool) else str(content)


def _count(number: int) -> str:
    """A number of plans."""
    for factor, name in ((1e9, ' billion'), (1e6, ' million')):
        if number >= factor:
            return f'{float(f"{number / factor:.3g}"):g}{name}'
    return f'{number:,}'


def _lines(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows of cells below one another."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield '  '.join(one.ljust(width) for one, width in zip(row, widths, strict=True)).rstrip()


_HEIGHT: Final = 5.0
_PLACE: Final = (0.07, 0.12, 0.6, 0.72)
_LONGEST: Final = 60
"""Letters of a plan's name beside the picture."""
_NAMED: Final = 6
"""Plans of the front that have their words in the picture."""
_FAR: Final = 3.0
"""Plans that are slower than so many times the fastest are not drawn."""


def front_picture(answer: Answer) -> Figure:
    """Step and peak memory of every predicted plan, and the front. Raises ``ValueError`` where no plan is known."""
    best, choice = answer.best, answer.choice
    if best is None or choice is None:
        raise ValueError('no plan is known, so there is nothing to draw')
    figure = new_figure(_HEIGHT)
    axes = figure.add_axes(_PLACE)
    factor, unit = time_unit(best.step)
    near = [one for one in answer.ranking if one.step <= _FAR * best.step]
    front = [one for one in answer.front if one in near]
    _points(axes, [(one.step * factor, one.peak / 1e9) for one in near], HIDDEN, 'predicted plans')
    places = [(one.step * factor, one.peak / 1e9) for one in front]
    axes.plot(*zip(*places, strict=True), color=FORWARD, marker='o', drawstyle='steps-post', label='front')
    _points(axes, [(choice.step * factor, choice.peak / 1e9)], EXPOSED, 'the choice', size=90)
    # Names of plans are longer than points are apart: they stand beside the picture, by number.
    _name(axes, [(str(number), place) for number, place in enumerate(places[:_NAMED], 1)])
    named = [words(one).split(', ') for one in front[:_NAMED]]
    for number, parts in enumerate(named, 1):
        # What all have stands in the title.
        own = [part for part in parts if not all(part in other for other in named)]
        text = f'{number}  {", ".join(own) or "as the title says"}'
        text = text if len(text) <= _LONGEST else f'{text[: _LONGEST - 1]}…'
        axes.text(1.02, 1.05 - 0.07 * number, text, transform=axes.transAxes, va='top', fontsize=8)
    axes.set_xlabel(f'step, {unit}')
    axes.set_ylabel('peak memory, GB')
    axes.legend(frameon=False, fontsize=8.5, loc='lower left', bbox_to_anchor=(1.0, 0.0))
    title(figure, f'{words(choice)}: {short_time(choice.step)}, {format_size(short(choice.peak))}', [])
    return figure


def sizes_picture(sizes: Sizes) -> Figure:
    """Cost and time on every number of devices. Raises ``ValueError`` where no plan is known on any."""
    front = sizes.front
    if not front:
        raise ValueError('no plan is known, so there is nothing to draw')
    figure = new_figure(_HEIGHT)
    axes = figure.add_axes(_PLACE)
    factor, unit = (1 / 86400, 'days') if sizes.budget else time_unit(front[0].time)
    points = [one for one in sizes.found if one.choice and one.time < float('inf')]
    _points(axes, [(one.time * factor, one.cost) for one in points], HIDDEN, 'the best plan of a size')
    places = [(one.time * factor, one.cost) for one in front]
    axes.plot(*zip(*places, strict=True), color=FORWARD, marker='o', label='front')
    _name(axes, [(f'{one.devices}', (one.time * factor, one.cost)) for one in points])
    axes.set_xlabel('days of training' if sizes.budget else f'step, {unit}')
    axes.set_ylabel(sizes.unit)
    axes.yaxis.set_major_formatter(lambda cost, _: format_count(cost))
    axes.legend(frameon=False, fontsize=8.5, loc='lower left', bbox_to_anchor=(1.0, 0.0))
    quick, cheap = front[0], front[-1]
    text = f'quickest on {quick.devices} device{"s" * (quick.devices > 1)}, cheapest on {cheap.devices}'
    title(figure, f'{text} ({format_count(short(cheap.cost))} {sizes.unit})', [])
    return figure


def _name(axes: Axes, named: Sequence[tuple[str, tuple[float, float]]]) -> None:
    """Short names at points, each where it stands free of those before."""
    axes.margins(0.12)
    spots: list[tuple[float, float]] = []
    for text, place in named:
        x, y = axes.transData.transform(place)
        wide = 10 * len(text) + 8
        places = ((side * along, up) for along in range(12, 400, 14) for side in (1, -1) for up in (16, -16))
        free = (one for one in places if all(abs(x + one[0] - a) > wide or abs(y + one[1] - b) > 20 for a, b in spots))
        right, up = next(free, (12, 16))
        spots.append((x + right, y + up))
        # Not clipped: what is clipped and centred counts as letters of a box, which keep their colour on dark ground.
        style: dict[str, Any] = {'ha': 'center', 'va': 'center', 'fontsize': 8.5, 'clip_on': False}
        axes.annotate(text, place, xytext=(right, up), textcoords='offset pixels', **style)


def _points(axes: Axes, places: list[tuple[float, float]], colour: str, label: str, size: float = 18) -> None:
    across, up = zip(*places, strict=True)
    axes.scatter(across, up, s=size, color=colour, label=label, zorder=3 if size > 50 else 1)


def render_sizes(sizes: Sizes) -> str:
    """The screen."""
    front, table = sizes.front, '\n'.join(_lines(size_cells(sizes)))
    if not front:
        return f'No plan is known to fit on any of these numbers of devices.\n\n{table}\n'
    quick, cheap = front[0], front[-1]
    # Where no size is dearer, the quickest is the cheapest.
    both = f'{quick.devices} devices are the quickest and the cheapest.'
    apart = f'{quick.devices} devices are the quickest, {cheap.devices} the cheapest.'
    mark = f'*: no other size is as quick for less; {sizes.unit} of {"the training" if sizes.budget else "a step"}.'
    return f'{both if quick is cheap else apart}\n\n{table}\n\n{mark}\n'


def size_cells(sizes: Sizes) -> list[list[str]]:
    """Heads, and a row for each number of devices."""
    training = ['training'] if sizes.budget else []
    heads = ['', 'devices', 'step', 'peak', *training, sizes.unit, 'gap', 'plan']
    return [heads, *(_size_row(one, sizes) for one in sizes.found)]


def _size_row(one: Size, sizes: Sizes) -> list[str]:
    if one.choice is None:
        # The rule that cut off most says best what to change.
        reason = f'{one.answer.pruned[0].rule}: {one.answer.pruned[0].example}' if one.answer.pruned else ''
        return ['', str(one.devices), 'no plan fits', '', *([''] if sizes.budget else []), '', '', reason]
    time = [format_duration(one.time) if isfinite(one.time) else 'never ends'] if sizes.budget else []
    return [
        '*' if one in sizes.front else '',
        str(one.devices),
        format_time(one.choice.step),
        format_size(one.choice.peak),
        *time,
        format_count(one.cost) if one.cost >= 1 else f'{one.cost:.2g}',
        f'{one.answer.gap:.1%}',
        words(one.choice),
    ]


def sizes_to_dict(found: Sizes) -> dict[str, Any]:
    """The same as plain values."""
    sizes = [
        {
            'devices': one.devices,
            **{key: getattr(one.choice, key, None) for key in ('step', 'peak')},
            'settings': dict(one.choice.settings) if one.choice else None,
            'gap': one.answer.gap,
            'complete': one.answer.complete,
            'cost': one.cost if isfinite(one.cost) else None,
            'front': one in found.front,
            'training': throughput.run_to_dict(found.budget, one.run) if found.budget and one.run else None,
        }
        for one in found.found
    ]
    return {'format': 'simpar plan sizes 1', 'cost': found.unit, 'sizes': sizes}


_SECTIONS: Final = ('planner', 'sweep')
"""Sections that say what may be chosen: a saved plan has nothing to choose."""
_NEUTRAL: Final = plans.Plan()
_WIDTH: Final = 120


def saved(one: Ranked, schedule: Schedule, source: document.Source, overrides: Sequence[str], target: Path) -> str:
    """The text of a schedule with a plan: the user's own, but for its plan, where that says the same.

    Arguments:
        schedule: that was planned, with its baseline.
        source, overrides: that it was read from.
        target: the file that the text is for; paths in it start from there.
    """
    wanted = replace(one.schedule, against=schedule.against)
    # What stands beside a file, such as a profile or a config.json, is elsewhere from another folder.
    elsewhere = {key: path for key in ('profile', 'stack') if not is_named(path := getattr(wanted.cluster, key))}
    texts = () if elsewhere else _texts(wanted, source, overrides)
    text = next((one for one in texts if _says(one, wanted)), None)
    if text is not None:
        return text
    tree = _in_full(wanted)
    tree['cluster'] |= {key: os.path.relpath(path, target.parent) for key, path in elsewhere.items()}
    return _dumped(tree)


def _says(text: str, wanted: Schedule) -> bool:
    """Whether a text says what is wanted; where ranks are left to data, data is what is left."""
    try:
        schedule = load_schedule(f'{text}\n')
    except errors.SimparError:
        return False
    plan = replace(wanted.plan, data=schedule.plan.data)
    if wanted.plan.pipeline == 1 and wanted.plan.chunks <= 1:
        # Of one stage all orders are the same.
        plan = replace(plan, order=schedule.plan.order, chunks=schedule.plan.chunks)
    same = replace(wanted, plan=plan, sweep=None, planner=None)
    return schedule.plan.data in (0, wanted.plan.data) and written(schedule) == written(same)


def _texts(wanted: Schedule, source: document.Source, overrides: Sequence[str]) -> Iterator[str]:
    """The user's text with another plan, then the user's keys with another plan."""
    try:
        tree = document.override(document.read(source), overrides)
    except errors.SimparError:
        return
    if not isinstance(tree.root, Mapping):
        return
    own = tree.root.get('plan')
    root = {key: value for key, value in tree.root.items() if key not in _SECTIONS}
    plan = _written_plan(wanted, own if isinstance(own, Mapping) else {})
    if not overrides and not isinstance(source, Mapping):
        text = Path(source).read_text(encoding='utf-8') if document.is_path(source) else str(source)
        edited = _edited(text, plan)
        if edited:
            yield edited
    yield _dumped({**root, 'plan': plan})


def _written_plan(wanted: Schedule, own: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a plan that a person writes: what is not as usual, and what the user wrote and nobody chose."""
    plan = wanted.plan
    tree: dict[str, Any] = _plan_values(plan)
    usual = _usual(wanted)
    idle = {'order', 'chunks'} if plan.pipeline == 1 and plan.chunks <= 1 else set()
    chosen = {*KEYS, 'data'}
    entries = {
        key: value
        for key, value in tree.items()
        if (key not in idle and value != usual[key] and (key != 'data' or 'data' in own))
        or (key in own and key not in chosen)
    }
    # In the user's order, then in the order of the keys.
    first = [key for key in own if key in entries]
    return {key: entries[key] for key in (*first, *(key for key in entries if key not in first))}


def _usual(schedule: Schedule) -> dict[str, Any]:
    """The plan of a file that is silent: what its framework has, and else what splits nothing."""
    keys = profiles.load_stack(schedule.cluster.stack).schedule if schedule.cluster.has_stack else {}
    of_stack = {key.removeprefix('plan.'): value for key, value in keys.items() if key.startswith('plan.')}
    return {**_plan_values(_NEUTRAL), **of_stack}


def _plan_values(plan: plans.Plan) -> dict[str, Any]:
    return dict(document.dump(plan, plans.Plan))


def _edited(text: str, plan: Mapping[str, Any]) -> str:
    """A text whose section of the plan says another one, without sections that leave a choice; empty where it is not so
    written that its sections are lines of their own."""
    node = yaml.compose(text)
    if not isinstance(node, yaml.MappingNode) or node.flow_style:
        return ''
    lines = text.splitlines(keepends=True)
    changes: list[tuple[int, int, str]] = []
    new = f'plan: {_flow(plan)}\n'
    for key, entry in node.value:
        begin, end = key.start_mark.line, entry.end_mark.line + (1 if entry.end_mark.column else 0)
        # Blank lines and comments behind a section in blocks are of the next one.
        while end > begin + 1 and (not lines[end - 1].strip() or lines[end - 1].startswith('#')):
            end -= 1
        if key.value == 'plan':
            changes.append((begin, end, new))
            new = ''
        elif key.value in _SECTIONS:
            changes.append((begin, end, ''))
    for begin, end, other in sorted(changes, reverse=True):
        lines[begin:end] = [other] if other else []
    if lines and not lines[-1].endswith('\n'):
        lines[-1] += '\n'
    return ''.join(lines) + new


def _flow(plan: Mapping[str, Any]) -> str:
    """A plan on a line or a few."""
    text: str = yaml.safe_dump(
        dict(plan), default_flow_style=True, sort_keys=False, allow_unicode=True, width=_WIDTH - 8
    )
    return text.strip().replace('\n', '\n      ')


def _in_full(schedule: Schedule) -> dict[str, Any]:
    """A schedule with every key of its model and cluster that is not empty."""
    tree = written(schedule)
    usual = _usual(schedule)
    tree['plan'] = {key: value for key, value in tree['plan'].items() if value != usual[key]}
    for section in ('workload', 'cluster'):
        tree[section] = {key: value for key, value in tree[section].items() if value not in ('', [], {}, None)}
    return {key: value for key, value in tree.items() if key not in _SECTIONS and (key != 'against' or value)}


def _dumped(tree: Mapping[str, Any]) -> str:
    """A tree whose sections are lines of their own; what is in them stands on a line where it is short."""
    text: str = yaml.safe_dump(dict(tree), sort_keys=False, allow_unicode=True, width=_WIDTH, default_flow_style=None)
    return text
