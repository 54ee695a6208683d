"""What becomes of a run that breaks: an error that names rank, op and peer, soon, and nothing is left."""

import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from equipment.faults import Fault, FaultyPool
from worked import worked_costs, worked_program

from executor import netns
from executor.ranks.pool import Pool
from simpar.errors import ProgramError, RunFailed
from simpar.hardware.net import Net

TIMEOUT = 2.0
SOON = 5.0
"""Seconds after the timeout; on a quiet machine it is less than one."""
UNIT = 1 / 128
HERE = Path(__file__).parent


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def gone(pids, seconds=5.0):
    """Whether all processes end within some seconds."""
    until = time.perf_counter() + seconds
    while any(map(alive, pids)) and time.perf_counter() < until:
        time.sleep(0.02)
    return not any(map(alive, pids))


def broken(faults=(), net=None, steps=2, meanwhile=None, timeout=TIMEOUT):
    """The first line of the error of a run, and how long it took to come."""
    program = worked_program()
    with FaultyPool(2, faults, net=net, timeout=timeout) as pool:
        pids = pool.processes
        if meanwhile is not None:
            threading.Timer(0.3, meanwhile, [pool]).start()
        begin = time.perf_counter()
        with pytest.raises(RunFailed) as error:
            pool.run(program, worked_costs(program, unit=UNIT), compute='emulated', steps=steps)
        seconds = time.perf_counter() - begin
    assert gone(pids)
    assert 'rank | stream' in str(error.value)
    return str(error.value).splitlines()[0], seconds


def test_a_killed_rank_is_named_with_its_op_and_its_peer():
    first, seconds = broken([Fault('kill', 1, 'RB.c0', 1)])
    assert first.startswith('rank 1 was killed by SIGKILL, at ')
    assert 'RB.c0 of step 1' in first
    assert 'rank 0 waits for it in RB.c0 of step 1 (group tp)' in first
    assert seconds < SOON


def test_a_rank_killed_from_outside_is_named():
    first, seconds = broken(steps=50, meanwhile=lambda pool: os.kill(pool.processes[0], signal.SIGKILL))
    assert first.startswith('rank 0 was killed by SIGKILL')
    assert seconds < SOON


def test_a_stalled_rank_is_named_with_its_op_and_who_waits():
    first, seconds = broken([Fault('stall', 1, 'FB.c1', 0)])
    assert f'nothing has finished for {TIMEOUT:g} s: rank 1 is stuck before FB.c1 of step 0' in first
    assert 'rank 0 waits for it in RB.c1 of step 0 (group tp)' in first
    assert TIMEOUT < seconds < TIMEOUT + SOON


def test_a_stopped_process_is_found_out():
    first, seconds = broken(steps=200, meanwhile=lambda pool: os.kill(pool.processes[1], signal.SIGSTOP))
    assert first.startswith('rank 1 is stopped (by SIGSTOP')
    assert seconds < TIMEOUT + SOON


def test_a_thread_that_spins_is_named_as_such():
    first, seconds = broken([Fault('spin', 1, 'FB.c1', 0)])
    assert f'nothing has finished for {TIMEOUT:g} s: rank 1 is stuck before FB.c1 of step 0' in first
    assert 'its thread spins or computes' in first
    assert seconds < TIMEOUT + SOON


def test_a_message_of_another_size_is_named_as_such():
    first, seconds = broken([Fault('resize', 0, 'RA.c1', 0)])
    assert 'aborted by gloo: size mismatch' in first
    assert 'RA.c1 of step 0' in first
    assert seconds < TIMEOUT + SOON


def test_a_pool_that_broke_is_closed():
    program = worked_program()
    pool = FaultyPool(2, [Fault('kill', 0, 'FA.c0')], timeout=TIMEOUT)
    with pytest.raises(RunFailed):
        pool.run(program, worked_costs(program, unit=UNIT), compute='emulated')
    with pytest.raises(RunFailed, match='the pool is closed'):
        pool.run(program, worked_costs(program, unit=UNIT), compute='emulated')


def test_collectives_swapped_or_resized_are_refused_before_they_run_and_the_pool_goes_on():
    program = worked_program()
    unfolded = program.unfold()
    copies = unfolded.roles[1].copy.copy()
    copies[[1, 3]] = copies[[3, 1]]
    swapped = unfolded.replace(roles=(unfolded.roles[0], dataclasses.replace(unfolded.roles[1], copy=copies)))
    resized = program.replace(
        op_classes=tuple(dataclasses.replace(op, bytes=op.bytes + 4) for op in program.op_classes)
    )
    columns = unfolded.roles[1].op_class.copy()
    with Pool(2, timeout=TIMEOUT) as pool:
        with pytest.raises(ProgramError, match=r'collective 0 is RA\.c0 .* on rank 0 but RA\.c1'):
            pool.run(swapped, worked_costs(program, unit=UNIT), compute='emulated')
        mixed = unfolded.replace(
            op_classes=(*program.op_classes, *resized.op_classes),
            roles=(
                unfolded.roles[0],
                dataclasses.replace(unfolded.roles[1], op_class=columns + len(program.op_classes)),
            ),
        )
        with pytest.raises(ProgramError, match=r'collective 0 is RA\.c0 .* on rank 0 but RA\.c0'):
            pool.run(mixed, worked_costs(program, unit=UNIT), compute='emulated')
        assert pool.run(program, worked_costs(program, unit=UNIT), compute='emulated', steps=1).trace.steps == 1


def test_a_port_that_is_taken_is_replaced_and_noted():
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', 0))
        taken.listen()
        port = taken.getsockname()[1]
        program = worked_program()
        with Pool(2, timeout=TIMEOUT, port=port) as pool:
            execution = pool.run(program, worked_costs(program, unit=UNIT), compute='emulated', steps=1)
    assert f'port {port} was taken' in execution.notes[0]


def test_a_program_for_more_ranks_than_the_pool_has_is_refused():
    with Pool(1, timeout=TIMEOUT) as pool, pytest.raises(RunFailed, match='for 2 ranks, the pool has 1'):
        pool.run(worked_program(), compute='real')


def orphaning(script, tmp_path):
    """A parent that kills itself; what it leaves in its temporary folder goes with the test's."""
    environment = {**os.environ, 'TMPDIR': str(tmp_path)}
    command = [sys.executable, '-c', script]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_ranks_go_when_their_parent_is_killed(tmp_path):
    script = (
        'from executor.ranks.pool import Pool; import os, signal; pool = Pool(2); '
        'print(*pool.processes, flush=True); os.kill(os.getpid(), signal.SIGKILL)'
    )
    parent = orphaning(script, tmp_path)
    assert parent.returncode == -signal.SIGKILL
    pids = [int(word) for word in parent.stdout.split()]
    assert len(pids) == 2
    assert gone(pids)


# network namespaces


def namespaces():
    """Every network namespace that some process is in."""
    found = set()
    for process in Path('/proc').glob('[0-9]*'):
        with contextlib.suppress(OSError):
            found.add(os.readlink(process / 'ns' / 'net'))
    return found


def interfaces():
    return {line.split(':')[0].strip() for line in Path('/proc/net/dev').read_text().splitlines()[2:]}


@pytest.fixture
def namespace_net():
    """A network of namespaces; afterwards nothing of it is left."""
    if reason := netns.lacking():
        pytest.skip(f'no network namespaces here: {reason}')
    before = namespaces(), interfaces()
    yield Net('netns', 125e6)
    until = time.perf_counter() + 5
    while (namespaces(), interfaces()) != before and time.perf_counter() < until:
        time.sleep(0.05)
    assert (namespaces() <= before[0], interfaces()) == (True, before[1])


@pytest.mark.lab
def test_namespaces_carry_a_program_and_leave_nothing(namespace_net):
    program = worked_program(rows=1024, width=128)
    host = interfaces()
    with Pool(2, net=namespace_net, timeout=10) as pool:
        execution = pool.run(program, worked_costs(program, unit=UNIT), compute='emulated', steps=2)
        assert interfaces() == host, 'nothing of it is in the namespace of this machine'
    (size,) = {op.bytes for op in program.op_classes if op.kind == 'collective'}
    wire = size / namespace_net.payload_rate
    spans = [span for span in execution.trace.spans(0) if span.op.kind == 'collective']
    assert min(span.end - span.start for span in spans) > 0.8 * wire


@pytest.mark.lab
def test_a_cut_link_is_named(namespace_net):
    first, seconds = broken(net=namespace_net, steps=200, meanwhile=lambda pool: pool.cut(1))
    assert 'ranks 0, 1 are all in ' in first
    assert 'delivers nothing' in first
    assert seconds < TIMEOUT + SOON


@pytest.mark.lab
def test_namespaces_go_when_their_parent_is_killed(namespace_net, tmp_path):
    script = (
        'from executor.ranks.pool import Pool; from simpar.hardware.net import Net; import os, signal; '
        'pool = Pool(2, net=Net("netns", 125e6)); print(*pool.processes, flush=True); '
        'os.kill(os.getpid(), signal.SIGKILL)'
    )
    parent = orphaning(script, tmp_path)
    assert gone([int(word) for word in parent.stdout.split()])
    assert parent.stdout


def test_a_machine_without_rights_says_so(monkeypatch):
    monkeypatch.setattr(netns, 'lacking', lambda: 'Operation not permitted')
    with pytest.raises(RunFailed, match='no network namespaces on this machine: Operation not permitted; run it as'):
        Pool(2, net=Net('netns', 125e6))
