"""A sweep on a Dask cluster of real processes: the same answer, also when a worker is killed in the middle."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from extras import Later
from sweep_cases import NETWORK, run, write

from simpar.errors import RunFailed, ScheduleError
from simpar.planner.plan import load_planning
from simpar.planner.space import KEYS
from simpar.sweep import answer, load_sweep
from simpar.sweep import dask as on_dask
from simpar.sweep import journal as journals
from simpar.sweep.journal import content_key, identity
from simpar.sweep.table import as_csv

distributed = Later('distributed', 'cluster')
SWEEP = f'{{plan.copies: [1, 2, 3], cluster.links.nvlink: {[1 + n / 8 for n in range(10)]}}}'
"""Thirty rows, of which ten cannot be and are not predicted."""
PREDICTED = 20
KILLED_AT = 5


@pytest.fixture(scope='module')
def cluster(tmp_path_factory):
    """A scheduler here and two workers in processes of their own."""
    folder = str(tmp_path_factory.mktemp('dask'))
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=':0', local_directory=folder
    ) as made:
        yield made


def slowly():
    """On a worker: rows take a while from now on."""
    real = answer.predicted

    def slow(schedule, session=None):
        time.sleep(0.05)
        return real(schedule, session)

    answer.predicted = slow


@pytest.mark.parametrize('allowed', [3, 0], ids=['Dask gives it away again', 'Dask gives it up'])
def test_a_worker_that_is_killed_costs_no_finished_row_and_changes_nothing(allowed, cluster, tmp_path, monkeypatch):
    path, journal = write(tmp_path, sweep=SWEEP), tmp_path / 'rows'
    kept, killed, said = [], [], []

    def progress(done, of):
        if done == KILLED_AT:
            kept.extend(journal.read_bytes().splitlines())
            worker = next(iter(cluster.workers.values()))
            killed.append(worker.worker_address)
            os.kill(worker.pid, signal.SIGKILL)

    monkeypatch.setattr(cluster.scheduler, 'allowed_failures', allowed)
    with distributed.Client(cluster, set_as_default=False) as client:
        client.wait_for_workers(2)
        client.run(slowly)
    begin = len(cluster.scheduler.transition_log)
    address = cluster.scheduler_address
    answer = load_sweep(path).predict(None, progress, journal=journal, scheduler=address, note=said.append)
    assert said == [f'worker {killed[0]} of {address} is gone; what it had goes to others']
    plain = load_sweep(path).predict()
    assert answer == plain
    assert as_csv(answer) == as_csv(plain)
    lines = journal.read_bytes().splitlines()
    assert lines[: len(kept)] == kept
    assert len({json.loads(line)['key'] for line in lines[1:]}) == len(lines) - 1 == PREDICTED
    # What the scheduler saw: every row came into being, and none again that had come before the worker died.
    log = list(cluster.scheduler.transition_log)[begin:]
    made = Counter(name for name, before, after, *_ in log if (before, after) == ('processing', 'memory'))
    assert len(made) == PREDICTED
    schedules = [row.schedule for row in load_sweep(path).rows if not row.problems]
    place_of = {content_key(identity(schedule), schedule): place for place, schedule in enumerate(schedules)}
    finished = {place_of[json.loads(line)['key']] for line in kept[1:]}
    assert len(finished) == KILLED_AT
    assert {count for name, count in made.items() if int(name[-6:]) in finished} == {1}
    # Something was under way on the worker that died, and was given away again.
    assert any(before == 'processing' and after != 'memory' for _, before, after, *_ in log)


def test_a_search_whose_worker_is_killed_finds_the_same_plan(cluster, monkeypatch):
    real, killed, said, scheduler = on_dask.on_scheduler, [], [], cluster.scheduler

    def killing(schedules, address, note):
        for row in real(schedules, address, note):
            # Of one that has nothing to do nobody would notice the end.
            working = {one.address for one in scheduler.workers.values() if one.processing}
            busy = [one for one in cluster.workers.values() if one.worker_address in working]
            if busy and not killed:
                killed.append(busy[0].worker_address)
                os.kill(busy[0].pid, signal.SIGKILL)
            yield row

    free = {'copies': '[1, 2, 4]', 'tensor': '[1, 2, 4]'}
    keys = ', '.join(f'plan.{key}: {free.get(key, "fixed")}' for key in KEYS)
    planning = load_planning(NETWORK, [f'planner.keys={{{keys}}}'])
    plain = planning.search(jobs=1)
    with distributed.Client(cluster, set_as_default=False) as client:
        client.wait_for_workers(2)
        client.run(slowly)
    monkeypatch.setattr(on_dask, 'on_scheduler', killing)
    found = planning.search(jobs=1, scheduler=cluster.scheduler_address, note=said.append)
    assert [one.step for one in found.ranking] == [one.step for one in plain.ranking]
    assert found.choice.schedule == plain.choice.schedule
    assert any(killed[0] in text and 'is gone' in text for text in said)


def test_workers_with_another_simpar_or_other_files_are_told(cluster, tmp_path, monkeypatch):
    sweep = load_sweep(write(tmp_path, sweep='{plan.copies: [1, 2]}'))
    with monkeypatch.context() as patched:
        patched.setattr(journals, 'source_content', lambda: 'another')
        with pytest.raises(ScheduleError, match=r'--scheduler: workers of tcp://.* have another simpar than here'):
            sweep.predict(scheduler=cluster.scheduler_address)
    monkeypatch.setattr(journals, 'read_content', lambda *_: 'another')
    with pytest.raises(ScheduleError, match='read another h100-sxm-8 than here; give both the same files'):
        sweep.predict(scheduler=cluster.scheduler_address)


def test_a_scheduler_that_goes_away_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(on_dask, '_TIMEOUT', 2.0)
    path, where, said = write(tmp_path, sweep='{plan.copies: [1, 2]}'), tmp_path / 'where.json', []
    words = ['--port', '0', '--no-dashboard', '--scheduler-file', str(where)]
    with subprocess.Popen(
        [sys.executable, '-m', 'distributed.cli.dask_scheduler', *words], stderr=subprocess.DEVNULL
    ) as scheduler:
        while not (where.exists() and where.stat().st_size):
            time.sleep(0.05)
        address = json.loads(where.read_text(encoding='utf-8'))['address']

        def note(text):
            said.append(text)
            scheduler.kill()

        with pytest.raises(RunFailed, match=f'the scheduler at {address} is gone'):
            load_sweep(path).predict(scheduler=address, note=note)
    start = f'dask worker {address} --nworkers -1 --nthreads 1'
    assert said == [f'{address} has no workers yet; rows wait for some ({start})']


def started(stack, *words):
    """A process of Dask, which ends with the stack."""
    # Workers import this file, whose functions run there.
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get('PYTHONPATH')])])
    process = subprocess.Popen(
        [sys.executable, '-m', *words], stderr=subprocess.DEVNULL, env={**os.environ, 'PYTHONPATH': path}
    )
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def test_a_sweep_whose_workers_are_all_gone_says_so_and_goes_on_with_others(tmp_path, monkeypatch):
    monkeypatch.setattr(on_dask, '_LONE', 0.3)
    path, journal, said = write(tmp_path, sweep=SWEEP), tmp_path / 'rows', []
    where = tmp_path / 'where.json'
    with ExitStack() as stack:
        words = ['--port', '0', '--no-dashboard', '--scheduler-file', str(where)]
        started(stack, 'distributed.cli.dask_scheduler', *words)
        while not (where.exists() and where.stat().st_size):
            time.sleep(0.05)
        address = json.loads(where.read_text(encoding='utf-8'))['address']

        def worker():
            options = ['--no-nanny', '--nthreads', '1', '--no-dashboard', '--local-directory', str(tmp_path)]
            return started(stack, 'distributed.cli.dask_worker', address, *options)

        first = worker()
        with distributed.Client(address, set_as_default=False) as client:
            client.wait_for_workers(1)
            client.run(slowly)

        def progress(done, of):
            if done == KILLED_AT:
                first.kill()

        def note(text):
            said.append(text)
            # Nothing that was finished is lost meanwhile.
            assert KILLED_AT <= len(journal.read_bytes().splitlines()) - 1 < PREDICTED
            if 'no workers' in text:
                worker()

        answer = load_sweep(path).predict(None, progress, journal=journal, scheduler=address, note=note)
    start = f'dask worker {address} --nworkers -1 --nthreads 1'
    lone, *more = said[1:]
    assert 'is gone; what it had goes to others' in said[0]
    assert (lone, more) == (f'{address} has no workers any more; rows wait for some ({start})', [])
    assert answer == load_sweep(path).predict()


def test_where_no_scheduler_is_that_is_told_soon(cluster, tmp_path, monkeypatch, capsys):
    path = write(tmp_path, sweep='{plan.copies: [1, 2]}')
    monkeypatch.setattr(on_dask, '_TIMEOUT', 0.5)
    with socket.create_server(('127.0.0.1', 0)) as silent, socket.create_server(('127.0.0.1', 0)) as closed:
        ports = [one.getsockname()[1] for one in (silent, closed)]
        closed.close()
        worker = next(iter(cluster.workers.values())).worker_address
        for address, told in {
            f'tcp://127.0.0.1:{ports[0]}': 'no scheduler of Dask answers at tcp://127.0.0.1:',
            f'tcp://127.0.0.1:{ports[1]}': 'within 0.5 s; write the address that `dask scheduler` tells',
            'nowhere': "answers at nowhere (missing port number in address 'nowhere')",
            'http://a:1': 'answers at http://a:1 (unknown address scheme',
            worker: f'{worker} is no scheduler of Dask, but a Worker; write the address',
        }.items():
            assert run(path, '--scheduler', address) == 2
            said = capsys.readouterr().err
            assert said.startswith('--scheduler: ')
            assert told in said
            assert len(said.splitlines()) == 1


def test_without_dask_it_says_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, 'distributed', None)
    assert run(write(tmp_path, sweep='{plan.copies: [1, 2]}'), '--scheduler', 'tcp://127.0.0.1:8786') == 2
    told = '--scheduler: Dask is not installed; install the extra: pip install "simpar-parallel[cluster]"\n'
    assert capsys.readouterr().err == told


def test_messages_of_workers_name_files_as_the_user_wrote_them(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'deep').mkdir()
    write(tmp_path / 'deep', sweep='{plan.order: [1f1b, wrong.csv, lost.csv]}')
    (tmp_path / 'deep' / 'wrong.csv').write_text('0F0,nothing\n', encoding='utf-8')
    fixed = ['plan.pipeline=2', 'plan.micro_batches=2']
    answer = load_sweep('deep/schedule.yaml', fixed).predict(scheduler=cluster.scheduler_address)
    assert answer == load_sweep('deep/schedule.yaml', fixed).predict()
    assert [result.outcome.detail.partition(':')[0] for result in answer.results] == [
        '',
        'deep/wrong.csv',
        'deep/lost.csv',
    ]
