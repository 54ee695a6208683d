"""Lazy names: a package whose names are imported when they are first used, so that importing it costs nothing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any


def named(package: str, homes: Mapping[str, str], found: dict[str, Any]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package.

    Arguments: ``homes``, by name the module that has it; ``found``, the package's globals, which keep what was asked
    for. A name that is a module of the package, too, is that module: once it is imported, it stands in its place.
    """

    def getter(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f'module {package!r} has no attribute {name!r}')
        module = importlib.import_module(homes[name])
        # Of a verb and a module of one name the module is called.
        found[name] = module if homes[name] == f'{package}.{name}' else getattr(module, name)
        return found[name]

    return getter


def card(answer: Any) -> str:
    """The HTML as which Jupyter shows an answer, a case or a profile."""
    # By name: Jupyter asks the value itself, and what draws it stands many floors above.
    shown: str = importlib.import_module('simpar.notebook.cards').card(answer)
    return shown


def dataframe(answer: Any, *kind: str) -> Any:
    """The table of pandas of an answer, of a kind where it has several."""
    return importlib.import_module('simpar.notebook.frames').to_dataframe(answer, *kind)


def interactive(answer: Any, ranks: Sequence[int]) -> Any:
    """What a notebook shows of an answer to zoom in and to point at."""
    return importlib.import_module('simpar.notebook.interactive').Interactive(answer, tuple(ranks))


def callable_module(name: str, home: str) -> None:
    """Let a module be called like the verb of its name: ``simpar.plan`` has the keys of a plan, and plans.

    Arguments: ``home``, the module that has the verb; it is imported when it is called.
    """

    class Verb(ModuleType):
        def __call__(self, *given: Any, **named: Any) -> Any:
            return getattr(importlib.import_module(home), name.rpartition('.')[2])(*given, **named)

    sys.modules[name].__class__ = Verb
