"""The program of all ranks, and its turns: which slots do the same."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from simpar.errors import Infeasible, ProgramError
from simpar.program.op import (
    BYTES,
    OpClass,
    OpKind,
    Partition,
    Tensor,
    computes,
    is_packed,
    is_per_rank,
    receives,
)
from simpar.program.role import Csr, Role, Slots, derive, named_by

# Turns: what communicates meets by its order, the k-th op of a kind with the k-th of the kind that faces it.

Ints = NDArray[np.int32]
NONE: Final = -1


class Kind(NamedTuple):
    """What is counted apart, as ops of a kind meet in their order.

    Arguments: ``peer``, how many positions further in the group the peer of a send or receive stands, from 0.
    """

    kind: OpKind
    partition: str
    peer: int
    stream: str

    def facing(self, size: int) -> Kind:
        """The kind of what this one meets, in groups of a size."""
        if self.kind == 'collective':
            return self
        # Modulo the size: from 0 to 1 of a group of two, +1 and −1 are one offset.
        return self._replace(kind='recv' if self.kind == 'send' else 'send', peer=-self.peer % size)


@dataclass(frozen=True, eq=False)
class Turns:
    """The communication ops of a role, counted.

    Arguments:
        kinds: those that the role has.
        kind: shape [slots], the number of a slot's kind; -1 where it computes.
        turn: shape [slots], how many slots of its kind stand before it.
    """

    kinds: tuple[Kind, ...]
    kind: Ints
    turn: Ints

    @cached_property
    def slots(self) -> Csr:
        """For each kind its slots, in their order."""
        meets = np.flatnonzero(self.kind != NONE)
        return Csr.of(self.kind[meets], meets, len(self.kinds))

    @cached_property
    def of_kind(self) -> dict[Kind, tuple[int, ...]]:
        """The same by kind."""
        return dict(zip(self.kinds, self.slots.rows(), strict=True))


def turns_of(
    role: Role, op_classes: Sequence[OpClass], partitions: dict[str, Partition], computing: NDArray[np.bool_]
) -> Turns:
    """The turns of a role's slots. Arguments: ``computing``, shape [op classes], whether each is no communication."""
    slots = np.flatnonzero(~computing[role.op_class])
    streams = len(role.streams)
    # Kinds are worked out once for each op class and stream, not once for each slot.
    key = role.op_class[slots].astype(np.int64) * streams + role.stream[slots]
    numbers: dict[Kind, int] = {}
    of_key = np.full(len(op_classes) * streams, NONE, dtype=np.int64)
    for one in np.flatnonzero(np.bincount(key, minlength=1)).tolist():
        op, stream = op_classes[one // streams], role.streams[one % streams]
        kind = Kind(op.kind, op.partition, op.peer % partitions[op.partition].size, stream)
        of_key[one] = numbers.setdefault(kind, len(numbers))
    mine = of_key[key]
    # Stable, so that turns of a kind count in issue order.
    order = np.argsort(mine, kind='stable')
    count = np.bincount(mine, minlength=1)
    of_slot, turn = np.full(len(role), NONE, dtype=np.int32), np.zeros(len(role), dtype=np.int32)
    of_slot[slots] = mine
    turn[slots[order]] = np.arange(len(order)) - np.repeat(np.cumsum(count) - count, count)
    return Turns(tuple(numbers), of_slot, turn)


def unlike(program: Program) -> str:
    """Which two ops meet in a collective and do other work than one another; empty: none do.

    What meets is one collective, with one duration: so all its ops must have one cost key.
    """
    # Ranks of one role call the same.
    if len(program.roles) == 1:
        return ''
    kinds, ops = program.cost_kinds
    partitions = dict.fromkeys(op.partition for op in ops if op.kind == 'collective')
    for partition in partitions:
        of_group = program.role_of_rank[program.partitions[partition].groups_GP]
        # Ranks of one role call the same: only groups of several roles are looked at.
        several = of_group[(of_group != of_group[:, :1]).any(axis=1)]
        pairs = {pair for group in several.tolist() for pair in pairwise(dict.fromkeys(group))}
        for one, other in sorted(pairs):
            called = [_called(program, role, partition) for role in (one, other)]
            for stream in called[0].keys() & called[1].keys():
                slots = [of[stream][: min(len(own[stream]) for own in called)] for of in called]
                mine, theirs = (program.roles[role].op_class[of] for role, of in zip((one, other), slots, strict=True))
                differ = np.flatnonzero(kinds[mine] != kinds[theirs])
                if len(differ):
                    op_names = [program.op_classes[int(of[differ[0]])].name for of in (mine, theirs)]
                    names = [program.roles[role].name for role in (one, other)]
                    ends = [f'{op} of role {name}' for op, name in zip(op_names, names, strict=True)]
                    return f'{" meets ".join(ends)} on partition {partition}'
    return ''


def _called(program: Program, role: int, partition: str) -> dict[str, Ints]:
    """By stream the slots of a role's collectives on a partition, in their order."""
    of_kind = program.turns[role].of_kind.items()
    return {kind.stream: np.array(slots) for kind, slots in of_kind if kind[:2] == ('collective', partition)}


# Program, the keystone: what every rank does, in what order, on which stream, after what. It holds no seconds.

HEADER = 'simpar-program 1'
Row = TypeVar('Row')
Made = TypeVar('Made')
Value = TypeVar('Value', bound=np.generic)


@dataclass(frozen=True, eq=False, repr=False)
class Program:
    """Roles × (rank → role) × partitions, and the tables of op classes and tensors that the roles index.

    Arguments:
        roles: see ``Role``.
        role_of_rank: shape [world], index into ``roles``.
        partitions: by name; an op names a partition, never a list of ranks.
        op_classes, tensors: the tables; a tensor is found by its name.
        micro_batches, copies: how often the batch is split; a copy is a slice of a micro-batch.
        notes: choices that the plan asked for and lowering could not keep, in words.
        batched: all that is sent and received between two computations is one exchange, issued in one batch.
    """

    roles: tuple[Role, ...]
    role_of_rank: NDArray[np.int32]
    partitions: dict[str, Partition]
    op_classes: Sequence[OpClass]
    tensors: Sequence[Tensor]
    micro_batches: int = 1
    copies: int = 1
    notes: tuple[str, ...] = field(default=())
    batched: bool = False

    def __repr__(self) -> str:
        return f'Program({self.hash[:12]!r}, ranks={self.world}, roles={len(self.roles)})'

    def __getstate__(self) -> dict[str, Any]:
        """What goes to another process: all but what machines of this one have worked out."""
        return {name: value for name, value in vars(self).items() if name != '_made'}

    @property
    def world(self) -> int:
        """Number of ranks."""
        return len(self.role_of_rank)

    @cached_property
    def ends_in_messages(self) -> bool:
        """Whether messages behind a step's last computation go on under the next one's, as gathers of weights do."""
        # A role whose last op computes leaves no message that could run into the next step.
        return any(self.op_classes[role.op_class.item(-1)].kind != 'compute' for role in self.roles)

    @cached_property
    def receives(self) -> bool:
        """Whether ranks receive from others: the next step's receives may be posted under this one's computation."""
        return bool(self.op_column(receives, np.bool_).any())

    @property
    def followed(self) -> bool:
        """Whether a step that none follows may be shorter."""
        return self.ends_in_messages or self.receives

    @cached_property
    def tensor(self) -> dict[str, Tensor]:
        """Tensors by name."""
        return {tensor.name: tensor for tensor in self.tensors}

    def op_column(self, of: Callable[[OpClass], Any], kind: type[Value]) -> NDArray[Value]:
        """Shape [op classes], what a function says of each, worked out once: all machines ask.

        Arguments: ``of``, a function of a module; one that is made anew would be another each time.
        """
        return _column(self._columns, self.op_classes, of, kind)

    def tensor_column(self, of: Callable[[Tensor], Any], kind: type[Value]) -> NDArray[Value]:
        """Shape [tensors], the same of tensors."""
        return _column(self._columns, self.tensors, of, kind)

    def once(self, name: str, key: Hashable, make: Callable[[], Made]) -> Made:
        """What a machine has worked out of the program for a key, where it was the last one of that name to be asked.

        Arguments: ``make``, what works it out. It lives no longer than the program.
        """
        # Pairs are read and written as one, so that threads never see half of one.
        pair = self._made.get(name)
        if pair is None or pair[0] != key:
            pair = self._made[name] = key, make()
        answer: Made = pair[1]
        return answer

    @cached_property
    def _made(self) -> dict[str, tuple[Hashable, Any]]:
        return {}

    @cached_property
    def _columns(self) -> dict[Hashable, NDArray[Any]]:
        return {}

    @cached_property
    def cost_kinds(self) -> tuple[NDArray[np.int64], tuple[OpClass, ...]]:
        """For each op class the number of its cost key, and an op class of each key: these cost the same."""
        numbers: dict[tuple[object, ...], int] = {}
        kinds: list[int] = []
        ops: list[OpClass] = []
        for op in self.op_classes:
            kinds.append(numbers.setdefault(op.cost_key, len(ops)))
            if kinds[-1] == len(ops):
                ops.append(op)
        return np.array(kinds, dtype=np.int64), tuple(ops)

    @cached_property
    def named(self) -> Csr:
        """For each op class four lists: the numbers of the tensors that it reads, writes, accumulates to and frees."""
        return named_by(self.op_classes, self.tensors)

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the text form: equal hashes, equal programs."""
        return digest(self)

    def role(self, rank: int) -> Role:
        """The role of a rank."""
        return self.roles[int(self.role_of_rank[rank])]

    @cached_property
    def turns(self) -> tuple[Turns, ...]:
        """For each role, in which order its ops meet those of others."""
        computing = self.op_column(computes, np.bool_)
        return tuple(turns_of(role, self.op_classes, self.partitions, computing) for role in self.roles)

    @cached_property
    def tensors_of_role(self) -> tuple[frozenset[str], ...]:
        """For each role, the names of the tensors that its ops touch: what its ranks hold."""
        touched = [{*op.reads, *op.writes, *op.accumulates} for op in self.op_classes]
        return tuple(
            frozenset().union(*(touched[index] for index in set(role.op_class.tolist()))) for role in self.roles
        )

    @cached_property
    def is_sliced(self) -> NDArray[np.bool_]:
        """Shape [op classes], as ``sliced`` says."""
        return np.array(list(map(self.sliced, self.op_classes)), dtype=np.bool_)

    def holds(self, rank: int, tensor: str) -> bool:
        """Whether a rank has its shard of a tensor."""
        return tensor in self.tensors_of_role[int(self.role_of_rank[rank])]

    def op(self, role: Role, slot: int) -> OpClass:
        """The op class of a slot."""
        return self.op_classes[int(role.op_class[slot])]

    def sliced(self, op: OpClass) -> bool:
        """Whether an op is done for each micro-batch and copy; sums of gradients and updates are done once a step."""
        names = (*op.reads, *op.writes, *op.accumulates)
        # An op without tensors, as a pure barrier, is done wherever it is issued.
        return not names or any(self.tensor[name].batch_dim is not None for name in names)

    def action(self, role: Role, slot: int) -> str:
        """A slot as readers name it: ``layer0.qkv.F`` and, where there are several, ``.mb1`` and ``.c0``."""
        name = self.op(role, slot).name
        if not self.is_sliced[role.op_class[slot]]:
            return name
        if self.micro_batches > 1:
            name += f'.mb{role.micro_batch[slot]}'
        return f'{name}.c{role.copy[slot]}' if self.copies > 1 else name

    def local_shape(self, tensor: Tensor) -> tuple[int, ...]:
        """Shape of the shard that one rank holds (of one copy, where copies split it)."""
        return tensor.local_shape(self.partitions, self.copies)

    def local_bytes(self, tensor: Tensor) -> int:
        """Bytes of the shard that one rank holds; with the padding behind it, where it ends a buffer that is padded."""
        elements = prod(self.local_shape(tensor)) + self._padding.get(tensor.name, 0)
        return (elements if tensor.fill == 1 else round(elements * tensor.fill)) * BYTES[tensor.dtype]

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Shape [tensors]: ``local_bytes`` of each."""
        try:
            return np.array(list(map(self.local_bytes, self.tensors)), dtype=np.int64)
        except OverflowError:
            largest = max(self.tensors, key=self.local_bytes)
            what = f'{largest.name} has {self.local_bytes(largest):.3g} bytes on a rank, more than can be counted'
            raise Infeasible(
                f'{what}; write a smaller batch, sequence or width, or shard them over more ranks'
            ) from None

    @cached_property
    def _padding(self) -> dict[str, int]:
        """Elements behind the last member of each packed parameter: it is gathered into one buffer, padding and all."""
        packed = [tensor for tensor in self.tensors if is_packed(tensor) and not tensor.apart]
        return {
            tensor.members[-1]: prod(tensor.shape)
            - sum(prod(self.local_shape(self.tensor[name])) for name in tensor.members)
            for tensor in packed
        }

    def replace(self, **changes: object) -> Program:
        """The same program with some fields changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def with_roles(self, roles: Sequence[Role]) -> Program:
        """The same tables with other roles."""
        made = self.replace(roles=tuple(roles))
        # It follows from the tables alone, and takes long to find.
        if 'named' in self.__dict__:
            made.__dict__['named'] = self.named
        return made

    def unfold(self) -> Program:
        """The same program with one role per rank, for machines that tell ranks apart."""
        # The arrays are shared, so that unfolding a thousand ranks costs a thousand headers.
        roles = tuple(dataclasses.replace(self.role(r), name=f'rank{r}') for r in range(self.world))
        return self.replace(roles=roles, role_of_rank=np.arange(self.world, dtype=np.int32))


def _column(
    columns: dict[Hashable, NDArray[Any]], rows: Sequence[Row], of: Callable[[Row], Any], kind: type[Value]
) -> NDArray[Value]:
    """A column of a table, which is kept among the columns of its program."""
    if (of, kind) not in columns:
        columns[of, kind] = np.array([of(row) for row in rows], dtype=kind)
    return columns[of, kind]


# the text form, which ``text`` describes and reads back


def format_program(program: Program) -> str:
    """The text form."""
    return '\n'.join(_lines(program)) + '\n'


def digest(program: Program) -> str:
    """SHA-256 of the text form, in hex."""
    return hashlib.sha256(format_program(program).encode()).hexdigest()


def _line(keyword: str, value: object) -> str:
    # NaN is no JSON, and two programs with one would not compare.
    return f'{keyword} {json.dumps(value, ensure_ascii=False, allow_nan=False)}'


def _lines(program: Program) -> Iterator[str]:
    # A version on the first line, so that a later form can be told apart.
    yield HEADER
    yield _line(
        'program',
        {
            'world': program.world,
            'micro_batches': program.micro_batches,
            'copies': program.copies,
            'notes': list(program.notes),
            # Left out where it is not so: texts and hashes of programs without exchanges stay what they were.
            **({'batched': True} if program.batched else {}),
        },
    )
    for partition in program.partitions.values():
        yield _line('partition', {'name': partition.name, 'groups': partition.groups_GP.tolist()})
    for tensor in program.tensors:
        yield _line('tensor', _fields(tensor))
    for op in program.op_classes:
        yield _line('op', _fields(op))
    for index, role in enumerate(program.roles):
        ranks = np.flatnonzero(program.role_of_rank == index).tolist()
        yield _line('role', {'name': role.name, 'streams': list(role.streams), 'ranks': ranks})
        yield from _slots(program, role)


def _slots(program: Program, role: Role) -> Iterator[str]:
    names = [op.name for op in program.op_classes]
    columns = zip(
        role.op_class.tolist(), role.stream.tolist(), role.micro_batch.tolist(), role.copy.tolist(), strict=True
    )
    for (op, stream, micro_batch, copy), needs, carry in zip(columns, role.needs(), role.carried(), strict=True):
        yield _line('slot', [names[op], role.streams[stream], micro_batch, copy, list(needs), list(carry)])


def _fields(row: OpClass | Tensor) -> dict[str, Any]:
    """The fields of a row that differ from their defaults."""
    entries: dict[str, Any] = {}
    for one in dataclasses.fields(row):
        value = getattr(row, one.name)
        default = one.default_factory() if one.default_factory is not dataclasses.MISSING else one.default
        if value != default:
            if one.name == 'splits':
                # The text says ``cuts``, as programs that were kept and hashed before this name do.
                entries['cuts'] = [[split.dim, split.partition] for split in value]
            else:
                entries[one.name] = value
    return entries


# Builds a Program: append slots in issue order by the names of their op classes; needs come from dataflow.


class ProgramBuilder:
    """Collects tables and roles; ``build`` returns the frozen Program."""

    def __init__(self, world: int, partitions: Iterable[Partition] = ()) -> None:
        self._world = world
        self._partitions = {partition.name: partition for partition in partitions}
        self._op_classes: dict[str, OpClass] = {}
        self._index: dict[str, int] = {}
        self._tensors: dict[str, Tensor] = {}
        self._roles: list[tuple[str, tuple[str, ...], Slots, Sequence[int]]] = []

    def add_tensor(self, tensor: Tensor) -> Tensor:
        """Put a tensor into its table."""
        if tensor.name in self._tensors:
            raise ProgramError(f'two tensors are named {tensor.name!r}')
        self._tensors[tensor.name] = tensor
        return tensor

    def add_op_class(self, op: OpClass) -> OpClass:
        """Put an op class into its table."""
        if op.name in self._op_classes:
            raise ProgramError(f'two op classes are named {op.name!r}')
        self._index[op.name] = len(self._op_classes)
        self._op_classes[op.name] = op
        return op

    def add_role(
        self,
        name: str,
        ranks: Sequence[int],
        slots: Iterable[tuple[str, str, int, int] | tuple[str, str, int, int, tuple[int, ...]]],
        streams: tuple[str, ...],
    ) -> None:
        """Add a role of these ranks.

        Arguments: ``slots`` in issue order as (op class name, stream name, micro-batch, copy[, earlier slots that must
        have finished too]).
        """
        number = {stream: index for index, stream in enumerate(streams)}
        issued = list(slots)
        rows = [(self._index[slot[0]], number[slot[1]], slot[2], slot[3]) for slot in issued]
        after = [(place, one) for place, slot in enumerate(issued) for many in slot[4:] for one in many]
        # reshape keeps four columns where there are no slots at all.
        op_class, stream, micro_batch, copy = np.array(rows, dtype=np.int64).reshape(-1, 4).T
        pairs = np.array(after, dtype=np.int64).reshape(-1, 2)
        self.add_slots(name, ranks, Slots.of(op_class, micro_batch, copy, stream, pairs), streams)

    def add_slots(self, name: str, ranks: Sequence[int], slots: Slots, streams: tuple[str, ...]) -> None:
        """Add a role of these ranks whose slots are in columns.

        Arguments: ``slots``, whose op classes are numbered as they were added, see ``index``; and its streams as here.
        """
        self._roles.append((name, streams, slots, ranks))

    @property
    def index(self) -> Mapping[str, int]:
        """By name, the number of each op class in its table."""
        return self._index

    def build(
        self, micro_batches: int = 1, copies: int = 1, notes: tuple[str, ...] = (), *, batched: bool = False
    ) -> Program:  # fmt: skip
        """The frozen Program, its needs derived."""
        role_of_rank = np.zeros(self._world, dtype=np.int32)
        for index, (*_, ranks) in enumerate(self._roles):
            # Lowering names every rank; one that a hand-made program leaves out falls to the first role.
            role_of_rank[list(ranks)] = index
        tables = Program(
            roles=(),
            role_of_rank=role_of_rank,
            partitions=dict(self._partitions),
            op_classes=tuple(self._op_classes.values()),
            tensors=tuple(self._tensors.values()),
            micro_batches=micro_batches,
            copies=copies,
            notes=notes,
            batched=batched,
        )
        per_rank, made = tables.tensor_column(is_per_rank, np.bool_), list[Role]()
        for name, streams, slots, _ in self._roles:
            need, carry = derive(slots, tables.named, per_rank, len(streams))
            made.append(Role(name, streams, *slots.columns, need, carry))
        return tables.with_roles(made)
