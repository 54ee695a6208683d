"""What a rank asks of its host: a clock that ranks share, cores and memory, states of processes, who goes first."""

import os
import platform
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

BOOT_ID: Final = Path('/proc/sys/kernel/random/boot_id')
TIMER_SLACK: Final = Path('/proc/self/timerslack_ns')


class Clock:
    """Seconds that all ranks of a run share.

    Arguments: ``offset``, seconds to add to this host's monotonic clock; ranks of one host share that clock, so 0.
    """

    __slots__ = ('offset',)

    def __init__(self, offset: float = 0.0) -> None:
        self.offset = offset

    def now(self) -> float:
        """Seconds since an origin that all ranks share."""
        return time.perf_counter() + self.offset

    def sleep_until(self, moment: float) -> None:
        """Return at ``moment``, or at once if it has passed."""
        # ``sleep`` may return early on some systems.
        while (left := moment - self.now()) > 0:
            time.sleep(left)

    def condition(self) -> threading.Condition:
        """A condition on which threads wait by this clock, see ``wait``."""
        return threading.Condition()

    def wait(self, changed: threading.Condition, moment: float) -> None:
        """Wait on a condition, which is held, until ``moment`` at most."""
        changed.wait(max(0.0, moment - self.now()))


def host_identity() -> str:
    """Equal on two ranks if and only if they share a monotonic clock."""
    # Containers of one host have different names but one kernel, and so one monotonic clock.
    return BOOT_ID.read_text().strip() if BOOT_ID.exists() else platform.node()


def sharpen_sleep() -> None:
    """Ask the kernel to wake the main thread, and threads that it starts, within 1 µs, not 50 (Linux)."""
    # The default slack of 50 us is as long as the ops that are emulated.
    with suppress(OSError):
        TIMER_SLACK.write_text('1000')


def offset_by_ping(ping: Callable[[], tuple[float, float, float]], rounds: int = 16) -> tuple[float, float]:
    """Seconds to add to this clock to get the other's, and how far off that may be.

    Arguments: ``ping`` gives (sent by this clock, stamped by the other, received by this clock). The quickest of
    ``rounds`` is taken and its stamp put half way (Cristian 1989), so half its round trip bounds the error.
    """
    # The quickest ping met no queue, so its two ways are the most alike.
    sent, stamped, received = min((ping() for _ in range(rounds)), key=lambda times: times[2] - times[0])
    return stamped - (sent + received) / 2, (received - sent) / 2


# What a rank's host has: cores, free memory and accelerators, as a preflight compares them with what ranks need.

_CGROUP: Final = Path('/sys/fs/cgroup')
_MEMINFO: Final = Path('/proc/meminfo')


@dataclass(frozen=True, slots=True)
class Host:
    """A host, as a rank on it sees it.

    Arguments:
        name: what it calls itself.
        cores: how many this process may use.
        free: bytes of memory that are free for it, 0 where nobody knows.
    """

    name: str
    cores: int
    free: int


def this_host() -> Host:
    """The host of the calling process."""
    # A batch system often gives a job a few of the cores.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1
    return Host(socket.gethostname(), cores, free_memory())


def free_memory(meminfo: Path = _MEMINFO, group: Path | None = None) -> int:
    """Bytes that processes can still take, by the kernel and by the control group; 0 where nobody knows."""
    free = []
    with suppress(OSError, ValueError, StopIteration):
        lines = meminfo.read_text(encoding='utf-8').splitlines()
        free.append(int(next(line for line in lines if line.startswith('MemAvailable:')).split()[1]) * 1024)
    # Containers and batch jobs are ended at their own limit, whatever the host has.
    with suppress(OSError, ValueError):
        folder = _group() if group is None else group
        limit = int((folder / 'memory.max').read_text(encoding='utf-8'))
        free.append(max(0, limit - int((folder / 'memory.current').read_text(encoding='utf-8'))))
    return min(free, default=0)


def _group() -> Path:
    """The folder of this process's control group (version 2)."""
    line = Path('/proc/self/cgroup').read_text(encoding='utf-8').splitlines()[-1]
    return _CGROUP / line.rpartition(':')[2].lstrip('/')


# What the kernel says of a process and its threads: stopped, gone, or busy (Linux; elsewhere nothing is known).

State = Literal['alive', 'stopped', 'gone', 'unknown']
BUSY: Final = 0.2
"""Share of a core from which a thread does not count as waiting."""
BUSY_AMONG_OTHERS: Final = 0.02
"""The same of one that wants the core whenever it is looked at, but shares it with many."""
_STATES: Final[dict[str, State]] = {'T': 'stopped', 't': 'stopped', 'Z': 'gone', 'X': 'gone'}
_PROC: Final = Path('/proc')


@dataclass(frozen=True, slots=True)
class Process:
    """A process, as other processes can find it.

    Arguments:
        host: tells the kernel and the space of process ids that ``pid`` belongs to.
    """

    host: str
    pid: int

    @property
    def state(self) -> State:
        """What it does; unknown from elsewhere than its own host and container."""
        if self.host != _here() or not (_PROC / 'self').exists():
            return 'unknown'
        fields = _fields(_PROC / str(self.pid) / 'stat')
        return _STATES.get(fields[0], 'alive') if fields else 'gone'


def this_process() -> Process:
    """The calling process."""
    return Process(_here(), os.getpid())


def _here() -> str:
    # Containers on one host share the kernel, but not their process ids.
    space = ''
    with suppress(OSError):
        space = os.readlink(_PROC / 'self' / 'ns' / 'pid')
    return f'{host_identity()} {space}'


def cpu_use(pid: int, thread: int) -> tuple[float, bool] | None:
    """Seconds of processor time that a thread has used, and whether it runs or wants to; None where nobody knows."""
    fields = _fields(_PROC / str(pid) / 'task' / str(thread) / 'stat')
    return ((int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK'), fields[0] == 'R') if fields else None


def _fields(path: Path) -> list[str]:
    """The fields of a stat file from the state on; empty where it cannot be read."""
    try:
        # The name of the program comes before, in brackets, and may hold anything.
        return path.read_text(encoding='utf-8', errors='replace').rpartition(')')[2].split()
    except OSError:
        return []


# The C library's memory: a rank keeps what it has freed, so that no step after the first asks the kernel for pages.

KEPT: Final = 'glibc.malloc.arena_max=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=2147483647'
"""One arena: what one thread frees another uses. No mapped blocks and no trimming: nothing goes back."""
PAD: Final = 'glibc.malloc.top_pad=16777216'
"""Bytes by which memory grows at once."""
CHOSEN: Final = ('MALLOC_', 'LD_PRELOAD', 'GLIBC_TUNABLES')
"""How variables begin by which a user has chosen settings or another allocator."""


def memory_variables() -> dict[str, str]:
    """Variables with which a program that is started keeps its memory; none where the user has chosen otherwise."""
    # musl and macOS do not know them, and go on as they do.
    return {} if any(name.startswith(CHOSEN) for name in os.environ) else {'GLIBC_TUNABLES': f'{KEPT}:{PAD}'}


def keep_memory() -> None:
    """Start this process's program anew with these variables, unless it has them: the C library reads them once."""
    if variables := memory_variables():
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **variables})


# Scheduling of a rank's threads where computation and communication want the same few cores.

NICE: Final = 15


def pin(rank: int) -> None:
    """Keep this process on one core of those that it may use."""
    if hasattr(os, 'sched_setaffinity'):
        # Only cores that this process may use: a container often has fewer than the machine.
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})


def yield_to_communication() -> None:
    """Make the calling thread, which computes, nice, whatever started it."""
    if platform.system() == 'Linux':
        _plain(threading.get_native_id(), NICE)


@contextmanager
def urgently() -> Iterator[None]:
    """While entered, threads of this process, and those that they start, come before all else on its cores.

    They get real-time priority where the system grants it (root, CAP_SYS_NICE or a limit of rtprio). A process that
    somebody has made nice, or given another policy, stays as it is.
    """
    if platform.system() != 'Linux' or os.sched_getscheduler(0) != os.SCHED_OTHER or os.nice(0):
        yield
        return
    try:
        for task in _tasks():
            # A thread may have ended since it was listed. Mostly a right is missing; whatever else a kernel may say,
            # no run must fail for it.
            with suppress(OSError):
                os.sched_setscheduler(task, os.SCHED_RR, os.sched_param(1))
        yield
    finally:
        # The next run of this process may compute for real, and would take its cores from all others.
        for task in _tasks():
            _plain(task, 0)


def _tasks() -> list[int]:
    """Threads of this process by the kernel's numbers; gloo has started its own already, and does not tell them."""
    return [int(task.name) for task in Path('/proc/self/task').iterdir()]


def _plain(task: int, nice: int) -> None:
    """The policy that threads have unless somebody decides otherwise."""
    with suppress(OSError):
        os.sched_setscheduler(task, os.SCHED_OTHER, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, task, nice)
