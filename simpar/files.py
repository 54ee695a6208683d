"""Files: writes that a reader sees whole or not at all, and reads that neither block nor go on without end."""

from __future__ import annotations

import csv
import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_AT_ONCE: Final = 2**20


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


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file so that readers see the old content or the new, never a part, whatever goes wrong.

    Arguments:
        path: a file whose folder exists.
        content: text is written as UTF-8.
    Raises ``OSError``.
    """
    data = content.encode() if isinstance(content, str) else content
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, 'a folder, not a file; name a file in it', str(path))
    with naming(path):
        _write(path, data)


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
