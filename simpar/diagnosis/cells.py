"""Cells: sites of one rank, op class and channel taken together, so that many places are weighed quickly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simpar.diagnosis.level import Level
from simpar.diagnosis.own import Own
from simpar.diagnosis.sites import Ints, Mask, Sites
from simpar.program import Program
from simpar.trace import Times


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
