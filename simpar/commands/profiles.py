"""``simpar profiles [NAME]``: the hardware profiles, or the numbers of one with source and grade."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from simpar.hardware import Figure, Profile
from simpar.profiles import load_profile, profile_names


def command(options: argparse.Namespace) -> int:
    """Print the list, or one profile."""
    if options.name is None:
        profiles = [load_profile(name) for name in profile_names()]
        rows = [
            {'name': name, 'devices': profile.devices, 'library': profile.library.name}
            for name, profile in zip(profile_names(), profiles, strict=True)
        ]
        if options.json:
            print(json.dumps(rows))
        else:
            for row in rows:
                print(f'{row["name"]:<20}{row["devices"]:>3} devices a node, {row["library"]}')
        return 0
    figures = list(figures_of(load_profile(options.name)))
    if options.json:
        print(json.dumps([{'key': key, **dataclasses.asdict(figure)} for key, figure in figures]))
        return 0
    for key, figure in figures:
        print(f'{key:<44}{figure.value:>12.6g}  {figure.grade:<11}{figure.source}')
    return 0


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


__all__ = ['Profile', 'command', 'figures_of']
