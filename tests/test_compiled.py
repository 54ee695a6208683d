"""Kernels: numba keeps their machine code where it can, and compiles them without a word of error where it cannot."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from simpar.kernels import interpreted, kernel, part

HOME = Path(__file__).parent.parent / 'simpar'
MODULES = [path for path in HOME.rglob('*.py') if '\n@kernel\n' in path.read_text(encoding='utf-8')]
OURS = """
from simpar.kernels import kernel, part

@part
def _twice(number):
    return 2 * number

@kernel
def four_times(number):
    return _twice(_twice(number))
"""
CALL = (
    'from simpar.ours import four_times; print(four_times(3), four_times.stats.cache_path, four_times.stats.cache_hits)'
)


@pytest.fixture
def package(tmp_path):
    """A package of the name of ours with a kernel, in a folder of its own."""
    home = tmp_path / 'site' / 'simpar'
    home.mkdir(parents=True)
    texts = {'__init__.py': '', 'ours.py': OURS, 'kernels.py': (HOME / 'kernels.py').read_text(encoding='utf-8')}
    for name, text in texts.items():
        (home / name).write_text(text, encoding='utf-8')
    return home.parent


def called(package, **environment):
    """What a new process prints, and says beside."""
    kept = {name: value for name, value in os.environ.items() if name not in ('NUMBA_CACHE_DIR', 'XDG_CACHE_HOME')}
    return subprocess.Popen(
        [sys.executable, '-c', CALL],
        env={**kept, 'PYTHONPATH': str(package), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=package,
    )


def test_machine_code_is_kept_once_by_two_processes_at_once(package):
    both = [process.communicate(timeout=120) for process in [called(package) for _ in range(2)]]
    assert all(out.startswith('12 ') for out, _ in both)
    # One of them may find what the other has kept.
    assert {told for _, told in both} - {''} == {'compiling the engine (once, about 20 s)\n'}
    out, told = called(package).communicate(timeout=120)
    assert '__pycache__' in out
    assert ': 1' in out
    assert told == ''


def test_where_no_folder_can_be_written_kernels_are_compiled_all_the_same(package):
    # A file where each folder would be, which stops root, too.
    (package / 'simpar' / '__pycache__').write_text('', encoding='utf-8')
    (package / 'cache').write_text('', encoding='utf-8')
    process = called(package, PYTHONDONTWRITEBYTECODE='1', XDG_CACHE_HOME=str(package / 'cache'))
    out, told = process.communicate(timeout=120)
    assert process.returncode == 0
    assert out.startswith('12 None')
    assert told == 'compiling the engine (about 20 s; no folder keeps it: NUMBA_CACHE_DIR=DIR names one)\n'


def test_another_folder_may_be_named(package):
    out, _ = called(package, NUMBA_CACHE_DIR=str(package / 'kept')).communicate(timeout=120)
    assert str(package / 'kept') in out


@pytest.mark.parametrize('path', MODULES, ids=lambda path: '.'.join(path.relative_to(HOME).with_suffix('').parts))
def test_kernels_read_nothing_of_other_files(path):
    """Numba compiles a kernel anew where its own file has changed, and looks at no other."""
    tree = ast.parse(path.read_text(encoding='utf-8'))
    elsewhere = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module.startswith('simpar.') and node.module != 'simpar.kernels'
        for alias in node.names
    }
    compiled = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and {'kernel', 'part'} & {getattr(one, 'id', '') for one in node.decorator_list}
    ]
    assert compiled
    for function in compiled:
        names = {node.id for one in function.body for node in ast.walk(one) if isinstance(node, ast.Name)}
        assert not (names - {one.arg for one in function.args.args}) & elsewhere, function.name


@part
def fill(rows, into):
    into[1] = rows[0].one + rows[1].other
    return len(into)


def test_python_runs_the_source_of_kernels_on_the_same_arrays():
    rows = np.array([(1, 2.5), (3, 4.5)], dtype=[('one', 'u4'), ('other', 'f8')])
    mine, theirs = np.zeros(3), np.zeros(3)
    assert kernel(fill)(rows, mine) == interpreted(fill, rows, theirs) == 3
    assert mine.tolist() == theirs.tolist() == [0.0, 5.5, 0.0]
