"""Status: what every stream of every rank is doing, kept where it outlives the rank."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from simpar.files import naming

STREAMS: Final = 128
"""Streams of a rank that the status has room for."""
FIELDS: Final = 6
"""64-bit numbers for each stream: finished ops, state, step, slot, since when, in ns, and the thread's id."""
THROUGH, WAITING, RUNNING = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Beat:
    """What one stream is doing: ``finished`` ops so far, and its head in ``state`` since ``since`` ns.

    Arguments: ``thread``, the kernel's id of the stream's thread; 0 where it is not known.
    """

    finished: int
    state: int
    step: int
    slot: int
    since: int
    thread: int = 0


class Status:
    """Beats of all ranks in one block of memory: a file that parent and ranks map, or a rank's own memory."""

    def __init__(self, world: int, path: Path | None = None) -> None:
        size = world * STREAMS * FIELDS * 8
        # A rank that others have started has no parent to share a file with; it sends its rows through the store.
        if path is None:
            self._memory: bytearray | mmap.mmap = bytearray(size)
        else:
            if not path.exists():
                with naming(path):
                    path.write_bytes(bytes(size))
            # A mapped file outlives a killed process, so its last beat can still be read.
            with path.open('r+b') as file:
                self._memory = mmap.mmap(file.fileno(), size)
        self._numbers = memoryview(self._memory).cast('q')
        self.world = world

    def clear(self) -> None:
        """Forget the run before."""
        self._numbers[:] = memoryview(bytes(self._numbers.nbytes)).cast('q')

    def set(self, rank: int, stream: int, beat: Beat) -> None:
        """Say what a stream does; each stream has one writer, and a reader may see a beat half written."""
        at = (rank * STREAMS + stream) * FIELDS
        numbers = self._numbers
        # No lock: a half-written beat only blurs a message, a lock would slow every op.
        numbers[at], numbers[at + 1], numbers[at + 2] = beat.finished, beat.state, beat.step
        numbers[at + 3], numbers[at + 4], numbers[at + 5] = beat.slot, beat.since, beat.thread

    def get(self, rank: int, stream: int) -> Beat:
        """What a stream did when it last said so."""
        at = (rank * STREAMS + stream) * FIELDS
        return Beat(*self._numbers[at : at + FIELDS].tolist())

    def finished(self) -> int:
        """Ops that have finished on all ranks."""
        return sum(self._numbers[::FIELDS].tolist())

    def row(self, rank: int) -> bytes:
        """A rank's beats, to send elsewhere."""
        width = STREAMS * FIELDS
        return self._numbers[rank * width : (rank + 1) * width].tobytes()

    def put_row(self, rank: int, row: bytes) -> None:
        """Take over a rank's beats from elsewhere."""
        width = STREAMS * FIELDS
        self._numbers[rank * width : (rank + 1) * width] = memoryview(row).cast('q')
