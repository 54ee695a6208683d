"""The answer of a replay of Chakra's files in words and numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from simpar.chakra.told import Told
from simpar.units import format_time


def render(found: Told) -> str:
    """The answer, a line for each part."""
    return '\n'.join(_lines(found)) + '\n'


def to_dict(found: Told) -> dict[str, Any]:
    """The answer for programs; seconds."""
    return asdict(found)


def _lines(found: Told) -> Iterator[str]:
    yield f'A step of {found.ranks} ranks takes {format_time(found.step)}, by {found.nodes:,} nodes as recorded.'
    yield ''
    parts = (('compute', found.compute), ('exposed communication', found.exposed), ('idle', found.idle))
    for name, seconds in parts:
        share = seconds / found.step if found.step else 0.0
        yield f'{name:22} {format_time(seconds):>9}  {share:4.0%} of the step, mean over ranks'
    yield f'{"communication":22} {format_time(found.communication):>9}  with what computation hides'
    if found.silent:
        yield f'Note: {found.silent:,} messages and collectives have no duration, and take none'
