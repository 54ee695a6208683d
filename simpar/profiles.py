"""Profiles of clusters and stacks of software: found by name, read, checked and joined."""

import csv
import dataclasses
import difflib
import functools
import gzip
import io
import math
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from simpar import document, shipped
from simpar.document import Tree
from simpar.errors import Problem, ProfileError, ScheduleError
from simpar.files import read_csv, read_regular
from simpar.hardware import Cluster, Link, Profile, RateFigure, ShareFigure, Stack, TableFile, TimeFigure, topology

# Profiles: found by name or path, read with every number's source and grade, and their tables of measurements.

FIGURES: Final = (('device', 'matrix'), ('device', 'vector'), ('host', 'issue'))
"""Mappings whose values are all figures, whether the other profile has them or not."""
OF_TABLES: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    'matmul': (('device', 'matrix'), ('device', 'matmul'), ('device', 'kernel')),
    'attention': (('device', 'matrix'), ('device', 'attention')),
    'operator': (('device', 'memory'), ('device', 'vector'), ('device', 'kernel')),
    'collective': (('library',), ('devices',)),
}
"""What a table of measurements was measured of: where a file says that otherwise, the other profile's table is none."""


def over_base(base: dict[str, Any], own: Mapping[str, Any], path: Path, crosses: bool) -> dict[str, Any]:
    """The tree of a profile over that of the one that it extends.

    Mappings are joined; links are joined by name where they are written as a mapping; null takes a key away; all else
    is replaced. A number without source and grade is an estimate, and its source is the file.

    Arguments: ``path`` of the file; ``crosses``, whether the other profile's collectives were measured between nodes.
    """
    words = f'as stated in {path.name}'
    tree: dict[str, Any] = _joined(base, own, (), words)
    # All of it stands here now: written once more, it extends nothing.
    tree['extends'] = ''
    for kind, table in dict(tree.get('tables') or {}).items():
        if (kind not in (own.get('tables') or {}) and _otherwise(kind, base, own, crosses)) or table is None:
            del tree['tables'][kind]
    # The clock under load was found on the other device, and these are its multiprocessors.
    if _get(own, ('device', 'matrix')) is not None:
        for key in {'sustained', 'newer', 'multiprocessors', 'bins'} - own['device'].keys():
            tree['device'].pop(key, None)
    return tree


def unknown_links(base: Mapping[str, Any], own: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Names under ``links`` that the other profile does not have, and those that it has."""
    names = [str(link.get('name')) for link in base.get('links') or () if isinstance(link, dict)]
    links = own.get('links')
    return [name for name in links if name not in names] if isinstance(links, dict) else [], names


def _joined(base: Any, own: Any, key: tuple[str, ...], words: str) -> Any:
    is_figure = (isinstance(base, dict) and 'value' in base) or key[:-1] in FIGURES
    if is_figure and isinstance(own, str | int | float) and not isinstance(own, bool):
        return {'value': own, 'source': words, 'grade': 'estimate'}
    if is_figure and isinstance(own, dict) and 'value' in own:
        return {'source': words, 'grade': 'estimate', **own}
    if key == ('links',) and isinstance(base, list):
        return _links(base, own, words)
    if isinstance(base, dict) and isinstance(own, dict):
        both = {name: _joined(base.get(name), own[name], (*key, name), words) for name in own}
        return {name: value for name, value in {**base, **both}.items() if value is not None}
    return own


def _links(base: list[Any], own: Any, words: str) -> Any:
    """Links by name go over those of the other profile; a list replaces them, each over the one of its name there."""
    named = {link.get('name'): link for link in base if isinstance(link, dict)}
    if isinstance(own, dict):
        return [_joined(link, own.get(link.get('name'), {}), ('link',), words) for link in base]
    # A level that the other profile lacks has the shape of its outermost one.
    outermost = base[-1] if base else {}
    if isinstance(own, list):
        return [
            _joined(named.get(link.get('name'), outermost), link, ('link',), words) if isinstance(link, dict) else link
            for link in own
        ]
    return own


def _otherwise(kind: str, base: Mapping[str, Any], own: Mapping[str, Any], crosses: bool) -> bool:
    if any(_get(own, key) is not None for key in OF_TABLES.get(kind, ())):
        return True
    links = own.get('links')
    if kind != 'collective' or links is None:
        return False
    inner = base['links'][0].get('name') if base.get('links') else ''
    return crosses or not isinstance(links, dict) or inner in links


def _get(tree: Any, key: tuple[str, ...]) -> Any:
    for part in key:
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree


FILE: Final = 'profile.yaml'
COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    'matmul': ('m', 'n', 'k', 'seconds'),
    'attention': ('queries', 'head_dim', 'sequence', 'pairs', 'seconds'),
    'operator': ('operator', 'phase', 'bytes', 'seconds'),
    'collective': ('operator', 'ranks', 'nodes', 'bytes', 'seconds'),
}
"""Columns of each table of measurements; see docs/proofs/profiles.md."""
_WORDS: Final = frozenset({'operator', 'phase'})
_KNOWN: Final = {
    'phase': ('F', 'I', 'W', 'U'),
    'collective': ('all_reduce', 'all_gather', 'reduce_scatter', 'all_to_all', 'send', 'send_recv'),
}
MOST_EXTENDED: Final = 8
MOST_BYTES: Final = 64 * 2**20
"""Of a table of measurements, unpacked."""
Row = tuple[Any, ...]
File = tuple[str, str]
"""A path, and the text that is there now."""


def profile_folder() -> Path:
    """Where the profiles that come with simpar are: in the package, or beside it in a checkout."""
    return shipped.folder('hw_profiles')


def profile_names() -> list[str]:
    """Names of the profiles that come with simpar."""
    return sorted(path.parent.name for path in profile_folder().glob(f'*/{FILE}'))


ACCELERATORS: Final = 'accelerators.csv'


def profile_of_hardware(text: str, memory: float = 0.0) -> str:
    """The name of the profile that words for an accelerator stand for, e.g. ``H100-SXM 80 GB``; empty where none does.

    The first row of ``hw_profiles/accelerators.csv`` counts whose words are all there, and whole: GH200 is no H200.
    Arguments: ``memory`` of a device in GB, 0 where it is not known.
    """
    said = text.lower().replace('_', '-')
    for row in read_csv(profile_folder() / ACCELERATORS):
        least, most = float(row['least_gb'] or 0), float(row['most_gb'] or 'inf')
        is_sized = not row['least_gb'] or least <= memory <= most
        if is_sized and all(re.search(rf'(?<![a-z0-9]){word}(?![0-9])', said) for word in row['words'].split()):
            return row['profile']
    return ''


def _require_short(name: str | os.PathLike[str]) -> None:
    """Refuse what no system takes as the name or path of a file, and would say by an error of its own."""
    parts = [part.encode('utf-8', 'replace') for part in Path(name).parts]
    if max(map(len, parts), default=0) > 255 or len(b'/'.join(parts)) > 4000:
        what = f'no file has so long a name (got {str(name)[:80]!r} …)'
        raise ProfileError(Problem('cluster', what, 'write a name, or a path'))


def profile_path(name: str | os.PathLike[str]) -> Path:
    """The file of a profile, by its name, or by the path of it or of its folder.

    Raises ``ProfileError`` that lists the names for what is none of these.
    """
    _require_short(name)
    # A known name goes before a file that happens to be called so.
    path, shipped = Path(name), profile_folder() / name / FILE
    # Only a name has no folders.
    if path.name == str(name) and shipped.is_file():
        return shipped
    if path.is_dir() and (path / FILE).is_file():
        return path / FILE
    if path.is_file() or path.suffix in {'.yaml', '.yml'}:
        return path
    names = profile_names()
    # A low bound, as users write h100 for h100-sxm-8.
    close = difflib.get_close_matches(str(name), names, 1, cutoff=0.4)
    guess = f'did you mean {close[0]}? ' if close else ''
    instead = f'{guess}profiles: {", ".join(names)}; or the path of a {FILE}'
    raise ProfileError(Problem('cluster', f'unknown profile {str(name)[:80]!r}', instead))


def load_profile(name: str | os.PathLike[str]) -> Profile:
    """Read a profile by name or path; its tables are read when they are asked for.

    Raises ``ProfileError`` with every problem.
    """
    files = profile_files(name)
    crossing: tuple[bool, ...] = (False,)
    # From the last one on, so that each one's own mistakes are told at its own lines.
    for place in range(len(files) - 1, 0, -1):
        table = _profile(files[place:], crossing).tables.collective
        rows = read_table(table, 'collective') if table else ()
        crossing = (any(row[2] > 1 for row in rows), *crossing)
    return _profile(files, crossing)


def profile_files(name: str | os.PathLike[str]) -> tuple[File, ...]:
    """The file of a profile and of those that it extends, in this order; raises ``ProfileError``."""
    return files_of(
        profile_path(name), _beside, ('extends: a profile that extends itself', 'name another one, or none')
    )


def profile_of_flag(name: str, flag: str) -> Profile:
    """The same of what stands behind a flag: an unknown name is told as the flag's, not as a schedule's."""
    try:
        return load_profile(name)
    except ProfileError as error:
        raise ProfileError(
            [dataclasses.replace(one, where=flag) if one.where == 'cluster' else one for one in error.problems]
        ) from None


@functools.lru_cache(maxsize=256)
def tree_of_file(name: str, text: str) -> Tree:
    """The tree of the text of a profile or a stack, which nobody changes."""
    return document.tree_of(text, name, error=ProfileError)


def files_of(
    path: Path, find: Callable[[Path, str], Path], circle: tuple[str, str], above: tuple[Path, ...] = ()
) -> tuple[File, ...]:
    """The file of a profile or a stack and those that it extends, in this order.

    Arguments: ``find``, the file that one extends, by its word for it; ``circle``, what is said of one that extends
    itself, and what to write instead.
    """
    text = document.text_of(path, error=ProfileError)
    tree = tree_of_file(str(path), text)
    wanted = tree.get(('extends',))
    if not isinstance(wanted, str) or not wanted:
        return ((str(path), text),)
    base = find(path, wanted)
    # Before it is read, which knows nothing of the files above it: a circle ends here.
    if base.resolve() in (path.resolve(), *above) or len(above) >= MOST_EXTENDED:
        raise ProfileError(Problem(tree.where(('extends',)), *circle))
    return ((str(path), text), *files_of(base, find, circle, (*above, path.resolve())))


# By their texts: a file that was edited is read again. A sweep over profiles checks all of them before it predicts.
@functools.lru_cache(maxsize=1024)
def _profile(files: tuple[File, ...], crossing: tuple[bool, ...]) -> Profile:
    """The profile of a file over those of the ones that it extends, in this order.

    Arguments: ``crossing``, of each whether what it extends has collectives that were measured between nodes.
    """
    (path, text), *_ = files
    tree = document.tree_of(text, path, error=ProfileError)
    prepare = functools.partial(_whole, files, crossing)
    try:
        return document.build(tree, Profile, prepare=prepare, check=_problems)
    except ScheduleError as wrong:
        raise ProfileError(document.one_screen(wrong.problems)) from None


def _whole(files: tuple[File, ...], crossing: tuple[bool, ...], root: Any) -> Any:
    """A profile's tree, over that of the one which it extends, if any."""
    (path, text), *below = files
    root = _with_paths(Path(path), root)
    if not below:
        return root
    base = _whole(tuple(below), crossing[1:], document.tree_of(below[0][1], below[0][0], error=ProfileError).root)
    wrong, names = unknown_links(base, root)
    if wrong:
        where = tree_of_file(path, text).where
        choices = f'links of {base["name"]}: {", ".join(names)}; or write a list of all'
        raise ProfileError(
            [Problem(('links', name), 'no such link', choices).at(where(('links', name))) for name in wrong]
        )
    return over_base(base, root, Path(path), crossing[0])


def _beside(path: Path, wanted: str) -> Path:
    """The profile that a file extends: by name, or by a path from the file's folder."""
    beside = path.parent / wanted
    return beside if beside.is_file() and Path(wanted).suffix in {'.yaml', '.yml'} else profile_path(wanted)


def _with_paths(path: Path, root: Any) -> Any:
    """Tables stand beside the profile: their files become paths from here."""
    if isinstance(root, dict) and 'workload' in root:
        instead = 'name a profile, e.g. h100-sxm-8, or write one (docs/my_cluster.md)'
        raise ProfileError(Problem(str(path), 'a schedule, not a profile', instead))
    tables = root.get('tables') if isinstance(root, dict) else None
    for table in tables.values() if isinstance(tables, dict) else ():
        if isinstance(table, dict) and isinstance(table.get('file'), str) and table['file']:
            table['file'] = str(path.parent / table['file'])
    return root


def _problems(profile: Profile) -> Iterator[Problem]:
    """What is wrong between the fields of a profile."""
    if profile.host.mode not in profile.host.issue:
        modes = ', '.join(profile.host.issue) or 'none is there'
        yield Problem(('host', 'mode'), f'{profile.host.mode} has no time in issue', f'one of {modes}')
    for kind in COLUMNS:
        table = getattr(profile.tables, kind)
        if table is None:
            continue
        if not Path(table.file).is_file():
            yield Problem(('tables', kind, 'file'), 'no such file', 'write its name; it is beside the profile')
        if kind in ('matmul', 'attention') and table.dtype is None:
            yield Problem(('tables', kind), 'no dtype', 'write the data type of the kernels, e.g. dtype: bf16')
    yield from _link_problems(profile.links)
    if profile.expansion:
        yield from topology.expansion_problems(profile.expansion)


def _link_problems(links: Sequence[Link]) -> Iterator[Problem]:
    for level, link in enumerate(links):
        # 0 stands for all devices.
        if 0 < link.devices < 2:
            yield Problem(('links', level, 'devices'), 'a link of one device', 'write 2 or more, or 0 for all')
        for members in link.algorithm:
            if members < 2:
                yield Problem(('links', level, 'algorithm', members), 'a group of fewer than 2', 'write 2 or more')
        if link.name in {other.name for other in links[:level]}:
            yield Problem(('links', level, 'name'), f'a second link {link.name!r}', 'give each its own name')
        if level == 0:
            continue
        inner = links[level - 1].devices
        # Topology divides ranks by these sizes, so that domains must nest.
        if inner == 0 or (link.devices and (link.devices <= inner or link.devices % inner)):
            what = f'does not hold whole groups of the {inner or "all"} devices of {links[level - 1].name!r}'
            yield Problem(('links', level, 'devices'), what, 'list links from the innermost outwards')


def cluster(
    profile: Profile,
    nodes: int = 1,
    *,
    devices: int | None = None,
    slow: Mapping[int, float] | None = None,
    links: Mapping[str, float] | None = None,
    stack: Stack | None = None,
    work_queues: int = 0,
    spread: float = 0.0,
    expansion_mode: str = '',
) -> Cluster:
    """So many nodes of a profile.

    Arguments:
        devices: how many are in a node, the profile's unless given.
        slow: rank → speed of its device, where not 1.
        links: name of a link → what its bandwidth is multiplied with.
        stack: the framework that issues the ops.
        work_queues: how many of a device are used; 0: as the stack says, or all that the device has.
        spread: standard deviation of what devices take for the same work, as a share of its mean.
        expansion_mode: of the library; empty: as the stack says, or the profile's default.

    Raises ``ProfileError`` where the profile has no link between nodes or between so many devices, a slow rank is not
    in the cluster, a link or mode not in the profile, or a device has fewer work queues.
    """
    if stack and stack.kernels and profile.device.newer:
        profile = dataclasses.replace(profile, device=profile.device.with_kernels(stack.kernels.year))
    made = Cluster(
        profile=profile,
        nodes=nodes,
        devices=devices or profile.devices,
        slow=dict(slow or {}),
        links=dict(links or {}),
        stack=stack,
        work_queues=work_queues,
        spread=spread,
        expansion_mode=expansion_mode,
    )
    problems = [Problem('cluster', what, instead) for what, instead in topology.faults_of(made)]
    if problems:
        raise ProfileError(problems)
    return made


def shaped(profile: Profile, net: str, rate: float, latency: float) -> Profile:
    """The same profile over one shaped link, as of ``--net paced:RATE,LATENCY`` or ``--net lab:RATE``.

    Arguments: ``net``, as the user wrote it; ``rate`` of each rank's link in one direction, bytes/s; ``latency`` of a
    step, seconds. Collectives measured under another net are dropped; the ring formula takes their place.
    """
    source = f'set by --net {net}'
    link = Link(
        name='wire',
        devices=0,
        per='device',
        bandwidth=RateFigure(value=rate, source=source, grade='vendor'),
        share=ShareFigure(value=1.0, source=source, grade='vendor'),
        latency=TimeFigure(value=latency, source=source, grade='vendor'),
        algorithm={2: 'ring'},
    )
    tables = profile.tables
    if profile.net != net:
        tables = dataclasses.replace(tables, collective=None)
    # The executor's own rings run over it, whatever library the profile's devices have.
    library = dataclasses.replace(profile.library, tuning='none')
    return dataclasses.replace(profile, links=(link,), tables=tables, library=library, net=net)


def read_table(table: TableFile, kind: str) -> tuple[Row, ...]:
    """The rows of a table of measurements: its columns in the order of ``COLUMNS``.

    Arguments: ``kind``, a key of ``COLUMNS``. Rows are found again as long as the file is the same.
    Raises ``ProfileError`` with every problem of the file.
    """
    try:
        data = read_regular(table.file, MOST_BYTES)
    except FileNotFoundError as failure:
        raise ProfileError(Problem(table.file, f'cannot be read: {failure.strerror}')) from None
    except OSError as failure:
        raise ProfileError(Problem(table.file, f'cannot be read: {str(failure)[:100]}', 'write CSV in UTF-8')) from None
    return _read(table.file, kind, data)


# By its bytes: a table that is written again is read again.
@functools.lru_cache(maxsize=64)
def _read(name: str, kind: str, data: bytes) -> tuple[Row, ...]:
    problems: list[Problem] = []
    try:
        reader = csv.reader(io.TextIOWrapper(io.BytesIO(_table_bytes(name, data)), encoding='utf-8', newline=''))
        lines = ((reader.line_num, words) for words in reader if words and not words[0].startswith('#'))
        rows = tuple(_rows(name, kind, lines, problems))
    except (OSError, EOFError, UnicodeDecodeError, zlib.error, csv.Error) as failure:
        raise ProfileError(Problem(name, f'cannot be read: {str(failure)[:100]}', 'write CSV in UTF-8')) from None
    if problems or not rows:
        # One screen of them.
        raise ProfileError(problems[:20] or Problem(f'{name}:1', 'no rows', f'columns: {",".join(COLUMNS[kind])}'))
    return rows


def _table_bytes(name: str, data: bytes) -> bytes:
    """A table's bytes; a compressed one is unpacked up to the same bound."""
    if name.endswith('.gz'):
        data = gzip.GzipFile(fileobj=io.BytesIO(data)).read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise OSError(f'more than {MOST_BYTES} bytes')
    return data


def _rows(name: str, kind: str, lines: Iterator[tuple[int, list[str]]], problems: list[Problem]) -> Iterator[Row]:
    columns = COLUMNS[kind]
    first, words = next(lines, (1, []))
    header = [word.strip() for word in words]
    missing = [column for column in columns if column not in header]
    if missing:
        problems.append(Problem(f'{name}:{first}', f'no column {", ".join(missing)}', f'columns: {",".join(columns)}'))
        return
    # By name: a table may have more columns, in any order.
    places = [header.index(column) for column in columns]
    for number, words in lines:
        row = _row(kind, places, words)
        if isinstance(row, str):
            problems.append(Problem(f'{name}:{number}', row, f'columns: {",".join(columns)}'))
        else:
            yield row


def _row(kind: str, places: list[int], words: list[str]) -> Row | str:
    """The row of a line, or what is wrong with it."""
    if len(words) <= max(places):
        return f'{len(words)} columns'
    try:
        return tuple(_cell(kind, column, words[place]) for column, place in zip(COLUMNS[kind], places, strict=True))
    except ValueError as wrong:
        return str(wrong)


def _cell(kind: str, column: str, word: str) -> str | float:
    if column in _WORDS:
        words: Iterable[str] = _KNOWN.get(kind if column == 'operator' else column, ())
        if words and word not in words:
            raise ValueError(f'{column}: unknown value {word[:40]!r}; one of {", ".join(words)}')
        return word
    try:
        value = float(word)
    except ValueError:
        raise ValueError(f'{column}: not a number (got {word[:40]!r})') from None
    if not 0 < value < math.inf:
        raise ValueError(f'{column}: not a positive number (got {word[:40]!r})')
    return value


# Stacks: found by name or path, read with every number's source, each over the one that it extends.

DEFAULT: Final = 'eager'
"""The stack of a framework that no row of the table names."""
NONE: Final = 'none'
"""What a schedule names in the place of a stack where the device runs alone, as if a framework cost nothing."""
UNKNOWN: Final = 'unknown'
"""The framework of a schedule that names none, in the table; words on the workload may follow."""
OF_WORKLOAD: Final = ('workload.optimizer', 'workload.clip_norm', 'workload.gradients')
"""Keys of the workload that a framework decides where a schedule is silent."""
OLDER_MODEL: Final = 'workload.transformer.'
TABLE: Final = 'frameworks.csv'


def stack_folder() -> Path:
    """Where the stacks that come with simpar are."""
    return profile_folder() / 'stacks'


def stack_names() -> list[str]:
    """Names of the stacks that come with simpar."""
    return sorted(path.stem for path in stack_folder().glob('*.yaml'))


def stack_path(name: str | os.PathLike[str]) -> Path:
    """The file of a stack, by its name or path; raises ``ProfileError`` that lists the names for what is neither."""
    _require_short(name)
    shipped = stack_folder() / f'{name}.yaml'
    # Only a name has no folders.
    if Path(name).name == str(name) and shipped.is_file():
        return shipped
    if Path(name).suffix in {'.yaml', '.yml'}:
        return Path(name)
    names = stack_names()
    guess = f'did you mean {", ".join(near)}? ' if (near := _near(str(name), names)) else ''
    instead = f'{guess}stacks: none, {", ".join(names)}; or the path of a YAML file'
    raise ProfileError(Problem('cluster', f'stack: unknown stack {str(name)[:80]!r}', instead))


def _near(name: str, names: list[str]) -> list[str]:
    """Stacks that a misspelt name may mean: those that begin with it or that it begins with, else the most similar."""
    word = name.lower().replace('_', '-')
    related = [one for one in names if one.startswith(word) or word.startswith(one)] if word else []
    # A framework's own name finds its own stacks: MindSpore is not MindSpeed.
    return related[:8] or difflib.get_close_matches(word, [NONE, *names], 1, cutoff=0.4)


def load_stack(name: str) -> Stack:
    """Read a stack by name or path, over those that it extends; raises ``ProfileError`` with every problem."""
    return _stack(stack_files(name))


def stack_files(name: str) -> tuple[File, ...]:
    """The file of a stack and of those that it extends, in this order; raises ``ProfileError``."""
    circle = ('extends itself', 'let it extend another stack, or none')
    return files_of(stack_path(name), lambda _, wanted: stack_path(wanted), circle)


# By their texts: a file that was edited is read again.
@functools.lru_cache(maxsize=64)
def _stack(files: tuple[File, ...]) -> Stack:
    """The stack of a file over those of the ones that it extends, in this order."""
    *over, tree = [_renamed(tree_of_file(*file)) for file in files]
    for above in reversed(over):
        # A title names one stack alone.
        below_it = {key: value for key, value in tree.root.items() if key != 'title'}
        # Mappings are joined, all else is replaced.
        root = _joined_stack(below_it, above.root)
        tree = Tree(root=root, origins={**tree.origins, **above.origins}, problems=above.problems)
    try:
        return document.build(tree, Stack, check=_stack_problems)
    except ScheduleError as wrong:
        raise ProfileError(wrong.problems) from None


def _renamed(tree: Tree) -> Tree:
    """A file with keys of a model where they stand today: until 403c6f3 they stood among those of the schedule."""
    schedule = tree.root.get('schedule') if isinstance(tree.root, dict) else None
    if not isinstance(schedule, dict):
        return tree
    older = {key: key.removeprefix(OLDER_MODEL) for key in schedule if str(key).startswith(OLDER_MODEL)}
    if not older:
        return tree
    rest = {key: value for key, value in schedule.items() if key not in older}
    model = {**{name: schedule[key] for key, name in older.items()}, **(tree.root.get('model') or {})}
    return Tree(root={**tree.root, 'schedule': rest, 'model': model}, origins=tree.origins, problems=tree.problems)


def _joined_stack(base: Any, over: Any) -> Any:
    # A stack has a source, too, as figures have; these are replaced.
    if isinstance(base, dict) and isinstance(over, dict) and ('source' not in over or 'format' in over):
        return {key: _joined_stack(base.get(key), over[key]) if key in over else base[key] for key in {**base, **over}}
    return over


def _stack_problems(stack: Stack) -> Iterator[Problem]:
    for key in (*stack.schedule, *[key for case in stack.cases for key in case.schedule]):
        if not key.startswith('plan.') and key not in OF_WORKLOAD:
            instead = f"write a key of the plan, or one of {', '.join(OF_WORKLOAD)}; a model is the user's own"
            yield Problem(('schedule', key), 'no key that a framework decides', instead)
    for key in stack.launches:
        operator, _, phase = key.removesuffix('.odd').rpartition('.')
        if '*' not in key and (not operator or phase not in ('F', 'I', 'W', 'U')):
            instead = 'write e.g. norm.F, with F, I, W or U; or a pattern of names of ops, e.g. "*.qkv.F"'
            yield Problem(('launches', key), 'no operator and phase', instead)


def choices_in(words: str) -> str:
    """What Megatron's words on its dispatcher and on captured graphs make of its name in the table, to stand behind it.

    Source: NVIDIA/Megatron-LM d98e8a64dd, transformer_config.py: cuda_graph_impl, cuda_graph_modules, and older words;
    moe_token_dispatcher_type and its backends.
    """
    text = re.sub(r'[_ ]', '-', words.lower())
    flex = ' flex' if re.search(r'dispatcher-type[-=:]*flex|deepep|hybrid-?ep', text) else ''
    off = re.search(r'no-cuda-graph|cuda-graph(-impl)?[-=:]+(none|false|off|0)\b', text)
    if off or 'cuda-graph' not in text:
        return flex
    if 'full-iteration' in text:
        return f'{flex} full-iteration-graph'
    return f'{flex} attention-graph' if re.search(r'\bmoe-(router|pre)|\battn', text) else f'{flex} layer-graph'


def stack_of(framework: str, hardware: str, year: int = 9999, flags: str | None = None) -> str:
    """The name of the stack for a framework of a year on a device: the first row of the table that fits.

    Arguments: ``flags`` that a run had, where they are known. The default where no row fits.
    """
    for row in read_csv(stack_folder() / TABLE):
        if row['unless'] and (flags is None or row['unless'] in flags):
            continue
        patterns = ((framework, row['framework']), (hardware, row['hardware']))
        # Words as users write them: in any case.
        if all(fnmatchcase(word.lower(), pattern.lower()) for word, pattern in patterns) and year <= int(row['until']):
            return row['stack']
    return DEFAULT
