"""Collectives: one row each of ``collectives.csv``, read by whoever prices, lowers, runs, writes or reads them.

NCCL has sends and receives in the place of an all-to-all. A ``send_recv`` is a step of a ring: a message to the next
rank, and one from the rank before.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from simpar.files import read_csv

Part = Literal['full', 'shard']


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """What a collective does with a vector over p ranks, and what others call it.

    Arguments:
        gives, gets: what a rank brings and has then: the full vector, or a p-th of it. The message of an op class
            (``OpClass.bytes``) is the full vector.
        passes: how often a p-th of it goes to the p − 1 others of a ring; 0 of a message that is none of these.
        adds: values of ranks are added, or the largest taken (``OpClass.reduce``).
        gradient: the collective that takes the gradient back.
        primitive: MindSpore's name. kernel: that of NCCL's kernel, behind ``ncclDevKernel_``.
        chakra: the number of its type in Chakra's traces; None where they have none.
        recorded: what torch's profiler calls it, behind ``gloo:``.
    """

    name: str
    gives: Part
    gets: Part
    passes: int
    adds: bool
    gradient: str
    primitive: str
    kernel: str
    chakra: int | None
    recorded: tuple[str, ...] = ()

    def part(self, side: Part, full: float, ranks: int) -> float:
        """Of the full vector what a side of it is. Arguments: ``side``, its ``gives`` or ``gets``."""
        return full / ranks if side == 'shard' else full


COPY: Final = 'copy'
"""To the host or back, by one rank alone: it meets nobody, so it has no row."""


def _collective(row: dict[str, str]) -> Collective:
    said = {'passes': int(row['passes']), 'adds': bool(row['adds']), 'recorded': tuple(row['recorded'].split())}
    return Collective(**{**row, **said, 'chakra': int(row['chakra']) if row['chakra'] else None})  # type: ignore[arg-type]


COLLECTIVES: Final[Mapping[str, Collective]] = {
    row['name']: _collective(row) for row in read_csv(Path(__file__).with_name('collectives.csv'))
}
