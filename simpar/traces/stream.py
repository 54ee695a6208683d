"""Events of a JSON file, some megabytes at a time: a recording may be larger than the memory that is left."""

import gzip
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final, Generic, TypeVar

import msgspec

from simpar.errors import refusal

MOST_BYTES: Final = 2**34
"""Of a recording, unpacked."""
BLOCK: Final = 2**22
_TRIES: Final = 64
_OPENS = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb'\}\s*,\s*\{')
_CLOSES = re.compile(rb'\]')
_EMPTY: Final = b'"traceEvents": []'
_RECORD: Final = 'record it again; a profiler that is killed leaves its file cut off'
_BROKEN: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec makes of a text that is no JSON."""
T = TypeVar('T')
Plain = str | int | float | None
"""A value of JSON that is neither a list nor an object."""


class Stream(Generic[T]):
    """The events of a file, in batches, and what stands beside them.

    Arguments: ``path``, of ``{..., "traceEvents": [...], ...}`` or of a list of events, ``.gz`` or not; ``kind``, the
    msgspec type of an event, which says what is kept of it.
    A batch ends where one event ends and another begins. Whether a place is one is told by reading all before it: a
    text or an inner list that looks alike leaves something open there.
    """

    def __init__(self, path: Path, kind: type[T]) -> None:
        self.path = path
        self.root: dict[str, Any] = {}
        self._batch: msgspec.json.Decoder[list[T]] = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]

    def batches(self) -> Iterator[list[T]]:
        """Each batch once; ``root`` is there behind the last. Raises ``ScheduleError`` for what cannot be read."""
        with opened(self.path) as file:
            head, rest = self._head(file)
            total = len(head) + len(rest)
            while block := self._read(file, BLOCK):
                total += len(block)
                if total > MOST_BYTES:
                    raise refusal(self.path, f'holds more than {MOST_BYTES} bytes', 'record fewer steps')
                rest += block
                events, rest = self._some(rest)
                if events:
                    yield events
        yield self._last(head, rest)

    def _read(self, file: IO[bytes] | gzip.GzipFile, most: int) -> bytes:
        try:
            return file.read(most)
        except (OSError, EOFError, zlib.error) as error:
            raise refusal(self.path, f'cannot be read: {error}', _RECORD) from None

    def _head(self, file: IO[bytes] | gzip.GzipFile) -> tuple[bytes, bytes]:
        """What stands before the events, and the first of them."""
        text = self._read(file, BLOCK).removeprefix(b'\xef\xbb\xbf')
        if (list_of := text.lstrip()).startswith(b'['):
            return b'', list_of[1:]
        while not (match := _OPENS.search(text)):
            block = self._read(file, BLOCK)
            if not block or len(text) > MOST_BYTES:
                self._whole(text)
                raise refusal(self.path, 'has no list traceEvents', 'write a trace by torch.profiler')
            text += block
        return text[: match.start()], text[match.end() :]

    def _whole(self, text: bytes) -> Any:
        try:
            return msgspec.json.decode(text)
        except _BROKEN as error:
            raise refusal(self.path, f'is no JSON: {error}', _RECORD) from None

    def _some(self, text: bytes) -> tuple[list[T], bytes]:
        """The events up to the last place that is one, and what is left."""
        window = 2**12
        while True:
            places = list(_BETWEEN.finditer(text, max(0, len(text) - window)))
            if places or window > len(text):
                break
            window *= 8
        for place in islice(reversed(places), _TRIES):
            events = self._events(text[: place.start() + 1])
            if events is not None:
                return events, text[place.end() - 1 :]
        return [], text

    def _events(self, text: bytes) -> list[T] | None:
        """The events of a text; None where it is no list of whole values."""
        try:
            return self._batch.decode(b'[' + text + b']')
        except msgspec.ValidationError as error:
            raise refusal(self.path, f'has an event of another form: {error}', _RECORD) from None
        except _BROKEN:
            return None

    def _last(self, head: bytes, text: bytes) -> list[T]:
        """The events up to the end of their list; sets ``root``."""
        for place in islice(reversed(list(_CLOSES.finditer(text))), 1000):
            behind = text[place.end() :]
            if not head and behind.strip():
                break
            with suppress(*_BROKEN):
                root = msgspec.json.decode(head + _EMPTY + behind) if head else {}
                events = self._events(text[: place.start()])
                if events is not None and isinstance(root, dict):
                    self.root = root
                    return events
        self._whole((head + b'"traceEvents": [' if head else b'[') + text)
        raise refusal(self.path, 'is no JSON: its list of events does not end', _RECORD)


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """A regular file for reading, unpacked where its name ends in ``.gz``."""
    if not path.is_file():
        raise refusal(path, 'is no regular file', 'give a file')
    try:
        with gzip.open(path) if path.name.endswith('.gz') else path.open('rb') as file:
            yield file
    except OSError as error:
        raise refusal(path, f'cannot be read: {error.strerror or error}') from None
