"""Validation: finds what is wrong with a program before a process group exists.

gloo's own errors cannot be relied on: a wrong size aborts the process, collectives of one size in different orders give
wrong numbers silently, and everything else is a timeout. Needs no torch.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from math import prod

import numpy as np
from numpy.typing import NDArray

from executor.ranks.watchdog import STREAMS
from executor.walk import stuck
from simpar.errors import ProgramError
from simpar.program import COLLECTIVES, COPY, OP_KINDS, Instance, OpClass, Partition, Program, Role, instance
from simpar.units import format_size


def dims_of(op: OpClass) -> tuple[int, ...]:
    """One dim for each tensor that the op works on: ``attributes['dim']`` is a number, or a text with one for each.

    What packs its tensors works on those that it makes.

    Raises ``ValueError`` where a text holds something else, or too few or too many.
    """
    dim = op.attributes.get('dim', 0)
    # Packed tensors are read one by one but split as one buffer, so dims belong to what the op makes.
    packs = op.operator in ('reduce_scatter', 'piece', 'keep')
    count = len(op.writes + op.accumulates) if packs else len(op.reads)
    if not isinstance(dim, str):
        return (int(dim),) * count
    dims = tuple(int(part) for part in dim.split())
    if len(dims) != count:
        raise ValueError(f'{op.name}: {len(dims)} dims for {count} tensors')
    return dims


def exchange_of(op: OpClass) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Of an all-to-all ``joins``, ``cuts`` and ``sizes``, each a text with a number for each axis of its group.

    ``sizes`` count a position, and the first counts most. Slices for the positions are split along ``cuts``;
    received slices are joined along ``joins``.
    Raises ``ValueError`` where a text is missing, holds something else or has another length.
    """
    texts = (str(op.attributes.get(key, '')) for key in ('joins', 'cuts', 'sizes'))
    joins, cuts, sizes = (tuple(int(part) for part in text.split()) for text in texts)
    if not sizes or not len(joins) == len(cuts) == len(sizes):
        raise ValueError(f'{op.name}: joins {joins}, cuts {cuts} and sizes {sizes} are not one for each axis')
    return joins, cuts, sizes


def along(op: OpClass) -> tuple[object, ...]:
    """The dims that a collective joins and splits, which all participants must agree on."""
    return tuple(op.attributes.get(key) for key in ('dim', 'joins', 'cuts', 'sizes'))


Names = tuple[str, ...]
Event = tuple[str, OpClass, int, int]
"""One op on a communicator: its action, op class, micro-batch and copy."""


def validate(program: Program) -> None:
    """Refuse a program that could hang, abort or compute something else on real ranks.

    Checks, each only where the ones before it found nothing: the tables hold together; the ranks of a group have the
    same collectives in the same order, and sends meet receives; what a collective gives comes of what it takes; needs
    and stream order imply every read-after-write, write-after-read and write-after-write, over the step boundary too;
    nothing reads what was never written, or gathered before what it is made of changed; no cycle over the union of all
    ranks' issue orders of collectives; two steps can finish with a blocking thread per stream.
    Raises ``ProgramError`` that lists every problem.
    """
    # In this order, since each takes for granted what the ones before it have checked.
    for check in (_tables, _communicators, _shapes, _buffers, _cycles, stuck):
        problems = list(check(program))
        if problems:
            raise ProgramError('the program cannot be executed:\n' + '\n'.join(f'  {problem}' for problem in problems))


def _tables(program: Program) -> Iterator[str]:
    """What later checks and the executor take for granted."""
    for partition in program.partitions.values():
        # A rank in no group would have no position, one in two groups two.
        if sorted(partition.groups_GP.ravel().tolist()) != list(range(program.world)):
            yield f'partition {partition.name}: not every rank of {program.world} stands in exactly one group'
    for op in program.op_classes:
        yield from _op_class(program, op)
    if not all(0 <= index < len(program.roles) for index in program.role_of_rank.tolist()):
        yield f'ranks have roles that are not there: {sorted(set(program.role_of_rank.tolist()))}'
    for role in program.roles:
        yield from _role(program, role)


def _op_class(program: Program, op: OpClass) -> Iterator[str]:
    if op.kind not in OP_KINDS:
        yield f'{op.name}: unknown kind {op.kind!r}; one of {", ".join(OP_KINDS)}'
    if op.kind != 'compute' and op.partition not in program.partitions:
        yield f'{op.name}: communicates in partition {op.partition!r}, which the program does not have'
    row = COLLECTIVES.get(op.operator)
    if op.kind == 'collective' and row is None and op.operator != COPY:
        yield f'{op.name}: unknown collective {op.operator!r}; one of {", ".join(COLLECTIVES)}'
    if row and row.adds and op.reduce not in ('sum', 'max'):
        yield f'{op.name}: reduces by {op.reduce!r}; write sum or max'
    for name in (*op.reads, *op.writes, *op.accumulates, *op.frees):
        if name not in program.tensor:
            yield f'{op.name}: uses tensor {name!r}, which the program does not have'


def _shapes(program: Program) -> Iterator[str]:
    for op in program.op_classes:
        if op.operator == COPY:
            yield from _copied(program, op)
        elif op.kind == 'collective':
            yield from _shape(program, op)


def _copied(program: Program, op: OpClass) -> Iterator[str]:
    """Check that a copy gives what it takes, on the other side of the link to the host."""
    for name, of in zip(op.reads, op.writes, strict=True):
        source, target = program.tensor[name], program.tensor[of]
        alike = program.local_shape(source) == program.local_shape(target) and source.dtype == target.dtype
        if not alike or source.host == target.host or program.partitions[op.partition].size > 1:
            yield f"{op.name}: {of} is no copy of {name} on the other side of a rank's link to its host"


def _shape(program: Program, op: OpClass) -> Iterator[str]:
    """Check that every result of a collective has the shape that follows from its operand."""
    row, results = COLLECTIVES[op.operator], op.writes + op.accumulates
    shares, fulls = (results, op.reads) if row.gets == 'shard' else (op.reads, results)
    shards = 'shard' in (row.gives, row.gets)
    packed = shards and any(program.tensor[name].members for name in shares)
    if not packed and len(results) != len(op.reads):
        yield f'{op.name}: takes {len(op.reads)} tensors, but gives {len(results)}'
        return
    try:
        dims = dims_of(op)
        exchange = exchange_of(op) if op.operator == 'all_to_all' else None
    except ValueError as wrong:
        yield str(wrong)
        return
    if packed:
        # Packed shares have members instead of dims, and rules of their own.
        yield from _packed(program, op, shares, fulls, dims)
        return
    if exchange is not None:
        yield from _exchange(program, op, *exchange)
        return
    size = program.partitions[op.partition].size
    for source, target, dim in zip(op.reads, results, dims, strict=True):
        operand, made = (list(program.local_shape(program.tensor[name])) for name in (source, target))
        full, shard = (made, operand) if row.gives == 'shard' else (operand, made)
        # A dim that is too large is reported as a wrong shape below.
        if shards and dim < len(shard):
            shard = [*shard[:dim], shard[dim] * size, *shard[dim + 1 :]]
        if full != shard:
            yield f'{op.name}: {target} of {tuple(made)} does not come of {source} of {tuple(operand)} along dim {dim}'


def _packed(program: Program, op: OpClass, shares: Names, fulls: Names, dims: tuple[int, ...]) -> Iterator[str]:
    """Check packed shares: each is an equal part of its full members, one behind the other, plus padding."""
    size, rest = program.partitions[op.partition].size, list(fulls)
    for name, dim in zip(shares, dims, strict=True):
        share = program.tensor[name]
        mine = [rest.pop(0) for _ in range(min(len(share.members) or 1, len(rest)))]
        local = list(program.local_shape(share))
        if not share.members:
            full_shape = [*local[:dim], local[dim] * size, *local[dim + 1 :]] if dim < len(local) else local
            if [list(program.local_shape(program.tensor[full])) for full in mine] != [full_shape]:
                yield f'{op.name}: {name} of {tuple(local)} is no equal part of {", ".join(mine)} along dim {dim}'
            continue
        if tuple(mine) != share.members:
            yield f'{op.name}: {name} packs {", ".join(share.members)}, not {", ".join(mine) or "nothing"}'
            continue
        elements = sum(prod(program.local_shape(program.tensor[full])) for full in mine)
        if (
            dim
            or len(local) != 1
            or local[0] * size < elements
            or [split.partition for split in share.splits] != [op.partition]
        ):
            yield f'{op.name}: {name} of {tuple(local)} over {size} ranks does not hold {elements} elements'
        if {program.tensor[full].dtype for full in mine} != {share.dtype}:
            yield f'{op.name}: {name} of {share.dtype} packs tensors of another type'
    if rest:
        yield f'{op.name}: {", ".join(rest)} in none of the tensors that it shares out'


def _exchange(
    program: Program, op: OpClass, joins: tuple[int, ...], splits: tuple[int, ...], sizes: tuple[int, ...]
) -> Iterator[str]:
    """Check an all-to-all: its result is its operand, shorter along ``splits`` and longer along ``joins``."""
    ranks = program.partitions[op.partition].size
    if prod(sizes) != ranks:
        yield f'{op.name}: {" × ".join(map(str, sizes))} positions, but {ranks} ranks in a group of {op.partition}'
        return
    for source, target in zip(op.reads, op.writes + op.accumulates, strict=True):
        operand, made = (program.local_shape(program.tensor[name]) for name in (source, target))
        wanted = list(operand)
        if max(*joins, *splits) >= len(operand):
            yield f'{op.name}: {source} of {operand} has no dim {max(*joins, *splits)}'
            continue
        for join, split, size in zip(joins, splits, sizes, strict=True):
            wanted[join] *= size
            wanted[split] //= size
        if tuple(wanted) != made or prod(wanted) != prod(operand):
            how = f'split along {splits} and joined along {joins}'
            yield f'{op.name}: {target} of {made} does not come of {source} of {operand}, {how}'


def _role(program: Program, role: Role) -> Iterator[str]:
    count = len(role)
    columns = {'op_class': len(program.op_classes), 'stream': len(role.streams)}
    columns |= {'micro_batch': program.micro_batches, 'copy': program.copies}
    for column, bound in columns.items():
        values = getattr(role, column)
        if len(values) != count or (count and int(values.max()) >= bound):
            yield f'role {role.name}: column {column} does not hold {count} numbers below {bound}'
            return
    if len(set(role.streams)) != len(role.streams):
        yield f'role {role.name}: two streams have the same name'
    if len(role.streams) > STREAMS:
        yield f'role {role.name}: {len(role.streams)} streams; the executor has room for {STREAMS}'
    if not all(needs.fits(count, count) for needs in (role.need, role.carry)):
        yield f'role {role.name}: needs do not name slots of the role'
        return
    # Slots are in issue order: a need that is issued later could never be met.
    pairs = role.need.pairs()
    for slot, need in pairs[pairs[:, 1] >= pairs[:, 0]].tolist():
        yield f'role {role.name}: {program.action(role, slot)} needs slot {need}, which is not issued before it'


def communicators(program: Program) -> list[tuple[Partition, str]]:
    """All pairs (partition, stream) that some rank communicates on, in a fixed order."""
    pairs = {
        (program.op(role, slot).partition, role.streams[int(role.stream[slot])])
        for role in program.roles
        for slot in range(len(role))
        if program.op(role, slot).kind != 'compute'
    }
    # Sorted: all ranks must make their process groups in one order.
    return [(program.partitions[partition], stream) for partition, stream in sorted(pairs)]


def groups(program: Program) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """The groups of several ranks of each communicator, in a fixed order: all ranks must make all groups."""
    for partition, stream in communicators(program):
        for members in partition.groups_GP.tolist() if partition.size > 1 else ():
            yield partition.name, stream, tuple(members)


def events(program: Program, rank: int, partition: str, stream: str) -> list[Event]:
    """What a rank does on one communicator in one step, in order."""
    role = program.role(rank)
    if stream not in role.streams:
        return []
    slots = np.flatnonzero(role.stream == role.streams.index(stream)).tolist()
    return [
        (program.action(role, slot), op, int(role.micro_batch[slot]), int(role.copy[slot]))
        for slot in slots
        if (op := program.op(role, slot)).kind != 'compute' and op.partition == partition
    ]


def _communicators(program: Program) -> Iterator[str]:
    for partition, stream in communicators(program):
        for group in partition.groups_GP.tolist():
            # A communicator is a partition and a stream; its order is all that real ranks agree by.
            lists = {rank: events(program, rank, partition.name, stream) for rank in group}
            where = f'partition {partition.name} on stream {stream}, group {tuple(group)}'
            yield from _collectives(program, lists, where)
            yield from _pairs(lists, group, where)


def _collectives(program: Program, lists: dict[int, list[Event]], where: str) -> Iterator[str]:
    """Compare all ranks of a group with its first."""
    chosen = {rank: [event for event in list_ if event[1].kind == 'collective'] for rank, list_ in lists.items()}

    def same(event: Event) -> tuple[object, ...]:
        """What must be equal on all ranks of a group."""
        action, op, *part = event
        # gloo aborts the process where sizes differ.
        sizes = tuple(program.local_bytes(program.tensor[name]) for name in op.reads)
        return (action, *part, op.operator, op.bytes, op.dtype, op.reduce, sizes, along(op))

    # Against the first rank only: equality is transitive.
    first, *others = chosen
    for rank in others:
        difference = _first_difference(chosen[first], chosen[rank], (first, rank), same, ': collective')
        if len(chosen[rank]) != len(chosen[first]):
            counts = f'{len(chosen[first])} collectives and rank {rank} {len(chosen[rank])}'
            yield f'{where}: rank {first} has {counts}{difference}'
        elif difference:
            yield f'{where}{difference}'


def _first_difference(
    one: list[Event], other: list[Event], ranks: tuple[int, int], same: Callable[[Event], object], what: str
) -> str:
    # The shorter list ends the search; the lengths were compared before.
    for index, (ours, theirs) in enumerate(zip(one, other, strict=False)):
        if same(ours) != same(theirs):
            there = f'{_describe(ours)} on rank {ranks[0]} but {_describe(theirs)} on rank {ranks[1]}'
            return f'{what} {index} is {there}'
    return ''


def _describe(event: Event) -> str:
    action, op, *_ = event
    reduce = f' {op.reduce}' if op.reduce else ''
    return f'{action} ({op.operator}{reduce}, {format_size(op.bytes)} of {op.dtype})'


def _pairs(lists: dict[int, list[Event]], group: list[int], where: str) -> Iterator[str]:
    """Sends against receives, in both directions of every pair of ranks."""
    sent: dict[tuple[int, int], list[Event]] = {}
    received: dict[tuple[int, int], list[Event]] = {}
    for position, rank in enumerate(group):
        for event in lists[rank]:
            op = event[1]
            peer = group[(position + op.peer) % len(group)]
            if op.kind != 'collective' and peer == rank:
                yield f'{where}: {event[0]} on rank {rank} is its own peer'
            elif op.kind == 'send':
                sent.setdefault((rank, peer), []).append(event)
            elif op.kind == 'recv':
                received.setdefault((peer, rank), []).append(event)
    for pair in sorted({*sent, *received}):
        yield from _pair(sent.get(pair, []), received.get(pair, []), pair, where)


def _pair(sends: list[Event], receives: list[Event], pair: tuple[int, int], where: str) -> Iterator[str]:
    source, target = pair
    if len(sends) != len(receives):
        counts = f'{len(sends)} sends and rank {target} {len(receives)} receives from it'
        yield f'{where}: rank {source} has {counts}'
    if difference := _first_difference(sends, receives, pair, lambda one: (one[1].bytes, one[1].dtype, *one[2:]), ''):
        yield f'{where}: message{difference}'


def _buffers(program: Program) -> Iterator[str]:
    # A role that no rank has can do no harm.
    used = set(program.role_of_rank.tolist())
    for index, role in enumerate(program.roles):
        if index in used:
            yield from hazards(program, role)


def _cycles(program: Program) -> Iterator[str]:
    """A cycle over the union of all ranks' issue orders of collectives, if there is one."""
    after: dict[str, dict[str, int]] = {}
    for rank in range(program.world):
        for one, two in itertools.pairwise(_issued(program, rank)):
            # Neighbours suffice: a longer way round is made of them. One rank is kept to name in the message.
            after.setdefault(one, {}).setdefault(two, rank)
    try:
        TopologicalSorter(after).prepare()
    except CycleError as error:
        # It lists what comes after before what comes before. The smallest first: one program has one message.
        cycle = error.args[1][:0:-1]
        first = cycle.index(min(cycle))
        steps = itertools.pairwise([*cycle[first:], *cycle[: first + 1]])
        edges = [f'{one} before {two} on rank {after[one][two]}' for one, two in steps]
        yield 'collectives are issued in a cycle: ' + ', '.join(edges)


def _issued(program: Program, rank: int) -> Iterator[str]:
    """A rank's collectives in issue order, each by a name that all ranks of its group give it."""
    role = program.role(rank)
    times: Counter[str] = Counter()
    for slot in range(len(role)):
        op = program.op(role, slot)
        if op.kind == 'collective':
            group = program.partitions[op.partition].members(rank)
            name = f'{program.action(role, slot)} of group {group} on {role.streams[int(role.stream[slot])]}'
            times[name] += 1
            # The same op may occur several times in a step; numbered, it is a node of its own each time.
            yield name if times[name] == 1 else f'{name}, time {times[name]},'


# Hazards: whether needs and stream order imply the order of everything that touches one buffer. Unlike
# ``program/role.py``, which derives needs from dataflow, this takes the needs that a program carries: a vector clock
# over streams says what each slot knows to have finished, and every access is held against it.

STEPS = 2
GIVEN = frozenset({'parameter', 'state', 'input'})
"""Kinds of tensors that exist before the first op."""
MADE = frozenset({'gathered', 'view'})
"""Kinds of tensors that are made of a parameter, and old when it changes."""


@dataclass(slots=True)
class _Buffer:
    """Who wrote an instance of a tensor last (-1: before the program), who has read it since, whether it exists.

    Arguments: ``old``, who has changed since the parameter that it was gathered from (-1: nobody).
    """

    exists: bool
    writer: int = -1
    readers: list[int] = field(default_factory=list)
    old: int = -1


def hazards(program: Program, role: Role) -> Iterator[str]:
    """Every hazard of a role, in words, over two steps back to back."""
    progress = clocks(role)
    buffers: dict[Instance, _Buffer] = {}
    seen: set[str] = set()
    # Two steps, since an access may clash with one of the step before.
    for position in range(STEPS * len(role)):
        if position == len(role):
            _new_inputs(program, buffers)
        for problem in _touch(program, role, position, progress, buffers):
            # A hazard within a step shows in both steps.
            if problem not in seen:
                seen.add(problem)
                yield f'role {role.name}: {problem}'


def clocks(role: Role) -> NDArray[np.int64]:
    """Shape [steps × slots, streams]: the last position of each stream that has finished when a slot starts."""
    count, needs, carried = len(role), role.needs(), role.carried()
    progress = np.full((STEPS * count, len(role.streams)), -1, dtype=np.int64)
    last = [-1] * len(role.streams)
    for position in range(STEPS * count):
        slot, base = position % count, position - position % count
        stream = int(role.stream[slot])
        before = [base + need for need in needs[slot]]
        before += [base - count + need for need in carried[slot] if base]
        # A stream is in order, so its earlier ops count as needs.
        before += [last[stream]] if last[stream] >= 0 else []
        for other in before:
            # What a need knew to have finished, whoever waits for it knows too.
            np.maximum(progress[position], progress[other], out=progress[position])
            own = int(role.stream[other % count])
            progress[position, own] = max(progress[position, own], other)
        last[stream] = position
    return progress


def _touch(
    program: Program, role: Role, position: int, progress: NDArray[np.int64], buffers: dict[Instance, _Buffer]
) -> Iterator[str]:
    """Hold one slot's accesses against what it knows to have finished, then record them."""
    count = len(role)
    slot = position % count
    op, clock = program.op(role, slot), progress[position]
    action = program.action(role, slot)

    def late(other: int) -> bool:
        # -1: written before the program. The op itself may read and write one buffer.
        return other not in (-1, position) and int(clock[int(role.stream[other % count])]) < other

    def buffer(name: str) -> _Buffer:
        tensor = program.tensor[name]
        key = instance(tensor, int(role.micro_batch[slot]), int(role.copy[slot]))
        return buffers.setdefault(key, _Buffer(exists=tensor.kind in GIVEN))

    for name in op.reads:
        past = buffer(name)
        if not past.exists:
            yield f'{action} reads {name}, which nothing has written'
        if past.old >= 0:
            yield f'{action} reads {name}, gathered before {_named(program, role, past.old)} changed what it is made of'
        if late(past.writer):
            yield f'{action} reads {name} without waiting for {_named(program, role, past.writer)}, which writes it'
        # Reads never clash with one another; they are kept for the next write.
        past.readers.append(position)
    changed = (*op.writes, *op.accumulates, *op.frees)
    # Recorded only after all checks, or an op's own write would hide a missing need.
    for name in changed:
        past = buffer(name)
        for reader in filter(late, past.readers):
            yield f'{action} changes {name} without waiting for {_named(program, role, reader)}, which reads it'
        if late(past.writer):
            yield f'{action} changes {name} without waiting for {_named(program, role, past.writer)}, which writes it'
    for name in op.frees:
        # An op may free what it writes itself.
        if name not in op.writes + op.accumulates and not buffer(name).exists:
            yield f'{action} frees {name}, which nothing has written'
    for name in changed:
        past = buffer(name)
        past.writer, past.readers, past.exists, past.old = position, [], name not in op.frees, -1
    parameters = {name for name in op.writes if program.tensor[name].kind == 'parameter'}
    for made in _made_of(program, parameters, buffers) if parameters else ():
        made.old = position


def _made_of(program: Program, written: set[str], buffers: dict[Instance, _Buffer]) -> Iterator[_Buffer]:
    """Find the gathered parameters and views that were made of the written parameters or of their members."""
    packed = {member for name in written for member in program.tensor[name].members}
    for key, buffer in buffers.items():
        tensor = program.tensor[key[0]]
        made = tensor.like in written or tensor.name in packed or not written.isdisjoint(tensor.members)
        if tensor.kind in MADE and made and buffer.exists:
            yield buffer


def _named(program: Program, role: Role, position: int) -> str:
    return program.action(role, position % len(role))


def _new_inputs(program: Program, buffers: dict[Instance, _Buffer]) -> None:
    """Give the next step its inputs anew, whatever the step before has freed."""
    for key, buffer in buffers.items():
        if program.tensor[key[0]].kind == 'input':
            buffer.exists, buffer.writer, buffer.readers = True, -1, []
