"""What the kernel says of a process and its threads: stopped, gone, or busy (Linux; elsewhere nothing is known)."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from executor.clock import host_identity

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
