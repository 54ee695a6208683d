"""figures_of: every number of a profile or a stack, with its dotted key, source and grade."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from simpar.hardware.figure import Figure


def figures_of(value: Any, key: str = '') -> Iterator[tuple[str, Figure]]:
    """Every number of a profile with its dotted key."""
    # A figure is a dataclass, too, so it is looked for first.
    if isinstance(value, Figure):
        yield key, value
    elif isinstance(value, dict):
        for name, part in value.items():
            yield from figures_of(part, f'{key}.{name}' if key else str(name))
    elif isinstance(value, tuple):
        for index, part in enumerate(value):
            yield from figures_of(part, f'{key}[{getattr(part, "name", index)}]')
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            part = getattr(value, field.name)
            yield from figures_of(part, f'{key}.{field.name}' if key else field.name)
