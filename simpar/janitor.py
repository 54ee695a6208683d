"""A janitor: a shell that removes temporary folders when this process has ended, however it ended, by SIGKILL too."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

_SCRIPT: Final = 'trap "" HUP INT TERM; while IFS= read -r folder; do set -- "$@" "$folder"; done; rm -rf -- "$@"'
_SHELL: Final = '/bin/sh'


class _Janitor:
    """The janitor of this process; it is started with the first folder."""

    def __init__(self) -> None:
        self._pipe = -1
        self._of = 0

    def remove_at_the_end(self, folder: Path) -> None:
        """Have a folder removed when this process has ended."""
        # A process that was forked from this one has its own end.
        if self._of != os.getpid():
            self._pipe, self._of = self._start(), os.getpid()
        os.write(self._pipe, f'{folder}\n'.encode())

    def _start(self) -> int:
        """Start the shell; returns the end of a pipe, whose closing it waits for: the kernel closes it at our end."""
        theirs, ours = os.pipe()
        quiet = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
        try:
            # In a group of its own, which a signal to ours does not reach.
            os.posix_spawn(
                _SHELL,
                ['sh', '-c', _SCRIPT],
                {'PATH': os.environ.get('PATH', os.defpath)},
                file_actions=[(os.POSIX_SPAWN_DUP2, theirs, 0), *quiet],
                setpgroup=0,
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        return ours


_JANITOR: Final = _Janitor()


def remove_at_the_end(folder: Path) -> None:
    """Have a folder and all that is in it removed when this process has ended, however it ends.

    Does nothing where no shell can be started: then a process that is killed leaves its folder.
    """
    # A name with a line break would be read as two.
    if '\n' not in str(folder):
        with suppress(OSError):
            _JANITOR.remove_at_the_end(folder.absolute())
