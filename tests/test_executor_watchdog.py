"""Who is named when a run stands still or a rank dies, told from what streams said last."""

import signal

import pytest
from worked import worked_program

from executor.watchdog import RUNNING, THROUGH, WAITING, Beat, Failure, Status, death, explain

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


def explained(program, status, dead=None, failures=()):
    first, *table = explain(program, status, dead or {}, list(failures), 5.0).splitlines()
    return first, '\n'.join(table)


def test_a_rank_that_computes_for_ever_is_named_and_who_waits_for_it(program):
    status = status_of(
        (0, COMPUTE, 4, WAITING, 8), (0, TP, 2, RUNNING, RB0),
        (1, COMPUTE, 2, RUNNING, FB0), (1, TP, 2, WAITING, RB0),
    )  # fmt: skip
    first, table = explained(program, status)
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
    status = status_of(
        (0, COMPUTE, 2, WAITING, FB0), (0, TP, 0, RUNNING, RA0),
        (1, COMPUTE, 2, WAITING, FB0), (1, TP, 0, RUNNING, RA0),
    )  # fmt: skip
    first, _ = explained(program, status)
    assert 'ranks 0, 1 are all in RA.c0 of step 0 (group tp), but the network between them delivers nothing' in first


def test_a_dead_rank_is_named_and_not_those_who_lost_it(program):
    status = status_of(
        (0, COMPUTE, 4, WAITING, 8), (0, TP, 2, RUNNING, RB0),
        (1, COMPUTE, 2, RUNNING, FB0), (1, TP, 2, WAITING, RB0),
    )  # fmt: skip
    lost = Failure(0, 0, RB0, 'Connection closed by peer', lost=True)
    first, table = explained(program, status, {1: death(-signal.SIGKILL, '')}, [lost])
    assert first == (
        'rank 1 was killed by SIGKILL, at FB.c0 of step 0; rank 0 waits for it in RB.c0 of step 0 (group tp)'
    )
    assert 'FB.c0 of step 0 (was killed by SIGKILL)' in table


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


def test_deaths_in_words():
    assert death(-signal.SIGTERM, '') == 'was killed by SIGTERM'
    assert death(3, '') == 'exited with 3'


def test_a_status_outlives_who_wrote_it(tmp_path):
    Status(2, tmp_path / 'status').set(1, COMPUTE, Beat(7, RUNNING, 1, FB0, 99))
    assert Status(2, tmp_path / 'status').get(1, COMPUTE) == Beat(7, RUNNING, 1, FB0, 99)


def test_rows_travel():
    here, there = status_of((1, TP, 3, RUNNING, RB0)), Status(2)
    there.put_row(1, here.row(1))
    assert there.get(1, TP) == here.get(1, TP)
    assert there.finished() == 3
    there.clear()
    assert there.finished() == 0
