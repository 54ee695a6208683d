"""The house stays one that a reader can hold: its files and functions, no state in module globals, no private API."""

import ast
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from tests.code_lines import FUNCTION_AT_MOST, LINES_AT_MOST, PRODUCT, ROOT, nodes

PATHS = sorted(path for top in PRODUCT for path in (ROOT / top).rglob('*.py'))
CHANGES = {'append', 'extend', 'insert', 'add', 'update', 'pop', 'popitem', 'clear', 'setdefault', 'remove', 'discard'}
"""Methods that change what they are called on."""
HOLDERS = {'defaultdict', 'Counter', 'OrderedDict', 'deque', 'bytearray', 'WeakKeyDictionary', 'WeakValueDictionary'}
"""What is made to be changed."""
PRIVATE = {
    'executor/checkpoint.py: from torch.distributed.checkpoint.filesystem import _StorageInfo': 'in what torch reads',
    'executor/virtual/dry_run.py: from torch._subclasses.fake_tensor import torch._subclasses.fake_tensor': 'where '
    'torch documents it',
    'executor/virtual/__init__.py: from torch.utils.backend_registration import '
    '_setup_privateuseone_for_python_backend': "torch's one way to register a device that is written in Python",
    'executor/netns.py: ctypes': 'unshare, which Python has from 3.12 on',
}
"""What there is no public way for, each with why."""
MEMOS = 40
"""Functions of values alone that remember what they returned; none of them reads a file."""


@cache
def modules() -> list[tuple[Path, tuple[ast.AST, ...]]]:
    """Paths and all nodes of the product."""
    return [(path.relative_to(ROOT), nodes(path)) for path in PATHS]


def state_of(every: Sequence[ast.AST]) -> Iterator[str]:
    """Of the nodes of a module, itself first: names at its top that are changed, or hold what is made to be."""
    tree, names = every[0], set()
    assert isinstance(tree, ast.Module)
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {one.id for one in targets if isinstance(one, ast.Name)}
            if isinstance(node.value, ast.Call) and _name(node.value.func) in HOLDERS:
                yield f'line {node.lineno}: {_name(node.value.func)}'
    for function in every:
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        inside = list(ast.walk(function))
        own = {one.arg for one in inside if isinstance(one, ast.arg)}
        own |= {one.id for one in inside if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
        for node in inside:
            if isinstance(node, ast.Global):
                yield f'line {node.lineno}: global {", ".join(node.names)}'
            elif isinstance(node, ast.Subscript) and isinstance(node.ctx, (ast.Store, ast.Del)):
                target = node.value
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
                target = node.func.value
            else:
                continue
            if not isinstance(node, ast.Global) and isinstance(target, ast.Name) and target.id in names - own:
                yield f'line {node.lineno}: {target.id} is changed'


def _name(node: ast.expr) -> str:
    """The last name of what is called."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ''


def test_no_module_has_state():
    found = [f'{path}: {what}' for path, every in modules() for what in state_of(every)]
    assert not found, '\n'.join(found)


@pytest.mark.parametrize(
    ('text', 'what'),
    [
        ('A = []\ndef f():\n    A.append(1)', 'line 3: A is changed'),
        ('A = {}\ndef f():\n    A[1] = 2', 'line 3: A is changed'),
        ('from weakref import WeakKeyDictionary\nA = WeakKeyDictionary()', 'line 2: WeakKeyDictionary'),
        ('A = 1\ndef f():\n    global A\n    A = 2', 'line 3: global A'),
    ],
)
def test_state_is_found_where_there_is_some(text, what):
    assert list(state_of([*ast.walk(ast.parse(text))])) == [what]


def test_few_functions_remember_and_none_of_them_a_file():
    memos = [
        f'{path}:{node.lineno} {node.name}'
        for path, every in modules()
        for node in every
        if isinstance(node, ast.FunctionDef)
        and any(
            _name(one.func if isinstance(one, ast.Call) else one) in ('cache', 'lru_cache')
            for one in node.decorator_list
        )
    ]
    assert len(memos) <= MEMOS, '\n'.join(memos)


def test_no_private_name_of_another_package_is_used():
    found = []
    for path, every in modules():
        for node in every:
            if isinstance(node, ast.Import):
                found += [f'{path}: {alias.name}' for alias in node.names if _is_private(alias.name)]
            elif isinstance(node, ast.ImportFrom) and (node.module or '').split('.')[0] not in PRODUCT:
                names = [node.module or '', *(alias.name for alias in node.names)]
                found += [f'{path}: from {node.module} import {name}' for name in names if _is_private(name)]
    assert set(found) == set(PRIVATE), '\n'.join(found)


def _is_private(name: str) -> bool:
    return any(part.startswith('_') and not part.startswith('__') for part in name.split('.')) or name.startswith(
        'ctypes'
    )


def test_files_and_functions_are_of_natural_length():
    lines = {path: (ROOT / path).read_text(encoding='utf-8').count('\n') for path, _ in modules()}
    long = [f'{path}: {count} lines' for path, count in lines.items() if count > LINES_AT_MOST]
    long += [
        f'{path}: {node.name} has {length} lines'
        for path, every in modules()
        for node in every
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (length := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_AT_MOST
    ]
    assert not long, '\n'.join(long)
