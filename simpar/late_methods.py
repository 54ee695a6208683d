"""Methods of dataclasses, generated when they are called first: a command defines some 300 classes, and uses few.

Python 3.11 and 3.12 compile the source of six methods of each class one by one, which takes a tenth of a small
prediction's time. From 3.13 on it compiles those of a class at once.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, Final

_generate: Final = getattr(dataclasses, '_create_fn', None)
_KNOWN: Final = ('name', 'args', 'body', 'globals', 'locals', 'return_type')


def install() -> None:
    """Let classes that are defined from now on wait; it is for processes that are simpar's own."""
    if _generate is not None and tuple(inspect.signature(_generate).parameters) == _KNOWN:
        dataclasses._create_fn = _late  # type: ignore[attr-defined]


def _late(name: str, *source: Any, **more: Any) -> Callable[..., Any]:
    """A method that puts the generated one into its place when it is called."""
    made: list[Callable[..., Any]] = []

    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        if not made:
            assert _generate is not None
            made.append(_generate(name, *source, **more))
            made[0].__qualname__ = method.__qualname__
            # A class with slots is made anew, so that only an object knows the one that it has in the end.
            for owner in type(self).__mro__:
                if owner.__dict__.get(name) is method:
                    setattr(owner, name, made[0])
        return made[0](self, *arguments, **named)

    method.__name__ = name
    return method
