"""Scheduling of a rank's threads where computation and communication want the same few cores.

Linux's EEVDF scheduler lets a computing thread finish its slice (about 3 ms) before a message on the same core is dealt
with. A niceness for threads that compute and short slices for all others bring communication beside computation back to
the time that it takes alone. Neither needs rights; where the kernel refuses, nothing changes.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import threading
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


def favour_communication() -> None:
    """Give all threads of this process, and those that the calling one starts, short slices."""
    if platform.system() == 'Linux':
        # gloo has started its threads already, and does not tell their ids.
        for task in Path('/proc/self/task').iterdir():
            _set(int(task.name), nice=0, slice_ns=SLICE_NS)


def yield_to_communication() -> None:
    """Make the calling thread, which computes, nice, with the kernel's own slice."""
    if platform.system() == 'Linux':
        _set(threading.get_native_id(), nice=NICE, slice_ns=0)


def _set(task: int, nice: int, slice_ns: int) -> None:
    number = SYS_SCHED_SETATTR.get(platform.machine())
    # There is no wrapper in Python or libc, so other processors' call numbers would have to be known.
    if number is not None:
        # struct sched_attr: size, policy, flags, nice, priority, runtime (the slice), deadline, period
        attributes = struct.pack('IIQiIQQQ', 48, 0, 0, nice, 0, slice_ns, 0, 0)
        ctypes.CDLL(None).syscall(number, task, ctypes.create_string_buffer(attributes, 48), 0)
