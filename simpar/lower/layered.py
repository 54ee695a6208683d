"""Rows of a table by key and layer: what each becomes where more layers are added in the middle."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final

import numpy as np

from simpar.lower.period import NONE, Ints, Layers, NotPeriodic, Rows, grown
from simpar.machine_code import is_started

LAYER: Final = re.compile(r'\blayer(\d+)\b')
NEAR: Final = 2
"""A row names its neighbours up to so many layers away."""


# Rows of a sweep have the same names over and over.
@lru_cache(maxsize=2**15)
def seen(text: str) -> tuple[str, int]:
    """A text as seen from the first layer that it names, and that layer; -1: it names none.

    Raises ``NotPeriodic`` where it names another that is not near.
    """
    parts = LAYER.split(text)
    if len(parts) == 1:
        return text, NONE
    own = int(parts[1])
    away = [int(one) - own for one in parts[1::2]]
    if any(abs(one) > NEAR for one in away):
        raise NotPeriodic(f'{text} names layers far away')
    parts[1::2] = map(str, away)
    return '\0'.join(parts), own


def seen_from(text: str, layer: int) -> tuple[str, int]:
    """A text as seen from a layer, or from none; raises ``NotPeriodic`` where it names one that is not near."""
    key, own = seen(text)
    if own == NONE:
        return key, 0
    if layer == NONE or abs(own - layer) > NEAR:
        raise NotPeriodic(f'{text} names a layer far away')
    return key, own - layer


def rows_of(told: Iterable[tuple[object, int]]) -> Rows:
    """Rows of keys and layers, the keys numbered."""
    number: dict[object, int] = {}
    keys, layers = zip(*told, strict=True)
    found = [number.setdefault(key, len(number)) for key in keys]
    return Rows(np.array(found, dtype=np.int64), np.array(layers, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class Table:
    """The rows of a table as they are, and as they will be with more layers.

    Arguments: ``rows`` as they are.
    """

    rows: Rows
    layers: Layers

    @staticmethod
    def of(rows: Rows, layers: Layers) -> Table:
        """The table of rows; what it says is worked out at once where compiled machines are loaded, and the same."""
        made = Table(rows, layers)
        if is_started():
            made.__dict__.update(_compiled(rows, layers))
        return made

    @cached_property
    def place(self) -> Ints:
        """Shape [keys, layers + 1], where each row stands; the last column is for no layer."""
        return self.rows.places(int(self.rows.key.max(initial=NONE)) + 1, self.layers.count)

    @cached_property
    def model(self) -> Ints:
        """Shape [rows], the row of its key in the last layer before the added ones; else itself."""
        model = self.place[self.rows.key, self.layers.cut]
        return np.where((self.rows.layer == NONE) | (model == NONE), np.arange(len(model)), model)

    @cached_property
    def grown(self) -> Rows:
        """The rows to be."""
        return grown(self.rows, self.layers)

    @cached_property
    def at(self) -> Ints:
        """Shape [keys, layers + 1], where rows will stand."""
        return self.grown.places(len(self.place), self.layers.total)

    @cached_property
    def source(self) -> Ints:
        """Shape [rows to be], the row that each is like."""
        source = self.place[self.grown.key, self.layers.source(self.grown.layer)]
        if (source == NONE).any():
            raise NotPeriodic('a row is like none that there is')
        return source

    @cached_property
    def shift(self) -> Ints:
        """Shape [rows to be], how many layers each stands behind the row that it is like."""
        return np.where(self.grown.layer == NONE, 0, self.grown.layer - self.rows.layer[self.source])

    def unlike(self, facts: Sequence[object]) -> Ints:
        """The rows whose facts differ from those of their model.

        Raises ``NotPeriodic`` where a row of the equal layers is among them.
        """
        return self.told_unlike([row for row, model in enumerate(self.model.tolist()) if facts[row] != facts[model]])

    def told_unlike(self, rows: list[int]) -> Ints:
        """These rows, which differ from their model; raises ``NotPeriodic`` as ``unlike`` does."""
        unlike = np.array(rows, dtype=np.int64)
        if self.layers.is_core(self.rows.layer[unlike]).any():
            raise NotPeriodic('equal layers are not')
        return unlike

    def like(self, unlike: Ints) -> Ints:
        """Shape [rows to be], for each the first that is equal but for names. Arguments: as ``unlike`` returns."""
        model = self.model.copy()
        model[unlike] = unlike
        number = model[self.source]
        first = np.full(len(model), NONE, dtype=np.int64)
        # Of several assignments to one place numpy keeps the last: reversed, that is the first row.
        first[number[::-1]] = np.arange(len(number))[::-1]
        return first[number]

    def renamed(self, text: str, row: int) -> str:
        """A text of the row that a row to be is like, as the latter says it."""
        shift = self.shift.item(row)
        if not shift or 'layer' not in text:
            return text
        return LAYER.sub(lambda found: f'layer{int(found.group(1)) + shift}', text)


def grown_rows(rows: Rows, layers: Layers) -> Rows:
    """As ``period.grown``, and raises the same; compiled where compiled machines are loaded."""
    found = _compiled(rows, layers) if is_started() else {}
    return found['grown'] if found else grown(rows, layers)


def _compiled(rows: Rows, layers: Layers) -> dict[str, Any]:
    """The properties of a table by name; none where it is not periodic, and they tell why."""
    from simpar.lower.kernels import grow

    count, keys = len(rows.key), int(rows.key.max(initial=NONE)) + 1
    most, few, many = count + layers.more * keys, keys * (layers.count + 1), keys * (layers.total + 1)
    unknown = np.full(few + many + count, NONE, dtype=np.int64)
    place, at = unknown[:few].reshape(keys, -1), unknown[few : few + many].reshape(keys, -1)
    model, steps, windows = (
        np.empty(count, dtype=np.int64),
        np.zeros((2, keys), dtype=np.int64),
        np.empty((2, keys), dtype=np.int64),
    )
    key, layer, source, shift = np.empty((4, most), dtype=np.int64)
    found = grow(
        *rows, layers.count, layers.edge, layers.more, place, model, steps[0], unknown[few + many :], steps[1], windows,
        key, layer, at, source, shift,
    )  # fmt: skip
    if found == NONE:
        return {}
    grown_rows = Rows(key[:found], layer[:found])
    return {
        'place': place, 'model': model, 'grown': grown_rows, 'at': at, 'source': source[:found], 'shift': shift[:found],
    }  # fmt: skip
