"""References: which rows of a table the rows of another name, and which they will name with more layers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from simpar.lower.layered import Table, grown_rows
from simpar.lower.period import NONE, Flags, Ints, NotPeriodic, Rows
from simpar.machine_code import is_started
from simpar.program import Csr
from simpar.program.csr import ranges

_NOWHERE: Final = 2**40
"""How many layers away a row of no layer is."""


class _Seen(NamedTuple):
    """What lists name.

    Arguments:
        unlike: rows that name other things than their models.
        key, layer, moves: shape [items], the layer as it will be, unless it moves with the row.
        of_all: lists of all layers.
    """

    unlike: Ints
    key: Ints
    layer: Ints
    moves: Flags
    of_all: Ints


class _Longer(NamedTuple):
    """What some lists will name, one behind the other: keys and layers; and the lengths of the lists."""

    key: Ints
    layer: Ints
    lengths: Ints


@dataclass(frozen=True, eq=False)
class References:
    """What the rows of a table name: near them what stands at a distance, else the first or the last layers.

    Arguments:
        of: the table whose rows name.
        to: the table of what they name.
        lists: rows of ``to``; for each row of ``of`` as many lists, one behind the other.
        near: how many layers away a row's neighbours stand at most.
    """

    of: Table
    to: Table
    lists: Csr
    near: int

    def grown(self, way: int = 0) -> Csr:
        """What the rows to be name, as rows to be.

        Arguments: ``way``, 1: the items of each list rise, -1: they fall; 0: they keep their order.
        Raises ``NotPeriodic`` where rows of equal layers name unequal things, or where it is not plain which layers a
        row speaks of.
        """
        _, key, layer, moves, of_all = self._seen
        count = self.lists.count.astype(np.int64)
        if len(of_all):
            more = self._of_all_layers(of_all)
            first = self.lists.start[:-1].astype(np.int64)
            # What lists of all layers name stands behind all else.
            first[of_all] = len(key) + np.append(0, np.cumsum(more.lengths[:-1]))
            count[of_all] = more.lengths
            item = ranges(first, count)
            still = np.zeros(len(more.key), dtype=bool)
            key, layer, moves = (
                np.concatenate(both)[item] for both in ((key, more.key), (layer, more.layer), (moves, still))
            )
        return (self._compiled if is_started() else self._stamped)(key, layer, moves, count, way)

    def _of_all_layers(self, lists: Ints) -> _Longer:
        """What lists of all layers will name."""
        # All of them at once: a key of one list is another than that of the next.
        keys, lengths = len(self.to.place), self.lists.count[lists]
        item = ranges(self.lists.start[lists], lengths)
        apart = np.repeat(np.arange(len(lists)) * keys, lengths)
        more = grown_rows(Rows(self._key[item] + apart, self._layer[item]), self.to.layers)
        which, key = np.divmod(more.key, keys)
        return _Longer(key, more.layer, np.bincount(which, minlength=len(lists)))

    def _stamped(self, key: Ints, layer: Ints, moves: Flags, count: Ints, way: int) -> Csr:
        """The lists of all rows to be.

        Arguments: of the lists as they are, one behind the other: keys, layers, and whether these move with the row;
        the lengths of the lists; ``way``, as of ``grown``.
        """
        lists = (self.of.source[:, None] * self._each + np.arange(self._each)).ravel()
        lengths = count[lists]
        item = ranges((np.cumsum(count) - count)[lists], lengths)
        shift = np.repeat(np.repeat(self.of.shift, self._each), lengths)
        found = self.to.at[key[item], layer[item] + np.where(moves[item], shift, 0)]
        if (found == NONE).any():
            raise NotPeriodic('a row names what is not there')
        return _ordered(Csr.counted(lengths, found), way)

    def _compiled(self, key: Ints, layer: Ints, moves: Flags, count: Ints, way: int) -> Csr:
        """The same by a kernel."""
        from simpar.lower.kernels import stamp

        start = np.append(0, np.cumsum(count))
        source = self.of.source
        each = np.add.reduceat(count, np.arange(0, len(count), self._each))
        to_be = np.empty(len(source) * self._each + 1, dtype=np.int32)
        item = np.empty(each[source].sum(), dtype=np.int32)
        given = start, key, layer, moves, self._each, source, self.of.shift, self.to.at
        # numpy tells what is wrong.
        if stamp(*given, to_be, item, way) == NONE:
            return self._stamped(key, layer, moves, count, way)
        return Csr(to_be, item)

    @cached_property
    def _seen(self) -> _Seen:
        found = self._looked() if is_started() else None
        if found is None:
            self._check()
            layer = np.where(self._is_near, self._layer, self.to.layers.moved(self._layer))
            found = _Seen(self._unlike, self._key, layer, self._is_near, self._of_all)
        return found

    def _looked(self) -> _Seen | None:
        """The same by a kernel; None where numpy tells what is wrong."""
        from simpar.lower.kernels import look

        of, to, layers, items = self.of, self.to, self.to.layers, len(self.lists.item)
        flags = np.zeros(len(of.model) + len(self.lists), dtype=bool)
        unlike, of_all = flags[: len(of.model)], flags[len(of.model) :]
        key, layer = np.empty((2, items), dtype=np.int64)
        moves, last = np.empty(items, dtype=bool), np.full(len(to.place), NONE, dtype=np.int64)
        done = look(
            self.lists.start, self.lists.item, self._each, of.rows.layer, of.model, to.rows.key, to.rows.layer,
            layers.count, layers.edge, layers.more, self.near, unlike, key, layer, moves, of_all, last,
        )  # fmt: skip
        if done == NONE:
            return None
        return _Seen(np.flatnonzero(unlike), key, layer, moves, np.flatnonzero(of_all))

    @property
    def unlike(self) -> Ints:
        """The rows that name other things than their models, as seen from their layers."""
        return self._seen.unlike

    @cached_property
    def _unlike(self) -> Ints:
        """As ``unlike``."""
        has_model = self.of.model != np.arange(len(self.of.model))
        lists = np.flatnonzero(np.repeat(has_model, self._each))
        row, which = np.divmod(lists, self._each)
        model, count = self.of.model[row] * self._each + which, self.lists.count.astype(np.int64)
        equal = count[lists] == count[model]
        mine, theirs = (ranges(self.lists.start[some[equal]], count[lists[equal]]) for some in (lists, model))
        differs = (self._key[mine] != self._key[theirs]) | (self._away[mine] != self._away[theirs])
        found = np.append(row[~equal], self._owner[mine[differs]])
        return np.unique(found) if len(found) else found

    def _check(self) -> None:
        own, is_core = self.of.rows.layer, self.to.layers.is_core
        if is_core(own[self._unlike]).any():
            raise NotPeriodic('equal layers name unequal things')
        core, layered = is_core(own)[self._owner], self._layer != NONE
        if (core & layered & ~self._is_near).any():
            raise NotPeriodic('an equal layer names one that is far away')
        # What is near a row that is like no other may be meant from the other end, if it stands beyond the cut.
        alone = self.of.model == np.arange(len(own))
        alone[self._unlike] = True
        across = (own[self._owner] > self.to.layers.cut) != (self._layer > self.to.layers.cut)
        if (across & self._is_near & alone[self._owner] & ~core).any():
            raise NotPeriodic('a layer may be meant as near or from the other end')

    @property
    def _each(self) -> int:
        """Lists of a row."""
        return len(self.lists) // max(len(self.of.rows.key), 1)

    @cached_property
    def _owner(self) -> Ints:
        """Shape [items], the row that names each."""
        return self.lists.row // max(self._each, 1)

    @cached_property
    def _key(self) -> Ints:
        return self.to.rows.key[self.lists.item]

    @cached_property
    def _layer(self) -> Ints:
        return self.to.rows.layer[self.lists.item]

    @cached_property
    def _away(self) -> Ints:
        """Shape [items], how many layers behind the row that names it each stands."""
        own = self.of.rows.layer[self._owner]
        return np.where((own == NONE) | (self._layer == NONE), _NOWHERE, self._layer - own)

    @cached_property
    def _is_near(self) -> Flags:
        """Shape [items], whether it is in a layer near that of the row that names it."""
        return np.abs(self._away) <= self.near

    @cached_property
    def _of_all(self) -> Ints:
        """The lists of rows of no layer that name one key in several of the equal layers, and so in all layers."""
        far = np.flatnonzero(~self._is_near & self.to.layers.is_core(self._layer))
        if not len(far):
            return far
        keys = max(len(self.to.place), 1)
        pairs, count = np.unique(self.lists.row[far] * keys + self._key[far], return_counts=True)
        found = np.unique(pairs[count > 1] // keys)
        if (self.of.rows.layer[found // max(self._each, 1)] != NONE).any():
            raise NotPeriodic('a row of one layer names all of them')
        return found


def _ordered(lists: Csr, way: int) -> Csr:
    """The lists with items in order, as of ``References.grown``."""
    return Csr(lists.start, lists.item[np.lexsort((way * lists.item, lists.row))]) if way else lists
