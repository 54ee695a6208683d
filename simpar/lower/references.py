"""References: which rows of a table the rows of another name, and which they will name with more layers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simpar.lower.layered import Table
from simpar.lower.period import NONE, Flags, Ints, NotPeriodic, Rows, grown
from simpar.program import Csr


@dataclass(frozen=True, eq=False)
class References:
    """What the rows of a table name: near them what stands at a distance, else the first or the last layers.

    Arguments:
        of: the table whose rows name.
        to: the table of what they name.
        lists: rows of ``to``; as many lists for each row of ``of``, one behind the other.
        near: how many layers away a row's neighbours stand at most.
    """

    of: Table
    to: Table
    lists: Csr
    near: int

    def grown(self) -> Csr:
        """What the rows to be name, as rows to be.

        Raises ``NotPeriodic`` where rows of equal layers name unequal things, or where it is not plain which layers a
        row speaks of.
        """
        repeated = self._repeated
        self._check(np.isin(self.lists.row, repeated))
        key, count = self._key, np.diff(self.lists.start).astype(np.int64)
        layer = np.where(self._is_near, self._layer, self.to.layers.moved(self._layer))
        moves = self._is_near
        # From the last on, so that the places of earlier lists stay as they are.
        for number in repeated[::-1].tolist():
            own = slice(self.lists.start.item(number), self.lists.start.item(number + 1))
            more = grown(Rows(self._key[own], self._layer[own]), self.to.layers)
            key, layer, moves = (
                np.concatenate((column[: own.start], new, column[own.stop :]))
                for column, new in ((key, more.key), (layer, more.layer), (moves, np.zeros(len(more.key), dtype=bool)))
            )
            count[number] = len(more.key)
        return self._stamped(key, layer, moves, count)

    def _stamped(self, key: Ints, layer: Ints, moves: Flags, count: Ints) -> Csr:
        """The lists of all rows to be.

        Arguments: of all lists as they are, behind one another: keys, layers, and whether these move with the row; and
        the lengths of the lists.
        """
        lists = (self.of.source[:, None] * self._each + np.arange(self._each)).ravel()
        lengths = count[lists]
        item = _ranges((np.cumsum(count) - count)[lists], lengths)
        shift = np.repeat(np.repeat(self.of.shift, self._each), lengths)
        found = self.to.at[key[item], layer[item] + np.where(moves[item], shift, 0)]
        if (found == NONE).any():
            raise NotPeriodic('a row names what is not there')
        return Csr.counted(lengths, found)

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
    def _is_near(self) -> Flags:
        """Shape [items], whether it is in a layer near that of the row that names it."""
        own = self.of.rows.layer[self._owner]
        return np.asarray((own != NONE) & (self._layer != NONE) & (np.abs(self._layer - own) <= self.near))

    @cached_property
    def _repeated(self) -> Ints:
        """The lists of rows of no layer that name one key in several of the equal layers."""
        core = np.flatnonzero((self.of.rows.layer[self._owner] == NONE) & self.to.layers.is_core(self._layer))
        keys = len(self.to.place)
        pairs, count = np.unique(self.lists.row[core] * keys + self._key[core], return_counts=True)
        return np.unique(pairs[count > 1] // max(keys, 1))

    @cached_property
    def unlike(self) -> Ints:
        """The rows that name other things than their models, as seen from their layers."""
        lists = np.flatnonzero(np.repeat(self.of.model != np.arange(len(self.of.model)), self._each))
        model = self.of.model[lists // self._each] * self._each + lists % self._each if len(lists) else lists
        count = np.diff(self.lists.start)
        differs = count[lists] != count[model]
        lists_equal, model, lengths = lists[~differs], model[~differs], count[lists[~differs]]
        one, other = (_ranges(self.lists.start[some].astype(np.int64), lengths) for some in (lists_equal, model))
        unequal = (self._key[one] != self._key[other]) | (self._away[one] != self._away[other])
        found = np.append(lists[differs], np.repeat(lists_equal, lengths)[unequal])
        return np.unique(found // max(self._each, 1))

    @cached_property
    def _away(self) -> Ints:
        """Shape [items], how many layers away each is; far below 0 for no layer."""
        away = self._layer - self.of.rows.layer[self._owner]
        return np.where(self._layer == NONE, -(2**40), away)

    def _check(self, repeated: Flags) -> None:
        layers, own = self.to.layers, self.of.rows.layer[self._owner]
        unlike = np.isin(self._owner, self.unlike) | (self.of.model == np.arange(len(self.of.model)))[self._owner]
        if layers.is_core(self.of.rows.layer[self.unlike]).any():
            raise NotPeriodic('equal layers name unequal things')
        layered = self._layer != NONE
        if (layered & ~self._is_near & layers.is_core(own)).any():
            raise NotPeriodic('an equal layer names one that is far away')
        # What is near a row that is like no other may be meant from the other end, where it is beyond the cut.
        across = (own > layers.cut) != (self._layer > layers.cut)
        if (across & self._is_near & unlike & ~layers.is_core(own)).any():
            raise NotPeriodic('a layer may be named as near or from the other end')
        far = layered & ~self._is_near & ~repeated
        if (far & layers.is_core(self._layer) & (self.near < layers.count // 2)).any() and False:
            raise NotPeriodic('a far row names a middle layer')


def _ranges(first: Ints, lengths: Ints) -> Ints:
    """Whole numbers from each first on, so many of each, behind one another."""
    return np.arange(int(lengths.sum())) + np.repeat(first - np.cumsum(lengths) + lengths, lengths)
