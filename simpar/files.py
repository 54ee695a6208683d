"""Files: writes that a reader sees whole or not at all, and reads that neither block nor go on without end.

A janitor, a shell, removes temporary folders when this process has ended, however it ended, by SIGKILL too.
"""

import csv
import errno
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from simpar.errors import Problem, refuse

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
        status = os.fstat(handle)
        mode = status.st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, 'not a regular file but a FIFO, socket or device', str(path))
        # One byte more than allowed is enough to know. Python makes room for all that is asked for, so no more is asked
        # for than the file says that it has.
        data = file.read(min(status.st_size, most) + 1)
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
    options: dict[str, Any] = {key: row[key] for key in ('default', 'metavar', 'help') if row[key]}
    options |= {'choices': tuple(row['choices'].split())} if row['choices'] else {}
    return options | ({'dest': row['name']} if row['name'] else {})


PICTURES: Final = ('.png', '.svg', '.pdf')
"""What pictures are written as: matplotlib knows more formats, but these look the same everywhere."""


def check_outputs(flags: Iterable[Mapping[str, str]], options: object) -> None:
    """Raise ``ScheduleError`` with every output that cannot be written, or would replace another: before the work.

    Arguments: ``flags``, the rows of a command line's flags; ``options``, their values.
    """
    seen: dict[Path, str] = {}
    problems = []
    for row in flags:
        name, kind = row['flag'], row['kind']
        path = getattr(options, row['name'] or name.removeprefix('--').replace('-', '_'), None)
        if not isinstance(path, Path) or kind not in ('output', 'output folder', 'picture'):
            continue
        what = unwritable(path, folder=kind == 'output folder')
        instead = 'name another path'
        if not what and kind == 'picture' and path.suffix not in PICTURES:
            what, instead = 'not a kind of picture', f'write a name that ends in {", ".join(PICTURES)}'
        before = seen.setdefault(path.absolute(), name)
        if not what and before != name and not is_stream(path):
            what = f'is the file of {before}, too'
        if what:
            problems.append(Problem(name, f'{what} (got {path})', instead))
    refuse(problems)


def unwritable(path: Path, *, folder: bool = False) -> str:
    """Why a file, or a folder, cannot be written, in words; empty: it can, once the folders above it are made."""
    try:
        if path.exists() and path.is_dir() != folder:
            return 'a file, where a folder is wanted' if folder else 'a folder, not a file'
        above = Path(os.path.realpath(path))
        above = above if folder else above.parent
        while not above.exists():
            above = above.parent
        if not above.is_dir():
            return f'{above} is a file, where a folder is wanted'
        if not folder and is_stream(path):
            return '' if os.access(path, os.W_OK) else 'may not be written'
        return '' if os.access(above, os.W_OK | os.X_OK) else f'nothing may be written into {above}'
    except OSError as error:
        return error.strerror or str(error)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file so that readers see the old content or the new, never a part, whatever goes wrong.

    A link stays, and what it points to is written. A device or a FIFO is written to: no file takes its place.

    Arguments:
        path: a file; its folder is made if need be.
        content: text is written as UTF-8.
    Raises ``OSError``.
    """
    data = content.encode() if isinstance(content, str) else content
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, 'a folder, not a file; name a file in it', str(path))
    with naming(path):
        if is_stream(path):
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND), 'wb') as stream:
                stream.write(data)
        else:
            place = Path(os.path.realpath(path))
            place.parent.mkdir(parents=True, exist_ok=True)
            _write(place, data)


def is_stream(path: Path) -> bool:
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
