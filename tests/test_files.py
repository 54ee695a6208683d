"""Files: only regular ones are read, to a bound; what cannot be written is named; nothing is left, by -9 either."""

import gzip
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from simpar import cli
from simpar.files import read_regular, write_atomically

ROOT = Path(__file__).parent.parent
TUTORIAL = ROOT / 'examples' / 'multi_copy.yaml'
SOON = 10.0


def endless(folder):
    """Files that would block, or never end; and links to them."""
    fifo, link, device = folder / 'fifo.csv', folder / 'link.csv', folder / 'device.csv'
    os.mkfifo(fifo)
    link.symlink_to(fifo)
    device.symlink_to('/dev/zero')
    return [fifo, link, device, Path('/dev/zero')]


def test_only_regular_files_are_read(tmp_path):
    begin = time.perf_counter()
    for path in endless(tmp_path):
        with pytest.raises(OSError, match='not a regular file') as error:
            read_regular(path, 100)
        assert error.value.filename == str(path)
    (tmp_path / 'file').write_bytes(bytes(100))
    (tmp_path / 'to').symlink_to(tmp_path / 'file')
    assert read_regular(tmp_path / 'to', 100) == bytes(100)
    with pytest.raises(OSError, match='more than 99 bytes'):
        read_regular(tmp_path / 'file', 99)
    with pytest.raises(IsADirectoryError):
        read_regular(tmp_path, 100)
    # A bound is no room that is taken, and a file of the kernel's says that it is empty.
    assert read_regular(tmp_path / 'file', 2**60) == bytes(100)
    assert read_regular('/proc/version', 2**60).startswith(b'Linux')
    assert time.perf_counter() - begin < SOON


@pytest.mark.parametrize('which', range(4), ids=['FIFO', 'link to a FIFO', 'link to a device', 'device'])
def test_every_file_of_a_command_is_refused_where_it_is_not_regular(which, tmp_path, capsys):
    path = endless(tmp_path)[which]
    order = ROOT / 'examples' / 'pipeline_h100.yaml'
    (tmp_path / 'profile.yaml').symlink_to(path)
    commands = [
        ['run', path],
        ['check', path],
        ['sweep', path],
        ['resolve', path],
        ['compare', path, path],
        ['run', order, '--set', f'plan.order={path}' if path.suffix else f'plan.order={tmp_path / "device.csv"}'],
        ['run', TUTORIAL, '--set', f'cluster={tmp_path / "profile.yaml"}'],
        ['profiles', tmp_path / 'profile.yaml'],
    ]
    begin = time.perf_counter()
    for words in commands:
        assert cli.main([str(word) for word in words]) == 2, words
        error = capsys.readouterr().err
        assert 'not a regular file' in error, (words, error)
        assert 'internal' not in error
    assert time.perf_counter() - begin < SOON


def test_a_table_of_a_profile_is_unpacked_to_a_bound(tmp_path, monkeypatch):
    from simpar import profiles
    from simpar.errors import ProfileError
    from simpar.hardware import TableFile

    monkeypatch.setattr(profiles, 'MOST_BYTES', 10_000)
    bomb = tmp_path / 'matmul.csv.gz'
    bomb.write_bytes(gzip.compress(b'm,n,k,seconds\n' + b'1,1,1,1\n' * 100_000))
    assert bomb.stat().st_size < 10_000
    table = TableFile(file=str(bomb), source='none', grade='estimate', dtype='fp32')
    with pytest.raises(ProfileError, match='more than 10000 bytes'):
        profiles.read_table(table, 'matmul')


# what cannot be written


@contextmanager
def full_disk():
    """Within it a file system is full after some bytes a file, as far as this process can tell."""
    bound, bytecode = resource.getrlimit(resource.RLIMIT_FSIZE), sys.dont_write_bytecode
    # Or a module that is imported now would be kept in part.
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, bound[1]))
    try:
        yield
    finally:
        # Before pytest says how the test went, for its own output may be a longer file.
        resource.setrlimit(resource.RLIMIT_FSIZE, bound)
        sys.dont_write_bytecode = bytecode


@pytest.mark.parametrize(
    ('flag', 'name', 'named'),
    [
        ('run --save', 'trace.json', 'trace.json'),
        ('run --trace', 'folder', 'folder/rank0.json'),
        ('check --ir', 'ir', 'ir'),
    ],
)
def test_a_full_disk_names_the_file(flag, name, named, tmp_path, refused):
    verb, flag = flag.split()
    with full_disk():
        error = refused(verb, TUTORIAL, flag, tmp_path / name)
    assert error == f'simpar: {tmp_path / named}: File too large\n'
    assert not [path for path in tmp_path.rglob('*') if path.is_file()]


def test_a_full_standard_output_is_named():
    with Path('/dev/full').open('w') as sink:
        command = [sys.executable, '-m', 'simpar', 'profiles']
        done = subprocess.run(command, stdout=sink, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, 'simpar: standard output: No space left on device\n')


def test_a_write_makes_its_folder_and_names_the_file_where_it_cannot(tmp_path):
    write_atomically(tmp_path / 'there' / 'file', 'new')
    path = tmp_path / 'there' / 'file' / 'below'
    with pytest.raises(NotADirectoryError) as error:
        write_atomically(path, 'newer')
    assert error.value.filename == str(path)
    assert (tmp_path / 'there' / 'file').read_text(encoding='utf-8') == 'new'


# nothing is left behind


def left_in(folder, seconds=5.0):
    """What is in a folder, once nothing is or some seconds have passed."""
    until = time.perf_counter() + seconds
    while (found := sorted(path.name for path in folder.iterdir())) and time.perf_counter() < until:
        time.sleep(0.05)
    return found


def test_folders_go_with_a_process_that_is_killed(tmp_path):
    script = (
        'import os, signal, tempfile; from pathlib import Path; from simpar.files import remove_at_the_end\n'
        'for _ in range(2):\n'
        '    folder = Path(tempfile.mkdtemp(prefix="two words ", dir=os.environ["TMPDIR"]))\n'
        '    remove_at_the_end(folder); (folder / "file").write_text("x")\n'
        'os.killpg(0, signal.SIGKILL)'
    )
    command = [sys.executable, '-c', script]
    done = subprocess.run(command, env={**os.environ, 'TMPDIR': str(tmp_path)}, start_new_session=True, check=False)
    assert done.returncode == -signal.SIGKILL
    assert left_in(tmp_path) == []


def test_nothing_is_left_where_measuring_is_killed(tmp_path, put):
    """Neither folders nor processes: the executor ends with the command that has started it."""
    job = put(
        'job.yaml',
        'simpar: 1\ncluster: {profile: cpu-gloo, devices: 2}\n'
        'workload: {network: [dense: {in: 64, out: 64}], loss: mse, batch: 64}\nplan: {tensor: 2}\n',
    )
    folder = tmp_path / 'temporary'
    folder.mkdir()
    command = [sys.executable, '-m', 'simpar', 'measure', str(job), '--net', 'paced:10kbit', '--timeout', '300s']
    process = subprocess.Popen(command, env={**os.environ, 'TMPDIR': str(folder)}, stderr=subprocess.DEVNULL)
    until = time.perf_counter() + 60
    # The ranks are there, and at work.
    while not any(path.read_bytes().strip(b'\0') for path in folder.glob('simpar-*/status')):
        assert time.perf_counter() < until
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert left_in(folder, 15) == []
    assert not processes_with(str(folder))


def processes_with(text):
    """Processes whose environment holds a text, but for those that have just ended."""
    until = time.perf_counter() + 30
    while time.perf_counter() < until:
        found = []
        for process in Path('/proc').glob('[0-9]*'):
            try:
                if text.encode() in (process / 'environ').read_bytes():
                    found.append(process.name)
            except OSError:  # noqa: PERF203  it has just ended, or is not ours
                continue
        if not found:
            return []
        time.sleep(0.05)
    return found
