"""What a schedule file may hold besides workload, cluster and plan: frameworks, searches and sweeps."""

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, product
from math import prod
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, WithJsonSchema

from simpar import headline, plans, profiles
from simpar.document import Bytes, Key, Short, Source, Tree, is_path, one_screen, override, put, read
from simpar.document.tree import Unreadable, parse
from simpar.errors import Problem, ProfileError, refusal, refuse
from simpar.hardware.profile import Mode
from simpar.hardware.stack import MOST_QUEUES
from simpar.keys import described
from simpar.lower.roles import passes_beside
from simpar.workload import Workload

# What a schedule file may hold.

FREE: Final = 'free'
FIXED: Final = 'fixed'
BOUNDS: Final = ('least', 'most')
MOST_VALUES: Final = 256
"""Values of one key."""
_KEY: Final = ('planner', 'keys')
_EXAMPLE: Final = 'plan.tensor: [1, 2, 4, 8], {least: 2, most: 8}, free or fixed'
KEYS_SCHEMA: Final[dict[str, Any]] = {
    'type': 'object',
    'additionalProperties': {
        'anyOf': [
            {'enum': [FREE, FIXED]},
            {'type': 'array', 'minItems': 1, 'maxItems': MOST_VALUES},
            {
                'type': 'object',
                'properties': {bound: {'type': 'integer', 'minimum': 0} for bound in BOUNDS},
                'additionalProperties': False,
                'minProperties': 1,
            },
        ]
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
@described('planner')
class Planner:
    """What `simpar plan` may choose.

    Arguments:
        keys: dotted keys of the plan: a list of values, ``{least, most}``, ``free``, or ``fixed`` to the plan's value.
        gap: share of the best step by which another plan may still be faster when the search ends.
        margin: plans within this share of the fastest step are one class; None: as measured pairs spread, else 3 %.
    """

    keys: Annotated[Any, WithJsonSchema(KEYS_SCHEMA)] = field(default_factory=dict)
    gap: float = 0.0
    margin: Annotated[float, Field(ge=0, lt=1)] | None = None


def planner_fits(planner: Planner | None, keys: Mapping[str, Any]) -> Iterator[Problem]:
    """What is wrong with the section by itself, each at its key; ``keys``, the keys that may be free and why not."""
    if planner is None:
        return
    if not isinstance(planner.keys, dict):
        yield Problem(_KEY, f'{kind_of(planner.keys)}, not a mapping', f'write dotted keys, e.g. {_EXAMPLE}')
        return
    for key, value in planner.keys.items():
        name = str(key).removeprefix('plan.')
        at = (*_KEY, key)
        if not str(key).startswith('plan.') or name not in keys:
            yield Problem(at, 'not a key of the plan', f'write one of plan.{", plan.".join(sorted(keys)[:40])}')
        elif isinstance(value, list):
            yield from _list_fits(at, value)
        elif isinstance(value, dict):
            yield from _bounds_fit(at, value)
        elif value not in (FREE, FIXED):
            yield Problem(at, f'{kind_of(value)} is no choice of values', f'write e.g. {_EXAMPLE}')


def _list_fits(at: tuple[str, ...], values: list[Any]) -> Iterator[Problem]:
    if not 0 < len(values) <= MOST_VALUES:
        yield Problem(at, f'{len(values)} values', f'write 1 to {MOST_VALUES}')
    texts = [json.dumps(value) for value in values]
    if len(set(texts)) < len(texts):
        again = next(one for place, one in enumerate(texts) if one in texts[:place])
        yield Problem(at, f'{again[:40]} stands twice', 'write each value once')


def _bounds_fit(at: tuple[str, ...], bounds: dict[str, Any]) -> Iterator[Problem]:
    wrong = [key for key in bounds if key not in BOUNDS]
    if wrong or not bounds:
        what = f'unknown: {", ".join(map(str, wrong))[:60]}' if wrong else 'no bound'
        yield Problem(at, what, 'write {least: 2}, {most: 8} or both')
    elif not all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in bounds.values()):
        yield Problem(at, 'bounds are whole numbers', 'write e.g. {least: 2, most: 8}')
    elif bounds.get('least', 0) > bounds.get('most', bounds.get('least', 0)):
        yield Problem(at, f'least {bounds["least"]} is above most {bounds["most"]}', 'write the smaller as least')


def kind_of(value: Any) -> str:
    """What a value is, for a message."""
    return 'a mapping' if isinstance(value, dict) else 'a list' if isinstance(value, list) else json.dumps(value)[:40]


VERSION: Final = 1
MOST_DIFFERENCES: Final = 64
SWEEP_SCHEMA: Final[dict[str, Any]] = {
    'anyOf': [
        {'type': 'object', 'additionalProperties': {'type': 'array', 'minItems': 1}, 'minProperties': 1},
        {'type': 'array', 'items': {'type': 'object', 'minProperties': 1}, 'minItems': 1},
        {'type': 'null'},
    ]
}


@dataclass(frozen=True, slots=True, kw_only=True)
@described('cluster')
class ClusterReference:
    """A profile by its name or path, and what is changed of it; `simpar.hardware` makes the cluster of it."""

    profile: str
    nodes: int = 1
    devices: int = 0
    slow: dict[Annotated[int, Field(ge=0)], Annotated[float, Field(gt=0, le=1)]] = field(default_factory=dict)
    spread: float = 0.0
    links: dict[Annotated[str, Field(min_length=1, max_length=1000)], Annotated[float, Field(gt=0, le=1_000_000)]] = (
        field(default_factory=dict)
    )
    reserve: Bytes = 0.0
    stack: str = ''
    work_queues: Annotated[int, Field(ge=1, le=MOST_QUEUES)] | None = None
    expansion_mode: Mode | None = None

    @property
    def has_stack(self) -> bool:
        """Whether a framework runs on it, not the device alone."""
        return self.stack not in ('', profiles.NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
@described('')
class Contents:
    """A schedule as it stands in a file."""

    simpar: int
    cluster: Annotated[ClusterReference, Short('profile')]
    workload: Workload
    plan: plans.Plan = field(default_factory=plans.Plan)
    gaps: tuple[Annotated[str, Field(max_length=400)], ...] = ()
    against: dict[str, Any] | None = None
    sweep: Annotated[Any, WithJsonSchema(SWEEP_SCHEMA)] = None
    planner: Planner | None = None


# Framework: the stack that a schedule runs under, and the keys that this stack has where the file is silent.

STACK: Final[Key] = ('cluster', 'stack')
PROFILE: Final[Key] = ('cluster', 'profile')
PASSES: Final[Key] = ('plan', 'overlap')
OF_PASSES: Final = ('plan.reduce_gradients', 'plan.prefetch')
"""Keys that passes of MindSpore say, too."""
OF_MINDSPORE: Final = ('copies', 'hsdp', 'overlap')
"""Keys of the plan that MindSpore has, and others mostly not."""
TYPED: Final = ('--set ', '--sweep ')
"""Where a value comes from that the user typed: its paths start where the user is, not in the file's folder."""


def framework_words(tree: Tree) -> str:
    """The framework of a tree that names none, in words of the table: what its workload and plan ask for.

    A key counts wherever the file asks for it, also in the baseline or in a sweep: its rows are of one framework.
    """
    words = [profiles.UNKNOWN]
    workload, plan = tree.get(('workload',)), tree.get(('plan',))
    if isinstance(workload, dict) and 'network' in workload:
        words.append('network')
    beside = json.dumps([tree.get(('against',)), tree.get(('sweep',))])
    own = plan if isinstance(plan, dict) else {}
    for key in OF_MINDSPORE:
        silent = getattr(plans.Plan(), key)
        if own.get(key, silent) != silent or f'"plan.{key}"' in beside:
            words.append(key)
    return ' '.join(words)


def with_framework(
    tree: Tree, folder: Path, *, words: str = '', written: Collection[Key] | None = None
) -> tuple[Tree, frozenset[Key]]:
    """A tree with the stack that it runs under, and that stack's keys where the tree is silent; and which these are.

    Arguments: ``folder``, where paths in the file start; ``words``, of the framework where none is named, unless given
    those of the tree; ``written``, the keys that the user wrote, where the tree has all others, too.
    What is wrong with a profile or a stack is told by who makes a cluster of them.
    """
    root = tree.root
    if not isinstance(root, dict):
        return tree, frozenset()
    cluster = root.get('cluster')
    if isinstance(cluster, str):
        cluster = {'profile': cluster}
    if not isinstance(cluster, dict):
        return tree, frozenset()
    of_stack: set[Key] = set()
    name = cluster.get('stack')
    if name in (None, ''):
        name = _default(tree, cluster.get('profile'), folder, words)
        if not name:
            return tree, frozenset()
        of_stack.add(STACK)
        root = {**root, 'cluster': {**cluster, 'stack': name}}
    for key, value in _keys(tree, name, folder).items():
        place = tuple(key.split('.'))
        if not _is_written(tree, place, written) and _decides(tree, key, written):
            root = _with_value(root, place, _beside_plan(tree, key, value, written))
            of_stack.add(place)
    return replace(tree, root=root), frozenset(of_stack)


def run_as(clusters: Iterable[ClusterReference]) -> str:
    """Whose steps those on some clusters are, in a sentence; empty where they are of several frameworks, or on CPUs."""
    every = list(clusters)
    try:
        titles = {profiles.load_stack(one.stack).called if one.has_stack else '' for one in every}
        clause = headline.run_by(titles, {profiles.load_profile(one.profile).library.name for one in every})
    # Whoever predicts on it tells what is wrong with it.
    except ProfileError:
        return ''
    return f'{clause[0].upper()}{clause[1:]}.' if clause else ''


def path_from(name: str, folder: Path) -> str:
    """The path of a profile or stack in a folder as it is from the current one; a name stays as it is."""
    return name if is_named(name) else str(folder / name)


def is_named(name: str) -> bool:
    """Whether a profile or stack is known by its name, not by a path, so that it is the same from any folder."""
    return '/' not in name and os.sep not in name and not name.endswith(('.yaml', '.yml'))


def _default(tree: Tree, profile: Any, folder: Path, words: str) -> str:
    """The stack of a schedule that names none; empty where its profile cannot be read."""
    if not isinstance(profile, str) or not profile:
        return ''
    try:
        library = profiles.load_profile(_path(tree, PROFILE, profile, folder)).library.name
    except ProfileError:
        return ''
    return profiles.stack_of(words or framework_words(tree), library)


def _keys(tree: Tree, name: Any, folder: Path) -> Mapping[str, Any]:
    """The keys of a stack by its name or path; none where it cannot be read."""
    if not isinstance(name, str) or name == profiles.NONE:
        return {}
    try:
        stack = profiles.load_stack(_path(tree, STACK, name, folder))
    except ProfileError:
        return {}
    return stack.keys_of(lambda key: tree.get(tuple(key.split('.'))))


def _path(tree: Tree, key: Key, name: str, folder: Path) -> str:
    return name if tree.where(key).startswith(TYPED) else path_from(name, folder)


def _is_written(tree: Tree, place: Key, written: Collection[Key] | None) -> bool:
    return place in written if written is not None else tree.get(place) is not None


def _decides(tree: Tree, key: str, written: Collection[Key] | None) -> bool:
    """Whether a framework decides a key: without an update none has an optimizer, and passes say more than keys."""
    if key in profiles.OF_WORKLOAD:
        return tree.get(('workload', 'phase')) in (None, 'train')
    return key not in OF_PASSES or not _is_written(tree, PASSES, written)


def _beside_plan(tree: Tree, key: str, value: Any, written: Collection[Key] | None) -> Any:
    """A framework's value beside what the file says itself: passes that its keys switch on are among its passes."""
    if key != '.'.join(map(str, PASSES)) or not isinstance(value, list):
        return value
    said = {
        one.rpartition('.')[2]: tree.get(tuple(one.split('.')))
        for one in OF_PASSES
        if _is_written(tree, tuple(one.split('.')), written)
    }
    return list(passes_beside(value, said))


def _with_value(node: Any, place: Key, value: Any) -> Any:
    """A mapping with a value at a key; what is no mapping stays as it is, and is told as such."""
    if not isinstance(node, dict):
        return node
    first, *rest = place
    below = node.get(str(first), {}) if rest else None
    return {**node, str(first): _with_value(below, tuple(rest), value) if rest else value}


def without(node: Any, place: Key) -> Any:
    """A mapping without a key."""
    if not isinstance(node, dict) or str(place[0]) not in node:
        return node
    first, *rest = place
    if rest:
        return {**node, str(first): without(node[str(first)], tuple(rest))}
    return {key: value for key, value in node.items() if key != str(first)}


# The sweep of a schedule file: dotted keys with the values that they take, and the file with each of them in turn.

MOST_ROWS: Final = 4096
MOST_KEYS: Final = 32
OF_FILE: Final = ('simpar', 'gaps', 'against', 'sweep', 'planner')
_AT: Key = ('sweep',)
_SHOWN: Final = 'plan.copies: [1, 2, 4]'
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
        yield from _rows_fit(sweep)
    elif isinstance(sweep, dict):
        yield from _mapping_fits(sweep)
    else:
        yield Problem(_AT, f'{kind_of(sweep)}, not a mapping', f'write dotted keys and their values, e.g. {_SHOWN}')


def _mapping_fits(sweep: Mapping[str, Any]) -> Iterator[Problem]:
    """Every key has a list, and the product is no more than one can read."""
    yield from _keys_fit(_AT, sweep)
    counts = []
    for key, values in sweep.items():
        if isinstance(values, list) and values:
            counts.append(len(values))
        else:
            what = 'an empty list' if values == [] else f'{kind_of(values)}, not a list of values'
            yield Problem((*_AT, key), what, f'write dotted keys and the values of each, e.g. {_SHOWN}')
    if prod(counts) > MOST_ROWS:
        yield Problem(_AT, f'{prod(counts)} combinations', f'keep it at {MOST_ROWS} or fewer')


def _rows_fit(sweep: list[Any]) -> Iterator[Problem]:
    """Every item is one row: a mapping of dotted keys to values."""
    if not 0 < len(sweep) <= MOST_ROWS:
        yield Problem(_AT, f'{len(sweep)} rows', f'write 1 to {MOST_ROWS}, e.g. {_ROW}')
    for place, row in enumerate(sweep):
        key = (*_AT, place)
        if isinstance(row, dict):
            yield from _keys_fit(key, row)
        else:
            yield Problem(key, f'{kind_of(row)}, not a mapping', f'write one row, e.g. {_ROW}')


def _keys_fit(at: Key, row: Mapping[str, Any]) -> Iterator[Problem]:
    if not 0 < len(row) <= MOST_KEYS:
        yield Problem(at, f'{len(row)} keys', f'write 1 to {MOST_KEYS} dotted keys, e.g. {_SHOWN}')
    for key in row:
        parts = [part.strip() for part in key.split('.')]
        if not all(parts):
            yield Problem((*at, key), 'not a dotted key', f'write e.g. {_SHOWN}')
        elif parts[0] in OF_FILE:
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
        instead = f'add e.g. sweep: {{{_SHOWN}}}, or pass --sweep plan.copies=1,2,4'
        raise refusal(str(Path(path)) if is_path(path) else 'schedule', 'nothing to sweep over', instead)
    return tree


def _written(tree: Tree, sweeps: Sequence[str]) -> Tree:
    values: dict[str, Any] = {}
    origins: dict[Key, str] = {_AT: '--sweep'}
    problems: list[Problem] = []
    for text in sweeps:
        label = f'--sweep {text if text.isprintable() and len(text) <= 60 else repr(text)[:60]}'
        key, sign, listed = text.partition('=')
        if not sign or not listed.strip():
            problems.append(Problem(label, 'not a key and its values', 'write e.g. --sweep plan.copies=1,2,4'))
            continue
        values[key.strip()] = _values(listed, label, problems)
        origins[(*_AT, key.strip())] = label
    refuse(problems)
    root = {**tree.root, 'sweep': values} if isinstance(tree.root, dict) else tree.root
    rest = {key: place for key, place in tree.origins.items() if key[:1] != _AT}
    return replace(tree, root=root, origins={**rest, **origins})


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
    sweep = tree.get(_AT)
    refuse(problem.at(tree.where(problem.key)) for problem in sweep_fits(sweep))
    if isinstance(sweep, list):
        return [
            tuple(Setting(key, value, tree.where((*_AT, place, key))) for key, value in row.items())
            for place, row in enumerate(sweep)
        ]
    choices = (
        [Setting(key, value, tree.where((*_AT, key, place))) for place, value in enumerate(values)]
        for key, values in sweep.items()
    )
    return list(product(*choices))


def row_tree(tree: Tree, settings: Settings) -> Tree:
    """A tree without its sweep and with what a row sets; the shorter of two keys first, as it holds the longer.

    Raises `ScheduleError` where a value has no place.
    """
    root = {key: value for key, value in tree.root.items() if key != 'sweep'} if isinstance(tree.root, dict) else {}
    made = replace(tree, root=root, origins={key: at for key, at in tree.origins.items() if key[:1] != _AT})
    # ``plan`` before ``plan.copies``: the other way round the longer key would be overwritten.
    for setting in sorted(settings, key=lambda setting: setting.key.count('.')):
        made = put(made, setting.key, setting.value, setting.where)
    return made


def problems_of_rows(file_problems: Sequence[Problem], rows: Sequence[Sequence[Problem]]) -> list[Problem]:
    """The problems of all rows on one screen: those of the file as they are, those that a row makes as the sweep's."""
    own = {(problem.where, problem.what) for problem in file_problems}
    every = chain.from_iterable(rows)
    return one_screen(
        [one if (one.where, one.what) in own else replace(one, what=f'sweep: {one.what}') for one in every]
    )
