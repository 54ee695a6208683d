"""Lazy names: a package whose names are imported when they are first used, so that importing it costs nothing."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def named(package: str, homes: Mapping[str, str], found: dict[str, Any]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package.

    Arguments: ``homes``, by name the module that has it; ``found``, the package's globals, which keep what was asked
    for. A name must not be a module of the package, too: once it is imported, the module stands in its place.
    """

    def getter(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f'module {package!r} has no attribute {name!r}')
        found[name] = getattr(importlib.import_module(homes[name]), name)
        return found[name]

    return getter


def card(answer: Any) -> str:
    """The HTML as which Jupyter shows an answer, a case or a profile."""
    # By name: Jupyter asks the value itself, and what draws it stands many floors above.
    shown: str = importlib.import_module('simpar.notebook.cards').card(answer)
    return shown
