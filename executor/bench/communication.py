"""Communication items: collectives over their range of sizes, in groups of every size."""

from __future__ import annotations

from dataclasses import replace

from executor.bench.compute import unique
from executor.bench.item import Item, group_sizes, hosts_of, isolate, operand, partition_name, result
from executor.bench.sizes import Sizes
from executor.collectives import SMALL
from simpar.hardware.net import Net
from simpar.program import OpClass, Program, Tensor

WIDTH = 4
"""Bytes of a number."""
RINGS = ('all_reduce', 'all_gather', 'reduce_scatter')
"""What is measured whether a program has it or not; an all-to-all, only where one does."""


def message_items(sizes: Sizes, net: Net, world: int, per_host: int = 0) -> list[Item]:
    """Every collective in groups of every size; the groups of one size communicate at once."""
    largest = net.rate * sizes.message_seconds
    return [
        collective(operator, members, size, hosts_of(members, per_host))
        for members in group_sizes(world, per_host)
        for operator in RINGS
        for size in both_sides(operator, sizes.messages)
        # On a slow shaped link a large message would take minutes; the smallest stays, as it tells the latency.
        if size == min(sizes.messages) or size <= largest
    ]


def both_sides(operator: str, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Sizes on both sides of the size up to which the executor exchanges all-reduces."""
    return tuple(sorted({*sizes, SMALL, SMALL + 1})) if operator == 'all_reduce' and max(sizes) > SMALL else sizes


def collective(operator: str, members: int, size: int, hosts: int = 1) -> Item:
    """A collective of fp32 numbers.

    Arguments:
        size: bytes of the full vector, rounded up to whole numbers for every member.
        hosts: how many a group touches.
    """
    # Rounded up: every member needs the same whole number of fp32 numbers.
    shard = -(-size // (WIDTH * members))
    full = shard * members
    shape, out = {
        'all_reduce': (full, full),
        'all_gather': (shard, full),
        'reduce_scatter': (full, shard),
    }[operator]
    name = f'{operator}.{members}.{size}'
    read, written = operand((shape,)), result(f'{name}>out', (out,))
    op = OpClass(
        name=name,
        kind='collective',
        operator=operator,
        phase='F',
        bytes=float(WIDTH * full),
        partition=partition_name(members),
        reduce='' if operator == 'all_gather' else 'sum',
        reads=(read.name,),
        writes=(written.name,),
        frees=(written.name,),
        attributes={} if operator == 'all_reduce' else {'dim': 0},
    )
    return _item(op, members, (read, written), hosts)


def program_messages(program: Program, world: int, prefix: str, per_host: int = 0) -> list[Item]:
    """The distinct collectives of a program, alone, as far as this world has groups of their size."""
    found = []
    for op in program.op_classes:
        alone = isolate(program, replace(op, name=f'{prefix}.{op.name}'), world) if op.kind == 'collective' else None
        size = program.partitions[op.partition].size if alone else 0
        if alone is not None and size in group_sizes(world, per_host):
            found.append(_item(alone[0], size, alone[1], hosts_of(size, per_host)))
    return unique(found)


def _item(op: OpClass, members: int, tensors: tuple[Tensor, ...], hosts: int) -> Item:
    # The algorithm depends on the size as in ``executor.collectives``; fits must not mix the two.
    exchanged = op.operator == 'all_reduce' and op.bytes <= SMALL
    key: dict[str, int | str] = {
        'operator': op.operator,
        'ranks': members,
        'nodes': hosts,
        'bytes': int(op.bytes),
        'algorithm': 'exchange' if exchanged else 'pairwise' if op.operator == 'all_to_all' else 'ring',
    }
    return Item('collective', key, (op,), tensors)
