"""The bench among ranks that a launcher has started, on devices, over hosts, and again after it broke."""

import itertools
import json
import subprocess
import sys

import numpy as np
import pytest
from every import EVERY
from rank_jobs import launched

from executor.bench.bench import bench
from executor.bench.items import LEAST, TINY, look_at
from executor.bench.kinds import Messages, crossing, kinds
from executor.bench.kinds import program_of as messages_of
from executor.bench.ranks import HEAD, Journal, Timed, _per_host
from executor.bench.rounds import DEVICE_STEPS, DEVICE_WARM_UP, WARM_UP, Reporter
from executor.cluster.meeting import Place
from executor.host import Host
from executor.state import figures
from executor.validate import validate
from simpar.calibrate import calibrate, load_record, write_profile
from simpar.errors import RunFailed, ScheduleError
from simpar.hardware.net import Net
from simpar.profiles import load_profile, load_stack
from simpar.trace import RankTimes, Trace


def test_ranks_of_a_launcher_write_one_profile(tmp_path):
    """torchrun itself starts ranks in ``test_placement``, and those of a bench in `make prove NAME=every`."""
    flags = ['--sizes', 'least', '--profile', str(tmp_path / 'mine.yaml'), '--output', str(tmp_path / 'record.json')]
    if EVERY == 1:
        torchrun = [sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc-per-node', '2', '-m']
        assert subprocess.run([*torchrun, 'executor.bench', *flags], timeout=100, check=False).returncode == 0
    else:
        assert launched('executor.bench.__main__', flags, 2) == [0, 0]
    assert not (tmp_path / 'mine.yaml.journal').exists()
    assert load_profile(tmp_path / 'mine.yaml').devices == 2
    record = load_record(tmp_path / 'record.json')
    assert (record.ranks, record.hosts) == (2, 1)
    phases = {(row.operator, row.phase) for row in record.tables.operator}
    assert {('norm', 'F'), ('norm', 'I'), ('adam', 'U')} <= phases
    assert {row.phase for row in record.tables.matmul} == {'F', 'I', 'W'}
    assert {row.operator for row in record.tables.collective} > {'all_to_all', 'send_recv', 'send'}


def test_virtual_accelerators_also_tell_launches_the_clock_under_load_and_the_way_to_the_host(tmp_path, monkeypatch):
    monkeypatch.setattr('executor.bench.rounds.MANY', (8, 40))
    record = bench(2, Net(), LEAST, Reporter(), on=look_at('virtual', 'gloo', ''))
    assert {row['seconds']['n'] for row in record['copies']} == {2 * (DEVICE_STEPS + DEVICE_WARM_UP - WARM_UP)}
    # What was measured gives way to copies at 50 GB/s behind 10 us.
    for row in record['copies']:
        row['seconds'] = figures([1e-5 + row['bytes'] / 50e9])
    (tmp_path / 'record.json').write_text(json.dumps(record))
    write_profile(tmp_path / 'mine.yaml', calibrate(load_record(tmp_path / 'record.json')))
    profile = load_profile(tmp_path / 'mine.yaml')
    assert {(row['mode'], row['phase']) for row in record['launches']} == {*itertools.product(('eager', 'graph'), 'FI')}
    # Eagerly, each op is issued by itself, in milliseconds where Python stands in; from a graph, none is.
    assert 0.5 > profile.host.issue['eager'].value > profile.host.issue['graph'].value > 0
    assert 0 < profile.device.sustained.value <= 1
    link = profile.host_link
    assert (link.bandwidth.value, link.latency.value) == (pytest.approx(50e9, rel=0.01), pytest.approx(1e-5, rel=0.01))
    stack = load_stack(str(tmp_path / 'mine.stack.yaml'))
    assert stack.host.forward.value > 0
    assert any('simulation in Python' in note for note in record['notes'])


# hosts


def test_messages_are_measured_inside_a_host_and_across_hosts():
    """Six ranks on three hosts: pairs of a host, all, and one rank of each host, which communicate alone."""
    found = {(kind.operator, kind.ranks, kind.hosts): kind for kind in kinds(6, TINY.messages, Net(), 1.0, 2)}
    assert {key[1:] for key in found if key[0] == 'all_reduce'} == {(2, 1), (6, 3), (3, 3)}
    assert found['all_reduce', 3, 3].talking(6) == [[0, 2, 4]]
    assert found['all_reduce', 2, 1].talking(6) == [[0, 1], [2, 3], [4, 5]]
    assert found['send', 2, 1].talking(6) == [[0, 1]]
    assert found['send', 3, 3].talking(6) == [[0, 2]]
    alone, together = crossing(6, 1000, 2)
    assert (alone.talking(6), together.talking(6)) == ([[0, 2, 4]], [[0, 2, 4], [1, 3, 5]])
    for kind in (*found.values(), alone, together):
        validate(messages_of(kind, 6, computes=False))


def test_hosts_with_unlike_numbers_of_ranks_are_refused():
    host = Host('node0', 4, 0)
    assert _per_host([Place(host, (0, 1), (0, 1)), Place(host, (2, 3), (2, 3))]) == 2
    with pytest.raises(
        RunFailed, match=r'unlike numbers of ranks \(2 on node0 \(ranks 0, 1\), 1 on node0 \(rank 2\)\)'
    ):
        _per_host([Place(host, (0, 1), (0, 1)), Place(host, (2,), (2,))])
    with pytest.raises(RunFailed, match='number the ranks host by host'):
        _per_host([Place(host, (0, 2), (0, 2)), Place(host, (1, 3), (1, 3))])


# again after it broke


class Timer:
    """Ranks whose messages take longer each time, so that no two runs are equal; they break after some runs."""

    world, net, notes = 2, Net(), ()

    def __init__(self, lasts):
        self.lasts, self.runs = lasts, 0

    def timed(self, program, steps, costs=None, issue='eager'):
        if self.runs == self.lasts:
            raise RunFailed('a host was lost')
        self.runs += 1
        shape = (steps, len(program.roles[0]))
        end = self.runs + np.arange(np.prod(shape), dtype=float).reshape(shape)
        times = tuple(RankTimes(rank, end - 1, end - 1, end) for rank in range(2))
        return Timed(Trace(program, 'measured', times, np.arange(2, dtype=np.int32)), *np.ones((2, 2, *shape)))


def measured(timer, rounds=4):
    messages = Messages(timer, [kind for kind in kinds(2, (1024,), Net(), 1.0) if kind.operator == 'all_gather'], None)
    for _ in range(rounds):
        messages.round(2, 1)
    return messages.found[0][1024].wall


def test_a_bench_goes_on_behind_the_runs_that_it_has(tmp_path):
    folder, of = tmp_path / 'journal', {'ranks': '2'}
    with pytest.raises(RunFailed, match='lost'):
        measured(Journal(folder, of).over(Timer(3)))
    again, rest = Journal(folder, of), Timer(9)
    assert again.kept == 3
    rest.runs = 3
    assert measured(again.over(rest)) == measured(Timer(9))
    assert rest.runs == 4
    assert 'the first 3 runs are of an earlier start' in again.notes[0]


def test_a_run_that_is_not_whole_or_of_something_else_is_measured_again(tmp_path):
    folder = tmp_path / 'journal'
    measured(Journal(folder, {}).over(Timer(9)))
    file = folder / '00002.npz'
    file.write_bytes(file.read_bytes()[:-100])
    again, rest = Journal(folder, {}), Timer(9)
    measured(again.over(rest))
    # Those behind it may rest on what it said.
    assert (again.kept, rest.runs) == (2, 2)


def test_a_journal_of_another_bench_is_refused(tmp_path):
    folder = tmp_path / 'journal'
    Journal(folder, {'ranks': '2', 'seed': '0'})
    with pytest.raises(ScheduleError, match=r'another bench: ranks \(2, now 4\); delete the folder'):
        Journal(folder, {'ranks': '4', 'seed': '0'})
    (folder / HEAD).write_text('{')
    with pytest.raises(ScheduleError, match='no head of a journal'):
        Journal(folder, {})
    (tmp_path / 'file').write_text('')
    with pytest.raises(ScheduleError, match=r'cannot be written: .*; name a folder by --journal'):
        Journal(tmp_path / 'file', {})
