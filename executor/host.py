"""What a rank's host has: cores, free memory and accelerators, as a preflight compares them with what ranks need."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

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
