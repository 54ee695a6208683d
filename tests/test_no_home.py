"""A process without a home, as in a container with any uid: caches fall back to none, with at most one line.

The whole engine compiles for 20 CPU seconds, so only `make prove NAME=every` does; test_compiled asks small kernels.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
NOBODY = """
import os, pwd, sys, tempfile
from pathlib import Path

def nobody(uid):
    raise KeyError(f'getpwuid(): uid not found: {uid}')

pwd.getpwuid = nobody
# Root may write anywhere, so that what a plain user may not is told here.
mkdir, writable = Path.mkdir, tuple(sys.argv.pop(1).split(os.pathsep))

def refused(path='', *arguments, **named):
    raise PermissionError(13, 'Permission denied', str(path))

def guarded(function):
    def call(path, *arguments, **named):
        return (function if str(path).startswith(writable) else refused)(path, *arguments, **named)
    return call

Path.mkdir = guarded(Path.mkdir)
os.mkdir = guarded(os.mkdir)
place = tempfile.TemporaryFile
tempfile.TemporaryFile = lambda *_, dir=None, **more: (place if str(dir).startswith(writable) else refused)(dir=dir)
make = tempfile.mkstemp
tempfile.mkstemp = lambda *_, dir=None, **more: (make if str(dir).startswith(writable) else refused)(dir=dir, **more)
from simpar.cli import main
for words in ' '.join(sys.argv[1:]).split(' and '):
    assert main(words.split()) == 0
"""


def as_nobody(folder, *words):
    environment = {'PATH': os.environ['PATH'], 'PYTHONPATH': str(ROOT)}
    command = [sys.executable, '-c', NOBODY, '/nowhere', *words]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def lines(error):
    """What a process says besides progress, which a busy machine sees."""
    return [line for line in error.splitlines() if not re.search('so far|simulations done', line)]


def test_a_large_program_is_predicted_without_a_home(tmp_path):
    """The engine is compiled and kept nowhere, which is said once."""
    wanted = subprocess.run(
        [sys.executable, '-m', 'simpar', 'run', str(ROOT / 'examples/pipeline_h100.yaml')],
        env={**os.environ, 'PYTHONPATH': str(ROOT)}, capture_output=True, text=True, timeout=300, check=True,
    ).stdout  # fmt: skip
    done = as_nobody(tmp_path, 'run', str(ROOT / 'examples/pipeline_h100.yaml'), 'and', 'warmup')
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(wanted)
    assert 'no folder could be written' in done.stdout.removeprefix(wanted)
    assert lines(done.stderr) == [
        'compiling the engine (about 20 s; no folder keeps it: NUMBA_CACHE_DIR=DIR names one)'
    ]
    assert list(tmp_path.iterdir()) == []


def test_two_processes_that_compile_at_once_both_answer(tmp_path):
    """And the next one loads what they have compiled, without a word."""
    cache = tmp_path / 'cache'
    environment = {**os.environ, 'PYTHONPATH': str(ROOT), 'NUMBA_CACHE_DIR': str(cache)}
    command = [sys.executable, '-m', 'simpar', 'warmup']
    both = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in both:
        _, error = process.communicate(timeout=300)
        assert process.returncode == 0, error
        assert error == 'compiling the engine (once, about 20 s)\n'
    again = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    assert again.stderr == ''
    assert 'loaded from the disk' in again.stdout
    # Nothing half written stays: machine code, and what numba itself keeps.
    files = [path for path in cache.rglob('*') if path.is_file()]
    assert {path.suffix for path in files} == {'.nbi', '.nbc'}
