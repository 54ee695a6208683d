"""Changed: a schedule with other values of some keys, and the schedule as it was for its baseline."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from simpar.errors import Problem, ScheduleError
from simpar.schedule.schedule import Schedule, written

_PARTS: Final = ('plan', 'cluster', 'workload')


def changed(schedule: Schedule, changes: Mapping[str, Any]) -> Schedule:
    """The schedule with other values of some keys; its baseline is the schedule as it was.

    Arguments: ``changes``, by dotted key (``plan.copies``) or by the last part of one (``copies``), of the plan first.
    Raises ``ScheduleError`` for unknown keys, for values that do not fit, and where nothing changes.
    """
    keys = {_dotted(schedule, name): value for name, value in changes.items()}
    try:
        # What differs in a baseline and what differs in a what-if is the same question, asked from the other side.
        other = replace(schedule, against=keys).baseline()
    except ScheduleError as wrong:
        raise ScheduleError([_as_what_if(problem) for problem in wrong.problems]) from None
    if other is None:
        told = ', '.join(f'{key} is {value} already' for key, value in keys.items()) or 'no key was given'
        raise ScheduleError(Problem('what_if', f'changes nothing: {told}', 'give another value, e.g. copies=4'))
    return replace(other, against={key: schedule.value(key) for key in keys})


def _dotted(schedule: Schedule, name: str) -> str:
    """The dotted key that a name stands for."""
    if '.' in name:
        return name
    found = [key for key in _keys(written(schedule)) if key.rpartition('.')[2] == name]
    # The plan's keys come first: what one asks is mostly of the plan. `plan.data` is a degree, `workload.data` a kind.
    if found:
        return found[0]
    near = difflib.get_close_matches(name, [key.rpartition('.')[2] for key in _keys(written(schedule))], 1)
    remedy = f'did you mean {near[0]}?' if near else 'write a key of plan, cluster or workload'
    raise ScheduleError(Problem('what_if', f'{name}: unknown key', remedy))


def _keys(tree: Mapping[str, Any]) -> Iterator[str]:
    """Dotted keys of plan, cluster and workload, and one level below: of the model and the optimizer."""
    for part in _PARTS:
        for key, value in tree[part].items():
            yield f'{part}.{key}'
            if isinstance(value, dict):
                yield from (f'{part}.{key}.{below}' for below in value)


def _as_what_if(problem: Problem) -> Problem:
    return replace(problem, where='what_if', what=problem.what.removeprefix('against: '))
