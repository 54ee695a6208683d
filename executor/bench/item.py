"""Items: what is measured, each one op class on tensors that every rank holds in full, and programs that run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from simpar.cost.compute import NO_WORK
from simpar.program import OpClass, Partition, Program, ProgramBuilder, Tensor

COMPUTE: Final = 'compute'
COMMUNICATION: Final = 'communication'
DRAWN: Final = 'normal:0.02'
"""How operands start: numbers of any size, so that no kernel meets a special case."""
ANY_SIZE: Final = frozenset({'embedding', 'ce_sum', 'cross_entropy'})
"""Operators that are told a partition and do the same work whatever its size is."""
LOGARITHMS: Final = frozenset({'ce_loss', 'log'})
"""Operators that may not read negative numbers."""
Key = Mapping[str, int | str]


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """One line of a table.

    Arguments:
        table: matmul, attention, operator or collective.
        key: its columns without the times.
        ops: op classes that run one after the other; the last is measured.
        tensors: all tensors that the ops touch.
        weight: the item's weight in the mean of all items that have this key.
    """

    table: str
    key: Key
    ops: tuple[OpClass, ...]
    tensors: tuple[Tensor, ...]
    weight: int = 1

    @property
    def name(self) -> str:
        """The name of the op that is measured."""
        return self.ops[-1].name


def partition_name(size: int) -> str:
    """The partition of a bench program into groups of so many neighbouring ranks."""
    return f'of{size}'


def group_sizes(world: int, per_host: int = 0) -> list[int]:
    """Sizes of groups that ``world`` ranks can be split into: powers of two, and all.

    Arguments: ``per_host``, ranks of a host; 0: all. Groups then fill hosts, or hosts hold full groups.
    """
    # Groups must be equal, and plans use powers of two mostly; all sizes would take too long.
    powers = {2**power for power in range(1, 20) if world % 2**power == 0}
    sizes = sorted(powers | ({per_host, world} - {0, 1} if world > 1 else set()))
    return [size for size in sizes if not per_host or per_host % size == 0 or size % per_host == 0]


def hosts_of(size: int, per_host: int) -> int:
    """Hosts that a group of neighbours touches."""
    return max(1, size // per_host) if per_host else 1


def program_of(items: Sequence[Item], world: int, streams: tuple[str, ...] = ()) -> Program:
    """A program in which every rank runs the items in this order, communication on a stream of its own.

    Arguments: ``streams`` to have, those that the items need unless given.
    """
    # Groups that no op uses cost nothing.
    sizes = [size for size in range(2, world + 1) if world % size == 0]
    ranks = np.arange(world, dtype=np.int32)
    builder = ProgramBuilder(world, [Partition(partition_name(size), ranks.reshape(-1, size)) for size in sizes])
    # Items share operands of one shape (see ``operand``), so that a bench fits in memory.
    for tensor in {tensor.name: tensor for item in items for tensor in item.tensors}.values():
        builder.add_tensor(tensor)
    ops = [op for item in items for op in item.ops]
    for op in {op.name: op for op in ops}.values():
        builder.add_op_class(op)
    slots = [(op.name, COMPUTE if op.kind == 'compute' else COMMUNICATION, 0, 0) for op in ops]
    used = {stream for _, stream, _, _ in slots}
    streams = streams or tuple(stream for stream in (COMPUTE, COMMUNICATION) if stream in used)
    builder.add_role('all', range(world), slots, streams)
    return builder.build()


def operand(shape: tuple[int, ...], place: int = 0, initial: str = DRAWN, dtype: str = 'fp32') -> Tensor:
    """A tensor that is there from the start; those of one form and place are one tensor.

    Arguments: ``place`` among the operands of one op, so that no two of them are the same memory.
    """
    size = 'x'.join(map(str, shape))
    return Tensor(f'{initial}.{dtype}.{size}.{place}', 'state', shape, dtype, initial=initial)


def result(name: str, shape: tuple[int, ...], dtype: str = 'fp32') -> Tensor:
    """A tensor that an op writes, and frees at once."""
    return Tensor(name, 'activation', shape, dtype)


def isolate(program: Program, op: OpClass, world: int) -> tuple[OpClass, tuple[Tensor, ...]] | None:
    """Take an op out of its program, on its local shapes.

    Returns None where the op needs groups that ``world`` cannot form, or does nothing.
    """
    # It takes no time on any machine, so there is nothing to measure.
    if op.operator in NO_WORK:
        return None
    program, op = _plain(program, op)
    attributes, partition = dict(op.attributes), op.partition or str(op.attributes.get('partition', ''))
    if partition:
        size = program.partitions[partition].size
        # Such an op computes the same whatever its group is, so any group of this world does.
        if size not in group_sizes(world) and op.operator in ANY_SIZE:
            size = world
        if size not in group_sizes(world):
            return None
        partition = partition_name(size)
        attributes |= {'partition': partition} if op.kind == 'compute' else {}
    reads = _operands(program, op)
    # Updates work in place: what they write is what they have read, not a new tensor.
    changed = set(op.reads) if op.phase == 'U' and op.kind == 'compute' else set()
    writes = [reads[op.reads.index(name)] if name in changed else _written(program, op, name) for name in op.writes]
    sums = [replace(_written(program, op, name), kind='gradient') for name in op.accumulates]
    alone = replace(
        op,
        partition=partition if op.kind != 'compute' else '',
        attributes=attributes,
        reads=tuple(tensor.name for tensor in reads),
        writes=tuple(tensor.name for tensor in writes),
        accumulates=tuple(tensor.name for tensor in sums),
        frees=tuple(tensor.name for tensor in (*writes, *sums) if tensor not in reads),
    )
    return alone, tuple({tensor.name: tensor for tensor in (*reads, *writes, *sums)}.values())


def _plain(program: Program, op: OpClass) -> tuple[Program, OpClass]:
    """The same message of full buffers, where it packs tensors; a norm as if all elements counted alike."""
    # How elements count depends on the group's positions, which this world may lack; the work does not depend on it.
    if '@' in str(op.attributes.get('ranks', '')):
        return program, replace(op, attributes={**op.attributes, 'ranks': ' '.join('1' for _ in op.reads)})
    scatters = op.operator == 'reduce_scatter'
    if op.operator not in ('all_gather', 'reduce_scatter'):
        return program, op
    shares = [program.tensor[name] for name in (op.writes + op.accumulates if scatters else op.reads)]
    if not any(share.members for share in shares):
        return program, op
    rest = list(op.reads if scatters else op.writes)
    buffers = []
    for share in shares:
        # Members of a packed share stand one behind the other; an unpacked share stands for one tensor.
        mine = [rest.pop(0) for _ in range(len(share.members) or 1)]
        full = replace(share, name=f'{share.name}.full', splits=(), members=(), initial='')
        buffers.append(full if share.members else program.tensor[mine[0]])
    names = tuple(full.name for full in buffers)
    added = tuple(full for full in buffers if full.name not in program.tensor)
    alone = replace(op, reads=names) if scatters else replace(op, writes=names)
    return program.replace(tensors=(*program.tensors, *added)), alone


def _operands(program: Program, op: OpClass) -> list[Tensor]:
    """What an op reads, in the order that it reads it; updates have tensors of their own, for they change them."""
    found = []
    for place, name in enumerate(op.reads):
        tensor = program.tensor[name]
        shape = program.local_shape(tensor)
        made = operand(shape, place, _initial(tensor, op.operator), tensor.dtype)
        # An update changes its operands. Were they shared, the next item would meet numbers that no longer are usual.
        found.append(replace(made, name=f'{op.name}.{made.name}') if op.phase == 'U' else made)
    return found


def _initial(tensor: Tensor, operator: str) -> str:
    if not tensor.dtype.startswith('int'):
        given = tensor.kind in ('parameter', 'state')
        return tensor.initial if given else 'ones' if operator in LOGARITHMS else DRAWN
    return tensor.initial if tensor.initial.startswith(('tokens:', 'classes:')) else 'classes:2'


def _written(program: Program, op: OpClass, name: str) -> Tensor:
    tensor = program.tensor[name]
    return result(f'{op.name}>{name}', program.local_shape(tensor), tensor.dtype)


def twice(item: Item) -> Item:
    """Repeat an op, so that the second run adds to the sum that the first has created."""
    # The first must not free the sum, or the second would create it instead of adding to it.
    first, second = (replace(item.ops[-1], name=f'{item.name}.{word}') for word in ('first', 'again'))
    return replace(item, ops=(replace(first, frees=()), second))
