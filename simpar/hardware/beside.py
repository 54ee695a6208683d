"""Kinds of kernels that collectives of NCCL are, and what they take of a device: the table ``beside.csv``.

Kinds that it does not have take what the profile's ``slow_down`` says; HCCL's stand in the profiles (``expansion``).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from simpar.files import read_csv


@dataclass(frozen=True, slots=True)
class Kernels:
    """What a collective takes of its devices.

    Arguments:
        blocks: multiprocessors times ranks, as the switch shares the work out; 0: copy engines do it.
        matrix: speed of products beside it, where that was measured.
    """

    blocks: int
    matrix: float | None

    def speed(self, ranks: int, multiprocessors: float) -> float:
        """Speed of products beside it, of 1: what was measured, or the share of multiprocessors that it leaves."""
        taken = math.ceil(self.blocks / ranks) / multiprocessors if self.blocks else 0.0
        return 1 - taken if self.matrix is None else self.matrix


def kernels_of(tuning: str, mode: str) -> Mapping[str, Kernels]:
    """By operator, on devices of a row of NCCL's tables; ``dispatch``, as DeepEP does it, in any mode."""
    rows = [row for row in _rows() if row['tuning'] == tuning and row['mode'] in ('', mode)]
    return {
        row['operator']: Kernels(int(row['blocks']), float(row['matrix']) if row['matrix'] else None) for row in rows
    }


def modes_of(tuning: str) -> tuple[str, ...]:
    """The modes that NCCL has there beside its own."""
    return tuple(dict.fromkeys(row['mode'] for row in _rows() if row['tuning'] == tuning and row['mode']))


@lru_cache(maxsize=1)
def _rows() -> list[dict[str, str]]:
    return read_csv(Path(__file__).with_name('beside.csv'))
