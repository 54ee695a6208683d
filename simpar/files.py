"""Files: writes that a reader sees whole or not at all, and reads that neither block nor go on without end.

A janitor, a shell, removes temporary folders when this process has ended, however it ended, by SIGKILL too.
"""

import csv
import errno
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

_AT_ONCE: Final = 2**20


def is_file(path: Path) -> bool:
    """Whether a path is a file's; no file has a name that is too long."""
    try:
        return path.is_file()
    except OSError:
        return False


def read_regular(path: str | os.PathLike[str], most: int) -> bytes:
    """The content of a regular file.

    Arguments: ``most``, bytes that it may have.
    Raises ``OSError`` that says why: also for a FIFO, a socket or a device, for links to them, and for a larger file.
    """
    # Without waiting: opening a FIFO that nobody writes to would block.
    handle = os.open(path, os.O_RDONLY | getattr(os, 'O_NONBLOCK', 0) | getattr(os, 'O_CLOEXEC', 0))
    with os.fdopen(handle, 'rb') as file:
        told = os.fstat(handle)
        mode = told.st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, 'not a regular file but a FIFO, socket or device', str(path))
        # One byte more than allowed is enough to know. Python makes room for all that is asked for, so no more is asked
        # for than the file says that it has.
        data = file.read(min(told.st_size, most) + 1)
        # It may have grown, and files of the kernel say that they are empty.
        while len(data) <= most and (more := file.read(min(_AT_ONCE, most + 1 - len(data)))):
            data += more
    if len(data) > most:
        raise OSError(errno.EFBIG, f'more than {most} bytes', str(path))
    return data


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a table that comes with simpar, by column."""
    with path.open(encoding='utf-8', newline='') as file:
        return list(csv.DictReader(file))


def flag_options(row: Mapping[str, str]) -> dict[str, Any]:
    """What a row of a table of flags says to argparse; what it leaves empty is for its kind to say."""
    found: dict[str, Any] = {key: row[key] for key in ('default', 'metavar', 'help') if row[key]}
    found |= {'choices': tuple(row['choices'].split())} if row['choices'] else {}
    return found | ({'dest': row['name']} if row['name'] else {})


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file so that readers see the old content or the new, never a part, whatever goes wrong.

    A link stays, and what it points to is written. A device or a FIFO is written to: no file takes its place.

    Arguments:
        path: a file whose folder exists.
        content: text is written as UTF-8.
    Raises ``OSError``.
    """
    data = content.encode() if isinstance(content, str) else content
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, 'a folder, not a file; name a file in it', str(path))
    with naming(path):
        if _is_stream(path):
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND), 'wb') as stream:
                stream.write(data)
        else:
            _write(Path(os.path.realpath(path)), data)


def _is_stream(path: Path) -> bool:
    """Whether a name is of a device, FIFO or socket, or of what this process has open, e.g. ``/dev/stdout``."""
    if path.exists() and any(Path(name) in path.absolute().parents for name in ('/dev', '/proc')):
        return True
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    # A link to nothing yet becomes one to a file.
    except FileNotFoundError:
        return False


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let every ``OSError`` of the block name a file, or a folder: that of a full disk names none, and the name of a
    temporary file tells nobody anything."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def _write(path: Path, data: bytes) -> None:
    # In the same folder: only within one file system is a rename atomic.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f'.{path.name}.')
    try:
        with os.fdopen(handle, 'wb') as file:
            file.write(data)
        # ``mkstemp`` makes files that nobody else may read.
        os.chmod(name, _mode(path))
        os.replace(name, path)
    # Also on Ctrl-C: no temporary file may stay behind.
    except BaseException:
        os.unlink(name)
        raise


def _mode(path: Path) -> int:
    """Permissions of the file that is replaced; of a new one, what the process's umask leaves."""
    try:
        return path.stat().st_mode & 0o777
    except FileNotFoundError:
        # The umask can only be read by setting it.
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask


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
