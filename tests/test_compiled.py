"""Kernels: numba keeps their machine code where it can, and compiles them without a word of error where it cannot.

Small calls are run by Python, and give the same to the bit.
"""

import ast
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from every import some
from tables import load_table

from simpar import kernels, load_case
from simpar.kernels import Kernel, kernel, part
from simpar.memory import memory

HOME = Path(__file__).parent.parent / 'simpar'
MODULES = [path for path in HOME.rglob('*.py') if '\n@kernel\n' in path.read_text(encoding='utf-8')]
OURS = load_table(__file__, 'OURS')
CALL = (
    'from simpar.ours import four_times as one; '
    'print(one.compiled(3), one.compiled.stats.cache_path, one.compiled.stats.cache_hits)'
)


@pytest.fixture
def package(tmp_path):
    """A package of the name of ours with a kernel, in a folder of its own."""
    home = tmp_path / 'site' / 'simpar'
    home.mkdir(parents=True)
    own = {name: (HOME / name).read_text(encoding='utf-8') for name in ('kernels.py', 'compiler.py')}
    texts = {'__init__.py': '', 'ours.py': OURS, **own}
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
    # Nothing half written stays: machine code, and what numba itself keeps.
    kept = {path.suffix for path in (package / 'simpar' / '__pycache__').iterdir()}
    assert kept - {'.pyc'} == {'.nbi', '.nbc'}


@pytest.mark.parametrize('place', some(['HOME', 'XDG_CACHE_HOME'], 2))
def test_where_no_folder_can_be_written_kernels_are_compiled_all_the_same(package, place):
    # A file where each folder would be, which stops root, too.
    (package / 'simpar' / '__pycache__').write_text('', encoding='utf-8')
    (package / 'cache').write_text('', encoding='utf-8')
    process = called(package, PYTHONDONTWRITEBYTECODE='1', **{place: str(package / 'cache')})
    out, told = process.communicate(timeout=120)
    assert process.returncode == 0
    assert out.startswith('12 None')
    assert told == 'compiling the engine (about 20 s; no folder keeps it: NUMBA_CACHE_DIR=DIR names one)\n'


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
    one = kernel(fill)
    assert one.compiled(rows, mine) == one.interpreted(rows.copy(), theirs) == 3
    assert mine.tolist() == theirs.tolist() == [0.0, 5.5, 0.0]


SMALL_ONES = {
    'multi_copy.yaml': (),
    'overlap.yaml': (),
    'pipeline_h100.yaml': ('plan.micro_batches=4', 'workload.transformer.layers=8'),
    'tiles.yaml': (),
    'optimizer_parallel.yaml': (),
    'hybrid_strategies.yaml': (),
}


@pytest.mark.parametrize('file', some(SMALL_ONES, 2))
def test_whoever_runs_a_kernel_it_writes_the_same_to_the_bit(file, monkeypatch):
    """Every call of a prediction, by Python and by numba on copies of its arrays, none of which overlap."""
    calls = []

    def both(self, *arguments):
        arrays = list(arrays_of(arguments))
        for place, one in enumerate(arrays):
            assert not any(np.shares_memory(one, other) for other in arrays[:place] if one is not other), self.__name__
        copies = copied(arguments)
        calls.append(self.__name__)
        result = self.interpreted(*copies)
        assert self.compiled(*arguments) == result
        for one, other in zip(arrays, arrays_of(copies), strict=True):
            assert one.tobytes() == other.tobytes(), self.__name__
        return result

    monkeypatch.setattr(Kernel, '__call__', both)
    prediction = load_case(HOME.parent / 'examples' / file, SMALL_ONES[file]).predict()
    assert memory(prediction.trace).peak
    assert {'find_needs', 'arrange_ops', 'arrange_meetings', 'events', 'write_lifetimes'} <= set(calls)


def test_which_runs_a_kernel_follows_from_its_arrays():
    one, large = kernel(fill), np.zeros(kernels.SMALL + 1)
    rows = np.array([(1, 2.5), (3, 4.5)], dtype=[('one', 'u4'), ('other', 'f8')])
    assert one(rows, np.zeros(3)) == 3
    assert 'compiled' not in vars(one)
    assert one(rows, large) == len(large)
    assert 'compiled' in vars(one)


def arrays_of(value):
    """All arrays in a value."""
    if isinstance(value, tuple):
        for one in value:
            yield from arrays_of(one)
    elif isinstance(value, np.ndarray):
        yield value


def copied(value):
    """A value with copies of its arrays."""
    if isinstance(value, tuple):
        parts = map(copied, value)
        return type(value)(*parts) if hasattr(value, '_fields') else tuple(parts)
    return value.copy() if isinstance(value, np.ndarray) else value
