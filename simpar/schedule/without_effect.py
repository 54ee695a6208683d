"""WithoutEffect: a key that was written and changed nothing, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

_LONGEST = 40
"""Letters of a value on the screen."""


class WithoutEffect(NamedTuple):
    """A key of a schedule without which the program, and what it costs, would be the same.

    Arguments: ``key``, dotted, as in `--set`; ``value``, as a file holds it; ``why``, in words.
    """

    key: str
    value: Any
    why: str

    def __str__(self) -> str:
        text = str(self.value)
        shown = text if len(text) <= _LONGEST else f'{text[: _LONGEST - 1]}…'
        return f'{self.key} ({shown}): {self.why}'


def without_effect_line(found: Sequence[WithoutEffect]) -> str:
    """All of them in one line; empty where there are none."""
    return f'without effect here: {"; ".join(map(str, found))}' if found else ''


def without_effect_json(found: Sequence[WithoutEffect]) -> list[dict[str, Any]]:
    """Each as an object, as in `--json`."""
    return [one._asdict() for one in found]
