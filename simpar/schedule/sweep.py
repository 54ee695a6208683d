"""The sweep of a schedule file: dotted keys with the values that they take, and the file with each of them in turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, Final

from simpar.document import Key, Source, Tree, is_path, one_screen, override, put, read
from simpar.document.tree import Unreadable, parse
from simpar.errors import Problem, ScheduleError
from simpar.schedule.contents import kind_of

MOST_ROWS: Final = 4096
MOST_KEYS: Final = 32
_FIXED: Final = ('simpar', 'gaps', 'against', 'sweep', 'planner')
_KEY: Key = ('sweep',)
_EXAMPLE: Final = 'plan.copies: [1, 2, 4]'
_ROW: Final = '- {plan.copies: 2, plan.tensor: 4}'


@dataclass(frozen=True, slots=True)
class Setting:
    """One value of a row: a dotted key, what it is set to, and the file:line that says so."""

    key: str
    value: Any
    where: str


Settings = tuple[Setting, ...]
"""What a row sets, in the order of the file."""


def sweep_fits(sweep: Any) -> Iterator[Problem]:
    """What is wrong with a sweep by itself, each at its key; whether a schedule comes of every row is not asked."""
    if sweep is None:
        return
    if isinstance(sweep, list):
        yield from _list_fits(sweep)
    elif isinstance(sweep, dict):
        yield from _mapping_fits(sweep)
    else:
        yield Problem(_KEY, f'{kind_of(sweep)}, not a mapping', f'write dotted keys and their values, e.g. {_EXAMPLE}')


def _mapping_fits(sweep: Mapping[str, Any]) -> Iterator[Problem]:
    """Every key has a list, and the product is no more than one can read."""
    yield from _keys_fit(_KEY, sweep)
    counts = []
    for key, values in sweep.items():
        if isinstance(values, list) and values:
            counts.append(len(values))
        else:
            what = 'an empty list' if values == [] else f'{kind_of(values)}, not a list of values'
            yield Problem((*_KEY, key), what, f'write dotted keys and the values of each, e.g. {_EXAMPLE}')
    if prod(counts) > MOST_ROWS:
        yield Problem(_KEY, f'{prod(counts)} combinations', f'keep it at {MOST_ROWS} or fewer')


def _list_fits(sweep: list[Any]) -> Iterator[Problem]:
    """Every item is one row: a mapping of dotted keys to values."""
    if not 0 < len(sweep) <= MOST_ROWS:
        yield Problem(_KEY, f'{len(sweep)} rows', f'write 1 to {MOST_ROWS}, e.g. {_ROW}')
    for place, row in enumerate(sweep):
        key = (*_KEY, place)
        if isinstance(row, dict):
            yield from _keys_fit(key, row)
        else:
            yield Problem(key, f'{kind_of(row)}, not a mapping', f'write one row, e.g. {_ROW}')


def _keys_fit(at: Key, row: Mapping[str, Any]) -> Iterator[Problem]:
    if not 0 < len(row) <= MOST_KEYS:
        yield Problem(at, f'{len(row)} keys', f'write 1 to {MOST_KEYS} dotted keys, e.g. {_EXAMPLE}')
    for key in row:
        parts = [part.strip() for part in key.split('.')]
        if not all(parts):
            yield Problem((*at, key), 'not a dotted key', f'write e.g. {_EXAMPLE}')
        elif parts[0] in _FIXED:
            yield Problem((*at, key), 'is the same in every row', 'sweep over plan, workload or cluster')


def swept_tree(path: Source, overrides: Sequence[str], sweeps: Sequence[str], shorts: Mapping[Key, str]) -> Tree:
    """A schedule file with `--set` and `--sweep` written over it.

    Arguments: ``sweeps``, ``a.b=1,2,4`` as of `--sweep`: where there are any, they take the place of the file's sweep;
    ``shorts`` as of ``Tree``.
    Raises `ScheduleError` where a setting cannot be read, or where nothing is to be swept.
    """
    tree = override(replace(read(path), shorts=shorts), overrides)
    if sweeps:
        tree = _written(tree, sweeps)
    if isinstance(tree.root, dict) and tree.root.get('sweep') is None:
        instead = f'add e.g. sweep: {{{_EXAMPLE}}}, or pass --sweep plan.copies=1,2,4'
        raise ScheduleError(Problem(str(Path(path)) if is_path(path) else 'schedule', 'nothing to sweep over', instead))
    return tree


def _written(tree: Tree, sweeps: Sequence[str]) -> Tree:
    values: dict[str, Any] = {}
    origins: dict[Key, str] = {_KEY: '--sweep'}
    problems: list[Problem] = []
    for text in sweeps:
        label = f'--sweep {text if text.isprintable() and len(text) <= 60 else repr(text)[:60]}'
        key, sign, listed = text.partition('=')
        if not sign or not listed.strip():
            problems.append(Problem(label, 'not a key and its values', 'write e.g. --sweep plan.copies=1,2,4'))
            continue
        values[key.strip()] = _values(listed, label, problems)
        origins[(*_KEY, key.strip())] = label
    if problems:
        raise ScheduleError(problems)
    root = {**tree.root, 'sweep': values} if isinstance(tree.root, dict) else tree.root
    kept = {key: place for key, place in tree.origins.items() if key[:1] != _KEY}
    return replace(tree, root=root, origins={**kept, **origins})


def _values(text: str, label: str, problems: list[Problem]) -> list[Any]:
    """The values of ``1,2,4`` or ``[1, 2, 4]``; each is YAML."""
    try:
        # First as it stands, for ``[1, 2]`` in brackets of its own would be one value.
        alone = parse(text, label)
        listed = isinstance(alone.root, list) and not alone.problems
    except Unreadable:
        listed = False
    try:
        read_as = alone if listed else parse(f'[{text}]', label)
    except Unreadable as unreadable:
        problems.append(Problem(label, *unreadable.fault))
        return []
    problems += [replace(problem, where=label) for problem in read_as.problems[:1]]
    values: list[Any] = read_as.root
    return values


def rows_of_tree(tree: Tree) -> list[Settings]:
    """The rows of a tree's sweep: of a mapping all combinations, the last key fastest; of a list its items.

    Raises `ScheduleError` with everything that is wrong with the sweep by itself.
    """
    sweep = tree.get(_KEY)
    problems = [problem.at(tree.where(problem.key)) for problem in sweep_fits(sweep)]
    if problems:
        raise ScheduleError(problems)
    if isinstance(sweep, list):
        return [tuple(_setting(tree, (*_KEY, place), *item) for item in row.items()) for place, row in enumerate(sweep)]
    return list(product(*(_choices(tree, key, values) for key, values in sweep.items())))


def _choices(tree: Tree, key: str, values: list[Any]) -> list[Setting]:
    return [Setting(key, value, tree.where((*_KEY, key, place))) for place, value in enumerate(values)]


def _setting(tree: Tree, at: Key, key: str, value: Any) -> Setting:
    return Setting(key, value, tree.where((*at, key)))


def row_tree(tree: Tree, settings: Settings) -> Tree:
    """A tree without its sweep and with what a row sets; the shorter of two keys first, as it holds the longer.

    Raises `ScheduleError` where a value has no place.
    """
    root = {key: value for key, value in tree.root.items() if key != 'sweep'} if isinstance(tree.root, dict) else {}
    made = replace(tree, root=root, origins={key: at for key, at in tree.origins.items() if key[:1] != _KEY})
    # ``plan`` before ``plan.copies``: the other way round the longer key would be overwritten.
    for setting in sorted(settings, key=lambda setting: setting.key.count('.')):
        made = put(made, setting.key, setting.value, setting.where)
    return made


def problems_of_rows(known: Sequence[Problem], rows: Sequence[Sequence[Problem]]) -> list[Problem]:
    """The problems of all rows on one screen: those of the file as they are, those that a row makes as the sweep's."""
    own = {(problem.where, problem.what) for problem in known}
    return one_screen(
        [
            problem if (problem.where, problem.what) in own else replace(problem, what=f'sweep: {problem.what}')
            for problems in rows
            for problem in problems
        ]
    )
