"""saving: a plan as a file that `simpar run` and the executor take, written as the user wrote theirs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import yaml

from simpar.document import Source, dump, is_path, override, read
from simpar.errors import SimparError
from simpar.plan import Plan
from simpar.planner.answer import Ranked
from simpar.planner.space import KEYS
from simpar.schedule import Schedule, load_schedule, written
from simpar.schedule.framework import is_named
from simpar.stacks import load_stack

_SECTIONS: Final = ('planner', 'sweep')
"""Sections that say what may be chosen: a saved plan has nothing to choose."""
_NEUTRAL: Final = Plan()
_WIDTH: Final = 120


def saved(one: Ranked, schedule: Schedule, source: Source, overrides: Sequence[str], target: Path) -> str:
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
        found = load_schedule(f'{text}\n')
    except SimparError:
        return False
    plan = replace(wanted.plan, data=found.plan.data)
    if wanted.plan.pipeline == 1 and wanted.plan.chunks <= 1:
        # Of one stage all orders are the same.
        plan = replace(plan, order=found.plan.order, chunks=found.plan.chunks)
    same = replace(wanted, plan=plan, sweep=None, planner=None)
    return found.plan.data in (0, wanted.plan.data) and written(found) == written(same)


def _texts(wanted: Schedule, source: Source, overrides: Sequence[str]) -> Iterator[str]:
    """The user's text with another plan, then the user's keys with another plan."""
    try:
        tree = override(read(source), overrides)
    except SimparError:
        return
    if not isinstance(tree.root, Mapping):
        return
    own = tree.root.get('plan')
    root = {key: value for key, value in tree.root.items() if key not in _SECTIONS}
    plan = _plan(wanted, own if isinstance(own, Mapping) else {})
    if not overrides and not isinstance(source, Mapping):
        text = Path(source).read_text(encoding='utf-8') if is_path(source) else str(source)
        edited = _edited(text, plan)
        if edited:
            yield edited
    yield _dumped({**root, 'plan': plan})


def _plan(wanted: Schedule, own: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a plan that a person writes: what is not as usual, and what the user wrote and nobody chose."""
    plan = wanted.plan
    tree: dict[str, Any] = _values(plan)
    usual = _usual(wanted)
    idle = {'order', 'chunks'} if plan.pipeline == 1 and plan.chunks <= 1 else set()
    chosen = {*KEYS, 'data'}
    shown = {
        key: value
        for key, value in tree.items()
        if (key not in idle and value != usual[key] and (key != 'data' or 'data' in own))
        or (key in own and key not in chosen)
    }
    # In the user's order, then in the order of the keys.
    first = [key for key in own if key in shown]
    return {key: shown[key] for key in (*first, *(key for key in shown if key not in first))}


def _usual(schedule: Schedule) -> dict[str, Any]:
    """The plan of a file that is silent: what its framework has, and else what splits nothing."""
    keys = load_stack(schedule.cluster.stack).schedule if schedule.cluster.has_stack else {}
    of_stack = {key.removeprefix('plan.'): value for key, value in keys.items() if key.startswith('plan.')}
    return {**_values(_NEUTRAL), **of_stack}


def _values(plan: Plan) -> dict[str, Any]:
    return dict(dump(plan, Plan))


def _edited(text: str, plan: Mapping[str, Any]) -> str:
    """A text whose section of the plan says another one, without sections that leave a choice; empty where it is not so
    written that its sections are lines of their own."""
    node = yaml.compose(text)
    if not isinstance(node, yaml.MappingNode) or node.flow_style:
        return ''
    lines = text.splitlines(keepends=True)
    changes: list[tuple[int, int, str]] = []
    new = f'plan: {_flow(plan)}\n'
    for key, value in node.value:
        begin, end = key.start_mark.line, value.end_mark.line + (1 if value.end_mark.column else 0)
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
