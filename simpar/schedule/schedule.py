"""Schedule: a schedule file, read and checked, and the baseline that it is compared with."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import prod
from pathlib import Path
from typing import Any, Final

from simpar import document, profiles
from simpar.errors import Problem, ProfileError, ScheduleError, divisors, refusal
from simpar.huggingface import Expanded, expanded, in_its_words
from simpar.huggingface.expand import KEYS, MODEL_KEY, TRANSFORMER, with_model
from simpar.schedule import checks, contents
from simpar.workload import MODEL, OPTIMIZERS

_SHORTS: Final[dict[document.Key, str]] = {('cluster',): 'profile', ('workload', 'network'): 'layers'}
_MODELS = ('transformer', 'network', 'module')
TERMS: Final = document.Terms(key=checks.key_term, value=checks.value_term)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule(contents.Contents):
    """Workload × plan × cluster, and what is different in the baseline.

    Arguments: ``origins``, the file:line that each key comes from, and ``folder``, where paths in the file start; both
    empty where the schedule comes from no file. ``of_config``, keys that a config.json says, and ``notes`` of it.
    ``of_stack``, keys that the framework decides, as the file is silent: `cluster.stack` itself, and what it has.
    """

    origins: Mapping[document.Key, str] = field(default_factory=dict, compare=False, repr=False)
    folder: Path = field(default=Path(), compare=False, repr=False)
    of_config: frozenset[document.Key] = field(default=frozenset(), compare=False, repr=False)
    notes: tuple[str, ...] = field(default=(), compare=False, repr=False)
    of_stack: frozenset[document.Key] = field(default=frozenset(), compare=False, repr=False)

    def where(self, key: str = '') -> str:
        """The file:line (or `--set`) of a dotted key, or of the nearest key above it."""
        places = {'': 'schedule', **{document.dotted(path): place for path, place in self.origins.items()}}
        parts = key.split('.')
        above = ('.'.join(parts[:end]) for end in range(len(parts), -1, -1))
        return next(places[name] for name in above if name in places)

    def value(self, key: str) -> Any:
        """The value of a dotted key as a file holds it; None where there is none."""
        return document.Tree(root=written(self), origins={}).get(tuple(key.split('.')))

    @property
    def framework_is_default(self) -> bool:
        """Whether the file names no framework, so that a rule chose it (hw_profiles/stacks/frameworks.csv)."""
        return contents.STACK in self.of_stack

    @property
    def differences(self) -> dict[str, Any]:
        """Dotted keys and values of the baseline: ``against``; unless given, one copy and one tile, not several."""
        if self.against is not None:
            return self.against
        split = {'plan.copies': self.plan.copies, 'plan.tiles': self.plan.tiles}
        return {key: 1 for key, count in split.items() if count > 1}

    def baseline(self) -> Schedule | None:
        """The schedule that gain is measured from; None where there is none, or where it would be the same.

        Raises `ScheduleError` where ``against`` does not make a schedule, at its line.
        """
        if not self.differences:
            return None
        same = document.Tree(root={**written(self), 'against': {}}, origins={(): self.where('against')}, shorts=_SHORTS)
        tree, problems = _differing(same, self.differences, self.origins)
        tree, of_stack = self._under_its_framework(tree)
        content = None if problems else _built(Expanded(tree), problems)
        if content is None:
            raise ScheduleError(
                [replace(problem, what=f'against: {problem.what}') for problem in document.one_screen(problems)]
            )
        # The plan's paths have their folder already; only those that ``against`` names start there still.
        of_against = {
            contents.PROFILE: content.cluster.profile != self.cluster.profile,
            contents.STACK: content.cluster.stack != self.cluster.stack,
        }
        cluster = _located(content.cluster, self.folder, of_against.__getitem__)
        # What does not fit the cluster is at the line of the baseline.
        own: dict[document.Key, str] = {tuple(key.split('.')): self.where(f'against.{key}') for key in self.differences}
        origins = {**self.origins, **own}
        other = replace(self, **{**_values(content), 'cluster': cluster, 'of_stack': of_stack, 'origins': origins})
        return None if replace(other, against=self.against) == self else other

    def _under_its_framework(self, tree: document.Tree) -> tuple[document.Tree, frozenset[document.Key]]:
        """The baseline's tree with the keys of its own framework, where that differs from the plan's."""
        if not isinstance(tree.root, dict) or not isinstance(tree.root.get('cluster'), dict):
            return tree, self.of_stack
        named = {key.split('.', 1)[1] for key in self.differences if key in ('cluster.stack', 'cluster.profile')}
        if 'stack' not in named and not ('profile' in named and self.framework_is_default):
            return tree, self.of_stack
        root = tree.root
        for key in self.of_stack - {tuple(key.split('.')) for key in self.differences}:
            root = contents.without(root, key)
        wanted = {*self.origins, *(tuple(key.split('.')) for key in self.differences)}
        words = contents.framework_words(document.Tree(root=written(self), origins={}))
        return contents.with_framework(replace(tree, root=root), self.folder, words=words, written=wanted)


def load_schedule(source: document.Source, overrides: Sequence[str] = (), *, module: str = '') -> Schedule:
    """Read a schedule.

    Arguments:
        source: a path, the text of a file (of several lines), or a dict.
        overrides: ``a.b=value`` as of `--set`; a path to a profile in one starts from the current folder.
        module: the graph of a torch module (`from_module`), which is the schedule's model.
    Raises `ScheduleError` with everything that is wrong in it, ``against`` included.
    """
    folder = Path(source).parent if document.is_path(source) else Path()
    tree = _with_module(document.override(replace(document.read(source), shorts=_SHORTS), overrides), module)
    schedule = schedule_of(tree, folder)
    # For what it raises: a baseline that cannot be is told when the file is read.
    schedule.baseline()
    return schedule


def schedule_of(tree: document.Tree, folder: Path = Path()) -> Schedule:
    """The schedule of a tree, but for its baseline; raises `ScheduleError` with everything that is wrong in it.

    Argument: ``folder``, where paths in its file start.
    """
    expansion, of_stack = _complete(replace(tree, shorts=_SHORTS), folder)
    problems: list[Problem] = []
    content = _built(expansion, problems)
    if content is None:
        against = _problems_of_against(expansion, problems)
        raise ScheduleError(document.one_screen([*problems, *_problems_of_profile(expansion.tree), *against]))
    return _schedule(expansion, of_stack, content, folder)


def _complete(tree: document.Tree, folder: Path, words: str = '') -> tuple[Expanded, frozenset[document.Key]]:
    """A tree with the keys of its config and of its framework, and which ones the framework decides."""
    expansion = expanded(tree, folder)
    whole, of_stack = contents.with_framework(expansion.tree, folder, words=words)
    return replace(expansion, tree=whole), of_stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a sweep: its schedule, what it sets, by dotted key, and why it does not fit together, if so."""

    settings: Mapping[str, Any]
    schedule: Schedule
    problems: tuple[Problem, ...] = ()


def load_rows(
    path: document.Source, overrides: Sequence[str] = (), sweeps: Sequence[str] = (), *, module: str = ''
) -> tuple[Row, ...]:
    """Read a schedule file once for each row of its sweep, in the order given.

    Arguments:
        path: of the file; or its text, or a dict, as of `load_schedule`.
        overrides: ``a.b=value``, as of `load_schedule`.
        sweeps: ``a.b=1,2,4``, as of `--sweep`, in place of the file's.
        module: as of `load_schedule`.

    Raises `ScheduleError` with every unknown key and every malformed value. A row whose values are well-formed and do
    not fit together only says so.
    """
    folder = Path(path).parent if document.is_path(path) else Path()
    tree = _with_module(contents.swept_tree(path, overrides, sweeps, _SHORTS), module)
    file_problems: list[Problem] = []
    _built(expanded(tree, folder), file_problems, None)
    if not isinstance(tree.root, dict):
        raise ScheduleError(file_problems)
    try:
        rows = contents.rows_of_tree(tree)
    except ScheduleError as wrong:
        raise ScheduleError(document.one_screen([*file_problems, *wrong.problems])) from None
    words = contents.framework_words(tree)
    made = [_row(tree, settings, folder, words) for settings in rows]
    malformed = [row for row in made if isinstance(row, list)]
    if malformed:
        raise ScheduleError(contents.problems_of_rows(file_problems, malformed))
    return tuple(row for row in made if isinstance(row, Row))


def _with_module(tree: document.Tree, graph: str) -> document.Tree:
    """A tree whose model is that of ``--module``."""
    return document.put(tree, 'workload.module', {'graph': graph}, '--module') if graph else tree


def _row(tree: document.Tree, settings: contents.Settings, folder: Path, words: str) -> Row | list[Problem]:
    """A row, or what is wrong with its form. Arguments: ``words``, on the framework of all rows."""
    formed: list[contents.Contents] = []

    def fits(content: contents.Contents) -> Iterator[Problem]:
        formed.append(content)
        yield from checks.check(content)

    problems: list[Problem] = []
    try:
        expansion, of_stack = _complete(contents.row_tree(tree, settings), folder, words)
    except ScheduleError as wrong:
        return wrong.problems
    values = {setting.key: setting.value for setting in settings}
    _built(expansion, problems, fits)
    # ``fits`` runs on well-formed contents only: it tells a row that does not fit from one that is no schedule.
    if not formed or expansion.tree.problems:
        return problems
    return Row(settings=values, schedule=_schedule(expansion, of_stack, formed[0], folder), problems=tuple(problems))


def _schedule(
    expansion: Expanded, of_stack: frozenset[document.Key], content: contents.Contents, folder: Path
) -> Schedule:
    """The schedule of a tree; paths of profile and stack start from the file's folder, or from here if typed here."""
    cluster = _located(content.cluster, folder, lambda key: not expansion.tree.where(key).startswith(contents.TYPED))
    return Schedule(
        **{**_values(content), 'cluster': cluster},
        origins=expansion.tree.origins,
        folder=folder,
        of_config=expansion.told,
        notes=expansion.notes,
        of_stack=of_stack,
    )


def _located(
    cluster: contents.ClusterReference, folder: Path, of_file: Callable[[document.Key], bool]
) -> contents.ClusterReference:
    """A cluster whose paths are those from the current folder. Arguments: ``of_file``, keys whose paths start there."""
    # A path that was typed starts where the user is, as paths in a shell do.
    return replace(
        cluster,
        profile=contents.path_from(cluster.profile, folder) if of_file(contents.PROFILE) else cluster.profile,
        stack=contents.path_from(cluster.stack, folder) if of_file(contents.STACK) else cluster.stack,
    )


def schedule_schema() -> dict[str, Any]:
    """JSON Schema of schedule files, for completion in editors."""
    return {**with_model(document.json_schema(contents.Contents)), 'title': 'simpar schedule'}


def written(schedule: contents.Contents) -> dict[str, Any]:
    """The plain tree that `load_schedule` reads as this schedule, with every key of its own."""
    tree: dict[str, Any] = document.dump(schedule, contents.Contents)
    workload = tree['workload']
    model = workload.pop(MODEL)
    # ``model`` is a key that no file has: its kind stands in its place.
    short = {key: schedule.workload.model.in_short(keys) for key, keys in model.items()}
    if not schedule.gaps:
        del tree['gaps']
    return {**tree, 'workload': {**short, **workload}}


def _values(content: contents.Contents) -> dict[str, Any]:
    return {part.name: getattr(content, part.name) for part in fields(contents.Contents)}


def _in_full(root: Any) -> Any:
    """The short forms written out, and the model where `Workload` has it."""
    if not isinstance(root, dict):
        return root
    if 'cluster' in root and not isinstance(root['cluster'], dict):
        root['cluster'] = {'profile': root['cluster']}
    workload = root.get('workload')
    if isinstance(workload, dict):
        model = {name: workload.pop(name) for name in _MODELS if name in workload}
        if 'network' in model and not isinstance(model['network'], dict):
            model['network'] = {'layers': model['network']}
        workload[MODEL] = model
        optimizer = workload.get('optimizer')
        # An unknown name is left as it is, for the message that names the nearest.
        if isinstance(optimizer, str) and optimizer in OPTIMIZERS:
            workload['optimizer'] = {optimizer: {}}
    return root


def _built(
    expansion: Expanded,
    problems: list[Problem],
    fits: Callable[[contents.Contents], Iterator[Problem]] | None = checks.check,
) -> contents.Contents | None:
    """The contents of a tree, or None and its problems added to the list. Argument: ``fits``, what is checked of it."""
    try:
        return document.build(expansion.tree, contents.Contents, prepare=_in_full, check=fits, terms=TERMS)
    except ScheduleError as wrong:
        problems += _one_model(expansion.tree, [in_its_words(problem, expansion.words) for problem in wrong.problems])
        return None


def _one_model(tree: document.Tree, problems: list[Problem]) -> list[Problem]:
    """The problems; where a workload has two models, that in place of what each of them lacks."""
    workload = tree.get(('workload',))
    both = [name for name in _MODELS if isinstance(workload, dict) and name in workload]
    # Where each of them is right, or one is the path of a config, it has been told.
    if len(both) < 2 or any(word in one.what for one in problems for word in ('at once', 'stands beside')):
        return problems
    what = f'workload: has all of {", ".join(both)} at once'
    clash = Problem(tree.where(('workload', both[1])), what, f'keep one of them: {" or ".join(both)}')
    of_both = tuple(f'workload.{name}' for name in both)
    return [clash, *(one for one in problems if not one.what.startswith(of_both))]


def _differing(
    tree: document.Tree, values: Mapping[str, Any], origins: Mapping[document.Key, str]
) -> tuple[document.Tree, list[Problem]]:
    """A tree with other values at dotted keys, and why some could not be put there."""
    problems: list[Problem] = []
    for key, value in values.items():
        where = origins.get(('against', key)) or tree.where(('against',))
        try:
            tree = _put_other(tree, _in_the_model(key, origins), value, where)
        except ScheduleError as wrong:
            problems += wrong.problems
    return tree, problems


def _put_other(tree: document.Tree, key: str, value: Any, where: str) -> document.Tree:
    if key.split('.', maxsplit=1)[0].strip() in contents.OF_FILE or key.strip() == '.'.join(map(str, MODEL_KEY)):
        raise refusal(where, f'{key[:60]}: is the same in the baseline', 'change plan, workload or cluster')
    return document.put(tree, key, value, where)


def _in_the_model(key: str, origins: Mapping[document.Key, str]) -> str:
    """A key that stands beside ``model`` where that has been written out."""
    parts = tuple(key.split('.'))
    beside = MODEL_KEY in origins and parts[:1] == MODEL_KEY[:1] and parts[1:2] and parts[1] in KEYS
    return '.'.join((*map(str, TRANSFORMER), *parts[1:])) if beside else key


def _problems_of_profile(tree: document.Tree) -> list[Problem]:
    """That there is no such profile, in a file that is wrong elsewhere: else it is told only after all is mended."""
    cluster = tree.get(('cluster',))
    name = cluster if isinstance(cluster, str) else tree.get(('cluster', 'profile'))
    # A path is told by what reads it.
    if not isinstance(name, str) or not name or not contents.is_named(name):
        return []
    try:
        profiles.profile_path(name)
    except ProfileError as wrong:
        where = tree.where(('cluster', 'profile'))
        return [replace(problem, where=where, what=f'cluster: {problem.what}') for problem in wrong.problems]
    return []


def _problems_of_against(expansion: Expanded, file_problems: list[Problem]) -> list[Problem]:
    """What is wrong with ``against`` in a file that is wrong without it, as far as it can be told."""
    tree = expansion.tree
    against = tree.get(('against',))
    if not isinstance(against, dict) or len(against) > contents.MOST_DIFFERENCES:
        return []
    other, problems = _differing(tree, against, tree.origins)
    _built(replace(expansion, tree=other), problems)
    # The baseline has all faults of the file once more: each is told once.
    old = {(problem.where, problem.what) for problem in file_problems}
    new = [problem for problem in problems if (problem.where, problem.what) not in old]
    return [replace(problem, what=f'against: {problem.what}') for problem in new]


_PARTS: Final = ('plan', 'cluster', 'workload')


def with_changes(schedule: Schedule, changes: Mapping[str, Any]) -> Schedule:
    """The schedule with other values of some keys; its baseline is the schedule as it was.

    Arguments: ``changes``, by dotted key (``plan.copies``) or by the last part of one (``copies``), of the plan first.
    Where the values are as before, it is the schedule itself, compared with itself.
    Raises ``ScheduleError`` for unknown keys, for values that do not fit, and where there are none.
    """
    keys = {_dotted(schedule, name): value for name, value in changes.items()}
    try:
        # What differs in a baseline and what differs in a what-if is the same question, asked from the other side.
        other = replace(schedule, against=keys).baseline()
    except ScheduleError as wrong:
        problems = (replace(one, where='what_if', what=one.what.removeprefix('against: ')) for one in wrong.problems)
        raise ScheduleError([*problems]) from None
    if not keys:
        raise refusal('what_if', 'no key was given', 'give one with its value, e.g. copies=4')
    # A link that no factor is written for is as the profile has it.
    absent = {key: 1 for key in keys if key.startswith('cluster.links.')}
    before = {key: absent.get(key) if (value := schedule.value(key)) is None else value for key in keys}
    return replace(other or schedule, against=before)


def told_apart(schedules: Sequence[Schedule]) -> list[dict[str, Any]]:
    """The keys in which schedules differ, with the values that each has; links and values below keys included."""
    trees = [document.Tree(root=written(one), origins={}) for one in schedules]
    keys = dict.fromkeys(key for tree in trees for key in _keys(tree.root))
    by_key = {key: [tree.get(tuple(key.split('.'))) for tree in trees] for key in keys}
    # Of a mapping and what stands in it, the latter says what differs.
    unlike = [key for key, values in by_key.items() if any(value != values[0] for value in values[1:])]
    unlike = [key for key in unlike if not any(other.startswith(f'{key}.') for other in unlike)]
    return [{key: by_key[key][index] for key in unlike} for index in range(len(trees))]


def _dotted(schedule: Schedule, name: str) -> str:
    """The dotted key that a name stands for."""
    if '.' in name:
        return name
    keys = [key for key in _keys(written(schedule)) if key.rpartition('.')[2] == name]
    # The plan's keys come first: what one asks is mostly of the plan. `plan.data` is a degree, `workload.data` a kind.
    if keys:
        return keys[0]
    near = difflib.get_close_matches(name, [key.rpartition('.')[2] for key in _keys(written(schedule))], 1)
    remedy = f'did you mean {near[0]}?' if near else 'write a key of plan, cluster or workload'
    raise refusal('what_if', f'{name}: unknown key', remedy)


def _keys(tree: Mapping[str, Any]) -> Iterator[str]:
    """Dotted keys of plan, cluster and workload, and one level below: of the model and the optimizer."""
    for part in _PARTS:
        for key, value in tree[part].items():
            yield f'{part}.{key}'
            if isinstance(value, dict):
                yield from (f'{part}.{key}.{below}' for below in value)


def check_against_cluster(schedule: Schedule, world: int) -> Schedule:
    """The schedule with its degree of data parallelism filled in.

    Arguments: ``world``, number of ranks of the cluster.
    Raises `ScheduleError` where pipeline × data × tensor are not these ranks, the batch does not divide, or a slow rank
    does not exist. It tells every factor and their product.
    """
    plan = schedule.plan
    data = plan.data or max(1, world // (plan.context * plan.tensor * plan.pipeline))
    problems = [*_ranks(schedule, data, world), *_slow(schedule, world)]
    # With ``data`` written, the file was checked for it when it was read.
    if not plan.data:
        problems += checks.batch_fits(schedule.workload, plan, data)
    if problems:
        raise ScheduleError([problem.at(schedule.where(document.dotted(problem.key))) for problem in problems])
    return schedule if plan.data else replace(schedule, plan=replace(plan, data=data))


def _ranks(schedule: Schedule, data: int, world: int) -> list[Problem]:
    plan = schedule.plan
    degrees = {'pipeline': plan.pipeline, 'data': data, 'context': plan.context, 'tensor': plan.tensor}
    ranks = prod(degrees.values())
    if ranks == world:
        return []
    factors = ' × '.join(
        f'{name} {degree}' for name, degree in degrees.items() if degree > 1 or name in ('data', 'tensor')
    )
    what = f'{factors} = {ranks} ranks, but the cluster has {world}'
    inner = plan.context * plan.tensor * plan.pipeline
    key = ('plan', 'data') if plan.data else ('plan', 'tensor')
    # Changing data alone is the smallest remedy; only where no data fits is another degree to blame.
    if plan.data and world % inner == 0:
        others = [name for name in ('context', 'tensor', 'pipeline') if degrees[name] > 1 or name == 'tensor']
        left = f'{" and ".join(others)} {"leaves" if len(others) == 1 else "leave"}'
        return [Problem(key, what, f'write data: {world // inner}, or 0 for all that {left}')]
    share = world // plan.pipeline
    if plan.pipeline > 1 and world % plan.pipeline:
        name, of = 'pipeline', world
    elif plan.context > 1 and share % plan.context:
        name, of = 'context', share
    else:
        name, of = 'tensor', share // plan.context
    instead = f'write a divisor of {of} as {name}: {divisors(of, degrees[name])}'
    return [Problem(('plan', name), what, instead)]


def _slow(schedule: Schedule, world: int) -> list[Problem]:
    return [
        Problem(('cluster', 'slow', str(rank)), f'there is no rank {rank}', f'write a rank below {world}')
        for rank in schedule.cluster.slow
        if rank >= world
    ]
