"""Readers: every module that opens a file stands in a list; good files are read, changed ones answered or refused."""

import ast
import contextlib
import io
import json
import sqlite3
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench_record import record
from every import some
from mutations import LIST
from prove_readers import WRONG, read_case
from readers import NO_READERS, READERS, RECORDED, ROOT, put, seeds

from simpar import load_case
from simpar.errors import ProfileError, SimparError
from simpar.profiles import load_profile, load_stack
from simpar.program.text import format_program
from tests.code_lines import syntax

OPENS = {'read_regular', 'read_text', 'read_bytes', 'open', 'connect', 'fdopen'}
"""Functions that open a file; rows of simpar's own tables come by `read_csv`."""
CASES = 20
"""Of sixty changed files of a reader the suite takes those so far apart."""


def arrays(head):
    """The file of a run whose first array has this head."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, 'w') as packed:
        packed.writestr('what.npy', b'\x93NUMPY\x01\x00' + len(head).to_bytes(2, 'little') + head)
    return out.getvalue()


def module(**node):
    """A schedule of a module's graph whose first node says something else."""
    (first, *_) = READERS['module graph'].seeds(Path())
    tree = json.loads(first.files['s.yaml'])
    graph = json.loads(tree['workload']['module']['graph'])
    graph['nodes'][0] |= node
    tree['workload']['module']['graph'] = json.dumps(graph)
    return json.dumps(tree).encode()


def blobs():
    """A database of Ascend whose texts are bytes."""
    (first, *_) = READERS['database of Ascend'].seeds(Path())
    with tempfile.NamedTemporaryFile() as file, contextlib.closing(sqlite3.connect(file.name)) as data:
        Path(file.name).write_bytes(next(iter(first.files.values())))
        data.execute("update STRING_IDS set value = x'ff'")
        data.commit()
        return Path(file.name).read_bytes()


def program(**head):
    """A program whose head says something else."""
    case = load_case(
        'simpar: 1\ncluster: cpu-gloo\nworkload: {batch: 4, network: [{dense: {in: 4, out: 4}}]}\nplan: {}\n'
    )
    first, line, *others = format_program(case.program).splitlines()
    return '\n'.join([first, f'program {json.dumps({**json.loads(line.partition(" ")[2]), **head})}', *others]).encode()


def opening() -> Iterator[str]:
    """Modules that call one of them."""
    for path in sorted(path for top in ('simpar', 'executor') for path in (ROOT / top).rglob('*.py')):
        for node in ast.walk(syntax(path)):
            if isinstance(node, ast.Call):
                name = getattr(node.func, 'attr', getattr(node.func, 'id', ''))
                if name in OPENS:
                    yield str(path.relative_to(ROOT))
                    break


def test_every_module_that_opens_a_file_stands_in_a_list():
    read = {module for reader in READERS.values() for module in reader.modules}
    assert set(opening()) == read | set(NO_READERS)
    assert not read & set(NO_READERS)


@pytest.fixture(scope='module')
def known(tmp_path_factory):
    return seeds(tmp_path_factory.mktemp('seeds'))


@pytest.mark.parametrize('name', READERS)
def test_changed_files_are_answered_or_refused(known, name):
    assert known[name]
    for number in some(range(60), CASES):
        found = read_case(known, 7, number, [name])
        assert found.outcome not in WRONG, found


@pytest.mark.parametrize('name', READERS)
def test_a_good_file_of_each_reader_is_answered(known, name, tmp_path):
    """Else changed ones would all be refused for one reason."""
    for number, seed in enumerate(known[name]):
        put(tmp_path / str(number), seed.files)
        with contextlib.suppress(SimparError):
            READERS[name].read(tmp_path / str(number))
            return
    raise AssertionError(f'no seed of {name} is answered')


LONG = 'x' * 140_000
FLIGHT = (RECORDED / 'flight' / 'rank0.json').read_text(encoding='utf-8')
PROFILE = {path.name: path.read_bytes() for path in (ROOT / 'hw_profiles' / 'h100-sxm-8').iterdir()}
PACKED = PROFILE['matmul.csv.gz']
EVENTS = (RECORDED / 'kineto_cases' / 'copy_only.json').read_bytes()
FLAT = {**LIST, 'tensors': {'a': {**LIST['tensors']['dense1.weight'], 'shape': [16]}}}
UNKNOWN = {**LIST, 'tensors': {'a': {'shape': [1], 'dtype': 'floa%32', 'chunks': []}}}
BROKEN = (
    ('MindSpore script', {'train.py': b'import mindspore as ms\nx = ' + b'-' * 20_000 + b'1\n'}),
    ('MindSpore script', {'train.py': f'import mindspore\nfrom a{LONG[:300]} import b\n'.encode()}),
    ('database of Ascend', {'ascend_pytorch_profiler_0.db': blobs}),
    ('module graph', {'s.yaml': lambda: module(name=None)}),
    ('Kineto', {'r.json': EVENTS.replace(b'"id"', b'"\xffid"', 1)}),
    ('checkpoint', {'simpar.json': json.dumps(UNKNOWN).encode()}),
    ('checkpoint', {'simpar.json': json.dumps(FLAT).encode()}),
    ('calibration record', {'r.json': json.dumps({**record(), 'net': ' '}).encode()}),
    ('flight recorder', {'rank0.json': FLIGHT.replace('[[1000]]', '[[Infinity]]', 1).encode()}),
    ('profile and its tables', {**PROFILE, 'matmul.csv.gz': PACKED[:60] + b'\xff' * 40 + PACKED[100:]}),
    ('journal of a bench', {'bench.json': b'{"device": "cpu"}', '00000.npz': arrays(b"{'descr': '<f8', (\n")}),
    ('measured steps', {'a.csv': f'id,{LONG}\n1,2\n'.encode()}),
    ('measured steps', {'a.csv': (next((ROOT / 'measured_steps').glob('*.csv')).read_bytes() + f'{LONG}\n'.encode())}),
    ('script to edit', {'r.sh': b'torchrun pretrain_gpt.py --num-layers \xff\n'}),
    ('journal of a bench', {'bench.json': b'[1]'}),
    ('journal of a bench', {'bench.json': b'[' * 100_000}),
    ('saved program', {'p.program': lambda: program(world=10**11)}),
    ('Chakra', {'a.0.et': b'\x80' * 9 + b'\x07\n\x050.0.4'}),
    ('Kineto', {'r.json': EVENTS.replace(b'"dur": ', b'"dur": 1' + b'0' * 400, 1)}),
)
"""What ended in another exception than simpar's own; a file that takes seconds is made in its test."""


@pytest.mark.parametrize(('name', 'files'), BROKEN)
def test_what_once_was_no_refusal_is_one(name, files, tmp_path):
    put(tmp_path, {path: data() if callable(data) else data for path, data in files.items()})
    with pytest.raises(SimparError):
        READERS[name].read(tmp_path)


@pytest.mark.parametrize('name', ['1.profile=' * 40, 'a/' * 3000, '\ud800' * 300])
def test_names_that_no_file_has_are_refused(name):
    for load in (load_profile, load_stack):
        with pytest.raises(ProfileError):
            load(name)
