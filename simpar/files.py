"""Atomic writes: a reader sees the old file or the new one, never a part."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file so that readers see the old content or the new, never a part, whatever goes wrong.

    Arguments:
        path: a file whose folder exists.
        content: text is written as UTF-8.
    Raises ``OSError``.
    """
    data = content.encode() if isinstance(content, str) else content
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
