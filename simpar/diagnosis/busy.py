"""Busy machines: ops that vary from step to step more than those of other ranks, or more than ops do."""

from __future__ import annotations

from typing import Final

import numpy as np

from simpar.diagnosis.cause import Cause
from simpar.diagnosis.level import Level
from simpar.diagnosis.own import Own
from simpar.diagnosis.place import Place
from simpar.diagnosis.sites import Sites

VARIES: Final = 0.05
"""Share of its compute by which a rank's ops must vary beyond those of most, to be called busy."""
ALL: Final = 0.15
"""Share by which most ops vary, beyond which the whole machine is called busy."""


def busy(seen: Level, told: Own, sites: Sites) -> list[Cause]:
    """Each rank, and all of them, as far as their ops vary."""
    varies = np.bincount(sites.rank, seen.varies)
    computes = np.maximum(np.bincount(sites.rank, seen.run * sites.computes), 1e-300)
    found = [
        Cause(
            kind='busy',
            place=Place(ranks=(rank,)),
            amount=float(varies[rank] / computes[rank]),
            seconds=float(varies[rank]),
        )
        for rank in np.flatnonzero(varies > VARIES * computes).tolist()
    ]
    if seen.noise > ALL:
        seconds = seen.noise * float(computes.sum())
        found.append(Cause(kind='busy', place=Place(), amount=seen.noise, seconds=seconds))
    return found
