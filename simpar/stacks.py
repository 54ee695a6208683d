"""Stacks: found by name or path, read with every number's source, each over the one that it extends."""

from __future__ import annotations

import difflib
import functools
import os
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from simpar import document
from simpar.document import Tree
from simpar.errors import Problem, ProfileError, ScheduleError
from simpar.files import read_csv
from simpar.hardware import Stack
from simpar.profiles import File, files_of, profile_folder, tree_of_file

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
        root = _joined(below_it, above.root)
        tree = Tree(root=root, origins={**tree.origins, **above.origins}, problems=above.problems)
    try:
        return document.build(tree, Stack, check=_problems)
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
    kept = {key: value for key, value in schedule.items() if key not in older}
    model = {**{name: schedule[key] for key, name in older.items()}, **(tree.root.get('model') or {})}
    return Tree(root={**tree.root, 'schedule': kept, 'model': model}, origins=tree.origins, problems=tree.problems)


def _joined(base: Any, over: Any) -> Any:
    # A stack has a source, too, as figures have; these are replaced.
    if isinstance(base, dict) and isinstance(over, dict) and ('source' not in over or 'format' in over):
        return {key: _joined(base.get(key), over[key]) if key in over else base[key] for key in {**base, **over}}
    return over


def _problems(stack: Stack) -> Iterator[Problem]:
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
    told = re.sub(r'[_ ]', '-', words.lower())
    flex = ' flex' if re.search(r'dispatcher-type[-=:]*flex|deepep|hybrid-?ep', told) else ''
    off = re.search(r'no-cuda-graph|cuda-graph(-impl)?[-=:]+(none|false|off|0)\b', told)
    if off or 'cuda-graph' not in told:
        return flex
    if 'full-iteration' in told:
        return f'{flex} full-iteration-graph'
    return f'{flex} attention-graph' if re.search(r'\bmoe-(router|pre)|\battn', told) else f'{flex} layer-graph'


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
