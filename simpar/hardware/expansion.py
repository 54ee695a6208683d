"""Expansion: which units of a device a running collective takes, by the mode in which its library expands it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from simpar.hardware.figure import NumberFigure, ShareFigure, Text

Mode = Literal['host', 'ai_cpu', 'aiv']
"""The words of HCCL_OP_EXPANSION_MODE."""
Collective = Literal['all_reduce', 'all_gather', 'reduce_scatter', 'all_to_all', 'send_recv']


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What a running collective takes of each of its devices in one mode; no mode takes of the cube units.

    Arguments:
        source: who moves the data, and where that was read.
        bandwidth: share of the memory's bandwidth that it takes; none: as ``slow_down.memory`` says.
        cores: vector cores that it takes at least, by operator; of those that are not there, none.
        ranks_a_core: groups of more ranks than these for each of the cores take one more core for each so many ranks.
    """

    source: Text
    bandwidth: ShareFigure | None = None
    cores: Mapping[Collective, NumberFigure] = field(default_factory=dict)
    ranks_a_core: NumberFigure | None = None

    def cores_of(self, operator: str, ranks: int) -> int:
        """Vector cores that a collective of so many ranks takes."""
        found = {str(name): figure.value for name, figure in self.cores.items()}.get(operator, 0.0)
        more = math.ceil(ranks / self.ranks_a_core.value) if found and self.ranks_a_core else 0
        return max(math.ceil(found), more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """What collectives take by mode.

    Arguments: ``default``, the mode that ``slow_down`` was told of, in use unless a user or a stack says another;
    ``vector_cores`` of a device.
    """

    default: Mode
    modes: Mapping[Mode, Taken]
    vector_cores: NumberFigure | None = None
