"""Rows in processes: neighbours together, the same answer, and nothing lost where one is interrupted or dies."""

import os
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep_cases import run, write

from simpar.commands.common import Progress
from simpar.errors import Infeasible, SimparError
from simpar.sweep import load_sweep
from simpar.sweep import run as running
from simpar.sweep.run import Way, _runs, predict_all

SWEEP = '{plan.copies: [1, 2, 3, 4], cluster.links.nvlink: [1, 0.5, 0.25]}'


@given(rows=st.integers(0, 5000), jobs=st.integers(1, 200))
def test_runs_are_all_rows_in_order_ever_shorter(rows, jobs):
    runs = list(_runs(rows, jobs))
    assert [row for one in runs for row in one] == list(range(rows))
    lengths = [len(one) for one in runs]
    assert lengths == sorted(lengths, reverse=True)
    assert not lengths or lengths[0] <= max(1, rows // jobs)


class Dies:
    """In a process that is given it, the end of that process."""

    def __reduce__(self):
        return os._exit, (9,)


class Breaks:
    """A schedule that no code of simpar expects."""


def schedules(tmp_path):
    return [row.schedule for row in load_sweep(write(tmp_path, sweep=SWEEP)).rows if not row.problems]


def test_a_process_that_dies_is_told(tmp_path):
    with pytest.raises(SimparError, match='one of 2 processes that predict rows died; try fewer --jobs') as caught:
        predict_all([*schedules(tmp_path), Dies()], Way(jobs=2))
    assert caught.value.exit_code == 5
    assert not isinstance(caught.value, Infeasible)


def test_what_died_keeps_what_was_finished(tmp_path, monkeypatch, capsys):
    path, table = write(tmp_path, sweep=SWEEP), tmp_path / 'out.csv'
    real = running.in_processes

    def dying(given, jobs):
        yield from real([*given[:4], Dies()], jobs)

    with monkeypatch.context() as patched:
        patched.setattr(running, 'in_processes', dying)
        assert run(path, '--jobs', 2, '--csv', table) == 5
    said = capsys.readouterr().err
    assert said.startswith('one of 2 processes that predict rows died; try fewer --jobs; ')
    kept = len((tmp_path / 'out.csv.rows').read_bytes().splitlines()) - 1
    assert said.endswith(f'{kept} of 9 rows are kept in {table}.rows; the same command goes on from there\n')


def test_an_error_of_ours_in_a_process_comes_out_here(tmp_path):
    with pytest.raises(TypeError):
        predict_all([*schedules(tmp_path), Breaks()], Way(jobs=2))


@pytest.mark.parametrize(('each', 'rows', 'apart'), [(0.001, 200, 0), (0.1, 10, 0), (0.1, 100, 98), (6.0, 3, 2)])
def test_processes_are_started_where_they_repay(each, rows, apart, monkeypatch):
    now, sent = [0.0], []

    def slow(schedule, session=None):
        now[0] += each
        return schedule

    def elsewhere(given, jobs):
        sent.append((len(given), jobs))
        yield from enumerate(given)

    monkeypatch.setattr(running, 'perf_counter', lambda: now[0])
    monkeypatch.setattr(running, 'predicted', slow)
    monkeypatch.setattr(running, 'in_processes', elsewhere)
    monkeypatch.setattr(running, 'cores', lambda: 4)
    assert predict_all(list(range(rows)), Way(jobs=None)) == list(range(rows))
    assert sent == ([(apart, min(4, apart))] if apart else [])


SLOW = """\
import signal, sys, time
from simpar.sweep import run
real = run.predicted

def slow(schedule, session=None):
    time.sleep(0.15)
    return real(schedule, session)

# Processes import this file, too.
run.predicted = slow
if __name__ == '__main__':
    from simpar.cli import entry
    # What a shell starts in the background begins with interrupts ignored, and so does all that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    entry()
"""


def test_interrupted_or_killed_it_goes_on_with_what_is_missing(tmp_path):
    path = write(tmp_path, sweep=f'{{plan.copies: [1, 2], cluster.links.nvlink: {[1 + n / 8 for n in range(10)]}}}')
    (tmp_path / 'slow.py').write_text(SLOW, encoding='utf-8')
    journal = tmp_path / 'rows'

    def begun(jobs):
        words = ['sweep', path, '--jobs', jobs, '--csv', tmp_path / 'out.csv', '--journal', journal]
        command = [sys.executable, tmp_path / 'slow.py', *words]
        # In a group of its own, as in a terminal: Ctrl-C reaches all its processes.
        return subprocess.Popen(
            list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    def kept():
        return journal.read_bytes().count(b'\n') - 1 if journal.exists() else 0

    def stopped(jobs, after, stop):
        process = begun(jobs)
        while kept() < after and process.poll() is None:
            time.sleep(0.01)
        stop(process.pid)
        _, said = process.communicate(timeout=60)
        _wait_for_the_end_of_group(process.pid)
        return process.returncode, said

    code, said = stopped(2, 4, lambda pid: os.killpg(pid, signal.SIGINT))
    first = kept()
    assert code == 130
    assert said == (
        f'simpar: interrupted; {first} of 20 rows are kept in {journal}; the same command goes on from there\n'
    )
    # Its processes end when they find nobody who takes their rows.
    code, said = stopped(2, first + 4, lambda pid: os.kill(pid, signal.SIGKILL))
    second = kept()
    assert (code, said) == (-signal.SIGKILL, f'Note: {first} rows are finished in {journal}\n')
    assert first < second < 20
    process = begun(1)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, f'Note: {second} rows are finished in {journal}\n')
    # No row twice.
    assert len(set(journal.read_bytes().splitlines()[1:])) == kept() == 20
    assert run(path, '--csv', tmp_path / 'plain.csv') == 0
    assert (tmp_path / 'out.csv').read_bytes() == (tmp_path / 'plain.csv').read_bytes()


def _wait_for_the_end_of_group(group):
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError('processes are left')


def test_interrupted_without_a_journal_it_says_what_would_keep_rows(tmp_path, monkeypatch, capsys):
    def interrupted(schedule, session=None):
        raise KeyboardInterrupt

    path = write(tmp_path, sweep=SWEEP)
    monkeypatch.setattr(running, 'predicted', interrupted)
    assert run(path) == 130
    told = 'no row is kept; with --csv or --journal the same command would go on from the finished ones'
    assert capsys.readouterr().err == f'simpar: interrupted; {told}\n'
    assert run(path, '--csv', tmp_path / 'x.csv') == 130
    assert capsys.readouterr().err == 'simpar: interrupted; no row is finished yet\n'
    assert not list(tmp_path.glob('x*'))


# How long the rest takes


def test_progress_says_how_long_the_rest_takes(capsys, monkeypatch):
    now = [100.0]
    monkeypatch.setattr('simpar.commands.common.monotonic', lambda: now[0])
    monkeypatch.setattr('sys.stderr.isatty', lambda: True)
    monkeypatch.setenv('TERM', 'xterm')
    with Progress() as progress:
        for done in (36, 37, 38, 96):
            progress(done, 96)
            now[0] += 70 / 59
    shown = capsys.readouterr().err
    assert shown == (
        '\r36 of 96 predicted\r37 of 96 predicted, 1 min 10 s left\r38 of 96 predicted, 1 min 9 s left \r\x1b[K'
    )
    assert (progress.done, progress.of) == (96, 96)
