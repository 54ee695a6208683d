"""Tests that measure time run by themselves, or beside the others where they mostly wait (``make test`` runs all)."""

import gc
import json
import os
import tarfile
from functools import partial

import pytest
from every import EVERY
from hypothesis import settings

# A second thread of a small product waits by spinning, in this process and in those that tests start.
os.environ.setdefault('OMP_NUM_THREADS', '1')

# A case that another process holds up for 0.2 s says nothing of what is tested. New ones are drawn with all points.
settings.register_profile('fixed', deadline=None, derandomize=EVERY > 1, max_examples=100 if EVERY == 1 else 25)
settings.load_profile('fixed')

MARKS = {
    'alone': {
        'test_speed',
        'test_bench',
        'test_executor_net',
        'test_executor_pool',
        'test_executor_watchdog',
    },
    'waits': {
        'test_executor_command',
        'test_executor_faults',
        'test_executor_route',
        'test_files',
        'test_measure',
        'test_notebooks',
        'test_validation',
    },
}
"""Modules by the mark of their tests; pyproject.toml says what each means."""
MARK = {module: mark for mark, modules in MARKS.items() for module in modules}
LONG = set() if EVERY == 1 else {'test_no_home.py'}
"""Files of `make prove NAME=every` alone: they compile the whole engine, which test_compiled asks of small kernels."""


def pytest_ignore_collect(collection_path, config):
    """Where only the tests of a mark are asked for, other modules need not be imported."""
    if collection_path.name in LONG:
        return True
    asked = MARKS.get(config.option.markexpr)
    if asked is not None and collection_path.name.startswith('test_') and collection_path.stem not in asked:
        return True
    return None


def pytest_collection_modifyitems(items):
    for item in items:
        by_hand = [mark for mark in MARKS if mark in item.keywords]
        assert not by_hand, f'{item.nodeid}: write the module into MARKS; no test has the mark {by_hand} by itself'
        if mark := MARK.get(item.module.__name__):
            item.add_marker(getattr(pytest.mark, mark))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Look for garbage as seldom as the command does, and never in what was collected, which stays to the end."""
    from simpar.cli import GARBAGE

    # To look for it while that is made takes seconds of each process.
    gc.disable()
    found = yield
    gc.freeze()
    gc.set_threshold(GARBAGE)
    gc.enable()
    return found


JOB = """
simpar: 1
cluster: {profile: cpu-gloo, devices: 2}
workload:
  network:
    - dense: {in: 256, out: 512}
    - relu: {}
    - dense: {in: 512, out: 256}
  loss: mse
  batch: 256
plan: {data: 1, tensor: 2, copies: 2}
against: {plan.copies: 1}
"""


@pytest.fixture
def job(put):
    """A file whose plan and baseline are measured: a copy of a batch beside another, against the batch as it is."""
    return put('job.yaml', JOB)


@pytest.fixture(scope='session')
def unpack():
    """Unpack an archive of the project's into a folder."""

    def unpacked(archive, folder):
        with tarfile.open(archive) as packed:
            # Python before 3.11.4 knows no filters.
            packed.extraction_filter = getattr(tarfile, 'data_filter', None)
            packed.extractall(folder)

    return unpacked


@pytest.fixture
def one_session(monkeypatch):
    """What is exported and what comes back of it are lowered once, where they are the same."""
    from simpar.case import case_of
    from simpar.session import Session

    monkeypatch.setattr('simpar.exporting.settings.case_of', partial(case_of, session=Session()))


@pytest.fixture
def generated_images(monkeypatch):
    """Digits are the generated ones, made anew."""
    from executor import data

    monkeypatch.delenv('DATA_PATH', raising=False)
    data.load.cache_clear()
    yield
    data.load.cache_clear()


@pytest.fixture
def put(tmp_path):
    """Write a file of a name and a text into the folder of the test; its path."""

    def write(name, text):
        path = tmp_path / name
        path.write_text(text, encoding='utf-8')
        return path

    return write


@pytest.fixture
def printed(capsys):
    """What a command that ends with 0 prints."""
    return partial(_said, capsys, 0)


@pytest.fixture
def refused(capsys):
    """What a command that ends with 2 says of it."""
    return partial(_said, capsys, 2)


@pytest.fixture
def json_of(printed):
    """The one JSON object that a command prints; it ends with 0."""
    return lambda *words: json.loads(printed(*words, '--json'))


def _said(capsys, code, *words):
    from simpar import cli

    assert cli.main([*map(str, words)]) == code
    return capsys.readouterr()[code == 2]
