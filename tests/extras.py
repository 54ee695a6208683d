"""Packages of extras that take long to import: collecting asks whether they are there, a test imports what it uses."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest


class Later:
    """A module that is imported as soon as a name of it is used; without its package the file's tests are skipped."""

    def __init__(self, module: str, extra: str) -> None:
        if find_spec(module.partition('.')[0]) is None:
            pytest.skip(f'needs the extra {extra}', allow_module_level=True)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        # What pytest asks of every name of a test module.
        if name.startswith(('__', '_mock_name')):
            raise AttributeError(name)
        return getattr(import_module(self._module), name)
