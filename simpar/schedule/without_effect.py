"""WithoutEffect: a key that was written and changed nothing, and why."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

_LONGEST = 40
"""Letters of a value on the screen."""
_MOST = 6
"""Keys that are told together."""


class WithoutEffect(NamedTuple):
    """A key of a schedule without which the program, and what it costs, would be the same.

    Arguments:
        key: dotted, as in `--set`.
        value: as a file holds it.
        why: in words.
    """

    key: str
    value: Any
    why: str

    @property
    def shown(self) -> str:
        """The value, of a long one its beginning."""
        text = json.dumps(self.value, ensure_ascii=False).replace('"', '')
        return text if len(text) <= _LONGEST else f'{text[: _LONGEST - 1]}…'


def without_effect_line(found: Sequence[WithoutEffect]) -> str:
    """All of them in one line; empty where there are none."""
    # Layers alike often have one reason: they are told together.
    alike: dict[tuple[str, str], list[str]] = {}
    for one in found:
        alike.setdefault((one.shown, one.why), []).append(one.key)
    told = (f'{_several(keys)} ({shown}): {why}' for (shown, why), keys in alike.items())
    return f'without effect here: {"; ".join(told)}' if found else ''


def _several(keys: Sequence[str]) -> str:
    """Keys that are told together; of many the first."""
    more = f' and {len(keys) - _MOST} more' if len(keys) > _MOST else ''
    return ', '.join(keys[:_MOST]) + more


def without_effect_json(found: Sequence[WithoutEffect]) -> list[dict[str, Any]]:
    """Each as an object, as in `--json`."""
    return [one._asdict() for one in found]
