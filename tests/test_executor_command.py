"""``python -m executor``: on ranks of its own, and as one rank among those that somebody else has started."""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from at_once import at_once
from tables import load_table, load_tree

from executor.commands import run_job
from executor.options import check_outputs, parser, with_verb
from simpar.case import load_case
from simpar.errors import Infeasible, RunFailed, ScheduleError, SimparError
from simpar.trace_files import load_trace

HERE = Path(__file__).parent


def start(*arguments, fault='', **variables):
    """``python -m executor``, begun; or as one of whose ops goes wrong."""
    module = ('equipment.faults', fault) if fault else ('executor',)
    return subprocess.Popen(
        [sys.executable, '-m', *module, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, 'PYTHONPATH': str(HERE), **variables},
    )


class Written:
    """In place of TensorBoard's writer, which may not be installed: what it is given."""

    def __init__(self, folder):
        self.name, self.rows = Path(folder).name, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        Written.all[self.name] = self.rows

    def add_scalar(self, tag, value, step):
        self.rows.append((tag, step, value))


def test_predicted_and_measured_steps_are_in_one_chart_of_tensorboard(job, tmp_path, monkeypatch):
    folder = str(tmp_path / 'logs')
    run = parser().parse_args(['run', str(job), '--steps', '4', '--tensorboard', folder])
    monkeypatch.setattr('executor.commands.find_spec', lambda _: None)
    with pytest.raises(ScheduleError, match='pip install tensorboard'):
        run_job(run)
    monkeypatch.setattr('executor.commands.find_spec', lambda _: True)
    monkeypatch.setitem(sys.modules, 'torch.utils.tensorboard', SimpleNamespace(SummaryWriter=Written))
    monkeypatch.setattr(Written, 'all', {}, raising=False)
    assert run_job(run) == 0
    steps = {name: [row for row in rows if row[0] == 'seconds of a step'] for name, rows in Written.all.items()}
    assert [step for _, step, _ in steps['predicted']] == [step for _, step, _ in steps['measured']] == [0, 1, 2, 3]
    predicted = load_case(job).predict().step
    assert [seconds for *_, seconds in steps['predicted'][2:]] == [predicted, predicted]
    assert all(seconds > 0 for *_, seconds in steps['measured'])
    assert [step for tag, step, _ in Written.all['measured'] if tag == 'loss'] == [0, 1, 2, 3]


def finished(process, seconds=60):
    """Its exit code, and what it wrote."""
    out, error = process.communicate(timeout=seconds)
    return process.returncode, out, error


def free_port():
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return probe.getsockname()[1]


def ranks(job, *arguments, fault=''):
    """Two ranks, begun as a launcher begins them."""
    where = {'WORLD_SIZE': '2', 'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': str(free_port())}
    return [start(job, *arguments, fault=fault, RANK=str(rank), **where) for rank in (0, 1)]


def in_process(job, steps=2):
    """The losses of the in-process machine."""
    from executor.inprocess import InProcess

    return InProcess(load_case(job).program, seed=0, dtype=None).run(steps).losses


# the command line


def test_a_job_without_a_verb_is_run():
    assert with_verb(['job.yaml', '--steps', '2']) == ['run', 'job.yaml', '--steps', '2']
    assert with_verb(['numerics', 'job.yaml']) == ['numerics', 'job.yaml']
    assert with_verb([]) == ['--help']


def test_no_time_to_wait_and_what_cannot_be_written_are_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as left:
        parser().parse_args(['run', 'job.yaml', '--timeout', '0s'])
    assert left.value.code == 2
    assert '--timeout: nothing can be waited for in no time; write e.g. 30s' in capsys.readouterr().err
    options = parser().parse_args(['run', 'job.yaml', '--save', str(tmp_path), '--checkpoint', str(tmp_path / 'new')])
    with pytest.raises(ScheduleError, match=r'^--save: a folder, not a file'):
        check_outputs(options, 'run')


def test_without_torch_one_line_says_what_to_install():
    script = "import sys; sys.modules['torch'] = None; from executor.__main__ import main; sys.exit(main(['job.yaml']))"
    done = subprocess.run([sys.executable, '-c', script], capture_output=True, text=True, check=False)
    assert done.returncode == 5
    assert done.stderr == 'torch is not installed; install the extra: pip install "simpar-parallel[torch]"\n'


# ranks of its own


def test_a_job_runs_on_ranks_of_its_own(job, tmp_path):
    saved = tmp_path / 'trace.json'
    code, out, error = finished(start(job, '--steps', 2, '--json', '--save', saved))
    assert (code, error.count('\n')) == (0, 1)
    assert error.startswith('executor: 2 ranks on this machine; program ')
    facts = json.loads(out)
    assert facts['origin'] == 'measured'
    assert len(facts['step_times']) == len(facts['losses']) == 2
    assert facts['losses'] == pytest.approx(in_process(job), rel=1e-6)
    saved = load_trace(saved)
    assert saved.program == facts['program']
    assert saved.step_times.tolist() == pytest.approx(facts['step_times'])


def test_a_run_that_is_terminated_leaves_no_process(tmp_path):
    costs = 'worked:worked_costs'
    process = start(
        'worked:worked_program', '--compute', 'emulated', '--costs', costs, '--timeout', '60s', TMPDIR=str(tmp_path)
    )
    folder = _folder(tmp_path)
    process.send_signal(signal.SIGTERM)
    assert finished(process)[0] == 143
    assert not folder.exists()
    until = time.perf_counter() + 5
    while (left := _processes_with(str(tmp_path))) and time.perf_counter() < until:
        time.sleep(0.05)
    assert not left


def _folder(parent):
    """The folder of a pool, once its ranks are at work in it."""
    until = time.perf_counter() + 120
    while time.perf_counter() < until:
        for folder in parent.glob('simpar-*'):
            if (folder / 'status').exists() and any((folder / 'status').read_bytes()):
                return folder
        time.sleep(0.05)
    raise AssertionError('no rank came to work')


def _processes_with(text):
    """Processes whose environment holds a text."""
    found = []
    for process in Path('/proc').glob('[0-9]*'):
        try:
            if text.encode() in (process / 'environ').read_bytes():
                found.append(process.name)
        except OSError:  # noqa: PERF203  it has just ended, or is not ours
            continue
    return found


# somebody else's ranks


def shaken(job, *flags):
    """What each of two threads, as ranks whose commands differ by some flags, is told; and after how many seconds."""
    import torch.distributed as dist

    from executor.cluster import Launch, meeting
    from executor.commands import load_job, request_of

    store, found, begin = dist.HashStore(), {}, time.perf_counter()

    def meet(rank, more):
        options = parser().parse_args(['run', str(job), *more])
        try:
            loaded = load_job(options)
            wanted = meeting.asked(loaded.program, request_of(options, loaded), options.net)
            found[rank] = meeting.shake_hands(store, Launch('a test', rank, 2, 'localhost', 0), wanted)
        except RunFailed as error:
            found[rank] = str(error)
        except SimparError as error:
            meeting.refuse(store, rank, 2, str(error))

    at_once(partial(meet, 0, ()), partial(meet, 1, flags))
    return found, time.perf_counter() - begin


@pytest.mark.parametrize(
    ('flags', 'what'),
    load_table(__file__, 'test_every_difference_is_named_at_once'),
    ids=lambda value: value[0] if isinstance(value, tuple) else '',
)
def test_every_difference_is_named_at_once(job, flags, what):
    """Other seeds once trained silently wrong, and other numbers of steps hung."""
    found, seconds = shaken(job, *flags)
    assert found[0] == found[1]
    assert found[0].startswith(f'rank 1 was asked for another run than rank 0: {what}')
    assert seconds < 5


def test_a_rank_that_will_not_run_is_not_waited_for(job):
    found, seconds = shaken(job, '--set', 'plan.copies=many')
    assert found[0].startswith('rank 1 will not run: ')
    assert 'plan.copies' in found[0]
    assert seconds < 15


def test_ranks_that_agree_go_on(job):
    found, _ = shaken(job, '--timeout', '5s')
    assert [card.process.pid for card in found[0]] == [os.getpid()] * 2


def test_data_of_another_content_are_a_difference(job, tmp_path, monkeypatch):
    """Equal files at other paths are none."""
    from executor import data

    for folder, first in (('one', 7), ('same', 7), ('other', 8)):
        (tmp_path / folder).mkdir()
        pixels = bytes([first, *range(1, 9)] * 2)
        (tmp_path / folder / data.IMAGES).write_bytes(struct.pack('>4I', 0x803, 2, 3, 3) + pixels)
        (tmp_path / folder / data.LABELS).write_bytes(struct.pack('>2I', 0x801, 2) + bytes([1, 2]))
    found = {folder: data.identity(str(tmp_path / folder)) for folder in ('one', 'same', 'other', '.')}
    assert found['one'] == found['same'] != found['other']
    assert found['.'] == 'generated images'


def test_a_rank_that_is_killed_is_named_by_the_others(job):
    first, second = ranks(job, '--timeout', '2s', fault='kill:1:dense1.F.c0:1')
    code, _, error = finished(first)
    assert code == 5
    assert 'rank 1 was killed, or has ended without a word' in error
    assert 'rank 0 waits for it in dense1.all_reduce.F.c0 of step 1 (group tensor)' in error
    assert finished(second)[0] == -signal.SIGKILL


def test_a_stopped_rank_0_is_named_soon_although_it_serves_the_store(job):
    first, second = ranks(job, '--timeout', '2s', fault='stop:0:dense1.F.c0:1')
    begin = time.perf_counter()
    code, _, error = finished(second)
    first.kill()
    assert code == 5
    assert 'rank 0 is stopped (by SIGSTOP' in error
    assert time.perf_counter() - begin < 30
    finished(first)


def test_a_port_that_is_taken_is_named(job, monkeypatch, capsys):
    from executor.__main__ import main

    with socket.socket() as taken:
        taken.bind(('127.0.0.1', 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        where = {'RANK': '0', 'WORLD_SIZE': '2', 'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': port}
        for name, value in where.items():
            monkeypatch.setenv(name, value)
        assert main([str(job)]) == 5
    assert capsys.readouterr().err.splitlines()[-1] == f'rank 0: port {port} is taken; choose another by MASTER_PORT'


@pytest.mark.parametrize(
    ('flags', 'world', 'what'), load_tree(__file__, 'test_a_launch_that_does_not_fit_the_job_is_refused')
)
def test_a_launch_that_does_not_fit_the_job_is_refused(job, monkeypatch, flags, world, what):
    from executor.commands import run_job as command

    for name, value in {'RANK': '0', 'WORLD_SIZE': world, 'MASTER_ADDR': '127.0.0.1'}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RunFailed, match=what):
        command(parser().parse_args(['run', str(job), *flags]))


def test_more_ranks_than_there_is_memory_for_are_not_started(job, monkeypatch):
    monkeypatch.setattr('executor.commands.free_memory', lambda: 10**8)
    with pytest.raises(Infeasible, match='2 ranks on this machine take at least 140'):
        run_job(parser().parse_args(['run', str(job)]))


def test_clocks_of_ranks_on_other_hosts_are_aligned_by_pings(monkeypatch):
    """Two ranks that believe to be on two hosts, but have one clock: nothing is left to align."""
    dist = pytest.importorskip('torch.distributed', reason='needs the extra torch')
    from executor.cluster import external as meeting

    store, found = dist.HashStore(), {}
    hosts = threading.local()
    monkeypatch.setattr(meeting, 'host_identity', lambda: hosts.name)

    def meet(rank):
        hosts.name = f'host{rank}'
        found[rank] = meeting.common_clock(store, rank, 2)

    at_once(partial(meet, 0), partial(meet, 1))
    assert found[0][0].offset == 0.0
    assert abs(found[1][0].offset) < 0.01
    assert found[0][1] == found[1][1] == ('clocks of 1 ranks on other hosts were aligned by pings',)
