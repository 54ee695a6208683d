"""Scheduling of a rank's threads where computation and communication want the same few cores.

Linux's EEVDF scheduler lets a computing thread finish its slice (about 3 ms) before a message on the same core is dealt
with; what else runs on the machine, down to the kernel's own threads, makes messages wait 1 to 4 ms for a core. Threads
that send therefore run before all else, where the system allows it, and threads that compute are nice. Where the kernel
refuses, nothing changes.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

SYS_SCHED_SETATTR: Final = {'x86_64': 314, 'aarch64': 274}
SLICE_NS: Final = 100_000
NICE: Final = 15


def pin(rank: int) -> None:
    """Keep this process on one core of those that it may use."""
    if hasattr(os, 'sched_setaffinity'):
        # Only cores that this process may use: a container often has fewer than the machine.
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})


def yield_to_communication() -> None:
    """Make the calling thread, which computes, nice, with the kernel's own slice, whatever started it."""
    if platform.system() == 'Linux':
        _set(threading.get_native_id(), nice=NICE, slice_ns=0)


@contextmanager
def urgently() -> Iterator[None]:
    """While entered, threads of this process, and those that they start, come before all else on its cores.

    They get real-time priority where the system grants it (root, CAP_SYS_NICE or a limit of rtprio), and short slices
    elsewhere. A process that somebody has made nice, or given another policy, stays as it is.
    """
    if not _plain():
        yield
        return
    try:
        for task in _tasks():
            _real_time(task)
        yield
    finally:
        # The next run of this process may compute for real, and would take its cores from all others.
        for task in _tasks():
            _set(task, nice=0, slice_ns=0)


def _plain() -> bool:
    """Whether the process has the priority that processes have unless somebody decides otherwise."""
    return platform.system() == 'Linux' and os.sched_getscheduler(0) == os.SCHED_OTHER and os.nice(0) == 0


def _tasks() -> list[int]:
    """Threads of this process by the kernel's numbers; gloo has started its own already, and does not tell them."""
    return [int(task.name) for task in Path('/proc/self/task').iterdir()] if platform.system() == 'Linux' else []


def _real_time(task: int) -> None:
    """Real-time priority, the lowest, or a short slice."""
    try:
        os.sched_setscheduler(task, os.SCHED_RR, os.sched_param(1))
    except ProcessLookupError:
        # It has ended since it was listed.
        return
    # Mostly a right that is missing; whatever else a kernel may say, no run must fail for it.
    except OSError:
        _set(task, nice=0, slice_ns=SLICE_NS)


def _set(task: int, nice: int, slice_ns: int) -> None:
    number = SYS_SCHED_SETATTR.get(platform.machine())
    # There is no wrapper in Python or libc, so other processors' call numbers would have to be known.
    if number is not None:
        # struct sched_attr: size, policy, flags, nice, priority, runtime (the slice), deadline, period
        attributes = struct.pack('IIQiIQQQ', 48, 0, 0, nice, 0, slice_ns, 0, 0)
        ctypes.CDLL(None).syscall(number, task, ctypes.create_string_buffer(attributes, 48), 0)
