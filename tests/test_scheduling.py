"""Emulated runs come before all else on the machine, and what is run after them does not."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from executor.host import NICE, urgently

pytestmark = pytest.mark.skipif(not hasattr(os, 'sched_setscheduler'), reason='only Linux has these policies')


def policies():
    """The policies of this process's threads."""
    return {os.sched_getscheduler(int(task.name)) for task in Path('/proc/self/task').iterdir()}


def may_be_urgent():
    """Whether this user may have real-time priority; a container may withhold the right even from root."""
    return bool(as_of_now('import os; os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1)); print(1)', check=False))


def as_of_now(code, *before, check=True):
    """What a process of its own prints, started as plainly as processes are unless ``before`` says otherwise."""
    # The suite itself may run at another priority.
    here = Path(__file__).parent
    paths = {'PYTHONPATH': os.pathsep.join((str(here), str(here.parent)))}
    asked = [*before, sys.executable, '-c', code]
    found = subprocess.run(asked, capture_output=True, text=True, check=check, env={**os.environ, **paths})
    return found.stdout.split()


STORY = """
import os, threading
from executor.host import NICE, urgently
from test_scheduling import policies
holding = threading.Event()
thread = threading.Thread(target=holding.wait)
thread.start()
print(*policies())
with urgently():
    print(*policies())
    seen = []
    started = threading.Thread(target=lambda: seen.append(os.sched_getscheduler(0)))
    started.start(); started.join()
    print(*seen)
print(*policies())
holding.set()
"""


def test_threads_of_an_emulated_run_are_urgent_and_afterwards_plain_again():
    if os.sched_getscheduler(0) != os.SCHED_OTHER or os.nice(0) != 0:
        with urgently():
            assert policies() == {os.sched_getscheduler(0)}, 'somebody has chosen this priority'
        return
    before, inside, started, after = map(int, as_of_now(STORY))
    assert before == after == os.SCHED_OTHER
    # Where the right is withheld, the policy is the plain one.
    assert inside == started == (os.SCHED_RR if may_be_urgent() else os.SCHED_OTHER)


def test_a_process_that_was_made_nice_stays_so():
    assert as_of_now(STORY, 'nice', '-n', '5') == [str(os.sched_getscheduler(0))] * 4


def test_threads_that_end_meanwhile_are_no_error():
    done = [threading.Thread(target=int) for _ in range(50)]
    for thread in done:
        thread.start()
    with urgently():
        for thread in done:
            thread.join()


COMPUTES = """
import os, threading
from executor.host import NICE, urgently, yield_to_communication
def compute():
    yield_to_communication()
    print(os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
with urgently():
    thread = threading.Thread(target=compute)
    thread.start(); thread.join()
"""


def test_a_thread_that_computes_beside_urgent_ones_is_plain_and_nice():
    """Else it would hold up the very threads that send, which share its core."""
    policy, nice = map(int, as_of_now(COMPUTES))
    assert policy == os.SCHED_OTHER
    assert nice >= NICE
