"""Periods: where the rows of a table go through equal layers one after the other, so that more layers fit in.

A row has a key and the number of a layer, or none. Rows of one key differ by their layers alone. Where all keys that go
through the layers together are as many as the rows between one layer and the next, any such stretch of rows is a
period, and more layers are more periods.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
NONE: Final = -1


class NotPeriodic(Exception):
    """Layers are not equal, or it cannot be told from these few what more of them would be."""


@dataclass(frozen=True, slots=True)
class Layers:
    """The layers that there are, and how many are to be added.

    Arguments:
        count: layers that there are.
        edge: so many of the first and of the last may differ; those between are equal, and at least two.
        more: layers to be added in the middle, behind layer ``cut``.
    """

    count: int
    edge: int
    more: int

    @property
    def cut(self) -> int:
        """The last layer before those that are added; the next one is equal, too."""
        return self.count // 2 - 1

    @property
    def total(self) -> int:
        """Layers that there will be."""
        return self.count + self.more

    def is_core(self, layer: Ints) -> Flags:
        """Whether layers are among those that must be equal."""
        return np.asarray((layer >= self.edge) & (layer < self.count - self.edge))

    def moved(self, layer: Ints) -> Ints:
        """The numbers of the first and the last layers once others are added."""
        return np.where(layer > self.cut, layer + self.more, layer)

    def source(self, layer: Ints) -> Ints:
        """For layers to be, those that they are like: added ones are like the one before them."""
        like = np.minimum(layer, self.cut) + np.maximum(layer - self.cut - self.more, 0)
        return np.where(layer == NONE, NONE, like)


class Rows(NamedTuple):
    """The rows of a table in order; columns of shape [rows].

    Arguments: ``key``, from 0; ``layer``, -1 for none.
    """

    key: Ints
    layer: Ints

    def places(self, keys: int, layers: int) -> Ints:
        """Shape [keys, layers + 1], the place of each row, -1 where there is none; the last column is for no layer."""
        found = np.full((keys, layers + 1), NONE, dtype=np.int64)
        # Index −1 of a row without a layer is the last column.
        found[self.key, self.layer] = np.arange(len(self.key))
        if np.count_nonzero(found != NONE) != len(self.key):
            raise NotPeriodic('two rows have one key and layer')
        return found


class Window(NamedTuple):
    """A period: ``length`` rows from ``begin``; ``way`` is 1 where layers rise, -1 where they fall."""

    begin: int
    length: int
    way: int
    keys: Ints


def grown(rows: Rows, layers: Layers) -> Rows:
    """The rows with more layers in the middle; raises ``NotPeriodic``."""
    keys = int(rows.key.max(initial=NONE)) + 1
    begin, length, way = (np.zeros(keys, dtype=np.int64) for _ in range(3))
    pieces, which, done = [], [], 0
    for window in _windows(rows, layers, keys):
        begin[window.keys], length[window.keys], way[window.keys] = window[:3]
        end = window.begin + window.length
        pieces += [np.arange(done, window.begin), np.tile(np.arange(window.begin, end), layers.more + 1)]
        which += [np.zeros(window.begin - done, dtype=np.int64), np.arange(len(pieces[-1])) // window.length]
        done = end
    pieces.append(np.arange(done, len(rows.key)))
    which.append(np.zeros(len(pieces[-1]), dtype=np.int64))
    row, passed = np.concatenate(pieces), np.concatenate(which)
    key, layer = rows.key[row], rows.layer[row]
    # Before a key's period no layer has been added, behind it all; where layers fall it is the other way round.
    passed = np.where(row < begin[key], 0, np.where(row < begin[key] + length[key], passed, layers.more))
    added = np.where(way[key] > 0, passed, layers.more - passed)
    return Rows(key, np.where(way[key] == 0, layers.moved(layer), layer + added))


def _windows(rows: Rows, layers: Layers, keys: int) -> list[Window]:
    """One period for each run of rows through the layers, in order."""
    place = rows.places(keys, layers.count)[:, :-1]
    through = np.flatnonzero((place[:, layers.cut] != NONE) | (place[:, layers.cut + 1] != NONE))
    _check_alone(np.delete(place, through, axis=0), layers)
    place = place[through]
    step = place[:, layers.cut + 1] - place[:, layers.cut]
    first, last = _stretch(place, step, layers)
    found, order, done = [], np.argsort(first), 0
    while done < len(order):
        length = abs(step.item(order[done]))
        own = order[done : done + length]
        begin = int(first[own].max())
        # As many keys as a period is long, each at another place of it: so all of its rows are theirs. And the same
        # rows follow once more.
        if (
            len(own) != length
            or (step[own] != step[own[0]]).any()
            or len(set((first[own] % length).tolist())) != length
            or int(last[own].min()) < begin + length
        ):
            raise NotPeriodic('the rows of a layer are not those of a period')
        found.append(Window(begin, length, 1 if step[own[0]] > 0 else -1, through[own]))
        done += length
    ends = [0, *(window.begin + window.length for window in found)]
    if any(window.begin < end for window, end in zip(found, ends, strict=False)):
        raise NotPeriodic('two periods overlap')
    return found


def _check_alone(place: Ints, layers: Layers) -> None:
    """Keys that do not go through the layers are outside of those that must be equal."""
    if (place[:, layers.edge : layers.count - layers.edge] != NONE).any():
        raise NotPeriodic('a key is in some of the equal layers only')


def _stretch(place: Ints, step: Ints, layers: Layers) -> tuple[Ints, Ints]:
    """For each key the first and the last row of those around the cut that follow each other by its step."""
    core = place[:, layers.edge : layers.count - layers.edge]
    if (core == NONE).any() or (np.diff(core, axis=1) != step[:, None]).any():
        raise NotPeriodic('layers follow each other unevenly')
    ends = []
    for way, begin in ((-1, layers.cut), (1, layers.cut + 1)):
        end, goes_on = place[:, begin].copy(), np.ones(len(place), dtype=bool)
        for layer in range(begin + way, layers.count if way > 0 else NONE, way):
            goes_on &= (place[:, layer] != NONE) & (place[:, layer] == end + way * step)
            end = np.where(goes_on, place[:, layer], end)
        ends.append(end)
    return np.minimum(*ends), np.maximum(*ends)
