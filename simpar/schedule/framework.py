"""Framework: the stack that a schedule runs under, and the keys that this stack has where the file is silent."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from simpar.document import Key, Tree
from simpar.errors import ProfileError
from simpar.headline import run_by
from simpar.lower.roles import passes_beside
from simpar.plans import Plan
from simpar.profiles import load_profile
from simpar.schedule.contents import ClusterReference
from simpar.stacks import NONE, OF_WORKLOAD, UNKNOWN, load_stack, stack_of

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
    words = [UNKNOWN]
    workload, plan = tree.get(('workload',)), tree.get(('plan',))
    if isinstance(workload, dict) and 'network' in workload:
        words.append('network')
    beside = json.dumps([tree.get(('against',)), tree.get(('sweep',))])
    own = plan if isinstance(plan, dict) else {}
    for key in OF_MINDSPORE:
        silent = getattr(Plan(), key)
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
    return Tree(
        root=root, origins=tree.origins, problems=tree.problems, refused=tree.refused, shorts=tree.shorts
    ), frozenset(of_stack)


def run_as(clusters: Iterable[ClusterReference]) -> str:
    """Whose steps those on some clusters are, in a sentence; empty where they are of several frameworks, or on CPUs."""
    every = list(clusters)
    try:
        titles = {load_stack(one.stack).called if one.has_stack else '' for one in every}
        clause = run_by(titles, {load_profile(one.profile).library.name for one in every})
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
        library = load_profile(_path(tree, PROFILE, profile, folder)).library.name
    except ProfileError:
        return ''
    return stack_of(words or framework_words(tree), library)


def _keys(tree: Tree, name: Any, folder: Path) -> Mapping[str, Any]:
    """The keys of a stack by its name or path; none where it cannot be read."""
    if not isinstance(name, str) or name == NONE:
        return {}
    try:
        stack = load_stack(_path(tree, STACK, name, folder))
    except ProfileError:
        return {}
    return stack.keys_of(lambda key: tree.get(tuple(key.split('.'))))


def _path(tree: Tree, key: Key, name: str, folder: Path) -> str:
    return name if tree.where(key).startswith(TYPED) else path_from(name, folder)


def _is_written(tree: Tree, place: Key, written: Collection[Key] | None) -> bool:
    return place in written if written is not None else tree.get(place) is not None


def _decides(tree: Tree, key: str, written: Collection[Key] | None) -> bool:
    """Whether a framework decides a key: without an update none has an optimizer, and passes say more than keys."""
    if key in OF_WORKLOAD:
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
