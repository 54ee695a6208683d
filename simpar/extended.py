"""Extended: what a profile's file says goes over the profile that it extends; bare numbers are estimates."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

FIGURES: Final = (('device', 'matrix'), ('device', 'vector'), ('host', 'issue'))
"""Mappings whose values are all figures, whether the other profile has them or not."""
OF_TABLES: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    'matmul': (('device', 'matrix'), ('device', 'matmul'), ('device', 'kernel')),
    'attention': (('device', 'matrix'), ('device', 'attention')),
    'operator': (('device', 'memory'), ('device', 'vector'), ('device', 'kernel')),
    'collective': (('library',), ('devices',)),
}
"""What a table of measurements was measured of: where a file says that otherwise, the other profile's table is none."""


def extended(base: dict[str, Any], own: Mapping[str, Any], path: Path, crosses: bool) -> dict[str, Any]:
    """The tree of a profile over that of the one that it extends.

    Mappings are joined; links are joined by name where they are written as a mapping; null takes a key away; all else
    is replaced. A number without source and grade is an estimate, and its source is the file.

    Arguments: ``path`` of the file; ``crosses``, whether the other profile's collectives were measured between nodes.
    """
    words = f'as stated in {path.name}'
    found: dict[str, Any] = _joined(base, own, (), words)
    # All of it stands here now: written once more, it extends nothing.
    found['extends'] = ''
    for kind, table in dict(found.get('tables') or {}).items():
        if (kind not in (own.get('tables') or {}) and _otherwise(kind, base, own, crosses)) or table is None:
            del found['tables'][kind]
    # The clock under load was found on the other device, and these are its multiprocessors.
    if _get(own, ('device', 'matrix')) is not None:
        for key in {'sustained', 'multiprocessors'} - own['device'].keys():
            found['device'].pop(key, None)
    return found


def unknown_links(base: Mapping[str, Any], own: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Names under ``links`` that the other profile does not have, and those that it has."""
    names = [str(link.get('name')) for link in base.get('links') or () if isinstance(link, dict)]
    links = own.get('links')
    return [name for name in links if name not in names] if isinstance(links, dict) else [], names


def _joined(base: Any, own: Any, key: tuple[str, ...], words: str) -> Any:
    is_figure = (isinstance(base, dict) and 'value' in base) or key[:-1] in FIGURES
    if is_figure and isinstance(own, str | int | float) and not isinstance(own, bool):
        return {'value': own, 'source': words, 'grade': 'estimate'}
    if is_figure and isinstance(own, dict) and 'value' in own:
        return {'source': words, 'grade': 'estimate', **own}
    if key == ('links',) and isinstance(base, list):
        return _links(base, own, words)
    if isinstance(base, dict) and isinstance(own, dict):
        both = {name: _joined(base.get(name), own[name], (*key, name), words) for name in own}
        return {name: value for name, value in {**base, **both}.items() if value is not None}
    return own


def _links(base: list[Any], own: Any, words: str) -> Any:
    """Links by name go over those of the other profile; a list replaces them, each over the one of its name there."""
    named = {link.get('name'): link for link in base if isinstance(link, dict)}
    if isinstance(own, dict):
        return [_joined(link, own.get(link.get('name'), {}), ('link',), words) for link in base]
    # A level that the other profile lacks has the shape of its outermost one.
    outermost = base[-1] if base else {}
    if isinstance(own, list):
        return [
            _joined(named.get(link.get('name'), outermost), link, ('link',), words) if isinstance(link, dict) else link
            for link in own
        ]
    return own


def _otherwise(kind: str, base: Mapping[str, Any], own: Mapping[str, Any], crosses: bool) -> bool:
    if any(_get(own, key) is not None for key in OF_TABLES.get(kind, ())):
        return True
    links = own.get('links')
    if kind != 'collective' or links is None:
        return False
    inner = base['links'][0].get('name') if base.get('links') else ''
    return crosses or not isinstance(links, dict) or inner in links


def _get(tree: Any, key: tuple[str, ...]) -> Any:
    for part in key:
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree
