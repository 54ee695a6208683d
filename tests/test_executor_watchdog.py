"""Who is named when a run stands still or a rank dies, told from what streams said last."""

import os
import signal
import subprocess
import threading
import time

import pytest
from worked import worked_program

from executor.host import Process, this_process
from executor.ranks.watchdog import RUNNING, THROUGH, WAITING, Beat, BusyThreads, Failure, Seen, Status, death, explain

COMPUTE, TP = 0, 1
# slots of the worked program, in issue order
FA0, RA0, FA1, RA1, FB0, RB0, FB1 = range(7)


@pytest.fixture(scope='module')
def program():
    return worked_program()


def status_of(*beats):
    """A status where (rank, stream, finished, state, slot) are at step 0."""
    status = Status(2)
    for rank, stream, finished, state, slot in beats:
        status.set(rank, stream, Beat(finished, state, 0, slot, 0))
    return status


BOTH_SEND = (
    (0, COMPUTE, 2, WAITING, FB0), (0, TP, 0, RUNNING, RA0),
    (1, COMPUTE, 2, WAITING, FB0), (1, TP, 0, RUNNING, RA0),
)  # fmt: skip
ONE_COMPUTES = (
    (0, COMPUTE, 4, WAITING, 8), (0, TP, 2, RUNNING, RB0),
    (1, COMPUTE, 2, RUNNING, FB0), (1, TP, 2, WAITING, RB0),
)  # fmt: skip
"""Two ranks in the same collective; and one in a collective that the other has not come to, as it computes."""


def explained(program, status, dead=None, failures=(), stopped=(), busy=None):
    seen = Seen(dead or {}, frozenset(stopped), busy or {})
    first, *table = explain(program, status, seen, list(failures), 5.0).splitlines()
    return first, '\n'.join(table)


def test_a_rank_that_computes_for_ever_is_named_and_who_waits_for_it(program):
    first, table = explained(program, status_of(*ONE_COMPUTES))
    assert first == (
        'nothing has finished for 5 s: rank 1 is stuck in FB.c0 of step 0 (stream compute); '
        'rank 0 waits for it in RB.c0 of step 0 (group tp)'
    )
    assert '1    | compute | FA.c1 of step 0 | FB.c0 of step 0' in table
    assert '0    | tp      | RA.c1 of step 0 | RB.c0 of step 0        | tp: ranks 1' in table


def test_a_rank_that_does_not_begin_what_it_could_is_named(program):
    """RB.0 of rank 1 has all that it needs, and does not run."""
    status = status_of(
        (0, COMPUTE, 4, WAITING, 8), (0, TP, 2, RUNNING, RB0),
        (1, COMPUTE, 4, WAITING, 8), (1, TP, 2, WAITING, RB0),
    )  # fmt: skip
    first, _ = explained(program, status)
    assert 'rank 1 is stuck before RB.c0 of step 0 (stream tp); rank 0 waits for it' in first


def test_a_network_that_delivers_nothing_is_named(program):
    first, _ = explained(program, status_of(*BOTH_SEND))
    assert 'ranks 0, 1 are all in RA.c0 of step 0 (group tp), but the network between them delivers nothing' in first


def test_a_dead_rank_is_named_and_not_those_who_lost_it(program):
    lost = Failure(0, 0, RB0, 'Connection closed by peer', lost=True)
    first, table = explained(program, status_of(*ONE_COMPUTES), {1: death(-signal.SIGKILL, '')}, [lost])
    assert first == (
        'rank 1 was killed by SIGKILL, at FB.c0 of step 0; rank 0 waits for it in RB.c0 of step 0 (group tp)'
    )
    assert 'FB.c0 of step 0 (was killed by SIGKILL)' in table


def test_a_stopped_rank_is_named_and_not_the_network(program):
    lost = Failure(0, 0, RA0, 'Timed out', lost=True)
    first, table = explained(program, status_of(*BOTH_SEND), failures=[lost], stopped=[1])
    assert first.startswith(
        'rank 1 is stopped (by SIGSTOP, the terminal or a debugger; SIGCONT lets it go on), at RA.c0'
    )
    assert 'rank 0 waits for it in RA.c0 of step 0 (group tp)' in first
    assert '1    | tp      | nothing         | RA.c0 of step 0 (stopped)' in table


def test_a_thread_that_spins_in_a_collective_is_named_and_not_the_network(program):
    first, _ = explained(program, status_of(*BOTH_SEND), busy={(1, TP): 0.97})
    assert first == (
        'nothing has finished for 5 s: rank 1 is stuck in RA.c0 of step 0 (stream tp), where its thread spins or '
        'computes (97% of a core); rank 0 waits for it in RA.c0 of step 0 (group tp)'
    )


def test_busy_threads_are_told_from_those_that_wait():
    status = Status(2)
    done, threads = threading.Event(), {}

    def spin():
        threads['spins'] = threading.get_native_id()
        while not done.is_set():
            pass

    def wait():
        threads['waits'] = threading.get_native_id()
        done.wait()

    for body in (spin, wait):
        threading.Thread(target=body, daemon=True).start()
    while len(threads) < 2:
        time.sleep(0.01)
    status.set(0, COMPUTE, Beat(0, RUNNING, 0, FA0, 0, threads['spins']))
    status.set(1, TP, Beat(0, RUNNING, 0, RA0, 0, threads['waits']))
    busy = BusyThreads(status, dict.fromkeys((0, 1), os.getpid()))
    time.sleep(0.3)
    found = busy.found()
    done.set()
    assert found.keys() == {(0, COMPUTE)}


def test_the_state_of_a_process_is_told():
    process = subprocess.Popen(['sleep', '60'])
    child = Process(this_process().host, process.pid)
    assert child.state == this_process().state == 'alive'
    process.send_signal(signal.SIGSTOP)
    until = time.perf_counter() + 5
    while child.state != 'stopped' and time.perf_counter() < until:
        time.sleep(0.01)
    assert child.state == 'stopped'
    process.kill()
    process.wait()
    assert child.state == 'gone'
    assert Process('another host', process.pid).state == 'unknown'


def test_an_abort_of_gloos_is_a_size_mismatch(program):
    status = status_of(
        (0, COMPUTE, 2, RUNNING, FB0), (0, TP, 0, RUNNING, RA0),
        (1, COMPUTE, 2, RUNNING, FB0), (1, TP, 0, RUNNING, RA0),
    )  # fmt: skip
    how = death(-signal.SIGABRT, "terminate called after throwing 'gloo::EnforceNotMet'")
    first, _ = explained(program, status, {0: how})
    assert first.startswith('rank 0 was aborted by gloo: size mismatch')
    assert ', at RA.c0 of step 0; rank 1 waits for it' in first


def test_an_error_in_an_op_is_named_before_those_who_lost_the_rank(program):
    status = status_of((0, COMPUTE, 2, RUNNING, FB0), (0, TP, 0, THROUGH, 0), (1, TP, 0, RUNNING, RA0))
    failures = [Failure(1, 0, RA0, 'Connection closed', lost=True), Failure(0, 0, FB0, 'ValueError: no kernel')]
    first, _ = explained(program, status, {}, failures)
    assert first == 'rank 0 failed in FB.c0 of step 0: ValueError: no kernel'


def test_where_only_peers_were_lost_they_are_named(program):
    status = status_of((0, TP, 0, RUNNING, RA0), (1, TP, 0, RUNNING, RA0))
    first, _ = explained(program, status, {}, [Failure(0, 0, RA0, 'Connection closed', lost=True)])
    assert first == 'rank 0 failed in RA.c0 of step 0 with ranks 1 (group tp): Connection closed'


def test_a_status_outlives_who_wrote_it(tmp_path):
    Status(2, tmp_path / 'status').set(1, COMPUTE, Beat(7, RUNNING, 1, FB0, 99))
    assert Status(2, tmp_path / 'status').get(1, COMPUTE) == Beat(7, RUNNING, 1, FB0, 99)
