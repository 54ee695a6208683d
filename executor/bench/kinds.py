"""Kinds of messages: every collective, and sends, in groups inside of a host and across hosts; and their programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from executor.bench.item import DRAWN, group_sizes, hosts_of
from executor.collectives import SMALL
from simpar.hardware.net import Net
from simpar.program import OpClass, Partition, Program, ProgramBuilder, Split, Tensor

KINDS: Final = ('all_reduce', 'all_gather', 'reduce_scatter', 'all_to_all', 'send_recv', 'send')
WIDTH: Final = 4
"""Bytes of a number."""
GROUP: Final = 'group'
ONE_SHARD: Final = frozenset({('all_gather', 'in'), ('reduce_scatter', 'out')})
"""Sides of a collective that are one rank's slice."""
STREAMS: Final = (2, 3)
"""How many all-reduces run at once."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A collective, or a send, in groups of so many ranks, of these ``sizes`` in bytes, on ``streams`` at once.

    Arguments:
        hosts: how many a group touches.
        stride: from one member of a group to the next; 1: neighbours.
        crowded: whether all groups communicate at once; else the first one does, and the others stand by.
    """

    operator: str
    ranks: int
    sizes: tuple[int, ...]
    streams: int = 1
    hosts: int = 1
    stride: int = 1
    crowded: bool = True

    def groups(self, world: int) -> NDArray[np.int32]:
        """The ranks of every group, shape [groups, ranks]; of sends of neighbours, all ranks are one."""
        ranks = np.arange(world, dtype=np.int32)
        if self.operator == 'send' and self.stride == 1:
            return ranks.reshape(1, -1)
        return ranks.reshape(-1, self.ranks, self.stride).swapaxes(1, 2).reshape(-1, self.ranks)

    def talking(self, world: int) -> list[list[int]]:
        """The ranks that communicate, group by group; of a send its source and its target."""
        groups: list[list[int]] = self.groups(world).tolist()
        if self.operator == 'send':
            return [groups[0][:2]]
        return groups if self.crowded else groups[:1]


def kinds(world: int, sizes: Iterable[int], net: Net, seconds: float, per_host: int = 0) -> list[Kind]:
    """Every kind in groups of every size, over sizes on both sides of the executor's change of algorithm.

    Arguments:
        seconds: how long the largest message may take on a shaped network.
        per_host: ranks of a host; 0: all. Of several hosts, groups with one rank of each are measured too, alone.
    """
    largest = net.rate * seconds
    fitting = sorted(size for size in sizes if size <= largest) or [min(sizes)]
    # The largest that may be: beyond it the rate of its neighbours counts, and a burst that a shaped link lets through
    # at once would seem part of that rate.
    fitting += [int(largest)] if net.shaped and largest > fitting[-1] else []
    found = []
    for operator in KINDS:
        for ranks in (2,) if operator == 'send' else group_sizes(world, per_host):
            hosts = 2 if operator == 'send' and per_host == 1 else hosts_of(ranks, per_host)
            found.append(Kind(operator, ranks, _wanted(operator, ranks, fitting), hosts=hosts))
        hosts = world // per_host if per_host > 1 else 1
        for ranks in (hosts,) * (hosts > 1) if operator == 'send' else group_sizes(hosts):
            wanted = _wanted(operator, ranks, fitting)
            found.append(Kind(operator, ranks, wanted, hosts=ranks, stride=per_host, crowded=False))
    return found


def _wanted(operator: str, ranks: int, fitting: Sequence[int]) -> tuple[int, ...]:
    # What is exchanged, or sent, need not be split.
    wanted = {rounded(size, 1 if size <= SMALL and operator == 'all_reduce' else ranks) for size in fitting}
    if operator == 'all_reduce':
        # The last size that is exchanged, and the first that goes around a ring.
        wanted |= {SMALL, rounded(SMALL + 1, ranks)}
    return tuple(sorted(wanted))


def at_once(world: int, size: int, per_host: int = 0) -> list[Kind]:
    """All-reduces of all ranks on several streams that never wait for one another."""
    hosts = hosts_of(world, per_host)
    return [Kind('all_reduce', world, (rounded(size, world),) * 2, streams, hosts) for streams in STREAMS]


def crossing(world: int, size: int, per_host: int) -> list[Kind]:
    """All-reduces of groups with one rank of each host: of one group alone, and of all groups at once."""
    hosts = world // per_host
    sizes = (rounded(size, hosts),)
    return [
        Kind('all_reduce', hosts, sizes, hosts=hosts, stride=per_host, crowded=crowded) for crowded in (False, True)
    ]


def rounded(size: int, ranks: int) -> int:
    """Bytes, rounded up to whole numbers for every rank of a group."""
    return -(-size // (WIDTH * ranks)) * WIDTH * ranks


def program_of(kind: Kind, world: int, *, computes: bool) -> Program:
    """The program of a kind.

    Arguments: ``computes``: a compute op stands before each message, as emulated ranks have them.
    """
    pairs, groups = kind.operator == 'send', kind.groups(world)
    names = [f'{GROUP}{stream}' for stream in range(kind.streams)]
    builder = ProgramBuilder(world, [Partition(name, groups) for name in names])
    if computes:
        builder.add_op_class(
            OpClass(name='compute', kind='compute', operator='relu', phase='F', bytes=4.0, dtype='fp32')
        )
    ends = ('send', 'recv') if pairs else (kind.operator,)
    for name in names:
        for place, size in enumerate(kind.sizes):
            for part in ('in', 'out'):
                splits = (Split(0, name),) if (kind.operator, part) in ONE_SHARD else ()
                tensor = Tensor(f'{part}.{name}.{place}', 'state', (size // WIDTH,), 'fp32', splits=splits)
                builder.add_tensor(replace(tensor, initial=DRAWN if part == 'in' else 'zeros'))
            for end in ends:
                builder.add_op_class(_op(end, name, place, size, kind.ranks))
    # A send has one pair of all ranks: the others stand by, as in a pipeline.
    talking = [rank for group in kind.talking(world) for rank in group]
    roles = {'send': talking[:1], 'recv': talking[1:]} if pairs else {kind.operator: sorted(talking)}
    roles['idle'] = [rank for rank in range(world) if rank not in set(talking)]
    for role, ranks in roles.items():
        if ranks:
            builder.add_role(role, ranks, _slots(role, names, kind, computes=computes), _streams(names, computes))
    return builder.build()


def _streams(names: Sequence[str], computes: bool) -> tuple[str, ...]:
    return ('compute', *names) if computes else tuple(names)


def _slots(role: str, names: Sequence[str], kind: Kind, *, computes: bool) -> list[tuple[str, str, int, int]]:
    slots = [('compute', 'compute', 0, 0)] if computes else []
    for place in range(len(kind.sizes) if role != 'idle' else 0):
        slots += [(f'{role}.{name}.{place}', name, 0, 0) for name in names]
    return slots


def _op(operator: str, stream: str, place: int, size: int, ranks: int) -> OpClass:
    attributes: dict[str, int | float | str | bool] = {'dim': 0} if operator in ('all_gather', 'reduce_scatter') else {}
    if operator == 'all_to_all':
        attributes = {'joins': '0', 'cuts': '0', 'sizes': str(ranks)}
    return OpClass(
        name=f'{operator}.{stream}.{place}',
        kind='send' if operator == 'send' else 'recv' if operator == 'recv' else 'collective',
        operator=operator,
        phase='F',
        bytes=float(size),
        partition=stream,
        peer={'send': 1, 'recv': -1}.get(operator, 0),
        reduce='sum' if operator in ('all_reduce', 'reduce_scatter') else '',
        reads=() if operator == 'recv' else (f'in.{stream}.{place}',),
        writes=() if operator == 'send' else (f'out.{stream}.{place}',),
        attributes=attributes,
    )
