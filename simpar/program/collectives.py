"""Collectives: one row each, read by whoever prices, lowers, runs, writes or reads them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

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


_ROWS: Final = (
    Collective(
        name='all_reduce', gives='full', gets='full', passes=2, adds=True, gradient='all_reduce',
        primitive='AllReduce', kernel='AllReduce', chakra=0, recorded=('all_reduce', 'allreduce'),
    ),
    Collective(
        name='all_gather', gives='shard', gets='full', passes=1, adds=False, gradient='reduce_scatter',
        primitive='AllGather', kernel='AllGather', chakra=2,
        recorded=('all_gather', 'allgather', '_allgather_base', 'allgather_into_tensor_coalesced'),
    ),
    Collective(
        name='reduce_scatter', gives='full', gets='shard', passes=1, adds=True, gradient='all_gather',
        primitive='ReduceScatter', kernel='ReduceScatter', chakra=7,
        recorded=('reduce_scatter', '_reduce_scatter_base'),
    ),
    # NCCL has sends and receives in its place.
    Collective(
        name='all_to_all', gives='full', gets='full', passes=1, adds=False, gradient='all_to_all',
        primitive='AlltoAll', kernel='SendRecv', chakra=6,
        recorded=('all_to_all', 'all_to_allv', 'all_to_all_base'),
    ),
    # A step of a ring: a message to the next rank, and one from the rank before.
    Collective(
        name='send_recv', gives='full', gets='full', passes=0, adds=False, gradient='send_recv',
        primitive='', kernel='SendRecv', chakra=None,
    ),
)  # fmt: skip
COPY: Final = 'copy'
"""To the host or back, by one rank alone: it meets nobody, so it has no row."""
COLLECTIVES: Final[Mapping[str, Collective]] = {row.name: row for row in _ROWS}
