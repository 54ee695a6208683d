"""Places: where something may be wrong, as ranks and a selection of ops, and which sites that covers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from simpar.diagnosis.sites import Ints, Level, Mask, Own, Sites
from simpar.program import OpClass, Program
from simpar.trace import Times

FIRST: Final = 8
"""Sets of ranks whose ops are looked at one by one."""
_WORDS: Final = ('partition', 'operator', 'phase', 'layer', 'op')


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Ranks, and of their ops those that have all of the words given; an empty field leaves a choice open.

    Arguments:
        ranks: empty for all.
        partition, operator, phase: as of ``OpClass``.
        layer, op: the name of one op class, and what stands before its first dot.
        streams: those that a lost overlap is between.
    """

    ranks: tuple[int, ...] = ()
    partition: str = ''
    operator: str = ''
    phase: str = ''
    layer: str = ''
    op: str = ''
    streams: tuple[str, ...] = ()

    def sites(self, sites: Sites, among: Mask) -> Mask:
        """Shape [N], which of the sites in ``among`` it covers."""
        return among & self.among(sites)

    def among(self, sites: Sites | Cells) -> Mask:
        """Shape as of the sites or cells, which of them it covers."""
        asked = [(name, getattr(self, name)) for name in _WORDS if getattr(self, name)]
        covered = self._on(sites)
        if not asked:
            return covered
        named = [all(_word(op, name) == word for name, word in asked) for op in sites.program.op_classes]
        return np.asarray(covered & np.array(named, dtype=bool)[sites.op], dtype=bool)

    def _on(self, sites: Sites | Cells) -> Mask:
        """On its ranks. What communicates belongs to one rank if that takes part, to several if none else does."""
        if not self.ranks:
            return sites.on(())
        own, some = set(self.ranks), len(self.ranks) == 1
        meets = [bool(own & {*ranks}) if some else own >= {*ranks} for ranks in sites.channels]
        # Index -1, of what computes, reads the entry behind those of all channels.
        communicating = np.array([*meets, False], dtype=bool)[sites.channel]
        return np.asarray(np.where(sites.computes, sites.on(self.ranks), communicating), dtype=bool)


def _ops(sites: Sites) -> Sequence[OpClass]:
    return sites.program.op_classes


def _word(op: OpClass, name: str) -> str:
    """What an op class has in a field; a receive is part of what sends."""
    if name == 'operator' and op.kind == 'recv':
        return 'send'
    if name == 'layer':
        return op.name.partition('.')[0]
    return op.name if name == 'op' else str(getattr(op, name))


def computing(sites: Sites, ranks: list[tuple[int, ...]]) -> Iterator[Place]:
    """Places of compute: sets of ranks by kinds of ops."""
    ops = [op for op in _ops(sites) if op.kind == 'compute']
    kinds = [Place()]
    kinds += [Place(operator=name) for name in _distinct(op.operator for op in ops)]
    kinds += [Place(phase=name) for name in _distinct(op.phase for op in ops)]
    kinds += [Place(operator=one, phase=two) for one, two in dict.fromkeys((op.operator, op.phase) for op in ops)]
    kinds += [Place(layer=name) for name in _distinct(_word(op, 'layer') for op in ops)]
    kinds += [Place(op=op.name) for op in ops]
    yield from _crossed(kinds, ranks)


def communicating(sites: Sites, ranks: list[tuple[int, ...]]) -> Iterator[Place]:
    """Places of communication: sets of ranks by partitions, and by kinds of ops there."""
    ops = [op for op in _ops(sites) if op.kind != 'compute']
    # Partitions first: where a partition does only one kind of op, its name is what a reader knows.
    kinds = [Place()] + [Place(partition=name) for name in _distinct(op.partition for op in ops)]
    kinds += [Place(operator=name) for name in _distinct(_word(op, 'operator') for op in ops)]
    kinds += [
        Place(partition=one, operator=two)
        for one, two in dict.fromkeys((op.partition, _word(op, 'operator')) for op in ops)
    ]
    kinds += [
        Place(partition=one, operator=two, phase=three)
        for one, two, three in dict.fromkeys((op.partition, _word(op, 'operator'), op.phase) for op in ops)
    ]
    # A send and its receive are two ops.
    kinds += [Place(op=op.name) for op in ops if op.kind == 'collective']
    yield from _crossed(kinds, ranks)


def groups(sites: Sites) -> list[tuple[int, ...]]:
    """The ranks that communicate among themselves, where these are not all; each set once."""
    found = [tuple(sorted(ranks)) for ranks in sites.channels if 1 < len(ranks) < sites.program.world]
    return list(dict.fromkeys(found))


def _crossed(kinds: list[Place], ranks: list[tuple[int, ...]]) -> Iterator[Place]:
    for number, some in enumerate(ranks):
        for kind in kinds:
            # There are many single ops; on a rank that is not among the first they are left out.
            if (kind.op or kind.layer) and number > FIRST:
                continue
            yield replace(kind, ranks=some)


def _distinct(words: Iterator[str]) -> list[str]:
    return list(dict.fromkeys(words))


# Cells: sites of one rank, op class and channel taken together, so that many places are weighed quickly.


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of a program; shape [M] each.

    Arguments:
        rank, op, channel, computes, channels: as of ``Sites``.
        seen, told: seconds of all runs of a cell; what several sites tell counts once.
        count: how many ops that are.
    """

    program: Program
    rank: Ints
    op: Ints
    channel: Ints
    computes: Mask
    channels: tuple[tuple[int, ...], ...]
    seen: Times
    told: Times
    count: Times

    def on(self, ranks: tuple[int, ...]) -> Mask:
        """Shape [M], whether a cell is on one of these ranks; on any where none is named."""
        return np.isin(self.rank, ranks) if ranks else np.ones(len(self.rank), dtype=bool)


def cells_of(seen: Level, told: Own, sites: Sites, among: Mask) -> Cells:
    """The cells of the sites in ``among``."""
    rank, op, channel = (each[among] for each in (sites.rank, sites.op, sites.channel))
    key = (rank * len(sites.program.op_classes) + op) * (len(sites.channels) + 1) + channel + 1
    _, first, cell = np.unique(key, return_index=True, return_inverse=True)
    share = sites.share[among]
    return Cells(
        program=sites.program,
        rank=rank[first],
        op=op[first],
        channel=channel[first],
        computes=sites.computes[among][first],
        channels=sites.channels,
        seen=np.bincount(cell, seen.run[among] * share).astype(np.float64),
        told=np.bincount(cell, told.run[among] * share).astype(np.float64),
        count=np.bincount(cell, share).astype(np.float64),
    )
